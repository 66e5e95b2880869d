"""Fetch sessions: send a broker only what changed since the last Fetch request (KIP-227). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition

NO_SESSION = 0
OPENING = 0
LAST_EPOCH = 0x7FFFFFFF


class Wanted(NamedTuple):
    """Where to fetch a partition from."""

    offset: int
    leader_epoch: int


class SessionRequest(NamedTuple):
    """The session fields and partitions of one Fetch request."""

    session_id: int
    epoch: int
    partitions: Mapping[TopicPartition, Wanted]
    forgotten: tuple[TopicPartition, ...]


class FetchSession:
    """The fetch session with one broker. A broker without sessions is sent all partitions each time."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = OPENING
        self._known: dict[TopicPartition, Wanted] = {}

    def next_request(self, wanted: Mapping[TopicPartition, Wanted]) -> SessionRequest:
        """Return what to send so that the session covers exactly the wanted partitions."""
        known, self._known = self._known, dict(wanted)
        if self._epoch == OPENING:
            return SessionRequest(self._id, OPENING, self._known, ())
        changed = {partition: each for partition, each in wanted.items() if known.get(partition) != each}
        forgotten = tuple(partition for partition in known if partition not in wanted)
        return SessionRequest(self._id, self._epoch, changed, forgotten)

    def answered(self, session_id: int, error_code: int) -> None:
        """Apply the session fields of the response to the last request."""
        if error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._id, self._epoch = NO_SESSION, OPENING
        elif error_code != ErrorCode.NONE:
            self.reset()
        elif session_id == NO_SESSION:
            self._id, self._epoch = NO_SESSION, OPENING
        else:
            self._id = session_id
            self._epoch = self._epoch + 1 if self._epoch < LAST_EPOCH else 1

    def reset(self) -> None:
        """Open a new session with the next request, which makes the broker close this one.

        Needed after a failed request: it is unknown whether the broker applied it.
        """
        self._epoch = OPENING
