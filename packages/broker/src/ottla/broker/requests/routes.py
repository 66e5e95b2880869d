"""The route of an API: the versions that are served, the handler, and how its requests behave."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from ottla.broker.quotas import Quota
from ottla.broker.requests.context import S

if TYPE_CHECKING:
    from ottla.broker.requests.context import Handler
    from ottla.broker.requests.fast_path import FastPath
    from ottla.broker.requests.permissions import Permission
    from ottla.protocol.api import ApiKey
    from ottla.protocol.schema import Message


def never(request: Any) -> bool:
    """Return that brokers have no requests of their own of this kind."""
    return False


def always(request: Any) -> bool:
    """Return that only brokers send such requests."""
    return True


class RawTokens(NamedTuple):
    """The two ways between a token without a header, and the request and response that stand for it."""

    request_of: Callable[[bytes], Message]
    token_of: Callable[[Any], bytes | None]
    """Returns None for an error, which has no place in a token."""


@dataclass(frozen=True, slots=True)
class Route(Generic[S]):
    """One API that the broker serves, the versions it serves, and the API's handler.

    ApiVersions is computed from the list of routes.
    """

    api_key: ApiKey
    min_version: int
    max_version: int
    handler: Handler[S]
    permissions: tuple[Permission, ...] = ()
    """The operations on resources that requests need; Kafka's documentation of its protocol lists them."""
    quota: Quota = Quota.REQUEST
    """Requests that only brokers send are exempt."""
    stops_with_connection: bool = False
    """Whether the handler is cancelled when its client disconnects: for handlers that only wait."""
    waits_for_clients: bool = False
    """Whether the handler may wait for what other clients do: a stopping broker ends it at once."""
    borrows_buffer: bool = False
    """Whether the request keeps views of the receive buffer instead of owning its bytes.

    The handler is then called as soon as the request is decoded, and the buffer is lent to it until it
    returns: its response must not hold a view, and an awaitable that it returns must not read one.
    """
    appends: bool = False
    """Whether requests carry records, which are appended in order when the handler is called.

    Such a request may begin behind unanswered ones of its API, may be as large as any frame, and holds its
    memory for a short time.
    """
    before_login: bool = False
    """Whether the API may be called before authentication."""
    of_brokers: Callable[[Any], bool] = never
    """Whether only a broker sends such a request, which then has no limit.

    It is asked with the fields before the request's first list.
    """
    fast_path: Callable[[S], FastPath] | None = None
    """Returns the fast path of plain requests, from the broker's parts."""
    raw_tokens: RawTokens | None = None
    """Reads and writes the tokens of a login that follow without the headers of requests."""
    unsupported: Callable[[Iterable[Route[Any]]], Message] | None = None
    """Makes the response, of version 0, to a version that is not served; without it the connection closes."""

    @property
    def is_of_brokers(self) -> bool:
        """Whether only brokers send such requests."""
        return self.of_brokers is always

    def __post_init__(self) -> None:
        if self.is_of_brokers:
            object.__setattr__(self, "quota", Quota.EXEMPT)
        if self.borrows_buffer and inspect.iscoroutinefunction(self.handler):
            # The body of a coroutine function runs after the call has returned, when the buffer is reused.
            raise ValueError(f"the handler of {self.api_key!r} is a coroutine function: it cannot borrow")
        if self.borrows_buffer and (
            self.is_of_brokers or any(permission.is_asked_first for permission in self.permissions)
        ):
            # Such a response has no place for one error: its handler asks, for each topic.
            raise ValueError(f"the handler of {self.api_key!r} borrows: it has to ask for permissions itself")


class Routes(Generic[S]):
    """The APIs of one broker by key. A second route for a key raises ValueError."""

    def __init__(self, routes: Iterable[Route[S]]) -> None:
        self._by_key: dict[int, Route[S]] = {}
        for route in routes:
            if int(route.api_key) in self._by_key:
                raise ValueError(f"two routes for {route.api_key!r}")
            self._by_key[int(route.api_key)] = route

    def __iter__(self) -> Iterator[Route[S]]:
        return iter(self._by_key.values())

    def find(self, api_key: int) -> Route[S] | None:
        """Return the route of an API key, or None where the broker does not serve it."""
        return self._by_key.get(api_key)

    @property
    def of_raw_tokens(self) -> Route[S]:
        """The API whose requests stand for tokens without a header."""
        return next(route for route in self if route.raw_tokens is not None)

    @property
    def record_keys(self) -> frozenset[int]:
        """The keys of the APIs whose requests carry records to append."""
        return frozenset(key for key, route in self._by_key.items() if route.appends)

    def fast_paths(self, services: S) -> list[FastPath]:
        """Return the fast paths that the routes bring."""
        return [route.fast_path(services) for route in self if route.fast_path is not None]
