"""Share sessions: the broker remembers which partitions a member of a share group reads. Pure.

A session belongs to a member, and ends with its connection: what the member holds is released then. Another
session than the broker may keep is refused; it never takes the place of one that is in use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from ottla.broker.runtime.loop_budget import LONG
from ottla.protocol.errors import (
    InvalidRequest,
    InvalidShareSessionEpoch,
    ShareSessionLimitReached,
    ShareSessionNotFound,
)

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
MAX_PARTITIONS: Final = 500_000
"""Partitions of all sessions."""
_MAX_INT: Final = 2**31 - 1


class Member(NamedTuple):
    """A member of a share group."""

    group_id: str
    member_id: str


class TopicIdPartition(NamedTuple):
    """A partition as share sessions name it."""

    topic_id: UUID
    partition: int


@dataclass(slots=True, eq=False)
class ShareSession:
    """The partitions that a member reads."""

    member: Member
    connection_id: str
    epoch: int = 1
    """The epoch that the next request has to have."""
    partitions: dict[TopicIdPartition, None] = field(default_factory=dict)

    def in_turn(self) -> list[TopicIdPartition]:
        """Return the partitions, beginning with another one in each epoch: none is always the last."""
        partitions = list(self.partitions)
        first = self.epoch % len(partitions) if partitions else 0
        return partitions[first:] + partitions[:first]


class ShareSessions:
    """The share sessions of a broker."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._sessions: dict[Member, ShareSession] = {}
        self._of_connection: dict[str, dict[Member, None]] = {}
        self._of_group: Counter[str] = Counter()
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """How many partitions the sessions read."""
        return self._partitions

    def has(self, member: Member) -> bool:
        """Return whether a member has a session."""
        return member in self._sessions

    def has_group(self, group_id: str) -> bool:
        """Return whether a member of a group has a session."""
        return group_id in self._of_group

    def fetch(
        self,
        member: Member,
        epoch: int,
        wanted: dict[TopicIdPartition, None],
        forgotten: Iterable[TopicIdPartition],
        *,
        acknowledges: bool,
        connection_id: str,
    ) -> ShareSession:
        """Return the session of a fetch: a new one, the one that goes on, or the one that ends with it.

        A new one keeps `wanted`. Raises KafkaError.
        """
        if epoch == FINAL_EPOCH:
            return self._get(member)
        if epoch == INITIAL_EPOCH:
            if acknowledges:
                raise InvalidRequest("Acknowledgements need a share session that has begun.")
            return self._begin(member, wanted, connection_id)
        session = self._get(member)
        self._check_epoch(session, epoch)
        self._update(session, wanted, forgotten)
        session.epoch = _next(session.epoch)
        return session

    def acknowledge(self, member: Member, epoch: int) -> ShareSession:
        """Return the session of acknowledgements. Raises KafkaError."""
        if epoch == INITIAL_EPOCH:
            raise InvalidShareSessionEpoch
        session = self._get(member)
        if epoch != FINAL_EPOCH:
            self._check_epoch(session, epoch)
            session.epoch = _next(session.epoch)
        return session

    def end(self, session: ShareSession) -> bool:
        """End a session; return whether it had not ended."""
        if self._sessions.get(session.member) is not session:
            return False
        del self._sessions[session.member]
        self._partitions -= len(session.partitions)
        group_id = session.member.group_id
        self._of_group[group_id] -= 1
        if not self._of_group[group_id]:
            del self._of_group[group_id]
        members = self._of_connection.get(session.connection_id, {})
        members.pop(session.member, None)
        if not members:
            self._of_connection.pop(session.connection_id, None)
        return True

    def is_long(self, connection_id: str) -> bool:
        """Return whether the sessions of a connection, or their partitions, are ended in steps."""
        members = self._of_connection.get(connection_id, ())
        return len(members) > LONG or sum(len(self._sessions[one].partitions) for one in members) > LONG

    def connection_ended(self, connection_id: str) -> Iterator[ShareSession]:
        """End the sessions of a connection one by one, and iterate over them.

        A member that has begun another one meanwhile, on another connection, keeps that.
        """
        for member in list(self._of_connection.get(connection_id, ())):
            session = self._sessions.get(member)
            if session is not None and session.connection_id == connection_id:
                self.end(session)
                yield session

    def _begin(
        self, member: Member, wanted: dict[TopicIdPartition, None], connection_id: str
    ) -> ShareSession:
        before = self._sessions.get(member)
        count, partitions = len(self._sessions), self._partitions + len(wanted)
        if before is not None:
            count, partitions = count - 1, partitions - len(before.partitions)
        if count >= self.limit or partitions > MAX_PARTITIONS:
            raise ShareSessionLimitReached
        if before is not None:
            self.end(before)
        session = ShareSession(member, connection_id, partitions=wanted)
        self._sessions[member] = session
        self._of_group[member.group_id] += 1
        self._of_connection.setdefault(connection_id, {})[member] = None
        self._partitions += len(session.partitions)
        return session

    def _get(self, member: Member) -> ShareSession:
        session = self._sessions.get(member)
        if session is None:
            raise ShareSessionNotFound
        return session

    def _check_epoch(self, session: ShareSession, epoch: int) -> None:
        if epoch != session.epoch:
            raise InvalidShareSessionEpoch(f"expected epoch {session.epoch}, but got {epoch} instead")

    def _update(
        self,
        session: ShareSession,
        wanted: Iterable[TopicIdPartition],
        forgotten: Iterable[TopicIdPartition],
    ) -> None:
        """Change the partitions of a session, all of them or none. Raises ShareSessionLimitReached."""
        gone = session.partitions.keys() & set(forgotten)
        new = dict.fromkeys(of for of in wanted if of in gone or of not in session.partitions)
        partitions = self._partitions - len(gone) + len(new)
        if new and partitions > MAX_PARTITIONS:
            raise ShareSessionLimitReached
        for partition in gone:
            del session.partitions[partition]
        session.partitions.update(new)
        self._partitions = partitions


def _next(epoch: int) -> int:
    return 1 if epoch >= _MAX_INT else epoch + 1
