"""One fetcher: copies partitions from one leader. A loop around the decisions of `follower_rules`.

A fetcher has one request in flight. It takes the answer partition by partition, so that an error of one does
not stop the others, and lets other tasks run in between. Between the request and the answer, and wherever the
fetcher waits, a partition may get another role: it is looked up again before anything is done to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from ottla.broker.replication import leader_requests
from ottla.broker.replication.fetch_session import FetchSession
from ottla.broker.replication.follower_rules import (
    Append,
    AskBounds,
    AskEpochEnd,
    BackOff,
    Decision,
    Ignore,
    PartitionFetch,
    RestartAt,
    TruncateTo,
    backoff_ms,
)
from ottla.broker.runtime.log_lines import LimitedWarnings
from ottla.protocol.errors import ErrorCode, KafkaError, KafkaStorageError, error_for
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.log_offsets import ListOffsetsResponse, OffsetForLeaderEpochResponse
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.config import BrokerConfig
    from ottla.broker.quotas.replication import ReplicaQuota
    from ottla.broker.replication.hosted_partition import HostedPartition
    from ottla.broker.replication.replication_metrics import FetcherMeters
    from ottla.broker.runtime.environment import Environment
    from ottla.protocol.messages.fetch import FetchRequest, PartitionData
    from ottla.protocol.schema import Message

_log = logging.getLogger(__name__)

SETTLING_S: Final = 0.02
"""Roles come in one request, and are taken one after the other: a waiting fetch is given up behind them."""
GIVEN_UP_EVERY_MS: Final = 250.0
"""The least time between two fetches that are given up, so that records of a slow leader arrive at all."""

_R = TypeVar("_R", bound="Message")

MIN_HOLD_MS: Final = 10.0
MAX_HOLD_MS: Final = 500.0
"""A throttled partition is looked at again between these times."""
SESSION_ENDED: Final = frozenset(
    {ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH}
)


class Peer(Protocol):
    """A connection to a leader."""

    async def send(self, request: Message, response_type: type[_R]) -> _R:
        """Return the response. Raises OSError when there is none, and `KafkaError`."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


Connect = Callable[[int], Peer]
"""Returns a connection to a broker. Raises `KafkaError` when its address is not known."""


@dataclass(slots=True, eq=False)
class Followed:
    """A partition that is copied, from one change of its role to the next."""

    partition: HostedPartition
    fetch: PartitionFetch
    is_synced: bool = False
    """Whether the records of earlier roles are on the disk; only topics that flush need it."""

    @property
    def needs_sync(self) -> bool:
        """Whether the log has to be on the disk before a Fetch names its end, which the leader counts."""
        return self.partition.log.config.flush_before_acknowledge and not self.is_synced

    @property
    def name(self) -> TopicPartition:
        """The topic and number of the partition."""
        return self.partition.topic_partition


