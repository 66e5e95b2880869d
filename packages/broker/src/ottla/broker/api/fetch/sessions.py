"""Fetch sessions: the broker remembers a client's partitions, both sides send changes (KIP-227). Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from ottla.broker.api.fetch.response import FetchedPartition
from ottla.protocol.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.metrics import Metrics

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
MIN_IDLE_BEFORE_EVICTION_MS: Final = 120_000
DEFAULT_MAX_PARTITIONS: Final = 500_000
_MAX_INT: Final = 2**31 - 1

Key: TypeAlias = TopicPartition | tuple[UUID, int]
"""A partition in a session: by its topic's name, or since version 13 by its topic's id (KIP-516)."""


@dataclass(slots=True)
class RequestedPartition:
    """One partition of a request and, in a fetch session, the last response for it."""

    topic_partition: TopicPartition
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    topic_id: UUID | None = None
    """The id that it is asked for by; then the name in `topic_partition` is empty while it is unknown."""
    high_watermark: int = -1
    answered_log_start_offset: int = -1
    answered_error: bool = False

    @property
    def key(self) -> Key:
        """The partition as its client names it."""
        if self.topic_id is None:
            return self.topic_partition
        return self.topic_id, self.topic_partition.partition

    def resolve(self, topic_name: Callable[[UUID], str | None]) -> None:
        """Look up the name of a topic that was unknown when the session began."""
        if self.topic_id is not None and not self.topic_partition.topic:
            name = topic_name(self.topic_id) or ""
            self.topic_partition = TopicPartition(name, self.topic_partition.partition)

    def must_respond(self, answer: FetchedPartition) -> bool:
        """Return whether an incremental response has to contain this partition."""
        return (
            answer.size > 0
            or answer.error_code != 0
            or answer.high_watermark != self.high_watermark
            or answer.log_start_offset != self.answered_log_start_offset
            or answer.preferred_read_replica != -1
            or answer.diverging_epoch is not None
        )

    def answered(self, answer: FetchedPartition) -> None:
        """Remember the response that was sent for the partition.

        With an error or a diverging epoch its receiver takes neither high watermark nor log start: the next
        response has to be sent, or a follower would not hear of them until they change.
        """
        if answer.error_code or answer.diverging_epoch is not None:
            self.high_watermark = self.answered_log_start_offset = -1
            return
        self.high_watermark = answer.high_watermark
        self.answered_log_start_offset = answer.log_start_offset


@dataclass(slots=True)
class FetchSession:
    """One client's partitions, in the order in which they are served."""

    session_id: int
    privileged: bool
    """Whether it is a follower's: a consumer's session does not evict it."""
    by_id: bool = False
    """Whether its topics are named by id; the version of later requests must do so, too."""
    next_epoch: int = 1
    last_used_ms: float = 0
    partitions: OrderedDict[Key, RequestedPartition] = field(default_factory=OrderedDict)

    def update(self, wanted: Iterable[RequestedPartition], forgotten: Iterable[Key]) -> None:
        """Add, change and drop partitions as an incremental request says."""
        for forgotten_key in forgotten:
            self.partitions.pop(forgotten_key, None)
        for requested in wanted:
            key = requested.key
            known = self.partitions.get(key)
            if known is None:
                self.partitions[key] = requested
                continue
            known.fetch_offset, known.max_bytes = requested.fetch_offset, requested.max_bytes
            known.current_leader_epoch, known.last_fetched_epoch = (
                requested.current_leader_epoch,
                requested.last_fetched_epoch,
            )
            known.log_start_offset = requested.log_start_offset

    def advance(self) -> None:
        """Count one more request. Zero and negative epochs have other meanings and are skipped."""
        self.next_epoch = 1 if self.next_epoch == _MAX_INT else self.next_epoch + 1


@dataclass(slots=True)
class FetchContext:
    """The partitions of one request, and whether its response is incremental."""

    wanted: list[RequestedPartition]
    session: FetchSession | None = None
    incremental: bool = False

    @property
    def session_id(self) -> int:
        """The session id of the response; 0 without a session."""
        return self.session.session_id if self.session else NO_SESSION

    def must_respond(self, wanted: RequestedPartition, answer: FetchedPartition) -> bool:
        """Return whether the response has to contain this partition."""
        return not self.incremental or wanted.must_respond(answer)

    def answered(self, carried: Iterable[tuple[RequestedPartition, FetchedPartition]]) -> None:
        """Remember the answer. Partitions with records move to the end, so that others get their turn."""
        if self.session is None:
            return
        for wanted, answer in carried:
            wanted.answered(answer)
            if answer.size and (key := wanted.key) in self.session.partitions:
                self.session.partitions.move_to_end(key)


