"""A follower's half of a fetch session: requests carry only the partitions that changed (KIP-227). Pure.

The leader remembers the partitions of the session and what was last said about each. A request lists what has
changed since the last one; the epoch, which rises by one with each request, lets either side notice that the
other has lost count. Then, and after any failure, a full request begins a new session.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ottla.broker.replication.follower_rules import FetchPosition
from ottla.protocol.topics import TopicPartition

NO_SESSION: Final = 0
FULL: Final = 0
_MAX_EPOCH: Final = 2**31 - 1


class SessionRequest(NamedTuple):
    """The session's part of one fetch request."""

    session_id: int
    epoch: int
    changed: list[tuple[TopicPartition, FetchPosition]]
    forgotten: list[TopicPartition]


class FetchSession:
    """The partitions that one fetcher asks one leader for."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = FULL
        self._wanted: dict[TopicPartition, FetchPosition] = {}
        self._known: set[TopicPartition] = set()
        """Partitions that the leader has in the session."""
        self._changed: dict[TopicPartition, None] = {}

    def __len__(self) -> int:
        return len(self._wanted)

    def want(self, partition: TopicPartition, position: FetchPosition) -> None:
        """Ask for a partition from now on, at this position."""
        if self._wanted.get(partition) != position or partition not in self._known:
            self._wanted[partition] = position
            self._changed[partition] = None

    def drop(self, partition: TopicPartition) -> None:
        """Stop asking for a partition."""
        if self._wanted.pop(partition, None) is not None:
            self._changed[partition] = None

    def asked(self, partition: TopicPartition) -> FetchPosition | None:
        """Return the position that the last request had for a partition, if it is still wanted."""
        return self._wanted.get(partition)

    def next_request(self) -> SessionRequest:
        """Return what the next request says; `answered` or `lost` has to follow."""
        if self._epoch == FULL:
            changed, forgotten = list(self._wanted.items()), []
        else:
            changed = [
                (partition, self._wanted[partition])
                for partition in self._changed
                if partition in self._wanted
            ]
            forgotten = [
                partition
                for partition in self._changed
                if partition not in self._wanted and partition in self._known
            ]
        self._known.update(partition for partition, _ in changed)
        self._known.difference_update(forgotten)
        self._changed.clear()
        return SessionRequest(self._id, self._epoch, changed, forgotten)

    def answered(self, session_id: int) -> None:
        """The leader answered; 0 says that it keeps no session, so that requests stay full."""
        if session_id == NO_SESSION:
            self._restart(NO_SESSION)
            return
        if self._epoch == FULL:
            self._id, self._epoch = session_id, 1
        else:
            self._epoch = 1 if self._epoch == _MAX_EPOCH else self._epoch + 1

    def lost(self, *, unknown: bool = False) -> None:
        """Begin a new session: no answer came, or the leader does not know the session (`unknown`)."""
        self._restart(NO_SESSION if unknown else self._id)  # the id lets the leader drop the old one

    def _restart(self, session_id: int) -> None:
        self._id, self._epoch = session_id, FULL
        self._known.clear()
        self._changed.clear()


def by_topic(
    partitions: Iterable[tuple[TopicPartition, FetchPosition]],
) -> dict[str, list[tuple[int, FetchPosition]]]:
    """Group partitions by topic, in the order of each topic's first one."""
    topics: dict[str, list[tuple[int, FetchPosition]]] = {}
    for (topic, partition), position in partitions:
        topics.setdefault(topic, []).append((partition, position))
    return topics
