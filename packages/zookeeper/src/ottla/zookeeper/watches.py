"""One-shot watches: which are armed, and which an event fires.

`WatchTable` is the server's side, `ArmedWatches` the client's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from ottla.zookeeper.session import EventType, Watch, WatchEvent

W = TypeVar("W", bound=Hashable)


class TreeEvent(NamedTuple):
    """A change of the tree that may fire watches."""

    type: EventType
    path: str


class WatchKind(Enum):
    """DATA is armed by get and exists, CHILDREN by children."""

    DATA = "data"
    CHILDREN = "children"


class WatchTable(Generic[W]):
    """The server's armed watches by path; firing removes them."""

    def __init__(self) -> None:
        self._data: dict[str, dict[W, None]] = {}
        self._children: dict[str, dict[W, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._data.values())) + sum(map(len, self._children.values()))

    def arm(self, kind: WatchKind, path: str, watcher: W) -> None:
        """Arm a watch of `watcher` for the next event at `path`."""
        table = self._data if kind is WatchKind.DATA else self._children
        table.setdefault(path, {})[watcher] = None

    def forget(self, watcher: W) -> None:
        """Remove all watches of a watcher."""
        for table in (self._data, self._children):
            for path in [path for path, watchers in table.items() if watcher in watchers]:
                del table[path][watcher]
                if not table[path]:
                    del table[path]

    def fire(self, events: Iterable[TreeEvent]) -> list[tuple[W, TreeEvent]]:
        """Return the watchers of each event, in order. A deletion fires once per watcher."""
        fired: list[tuple[W, TreeEvent]] = []
        for event in events:
            watchers: dict[W, None] = {}
            if event.type is not EventType.CHILD:
                watchers.update(self._data.pop(event.path, {}))
            if event.type in (EventType.CHILD, EventType.DELETED):
                watchers.update(self._children.pop(event.path, {}))
            fired.extend((watcher, event) for watcher in watchers)
        return fired


class ArmedWatches:
    """The client's armed watches."""

    def __init__(self) -> None:
        self._armed: dict[tuple[WatchKind, str], dict[Watch, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._armed.values()))

    def arm(self, kind: WatchKind, path: str, watch: Watch) -> bool:
        """Arm `watch`; return whether it was not armed before."""
        watches = self._armed.setdefault((kind, path), {})
        fresh = watch not in watches
        watches[watch] = None
        return fresh

    def disarm(self, kind: WatchKind, path: str, watch: Watch) -> None:
        """Remove `watch`, whose read failed."""
        watches = self._armed.get((kind, path), {})
        watches.pop(watch, None)
        if not watches:
            self._armed.pop((kind, path), None)

    def take(self, kinds: Iterable[WatchKind], path: str) -> list[Watch]:
        """Remove and return the watches at `path`, each once."""
        taken: dict[Watch, None] = {}
        for kind in kinds:
            taken.update(self._armed.pop((kind, path), {}))
        return list(taken)

    def take_all(self, session_number: int) -> list[tuple[Watch, WatchEvent]]:
        """Remove and return all watches, with an event of type NONE for each."""
        armed, self._armed = self._armed, {}
        return [
            (watch, WatchEvent(EventType.NONE, path, session_number))
            for (_, path), watches in armed.items()
            for watch in watches
        ]


def kinds_of(event: EventType) -> tuple[WatchKind, ...]:
    """Return the kinds of watch that an event fires."""
    if event is EventType.CHILD:
        return (WatchKind.CHILDREN,)
    if event is EventType.DELETED:
        return (WatchKind.DATA, WatchKind.CHILDREN)
    return (WatchKind.DATA,)