class FetchSessions:
    """All fetch sessions of one broker, at most `slots`, the least recently used first.

    Consumers' sessions remember at most `max_partitions` together. A request that would exceed it is served
    without a session, and a session that grows beyond it ends.
    """

    def __init__(
        self, slots: int, new_id: Callable[[], int], *, max_partitions: int = DEFAULT_MAX_PARTITIONS
    ) -> None:
        """`new_id` returns random positive numbers below 2**31."""
        self._slots = slots
        self._max_partitions = max_partitions
        self._partitions = 0
        self._new_id = new_id
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """Partitions remembered in all sessions."""
        return self._partitions

    def open(
        self,
        session_id: int,
        epoch: int,
        wanted: list[RequestedPartition],
        forgotten: Iterable[Key],
        *,
        privileged: bool,
        by_id: bool = False,
        now_ms: float,
    ) -> FetchContext:
        """Return the partitions of a request, from its session and its changes.

        `by_id` says that the request names topics by id. Raises `FetchSessionIdNotFound`,
        `InvalidFetchSessionEpoch`, and `FetchSessionTopicIdError` where the session names them otherwise; the
        client then opens a new session.
        """
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._drop(session_id)
            session = None
            if epoch == INITIAL_EPOCH and wanted:
                session = self._begin(wanted, privileged, by_id, now_ms)
            return FetchContext(wanted, session)
        session = self._sessions.get(session_id)
        if session is None:
            raise FetchSessionIdNotFound
        if epoch != session.next_epoch:
            raise InvalidFetchSessionEpoch
        if session.by_id != by_id:
            raise FetchSessionTopicIdError
        self._update(session, wanted, forgotten)
        if not session.privileged and self._partitions > self._max_partitions:
            self._drop(session_id)
            raise FetchSessionIdNotFound
        session.advance()
        self._touch(session, now_ms)
        if not session.partitions:
            self._drop(session_id)
            return FetchContext([], None)
        return FetchContext(list(session.partitions.values()), session, incremental=True)

    def _begin(
        self, wanted: list[RequestedPartition], privileged: bool, by_id: bool, now_ms: float
    ) -> FetchSession | None:
        if not privileged and self._partitions + len(wanted) > self._max_partitions:
            return None
        if not self._make_room(privileged, now_ms):
            return None
        session_id = self._new_id()
        while session_id in self._sessions or session_id == NO_SESSION:
            session_id = self._new_id()
        session = FetchSession(session_id, privileged, by_id)
        self._update(session, wanted, ())
        self._sessions[session_id] = session
        self._touch(session, now_ms)
        return session

    def _update(
        self, session: FetchSession, wanted: Iterable[RequestedPartition], forgotten: Iterable[Key]
    ) -> None:
        before = len(session.partitions)
        session.update(wanted, forgotten)
        self._partitions += len(session.partitions) - before

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.partitions)

    def _touch(self, session: FetchSession, now_ms: float) -> None:
        session.last_used_ms = now_ms
        self._sessions.move_to_end(session.session_id)

    def _make_room(self, privileged: bool, now_ms: float) -> bool:
        if len(self._sessions) < self._slots:
            return True
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        stale = now_ms - oldest.last_used_ms > MIN_IDLE_BEFORE_EVICTION_MS
        victim = oldest if stale else self._least_consumer() if privileged else None
        if victim is None:
            return False
        self._drop(victim.session_id)
        self.evictions += 1
        return True

    def _least_consumer(self) -> FetchSession | None:
        return next((session for session in self._sessions.values() if not session.privileged), None)


def measure_fetch_sessions(sessions: FetchSessions, metrics: Metrics) -> None:
    """Show the sizes of the cache as gauges, under Kafka's names."""
    kind = ("kafka.server", "FetchSessionCache")
    metrics.gauge(*kind, "NumIncrementalFetchSessions", lambda: len(sessions))
    metrics.gauge(*kind, "NumIncrementalFetchPartitionsCached", lambda: sessions.partition_count)