class Fetcher:
    """Copies partitions from broker `leader` while `run` runs."""

    def __init__(
        self,
        name: str,
        leader: int,
        *,
        broker_id: int,
        config: BrokerConfig,
        environment: Environment,
        connect: Connect,
        meters: FetcherMeters,
        quota: ReplicaQuota | None = None,
    ) -> None:
        self.name = name
        self.leader = leader
        self.partitions: dict[TopicPartition, Followed] = {}
        self._broker_id = broker_id
        self._config = config
        self._clock = environment.clock
        self._budget = environment.budget
        self._connect = connect
        self._meters = meters
        self._quota = quota
        self._held: set[TopicPartition] = set()
        """Partitions that a throttle keeps out of the session."""
        self._warnings = LimitedWarnings(_log, self._clock.monotonic_ms)
        self._peer: Peer | None = None
        self._session = FetchSession()
        self._unsettled: dict[TopicPartition, None] = {}
        """Partitions of which the session does not know what to ask for next: changed, or paused."""
        self._reassigned: set[TopicPartition] = set()
        """Partitions that were added or removed since the last request was made."""
        self._changed = asyncio.Event()
        self._due_ms = 0.0
        self._failures = 0
        self._answer_wait: asyncio.Timeout | None = None
        """The wait for the answer to a fetch, while there is one; its time ends when it is given up."""
        self._given_up_ms = float("-inf")

    # ---- roles

    def add(self, followed: Followed) -> None:
        """Copy a partition from now on, or in a new leader epoch."""
        self.partitions[followed.name] = followed
        self._note(followed.name)
        self._due_ms = 0.0  # the leader has its role from the same controller: it is there
        self._give_up_wait()

    def remove(self, partition: TopicPartition) -> None:
        """Stop copying a partition."""
        if self.partitions.pop(partition, None) is not None:
            self._note(partition)

    def _note(self, partition: TopicPartition) -> None:
        self._unsettled[partition] = None
        self._reassigned.add(partition)
        self._changed.set()

    def _give_up_wait(self) -> None:
        """End a fetch that waits at the leader soon: the next one asks for an added partition, too.

        Where records flow it ends by itself. Elsewhere a new leader, for which clients of acks=all wait,
        would not hear of this follower for up to `replica.fetch.wait.max.ms`.
        """
        wait, now_ms = self._answer_wait, self._clock.monotonic_ms()
        if wait is not None and wait.when() is None and now_ms >= self._given_up_ms + GIVEN_UP_EVERY_MS:
            self._given_up_ms = now_ms
            wait.reschedule(asyncio.get_running_loop().time() + SETTLING_S)

    # ---- the loop

    async def run(self) -> None:
        """Fetch until cancelled."""
        try:
            while True:
                await self._until_due()
                await self._fetch_or_pause()
        finally:
            await self._disconnect()

    async def _until_due(self) -> None:
        """Wait until there is a partition to fetch, and no pause after a failure."""
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            await self._sync_earlier()
            now_ms = self._clock.monotonic_ms()
            self._settle(now_ms)
            if self._due_ms <= now_ms and len(self._session):
                return
            next_ms = self._next_due_ms(now_ms)
            until_s = None if next_ms is None else loop.time() + (next_ms - now_ms) / 1000
            try:
                async with asyncio.timeout_at(until_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _sync_earlier(self) -> None:
        """Bring to the disk what partitions have from earlier roles."""
        now_ms = self._clock.monotonic_ms()
        found = [self.partitions[name] for name in self._unsettled if name in self.partitions]
        waiting = [followed for followed in found if followed.needs_sync and followed.fetch.is_due(now_ms)]
        if waiting:
            await asyncio.gather(*(self._sync(followed) for followed in waiting))

    def _settle(self, now_ms: float) -> None:
        """Pass the session the positions to ask for; paused partitions stay unsettled."""
        is_throttled = self._quota is not None and self._quota.is_exceeded
        if is_throttled:  # also those that the last answer did not have
            held = (followed for followed in self.partitions.values() if self._may_be_held(followed))
            self._unsettled.update((followed.name, None) for followed in held)
        self._held.clear()
        for name in list(self._unsettled):
            followed = self.partitions.get(name)
            if followed is None or followed.fetch.failed:
                self._session.drop(name)
                del self._unsettled[name]
            elif is_throttled and self._may_be_held(followed):
                self._session.drop(name)
                self._held.add(name)
            elif followed.fetch.is_due(now_ms) and not followed.needs_sync:
                self._session.want(name, followed.fetch.position(followed.partition.log))
                del self._unsettled[name]
            else:
                self._session.drop(name)

    def _next_due_ms(self, now_ms: float) -> float | None:
        if self._due_ms > now_ms:
            return self._due_ms
        paused = [
            self.partitions[name].fetch.due_ms
            for name in self._unsettled
            if name in self.partitions and name not in self._held
        ]
        if self._held and self._quota is not None:
            # Not much later: with another rate it may be due sooner.
            paused.append(min(max(self._quota.due_ms, now_ms + MIN_HOLD_MS), now_ms + MAX_HOLD_MS))
        return min(paused, default=None)

    def _may_be_held(self, followed: Followed) -> bool:
        """Whether a throttle applies to a partition: one that is selected, and lacks records."""
        return not followed.fetch.is_caught_up and self._is_throttled(followed)

    def _is_throttled(self, followed: Followed) -> bool:
        replicas = followed.partition.log.config.follower_replication_throttled_replicas
        return self._quota is not None and self._quota.selects(followed.name, replicas)

    async def _fetch_or_pause(self) -> None:
        try:
            await self._fetch()
            self._failures = 0
        except Exception as error:  # a defect, too: the partitions have no other task that copies them
            self._session.lost()
            await self._disconnect()
            if not self._failures and not isinstance(error, KafkaError | OSError):
                _log.error("fetcher failed", extra={"fetcher": self.name}, exc_info=error)
            pause_ms = backoff_ms(self._failures, self._config.replica_fetch_backoff_ms)
            self._due_ms = self._clock.monotonic_ms() + pause_ms
            self._failures += 1
            facts = {"fetcher": self.name, "leader": self.leader, "reason": str(error)}
            self._warnings.warn("leader", "fetch from leader failed", extra=facts)

    async def _fetch(self) -> None:
        request = self._request()
        self._reassigned.clear()
        self._meters.requests.mark()
        response = await self._answer(request)
        if response is None:
            self._session.lost()
            await self._disconnect()
            return
        if response.error_code in SESSION_ENDED:
            self._session.lost(unknown=response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            return
        if response.error_code:
            raise error_for(response.error_code)
        self._session.answered(response.session_id)
        await self._take(response)

    def _request(self) -> FetchRequest:
        """Return the next fetch; it waits at the leader no longer than until a paused partition is due."""
        request = leader_requests.fetch(self._session.next_request(), self._broker_id, self._config)
        now_ms = self._clock.monotonic_ms()
        next_ms = self._next_due_ms(now_ms)
        if next_ms is not None:
            request.max_wait_ms = max(1, min(request.max_wait_ms, int(next_ms - now_ms)))
        return request

    async def _answer(self, request: FetchRequest) -> FetchResponse | None:
        """Return the answer to a fetch, None when it is given up."""
        try:
            async with asyncio.timeout(None) as wait:
                self._answer_wait = wait
                return await self._send(request, FetchResponse)
        except TimeoutError:
            if not wait.expired():
                raise
            return None
        finally:
            self._answer_wait = None

    async def _send(self, request: Message, response_type: type[_R]) -> _R:
        if self._peer is None:
            self._peer = self._connect(self.leader)
        return await self._peer.send(request, response_type)

    async def _disconnect(self) -> None:
        peer, self._peer = self._peer, None
        if peer is not None:
            await peer.close()

    # ---- answers

    async def _take(self, response: FetchResponse) -> None:
        """Apply an answer: records at once, then what needs further questions, or threads."""
        turn = self._budget.turn()
        is_refused = False
        later: list[tuple[Followed, Decision]] = []
        unsynced: list[Followed] = []
        for topic in response.responses:
            for answer in topic.partitions:
                await turn.yield_if_spent()
                name = TopicPartition(topic.topic, answer.partition_index)
                followed, asked = self.partitions.get(name), self._session.asked(name)
                if followed is None or asked is None or name in self._reassigned:
                    continue
                self._unsettled[name] = None
                is_refused |= answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
                decision = followed.fetch.on_answer(asked, followed.partition.log, answer)
                if isinstance(decision, Append):
                    self._append(followed, decision, answer)
                    if answer.records and followed.partition.log.config.flush_before_acknowledge:
                        unsynced.append(followed)
                else:
                    self._decided(followed, decision, later)
        # The next request says what is here: the leader counts it, and acknowledges.
        await asyncio.gather(*(self._sync(followed) for followed in unsynced))
        if later:
            await self._finish(later)
        if is_refused:  # this connection may come from an address that this broker had before
            self._session.lost()
            await self._disconnect()

    async def _sync(self, followed: Followed) -> None:
        try:
            await followed.partition.log.durable()
            followed.is_synced = True
        except KafkaError as error:
            self._fail(followed, error)

    def _decided(
        self, followed: Followed, decision: Decision, later: list[tuple[Followed, Decision]]
    ) -> None:
        match decision:
            case BackOff(code):
                self._pause(followed, _name_of(code))
            case Ignore() | Append():
                pass
            case _:
                later.append((followed, decision))

    def _append(self, followed: Followed, decision: Append, answer: PartitionData) -> None:
        partition = followed.partition
        try:
            records = leader_requests.whole_batches(answer.records or b"")
            partition.append_from_leader(
                records, decision.high_watermark, decision.log_start_offset, self._clock.now_ms()
            )
        except Exception as error:
            self._fail(followed, error)
            return
        followed.fetch.appended(partition.log)
        followed.fetch.lag = max(0, decision.high_watermark - partition.log.log_end_offset)
        followed.fetch.is_caught_up = decision.high_watermark <= partition.log.log_end_offset
        if self._quota is not None and records and self._is_throttled(followed):
            self._quota.record(len(records))
        self._meters.bytes.mark(len(records))
        self._meters.all_bytes.mark(len(records))
        if self._broker_id in partition.core.adding_replicas:
            self._meters.reassigned_bytes.mark(len(records))

    def _fail(self, followed: Followed, error: Exception) -> None:
        """Pause after an error of one partition, or give it up where the next try cannot end otherwise.

        Damaged records may be whole the next time; a full disk may have room again.
        """
        log = followed.partition.log
        if log.offline is None and isinstance(error, KafkaError | ValueError):
            self._pause(followed, str(error))
            return
        followed.fetch.failed = True
        known = isinstance(error, KafkaStorageError)
        _log.error(
            "partition not copied any more",
            exc_info=None if known else error,
            extra={"partition": str(followed.name), "reason": str(error)},
        )

    def _pause(self, followed: Followed, reason: str) -> None:
        followed.fetch.back_off(self._clock.monotonic_ms(), self._config.replica_fetch_backoff_ms)
        self._warnings.warn(
            str(followed.name),
            "partition not copied for a moment",
            extra={"partition": str(followed.name), "leader": self.leader, "reason": reason},
        )

    # ---- questions and truncations

    async def _finish(self, decided: list[tuple[Followed, Decision]]) -> None:
        """Ask the leader what decisions still need, then truncate."""
        bounds = [followed for followed, decision in decided if isinstance(decision, AskBounds)]
        if bounds:
            await self._ask_bounds(bounds, decided)
        ends = [
            (followed, decision.epoch) for followed, decision in decided if isinstance(decision, AskEpochEnd)
        ]
        if ends:
            await self._ask_epoch_ends(ends, decided)
        async with asyncio.TaskGroup() as tasks:
            for followed, decision in decided:
                if isinstance(decision, TruncateTo | RestartAt):
                    tasks.create_task(self._truncate(followed, decision), name=f"{self.name}-truncate")

    async def _ask_bounds(self, asked: list[Followed], decided: list[tuple[Followed, Decision]]) -> None:
        starts = await self._offsets(asked, leader_requests.EARLIEST)
        ends = await self._offsets(asked, leader_requests.LATEST)
        for followed in self._still(asked):
            start, end = starts.get(followed.name, _NOTHING), ends.get(followed.name, _NOTHING)
            if code := start[0] or end[0]:
                self._pause(followed, _name_of(code))
            else:
                self._decided(
                    followed, followed.fetch.on_bounds(followed.partition.log, start[1], end[1]), decided
                )

    async def _offsets(self, asked: list[Followed], timestamp: int) -> dict[TopicPartition, tuple[int, int]]:
        wanted = [(followed.name, followed.fetch.leader_epoch) for followed in asked]
        request = leader_requests.list_offsets(wanted, timestamp, self._broker_id)
        return leader_requests.found_offsets(await self._send(request, ListOffsetsResponse))

    async def _ask_epoch_ends(
        self, asked: list[tuple[Followed, int]], decided: list[tuple[Followed, Decision]]
    ) -> None:
        wanted = [(followed.name, followed.fetch.leader_epoch, epoch) for followed, epoch in asked]
        request = leader_requests.epoch_ends(wanted, self._broker_id)
        found = leader_requests.found_epoch_ends(await self._send(request, OffsetForLeaderEpochResponse))
        for followed in self._still(followed for followed, _ in asked):
            code, epoch, end = found.get(followed.name, (*_NOTHING, -1))
            if code:
                self._pause(followed, _name_of(code))
            else:
                self._decided(
                    followed, followed.fetch.on_epoch_end(followed.partition.log, epoch, end), decided
                )

    def _still(self, asked: Iterable[Followed]) -> Iterable[Followed]:
        """Yield those that have kept their role."""
        return (followed for followed in asked if self.partitions.get(followed.name) is followed)

    async def _truncate(self, followed: Followed, decision: TruncateTo | RestartAt) -> None:
        await followed.partition.log.truncation.idle()
        # Nothing is awaited from this look to the begin of the truncation, for which changes of roles wait.
        if self.partitions.get(followed.name) is not followed:
            return
        log, before = followed.partition.log, followed.partition.high_watermark
        level = logging.WARNING if decision.offset < before else logging.INFO
        _log.log(
            level,
            "log truncated",
            extra={
                "partition": str(followed.name),
                "log_end_offset": log.log_end_offset,
                "to_offset": decision.offset,
                "high_watermark": before,
            },
        )
        try:
            if isinstance(decision, TruncateTo):
                await followed.partition.truncate_to(decision.offset)
            else:
                await followed.partition.truncate_fully_and_start_at(decision.offset)
        except KafkaError as error:
            self._fail(followed, error)


_NOTHING: Final = (int(ErrorCode.UNKNOWN_SERVER_ERROR), -1)


def _name_of(code: int) -> str:
    """Return the name of an error code, which may be one of a later release."""
    return ErrorCode(code).name if code in _CODES else f"error code {code}"


_CODES: Final = frozenset(int(code) for code in ErrorCode)
