"""Frozen value classes that cost little to define.

A broker defines a hundred classes for its events, effects and responses before it serves its first request.
The standard library's dataclass compiles six methods for each of them; here the constructor is compiled when
the class is first used, and the other methods are shared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform, overload

T = TypeVar("T")

_REQUIRED = object()
_MANY_FIELDS = 100


@overload
def frozen(cls: type[T], /) -> type[T]: ...


@overload
def frozen(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def frozen(cls: Any = None, /, *, kw_only: bool = False) -> Any:
    """Make a frozen, slotted class of annotated fields, as `dataclass(frozen=True, slots=True)` would.

    Values compare, hash and print by their fields, and match by position. Defaults and
    `field(default_factory=...)` work as in a dataclass; `ClassVar`, `__post_init__` and inheritance do not,
    except from classes that `field_group` decorates, whose fields come first.
    """
    if cls is None:
        return lambda decorated: _with_fields(decorated, kw_only)
    return _with_fields(cls, kw_only)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def field_group(cls: type[T], /) -> type[T]:
    """Make a class of fields that a `frozen` class takes over by naming it as a base.

    A class with very many fields is written as several groups, each in the module of its subject. A group has
    no constructor; its methods may use the fields.
    """
    namespace = dict(cls.__dict__)
    defaults = _take_defaults(namespace)
    group: type[T] = _again(cls, namespace | {"__slots__": (), "_declared": defaults})
    return group


def replace(original: T, /, **changes: Any) -> T:
    """Return a copy of a value with changed fields."""
    cls: Any = type(original)
    if len(cls.__slots__) > 1:
        changes = dict(zip(cls.__slots__, cls._fields_of(original), strict=True)) | changes
    else:
        changes = {name: getattr(original, name) for name in cls.__slots__} | changes
    copy: T = cls(**changes)
    return copy


def declared(cls: type) -> Mapping[str, Any]:
    """Return what each field is declared with: a default, or a `field(...)` with its metadata."""
    defaults: Mapping[str, Any] = cls._declared  # type: ignore[attr-defined]
    return defaults


def _with_fields(cls: type, kw_only: bool) -> type:
    """Define the class again, with slots in place of the defaults."""
    namespace = dict(cls.__dict__)
    groups = [base for base in cls.__bases__ if base is not object and hasattr(base, "_declared")]
    names = tuple(name for declaring in (*groups, cls) for name in vars(declaring).get("__annotations__", ()))
    defaults: dict[str, Any] = {}
    for group in groups:
        defaults |= declared(group)
    defaults |= _take_defaults(namespace)
    namespace |= {
        "__slots__": names,
        "__match_args__": () if kw_only else names,
        "__init__": _first_init(names, defaults, kw_only),
        "__setattr__": _refuse_set,
        "__delattr__": _refuse_delete,
        "__reduce__": _reduce,
        "_declared": defaults,
        "_fields_of": staticmethod(attrgetter(*names) if names else _nothing),
    }
    for name, method in (("__eq__", _equal), ("__hash__", _hash), ("__repr__", _show)):
        namespace.setdefault(name, method)
    complete: type = _again(cls, namespace)
    return complete


def _again(cls: Any, namespace: dict[str, Any]) -> Any:
    return type(cls)(cls.__name__, cls.__bases__, namespace)


def _take_defaults(namespace: dict[str, Any]) -> dict[str, Any]:
    """Take the defaults of the fields out of a class's namespace, and what a class with slots cannot have."""
    for leftover in ("__dict__", "__weakref__"):
        namespace.pop(leftover, None)
    return {name: namespace.pop(name) for name in namespace.get("__annotations__", ()) if name in namespace}


def _first_init(names: tuple[str, ...], defaults: dict[str, Any], kw_only: bool) -> Callable[..., None]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        cls = type(self)
        cls.__init__ = _compile_init(cls, names, defaults, kw_only)
        cls.__init__(self, *args, **kwargs)

    return __init__


def _compile_init(
    cls: type, names: tuple[str, ...], defaults: dict[str, Any], kw_only: bool
) -> Callable[..., None]:
    """Write the constructor: each slot is set through its descriptor, which frozen instances do not hide."""
    if kw_only and len(names) > _MANY_FIELDS:
        return _slow_init(names, defaults)
    scope: dict[str, Any] = {"_REQUIRED": _REQUIRED}
    parameters, body = ["self", "*"] if kw_only and names else ["self"], []
    for name in names:
        default = defaults.get(name, _REQUIRED)
        parameter, given = f"{name}=_default_{name}", name
        if not isinstance(default, dataclasses.Field):
            scope[f"_default_{name}"] = default
        elif default.default is not dataclasses.MISSING:
            scope[f"_default_{name}"] = default.default
        else:
            scope[f"_default_{name}"], scope[f"_new_{name}"] = _REQUIRED, default.default_factory
            given = f"_new_{name}() if {name} is _REQUIRED else {name}"
        if default is _REQUIRED:
            parameter = name
        scope[f"_set_{name}"] = cls.__dict__[name].__set__
        parameters.append(parameter)
        body.append(f" _set_{name}(self, {given})")
    source = f"def __init__({', '.join(parameters)}):\n" + ("\n".join(body) or " pass")
    exec(source, scope)
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _slow_init(names: tuple[str, ...], defaults: dict[str, Any]) -> Callable[..., None]:
    """Return a constructor that is not compiled: one of three hundred fields is large, and called once."""

    def __init__(self: Any, **given: Any) -> None:  # noqa: N807
        fields = {name: _default_of(default) for name, default in defaults.items() if name not in given}
        fields |= given
        if missing := [name for name in names if name not in fields]:
            raise TypeError(f"{type(self).__qualname__} lacks {', '.join(missing)}")
        if len(fields) > len(names):
            raise TypeError(f"{type(self).__qualname__} has no {', '.join(fields.keys() - set(names))}")
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    return __init__


def _default_of(default: Any) -> Any:
    if not isinstance(default, dataclasses.Field):
        return default
    return default.default if default.default_factory is dataclasses.MISSING else default.default_factory()


def _nothing(_: Any) -> tuple[()]:
    return ()


def _equal(self: Any, other: Any) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    return self._fields_of(self) == self._fields_of(other)


def _hash(self: Any) -> int:
    return hash(self._fields_of(self))


def _show(self: Any) -> str:
    """Show the fields, but those declared with `repr=False`: they may hold secrets."""
    fields = declared(type(self))
    shown = ", ".join(
        f"{name}={getattr(self, name)!r}"
        for name in self.__slots__
        if getattr(fields.get(name), "repr", True) is not False
    )
    return f"{type(self).__qualname__}({shown})"


def _reduce(self: Any) -> tuple[Any, ...]:
    return _rebuild, (type(self), {name: getattr(self, name) for name in self.__slots__})


def _rebuild(cls: type[T], fields: dict[str, Any]) -> T:
    return cls(**fields)


def _refuse_set(self: Any, name: str, value: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
