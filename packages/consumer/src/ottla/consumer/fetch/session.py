"""Fetch sessions: saying to a broker only what changed since the last request (KIP-227). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition

NO_SESSION = 0
OPENING = 0
LAST_EPOCH = 0x7FFFFFFF


class Wanted(NamedTuple):
    """From where a partition is fetched."""

    offset: int
    leader_epoch: int


class Asked(NamedTuple):
    """What one request says."""

    session_id: int
    epoch: int
    partitions: Mapping[TopicPartition, Wanted]
    forgotten: tuple[TopicPartition, ...]


class FetchSession:
    """The session with one broker; brokers that have none are asked in full each time."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = OPENING
        self._known: dict[TopicPartition, Wanted] = {}

    def ask(self, wanted: Mapping[TopicPartition, Wanted]) -> Asked:
        """Return what to say so that the broker knows that these are wanted, and no others."""
        known, self._known = self._known, dict(wanted)
        if self._epoch == OPENING:
            return Asked(self._id, OPENING, self._known, ())
        changed = {partition: each for partition, each in wanted.items() if known.get(partition) != each}
        forgotten = tuple(partition for partition in known if partition not in wanted)
        return Asked(self._id, self._epoch, changed, forgotten)

    def answered(self, session_id: int, error_code: int) -> None:
        """Take note of the answer to the last request."""
        if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._id, self._epoch = NO_SESSION, OPENING
        elif error_code != ErrorCode.NONE:
            self.broke()
        elif session_id == NO_SESSION:
            self._id, self._epoch = NO_SESSION, OPENING
        else:
            self._id = session_id
            self._epoch = self._epoch + 1 if self._epoch < LAST_EPOCH else 1

    def broke(self) -> None:
        """Begin anew: nobody knows what the broker knows. It closes the old session at that."""
        self._epoch = OPENING
