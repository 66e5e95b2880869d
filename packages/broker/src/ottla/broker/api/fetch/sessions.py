"""Fetch sessions: the broker remembers a client's partitions, both sides send changes (KIP-227). Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from ottla.broker.api.fetch.response import FetchedPartition
from ottla.protocol.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.metrics import Metrics
    from ottla.broker.replication.hosted_partition import HostedPartition

NO_SESSION: Final = 0
NO_REPLICA: Final = -1
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
MIN_IDLE_BEFORE_EVICTION_MS: Final = 120_000
DEFAULT_MAX_PARTITIONS: Final = 500_000
_MAX_INT: Final = 2**31 - 1

Key: TypeAlias = TopicPartition | tuple[UUID, int]
"""A partition in a session: by its topic's name, or since version 13 by its topic's id (KIP-516)."""


@dataclass(slots=True, eq=False)
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
    place: int = 0
    """Partitions are read in the order of their places."""

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


_PLACE: Final = attrgetter("place")


def in_order(partitions: Iterable[RequestedPartition]) -> list[RequestedPartition]:
    """Return partitions in the order in which they are read."""
    return sorted(partitions, key=_PLACE)


class WatchedPartitions:
    """The partitions of a session, or of one request without one, and which of them have to be read.

    A partition is settled when an answer has said all that there is to say, and its next change wakes its
    watchers: it is not read again before that. A session costs what has changed, however many partitions it
    has. No change is lost:

    - A partition is watched from the step of the loop on in which it is read. A read can change it, for it
      counts what a follower has; the read's result has that, so that it is no news.
    - A change between the read and its answer, when other tasks run, is noted; what was noted since it was
      read is not settled by that answer.
    - An answer that is never made has settled nothing. One that does not arrive has the client begin another
      session, in which nothing is settled.
    """

    def __init__(self, replica: int = NO_REPLICA) -> None:
        """`replica` is the follower that reads the partitions."""
        self.unsettled: dict[RequestedPartition, None] = {}
        self.changed: dict[RequestedPartition, None] = {}
        """Changed since they were read."""
        self.on_change: Callable[[], object] = _do_nothing
        """Called at each change, while a request of the session waits."""
        self.last_fetch_ms = 0
        """When the last request came."""
        self._replica = replica
        self._watched: dict[RequestedPartition, tuple[HostedPartition, Callable[[], None]]] = {}
        self._places = count()

    def __len__(self) -> int:
        return len(self._watched)

    def add(self, requested: RequestedPartition) -> None:
        """Read a partition from now on, behind all others."""
        requested.place = next(self._places)
        self.unsettled[requested] = None

    def asked_anew(self, requested: RequestedPartition) -> None:
        """Read a partition that the present request names."""
        if requested in self._watched:
            self._settle_progress(requested, self._watched[requested][0])
        self.unsettled[requested] = None

    def move_to_end(self, requested: RequestedPartition) -> None:
        """Read a partition behind all others."""
        requested.place = next(self._places)

    def remove(self, requested: RequestedPartition) -> None:
        """Read a partition no longer."""
        watched = self._watched.pop(requested, None)
        if watched is not None:
            self._settle_progress(requested, watched[0])
            watched[0].watchers.pop(watched[1], None)
        self.unsettled.pop(requested, None)
        self.changed.pop(requested, None)

    def close(self) -> None:
        """Watch nothing any more."""
        for requested in list(self._watched):
            self.remove(requested)

    def to_read(self) -> list[RequestedPartition]:
        """Return the partitions that are not settled, in their order."""
        return in_order(self.unsettled)

    def stop_waking(self, wake: Callable[[], object]) -> None:
        """Call nothing at changes any more, unless a later request of the session waits for them."""
        if self.on_change == wake:
            self.on_change = _do_nothing

    def watch(self, requested: RequestedPartition, hosted: HostedPartition | None) -> None:
        """Note the next change of a partition; call it in the step of the loop in which it was read."""
        self.changed.pop(requested, None)
        if hosted is None:
            return
        watched = self._watched.get(requested)
        if watched is None or watched[0] is not hosted:
            if watched is not None:
                watched[0].watchers.pop(watched[1], None)
            watched = self._watched[requested] = (hosted, partial(self._note, requested))
        hosted.watchers[watched[1]] = None

    def settle(self, requested: RequestedPartition, answer: FetchedPartition) -> None:
        """Leave out a partition until its next change, if nothing is left to say after this answer."""
        if answer.is_settled and requested not in self.changed:
            self.unsettled.pop(requested, None)

    def _note(self, requested: RequestedPartition) -> None:
        self._settle_progress(requested, self._watched[requested][0])
        self.changed[requested] = self.unsettled[requested] = None
        self.on_change()

    def _settle_progress(self, requested: RequestedPartition, hosted: HostedPartition) -> None:
        """Record that a follower has asked for the log end until its last request.

        A request asks for all partitions of its session. For a settled one this is recorded here, when that
        ends, and not with each request.
        """
        if self._replica != NO_REPLICA and requested not in self.unsettled:
            hosted.core.asked_for_end(self._replica, self.last_fetch_ms)


def _do_nothing() -> None:
    pass


@dataclass(slots=True)
class FetchSession:
    """One client's partitions, and which of them the next response may have to contain."""

    session_id: int
    privileged: bool
    """Whether it is a follower's: a consumer's session does not evict it."""
    by_id: bool = False
    """Whether its topics are named by id; the version of later requests must do so, too."""
    next_epoch: int = 1
    last_used_ms: float = 0
    partitions: dict[Key, RequestedPartition] = field(default_factory=dict)
    watched: WatchedPartitions = field(default_factory=WatchedPartitions)
    asked_for: tuple[str, int] | None = None
    """The connection for which its topics were asked for, and the epoch of that connection's permissions."""
    allowed: dict[str, bool] = field(default_factory=dict)
    """Whether the client may read each topic."""

    def allowed_for(self, connection_id: str, index_epoch: int) -> dict[str, bool]:
        """Return the topics that were asked for, to add others.

        On another connection, or after a change of permissions, they are asked for again, and all partitions
        are read again: also the settled ones have an error to respond.
        """
        asked_for = (connection_id, index_epoch)
        if asked_for != self.asked_for:
            if self.asked_for is not None:
                for requested in self.partitions.values():
                    self.watched.asked_anew(requested)
            self.asked_for, self.allowed = asked_for, {}
        return self.allowed

    def update(self, wanted: Iterable[RequestedPartition], forgotten: Iterable[Key]) -> None:
        """Add, change and drop partitions as an incremental request says."""
        for forgotten_key in forgotten:
            dropped = self.partitions.pop(forgotten_key, None)
            if dropped is not None:
                self.watched.remove(dropped)
        for requested in wanted:
            key = requested.key
            known = self.partitions.get(key)
            if known is None:
                self.partitions[key] = requested
                self.watched.add(requested)
                continue
            self.watched.asked_anew(known)
            known.fetch_offset, known.max_bytes = requested.fetch_offset, requested.max_bytes
            known.current_leader_epoch, known.last_fetched_epoch = (
                requested.current_leader_epoch,
                requested.last_fetched_epoch,
            )
            known.log_start_offset = requested.log_start_offset

    def advance(self) -> None:
        """Count one more request. Zero and negative epochs have other meanings and are skipped."""
        self.next_epoch = 1 if self.next_epoch == _MAX_INT else self.next_epoch + 1


