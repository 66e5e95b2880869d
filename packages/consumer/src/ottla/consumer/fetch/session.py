"""Fetch sessions: send a broker only what changed since the last Fetch request (KIP-227). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from ottla.protocol.errors import ErrorCode
from ottla.protocol.primitives import ZERO_UUID
from ottla.protocol.topics import TopicPartition

NO_SESSION = 0
OPENING = 0
WITHOUT_SESSION = -1
LAST_EPOCH = 0x7FFFFFFF


class Wanted(NamedTuple):
    """Where to fetch a partition from, and by which topic id if not by name."""

    offset: int
    leader_epoch: int
    topic_id: UUID = ZERO_UUID


class SessionRequest(NamedTuple):
    """The session fields and partitions of one Fetch request."""

    session_id: int
    epoch: int
    partitions: Mapping[TopicPartition, Wanted]
    forgotten: Mapping[TopicPartition, UUID]
    """Partitions to leave out, with the ids that the session has of their topics."""


class FetchSession:
    """The fetch session with one broker. A broker without sessions is sent all partitions each time.

    A single partition is asked for without a session: nothing is left out of its requests, and a broker that
    has none to keep answers faster. A session that was opened for more stays when one of them is wanted.
    """

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = OPENING
        self._is_by_id = False
        self._known: dict[TopicPartition, Wanted] = {}

    def next_request(self, wanted: Mapping[TopicPartition, Wanted]) -> SessionRequest:
        """Return what to send so that the session covers exactly the wanted partitions."""
        known, self._known = self._known, dict(wanted)
        if len(wanted) == 1 and self._id == NO_SESSION:
            return SessionRequest(NO_SESSION, WITHOUT_SESSION, self._known, {})
        by_id = are_named_by_id(wanted)
        if by_id != self._is_by_id:  # a session has either ids or names
            self._is_by_id = by_id
            self.reset()
        if self._epoch == OPENING:
            return SessionRequest(self._id, OPENING, self._known, {})
        changed = {
            partition: position for partition, position in wanted.items() if known.get(partition) != position
        }
        forgotten = {
            partition: position.topic_id
            for partition, position in known.items()
            if partition not in wanted or wanted[partition].topic_id != position.topic_id
        }
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


def are_named_by_id(wanted: Mapping[TopicPartition, Wanted]) -> bool:
    """Return whether the topics of all partitions are named by their ids instead of names (KIP-516)."""
    return bool(wanted) and all(position.topic_id != ZERO_UUID for position in wanted.values())
