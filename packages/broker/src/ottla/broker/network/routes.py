"""From an API key and version to the handler that answers it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.handlers.services import Handler
    from ottla.protocol.api import ApiKey


@dataclass(frozen=True, slots=True)
class Route:
    """One API the broker serves, the versions it serves, and who answers.

    ApiVersions is computed from the list of these.
    """

    api_key: ApiKey
    min_version: int
    max_version: int
    handler: Handler


class Routes:
    """The APIs of one broker by key. Two routes for one key are refused."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._by_key: dict[int, Route] = {}
        for route in routes:
            if route.api_key in self._by_key:
                raise ValueError(f"two routes for {route.api_key!r}")
            self._by_key[int(route.api_key)] = route

    def __iter__(self) -> Iterable[Route]:  # type: ignore[override]
        return iter(self._by_key.values())

    def find(self, api_key: int) -> Route | None:
        """Return the route of an API key, or None where the broker does not serve it."""
        return self._by_key.get(api_key)
