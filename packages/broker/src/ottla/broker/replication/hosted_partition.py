"""One hosted partition: log, replication core and waits together; and the listeners to its roles."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ottla.broker.log.log import AppendOrigin
from ottla.broker.log.state.outcomes import EpochBegun
from ottla.broker.log.state.producer_state import NOT_REQUIRED, VerificationGuard
from ottla.broker.replication._append import PartitionAppends
from ottla.broker.replication.partition import (
    Assignment,
    Effect,
    HighWatermarkAdvanced,
    IsrChanged,
    IsrProposed,
    LeadershipEnded,
    Partition,
    Role,
)
from ottla.protocol.errors import NotEnoughReplicasAfterAppend, NotLeaderOrFollower

if TYPE_CHECKING:
    from ottla.broker.log.append.rules import Buffer
    from ottla.broker.log.log import Appended, Log, Slice
    from ottla.protocol.topics import TopicPartition

_log = logging.getLogger("state-change")


class HostedPartition(PartitionAppends):
    """A partition hosted here. The promises of `append` and `replicated` hold while this broker leads it.

    The base is native: `append_plain`, the only way in for the fast path of Produce, and the steps that it
    shares with `append`.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        log: Log,
        core: Partition,
        *,
        propose_isr: Callable[[TopicPartition, IsrProposed], None],
        isr_changed: Callable[[IsrChanged], None],
    ) -> None:
        super().__init__(topic_partition, log, core)
        log.start_moved = self.wake
        self._propose_isr = propose_isr
        self._isr_changed = isr_changed
        self._waits = 0
        self._waiting_low: list[tuple[int, asyncio.Future[None]]] = []

    # ---- state

    @property
    def leads(self) -> bool:
        """Whether this broker leads the partition."""
        return self.core.role is Role.LEADER

    @property
    def leader_epoch(self) -> int:
        """The epoch of the present leadership."""
        return self.core.leader_epoch

    @property
    def high_watermark(self) -> int:
        """Records below it are committed."""
        return self.core.watermark.offset

    # ---- a leader's work

    def append(
        self,
        batches: bytes | bytearray | memoryview,
        *,
        required_acks: int = -1,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        opened: bool = False,
        guard: VerificationGuard | None = NOT_REQUIRED,
    ) -> Appended:
        """Append v2 batches and advance what can be advanced at once.

        Raises what `check_append` and `Log.append` raise.
        """
        self.check_append(required_acks)
        appended = self.log.append(
            batches,
            leader_epoch=self.core.leader_epoch,
            now_ms=now_ms,
            origin=origin,
            opened=opened,
            guard=guard,
        )
        self.grown(now_ms)
        return appended

    async def replicated(self, offset: int) -> None:
        """Wait until the high watermark is at `offset` or above: pass the last offset + 1.

        Raises `NotLeaderOrFollower` when leadership ends first, `NotEnoughReplicasAfterAppend` when the
        records are in but the ISR fell below the minimum. The bound is the caller's (`asyncio.timeout`).
        """
        if self.core.watermark.offset < offset:
            await self._high_watermark_at(offset)
        if self.core.is_under_min_isr:
            raise NotEnoughReplicasAfterAppend

    async def _high_watermark_at(self, offset: int) -> None:
        if not self.leads:
            raise NotLeaderOrFollower
        future = asyncio.get_running_loop().create_future()
        self._waits += 1
        heapq.heappush(self._waiting, (offset, self._waits, future))
        await future

    def read(self, offset: int, max_bytes: int, *, up_to: int, at_least_one: bool = True) -> Slice:
        """Return whole batches from `offset` on, below `up_to`."""
        return self.log.read(offset, max_bytes, up_to=up_to, at_least_one=at_least_one)

    def fetched(self, replica: int, offset: int, log_start_offset: int, now_ms: int) -> None:
        """Take in that a follower asked for `offset`."""
        self.core.log_start_moved(self.log.log_start_offset)
        self.perform(self.core.fetched(replica, offset, log_start_offset, now_ms))

        self._release_low()

    async def low_watermark_at(self, offset: int) -> None:
        """Wait until no replica's log starts below `offset`. The bound is the caller's."""
        if self.core.low_watermark < offset:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting_low.append((offset, future))
            await future

    # ---- a follower's work

    def append_from_leader(
        self, batches: Buffer, high_watermark: int, log_start_offset: int, now_ms: int
    ) -> None:
        """Append what the leader answered, perhaps nothing, and take over its high watermark and log start.

        Raises `NotLeaderOrFollower` unless this broker follows, and what `Log.append_as_follower` raises.
        """
        if self.core.role is not Role.FOLLOWER:
            raise NotLeaderOrFollower
        log = self.log
        if len(batches):
            log.append_as_follower(batches, now_ms)
        self.perform(self.core.copied(log.log_end_offset, high_watermark))
        if log.log_start_offset < log_start_offset <= self.core.high_watermark:
            log.advance_log_start(log_start_offset)
            self.core.log_start_moved(log_start_offset)

    # ---- truncation

    async def truncate_to(self, offset: int) -> int:
        """Truncate the log on a thread, and lower the high watermark with its end; return the new log end.

        Raises what `Truncation.begin` raises.
        """
        truncation = self.log.truncation
        return await truncation.run_on_thread(truncation.begin(offset), self.log_truncated)

    async def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop all records on a thread; the high watermark is at `offset` then."""
        truncation = self.log.truncation
        await truncation.run_on_thread(truncation.begin_restart(offset), self.log_truncated)

    def log_truncated(self) -> None:
        """Pass the bounds of a log that was just truncated to the core, before anything else runs."""
        self.core.truncated(self.log.log_start_offset, self.log.log_end_offset)
        self.wake()

    def replace_log(self, log: Log) -> None:
        """Go on with a log that holds the same records, in another directory."""
        self.core.log_replaced(log)
        self.set_log(log)
        log.start_moved = self.wake
        self.wake()

    # ---- roles

    def lead(self, assignment: Assignment, now_ms: int) -> None:
        """Become leader, or lead in a new epoch."""
        self.core.min_insync_replicas = self.log.config.min_insync_replicas
        self.core.log_start_moved(self.log.log_start_offset)
        self.log.apply(EpochBegun(assignment.leader_epoch, self.log.log_end_offset))
        self.perform(self.core.lead(assignment, self.log.log_end_offset, now_ms))
        self.wake()

    def follow(self, assignment: Assignment) -> None:
        """Become follower; waits for this leader fail."""
        self.perform(self.core.follow(assignment))
        self.wake()

    def stop(self) -> None:
        """Give up any role; waits for this leader fail."""
        self.perform(self.core.stop())
        self.wake()

    # ---- effects

    def perform(self, effects: list[Effect]) -> None:
        """Carry out what the core decided."""
        for effect in effects:
            match effect:
                case HighWatermarkAdvanced(offset):
                    self.release(offset)
                    self.wake()
                case IsrProposed():
                    self._propose_isr(self.topic_partition, effect)
                case IsrChanged():
                    self._isr_changed(effect)
                    self.wake()
                case LeadershipEnded():
                    self._fail_waits()

    def _release_low(self) -> None:
        if not self._waiting_low:
            return
        low, waiting = self.core.low_watermark, self._waiting_low
        self._waiting_low = [wait for wait in waiting if wait[0] > low]
        for offset, future in waiting:
            if offset <= low and not future.done():
                future.set_result(None)

    def _fail_waits(self) -> None:
        waiting = [wait[2] for wait in self._waiting] + [wait[1] for wait in self._waiting_low]
        self._waiting.clear()
        self._waiting_low = []
        for future in waiting:
            if not future.done():
                future.set_exception(NotLeaderOrFollower())


class LeadershipListener(Protocol):
    """Hears of every change of leadership here, on the event loop and in order.

    It is called before any other task runs: no request finds a leadership that the listener does not know.
    """

    def leadership_changed(
        self,
        elected: Sequence[tuple[TopicPartition, int]],
        resigned: Sequence[tuple[TopicPartition, int]],
    ) -> None:
        """Both hold (partition, leader epoch); a new epoch of an existing leadership is in `elected`."""
        ...


class FollowerFetching(Protocol):
    """Copies partitions from their leaders."""

    def follow(self, partition: HostedPartition, leader: int) -> None:
        """Start to copy a partition from broker `leader`, or change to this leader."""
        ...

    def unfollow(self, topic_partition: TopicPartition) -> None:
        """Stop copying a partition."""
        ...


class NoFollowers:
    """Copies nothing: a follower keeps its log as it is and waits for a role."""

    def follow(self, partition: HostedPartition, leader: int) -> None:
        facts = {"partition": str(partition.topic_partition), "leader": leader}
        _log.info("partition followed and not copied", extra=facts)

    def unfollow(self, topic_partition: TopicPartition) -> None:
        pass