class FetchContext:
    """The partitions that one request reads, and whether its response is incremental."""

    __slots__ = ("_epoch", "incremental", "session", "wanted")

    def __init__(
        self,
        wanted: list[RequestedPartition],
        session: FetchSession | None = None,
        *,
        incremental: bool = False,
    ) -> None:
        self.wanted = wanted
        """Of a session those that are not settled."""
        self.session = session
        self.incremental = incremental
        self._epoch = session.next_epoch if session is not None else NO_SESSION

    @property
    def session_id(self) -> int:
        """The session id of the response; 0 without a session."""
        return self.session.session_id if self.session else NO_SESSION

    @property
    def count(self) -> int:
        """Partitions that the request asks for, with those that its session remembers."""
        return len(self.wanted) if self.session is None else len(self.session.partitions)

    @property
    def is_last(self) -> bool:
        """Whether no later request of its session has come."""
        return self.session is None or self.session.next_epoch == self._epoch

    def must_respond(self, wanted: RequestedPartition, answer: FetchedPartition) -> bool:
        """Return whether the response has to contain this partition."""
        return not self.incremental or wanted.must_respond(answer)

    def watched(self) -> WatchedPartitions:
        """Return the session's partitions, or those of the request to watch while it waits."""
        return WatchedPartitions() if self.session is None else self.session.watched

    def unchanged(self, wanted: RequestedPartition, answer: FetchedPartition) -> None:
        """Settle a partition that the response need not contain."""
        if self.session is not None and self.is_last:
            self.session.watched.settle(wanted, answer)

    def answered(self, carried: Iterable[tuple[RequestedPartition, FetchedPartition]]) -> None:
        """Remember the answer. Partitions with records move to the end, so that others get their turn."""
        if self.session is None:
            return
        watched, is_last = self.session.watched, self.is_last
        for wanted, answer in carried:
            wanted.answered(answer)
            if answer.size:
                watched.move_to_end(wanted)
            if is_last:
                watched.settle(wanted, answer)
            elif self.session.partitions.get(wanted.key) is wanted:
                # A later request may have been answered before it, with a later state: that is said again.
                watched.asked_anew(wanted)


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
        replica: int = NO_REPLICA,
        now_ms: float,
        wall_ms: int = 0,
    ) -> FetchContext:
        """Return the partitions that a request has to read, from its session and its changes.

        `replica` is the follower that asks, `now_ms` the monotonic and `wall_ms` the wall clock. `by_id` says
        that the request names topics by id. Raises `FetchSessionIdNotFound`, `InvalidFetchSessionEpoch`, and
        `FetchSessionTopicIdError` where the session names them otherwise; the client then opens a new one.
        """
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self.drop(session_id)
            session = None
            if epoch == INITIAL_EPOCH and wanted:
                session = self._begin(wanted, privileged, by_id, replica, now_ms)
            if session is None:
                return FetchContext(wanted)
            session.watched.last_fetch_ms = wall_ms
            return FetchContext(list(session.partitions.values()), session)
        session = self._sessions.get(session_id)
        if session is None:
            raise FetchSessionIdNotFound
        if epoch != session.next_epoch:
            raise InvalidFetchSessionEpoch
        if session.by_id != by_id:
            raise FetchSessionTopicIdError
        self._update(session, wanted, forgotten)
        if not session.privileged and self._partitions > self._max_partitions:
            self.drop(session_id)
            raise FetchSessionIdNotFound
        session.advance()
        session.watched.last_fetch_ms = wall_ms
        self._touch(session, now_ms)
        if not session.partitions:
            self.drop(session_id)
            return FetchContext([])
        return FetchContext(session.watched.to_read(), session, incremental=True)

    def _begin(
        self, wanted: list[RequestedPartition], privileged: bool, by_id: bool, replica: int, now_ms: float
    ) -> FetchSession | None:
        if not privileged and self._partitions + len(wanted) > self._max_partitions:
            return None
        if not self._make_room(privileged, now_ms):
            return None
        session_id = self._new_id()
        while session_id in self._sessions or session_id == NO_SESSION:
            session_id = self._new_id()
        session = FetchSession(session_id, privileged, by_id, watched=WatchedPartitions(replica))
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

    def drop(self, session_id: int) -> None:
        """End a session, if it exists."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.partitions)
            session.watched.close()

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
        self.drop(victim.session_id)
        self.evictions += 1
        return True

    def _least_consumer(self) -> FetchSession | None:
        return next((session for session in self._sessions.values() if not session.privileged), None)


def measure_fetch_sessions(sessions: FetchSessions, metrics: Metrics) -> None:
    """Show the sizes of the cache as gauges, under Kafka's names."""
    kind = ("kafka.server", "FetchSessionCache")
    metrics.gauge(*kind, "NumIncrementalFetchSessions", lambda: len(sessions))
    metrics.gauge(*kind, "NumIncrementalFetchPartitionsCached", lambda: sessions.partition_count)
