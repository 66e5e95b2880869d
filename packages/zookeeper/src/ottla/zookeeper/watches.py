"""One-shot watches: which are armed, and who hears what.

`WatchTable` is the server's side, `ArmedWatches` the client's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from ottla.zookeeper.session import EventType, Watch, WatchEvent

W = TypeVar("W", bound=Hashable)


class TreeEvent(NamedTuple):
    """What watches may be told."""

    type: EventType
    path: str


class WatchKind(Enum):
    """DATA is armed by get and exists, CHILDREN by children."""

    DATA = "data"
    CHILDREN = "children"


class WatchTable(Generic[W]):
    """Which watchers wait for which path, forgotten as soon as they are told."""

    def __init__(self) -> None:
        self._data: dict[str, dict[W, None]] = {}
        self._children: dict[str, dict[W, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._data.values())) + sum(map(len, self._children.values()))

    def arm(self, kind: WatchKind, path: str, watcher: W) -> None:
        """Let `watcher` hear the next event at `path`."""
        table = self._data if kind is WatchKind.DATA else self._children
        table.setdefault(path, {})[watcher] = None

    def forget(self, watcher: W) -> None:
        """Drop everything a watcher waits for."""
        for table in (self._data, self._children):
            for path in [path for path, watchers in table.items() if watcher in watchers]:
                del table[path][watcher]
                if not table[path]:
                    del table[path]

    def fire(self, events: Iterable[TreeEvent]) -> list[tuple[W, TreeEvent]]:
        """Return who hears what, in order. One deletion is told once per watcher."""
        told: list[tuple[W, TreeEvent]] = []
        for event in events:
            hearers: dict[W, None] = {}
            if event.type is not EventType.CHILD:
                hearers.update(self._data.pop(event.path, {}))
            if event.type in (EventType.CHILD, EventType.DELETED):
                hearers.update(self._children.pop(event.path, {}))
            told.extend((watcher, event) for watcher in hearers)
        return told


class ArmedWatches:
    """The watches a session's owner armed and has not heard of yet."""

    def __init__(self) -> None:
        self._armed: dict[tuple[WatchKind, str], dict[Watch, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._armed.values()))

    def arm(self, kind: WatchKind, path: str, watch: Watch) -> bool:
        """Remember `watch`; tell whether it was not armed before."""
        watches = self._armed.setdefault((kind, path), {})
        fresh = watch not in watches
        watches[watch] = None
        return fresh

    def disarm(self, kind: WatchKind, path: str, watch: Watch) -> None:
        """Forget `watch`, which could not be armed."""
        watches = self._armed.get((kind, path), {})
        watches.pop(watch, None)
        if not watches:
            self._armed.pop((kind, path), None)

    def take(self, kinds: Iterable[WatchKind], path: str) -> list[Watch]:
        """Take out the watches at `path`, each once."""
        taken: dict[Watch, None] = {}
        for kind in kinds:
            taken.update(self._armed.pop((kind, path), {}))
        return list(taken)

    def take_all(self, session_number: int) -> list[tuple[Watch, WatchEvent]]:
        """Take out everything, with the event of type NONE that each has to hear."""
        armed, self._armed = self._armed, {}
        return [
            (watch, WatchEvent(EventType.NONE, path, session_number))
            for (_, path), watches in armed.items()
            for watch in watches
        ]


def kinds_of(event: EventType) -> tuple[WatchKind, ...]:
    """Which kinds of watch an event ends."""
    if event is EventType.CHILD:
        return (WatchKind.CHILDREN,)
    if event is EventType.DELETED:
        return (WatchKind.DATA, WatchKind.CHILDREN)
    return (WatchKind.DATA,)
