"""Interceptors of producers and consumers. Their errors are logged and do not reach the client."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ottla.client.serialization import imported

log = logging.getLogger(__name__)

T = TypeVar("T")
End = Callable[[Any, "BaseException | None"], None]
"""Called with the result, or with the error, of what an interceptor saw begin."""


def load(specs: object) -> tuple[object, ...]:
    """Return interceptors, importing those given as text of the form `package.module:name`.

    Raises ValueError for an object without any method that begins with `on_`.
    """
    if isinstance(specs, str):
        specs = [part.strip() for part in specs.split(",") if part.strip()]
    if not isinstance(specs, Sequence):
        specs = (specs,)
    return tuple(_loaded(spec) for spec in specs)


def _loaded(spec: object) -> object:
    found = imported(spec, must_be_callable=False) if isinstance(spec, str) else spec
    if isinstance(found, type):
        raise ValueError(f"an interceptor is an object, not a class: give {found.__name__}()")
    if not any(name.startswith("on_") for name in dir(found)):
        raise ValueError(f"an interceptor has methods such as on_send or on_consume; {spec!r} has none")
    return found


class Interceptors:
    """Calls the methods of several interceptors, in order; each may lack any of the methods."""

    def __init__(self, interceptors: Sequence[object] = ()) -> None:
        self._interceptors = tuple(interceptors)
        self._complained: set[Callable[..., Any]] = set()

    def __bool__(self) -> bool:
        return bool(self._interceptors)

    def methods(self, name: str) -> tuple[Callable[..., Any], ...]:
        """Return the existing methods of a name; callers ask once and skip the call when there are none."""
        found = (getattr(interceptor, name, None) for interceptor in self._interceptors)
        return tuple(method for method in found if method is not None)

    def tell(self, methods: Sequence[Callable[..., Any]], *what: object) -> None:
        """Call all methods; log their errors."""
        for method in methods:
            try:
                method(*what)
            except Exception as error:
                self._complain(method, error)

    def transform(
        self, methods: Sequence[Callable[[T], T | None]], value: T, kind: type[T] | None = None
    ) -> T:
        """Pass a value through all methods: each gets the result of the one before.

        None or an error leaves the value as it is. With a `kind`, a result of another type is an error.
        """
        for method in methods:
            try:
                changed = method(value)
                if not (changed is None or kind is None or isinstance(changed, kind)):
                    raise TypeError(f"it returned {type(changed).__name__}, not {kind.__name__}")
            except Exception as error:
                self._complain(method, error)
            else:
                value = value if changed is None else changed
        return value

    def begin(self, methods: Sequence[Callable[[T], tuple[T, End]]], value: T) -> tuple[T, End]:
        """Pass a value through methods that return it, or another one, and a function to call at its end.

        Return the last value, and a function that calls all of those. An error leaves the value as it is.
        """
        ends: list[End] = []
        for method in methods:
            try:
                value, end = method(value)
            except Exception as error:
                self._complain(method, error)
            else:
                ends.append(end)

        def end_all(result: Any, error: BaseException | None) -> None:
            self.tell(ends, result, error)

        return value, end_all

    def _complain(self, method: Callable[..., Any], error: Exception) -> None:
        # A method that always fails would fill the log: its traceback is logged once.
        if method not in self._complained:
            self._complained.add(method)
            facts = {"method": getattr(method, "__qualname__", repr(method))}
            log.error(
                "an interceptor failed, later failures of it are not logged", extra=facts, exc_info=error
            )
