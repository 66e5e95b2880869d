"""One share partition: what a group has read of a partition, while this broker leads it.

It is loaded from its coordinator for one leadership. What members do is written to the coordinator, one write
at a time; what comes meanwhile goes with the next. Fetches, acknowledgements and writes end together when it
cannot serve any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.share.coordinator import WrittenState
from ottla.broker.share.letters import Origin, left
from ottla.broker.share.log_reads import aborted_ranges, between, first_offset, headers_of, read_until
from ottla.broker.share.partition import (
    Acknowledgement,
    Acquisition,
    LogBatch,
    SharePartition,
    StateWrite,
)
from ottla.broker.share.persister import as_leader_error
from ottla.broker.share.state import UNINITIALIZED, SharePartitionKey
from ottla.protocol.errors import (
    CoordinatorNotAvailable,
    KafkaError,
    NotLeaderOrFollower,
    UnknownServerError,
    UnknownTopicOrPartition,
)

if TYPE_CHECKING:
    from ottla.broker.coordinators.timers import Timers
    from ottla.broker.log.files.file_slices import Slice
    from ottla.broker.replication.hosted_partition import HostedPartition
    from ottla.broker.runtime.background_tasks import BackgroundTasks
    from ottla.broker.runtime.clock import Clock
    from ottla.broker.runtime.log_lines import LimitedWarnings
    from ottla.broker.runtime.threads import RecordThreads
    from ottla.broker.share.dead_letters import DeadLetterTopics
    from ottla.broker.share.in_flight import Acquired, DeadLetters, StateBatch
    from ottla.broker.share.metrics import ShareGroupMetrics
    from ottla.broker.share.persister import SharePersister
    from ottla.broker.share.terms import ShareGroupTerms

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSurroundings:
    """The parts of the broker that all its share partitions use."""

    clock: Clock
    persister: SharePersister
    tasks: BackgroundTasks
    record_threads: RecordThreads
    timers: Timers[HostedSharePartition]
    terms: Callable[[str], ShareGroupTerms]
    """Returns the settings of a group."""
    session_id: Callable[[], int]
    """Returns the id of the broker's ZooKeeper session."""
    dead_letters: DeadLetterTopics
    metrics: ShareGroupMetrics
    warnings: LimitedWarnings
    forget: Callable[[HostedSharePartition], None]
    """Drops a share partition that serves no more."""


class Delivered(NamedTuple):
    """The records of a partition that one fetch acquired."""

    records: bytes
    acquired: list[Acquired]
    has_changed: bool
    """Whether the share partition has changed: with nothing acquired, another read may find more."""


class HostedSharePartition:
    """One share partition while this broker leads its partition, in epochs that follow each other."""

    def __init__(self, key: SharePartitionKey, partition: HostedPartition, shared: ShareSurroundings) -> None:
        self.key = key
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.core: SharePartition | None = None
        """The state; None until it is loaded."""
        self.error: KafkaError | None = None
        """Why it cannot serve, once that is so."""
        self.is_reading = False
        """Whether a fetch waits for the disk: no other reads the same records meanwhile."""
        self.waiting: dict[Callable[[], object], None] = {}
        """Wakes fetches that wait for records, in their order."""
        self._untried: dict[Callable[[], object], None] = {}
        """Those that have not looked since the last change."""
        self._shared = shared
        self._state_epoch = 0
        self._session_id = shared.session_id()
        self._queue: list[tuple[StateWrite, asyncio.Future[None] | None]] = []
        self._is_writing = False
        self._is_watching = False
        self._is_left = False
        self._has_stored_start = True
        self._letters: list[DeadLetters] = []
        """Records on their way to the dead-letter topic."""
        self._is_sending = False
        self._meters = shared.metrics.of_partition(
            key,
            partition.topic_partition,
            lambda: self.core,
        )

    # ---- loading

    async def load(self) -> None:
        """Read the state from its coordinator; failures are in `error`."""
        began_ms = self._shared.clock.monotonic_ms()
        try:
            state = await self._shared.persister.read(self.key, self.leader_epoch)
            terms = self._shared.terms(self.key.group_id)
            start = state.start_offset
            if start == UNINITIALIZED:
                start = await first_offset(
                    self.partition,
                    terms.auto_offset_reset,
                    self._shared.clock.now_ms(),
                    self._shared.record_threads,
                )
            core = SharePartition(start, state.batches, terms.limits)
        except KafkaError as error:
            self.fail(as_leader_error(error))
        except (ValueError, OSError) as error:
            self.fail(UnknownServerError(f"The state of the share partition is damaged: {error}"))
        else:
            self._state_epoch = state.state_epoch
            self._has_stored_start = state.start_offset != UNINITIALIZED
            self.core = core
            self._log_start_moved()
            self._send_letters(core)
        self._shared.metrics.load_time.update(self._shared.clock.monotonic_ms() - began_ms)
        self.wake_all()

    def fail(self, error: KafkaError) -> None:
        """Serve no more; members hear of the error and the next fetch loads again."""
        if self.error is None:
            self.error = error
            self._shared.forget(self)
        for _, settled in self._queue:
            if settled is not None and not settled.done():
                settled.set_exception(self.error)
        self._queue.clear()
        self.wake_all()

    def left(self) -> None:
        """Serve no more once nothing is locked and all is written: no member reads here."""
        self._is_left = True
        self._end_if_left()

    def joined(self) -> None:
        """Serve on: a member reads here."""
        self._is_left = False

    def _end_if_left(self) -> None:
        if not self._is_left or self.error is not None or self._is_writing or self._is_sending:
            return
        if self.core is not None and not self._has_stored_start:
            self._has_stored_start = True  # else "latest" is another offset when the next member comes
            self._put(StateWrite(0, ()), None)
        elif self.core is None or not any(run.is_acquired for run in self.core.runs()):
            self.fail(NotLeaderOrFollower())

    @property
    def active(self) -> SharePartition:
        """The state. Raises the error of a share partition that cannot serve."""
        if self.error is None and not self.leads():
            self.fail(NotLeaderOrFollower())
        self.check()
        if self.core is None:
            raise CoordinatorNotAvailable("the share partition is being loaded")
        return self.core

    def check(self) -> None:
        """Raise the error of a share partition that cannot serve."""
        if self.error is not None:
            raise copy(self.error)  # its traceback grows each time it is raised

    def leads(self) -> bool:
        """Return whether this broker leads, and has led since the state was read.

        The epoch rises also when another replica dies: what members hold here stays theirs. A broker that
        lost its session serves before it is told of leaders elected meanwhile: what is available here may be
        accepted there. The coordinator knows, when the state is read again.
        """
        epoch = self.partition.leader_epoch
        follows = self.core is not None and epoch == self.leader_epoch + 1  # no other can have led in between
        if not self.partition.leads or self._shared.session_id() != self._session_id:
            return False
        if epoch != self.leader_epoch and not follows:
            return False
        self.leader_epoch = epoch
        return True

    def _log_start_moved(self) -> None:
        if self.core is not None:
            self.core.log_start_moved(self.partition.log.log_start_offset)

    # ---- fetches

    def visible_end(self, committed_only: bool) -> int:
        """Return where the records end that the group may read."""
        return self.partition.log.last_stable_offset if committed_only else self.partition.high_watermark

    def has_records(self, committed_only: bool) -> bool:
        """Return whether a fetch would acquire something, as far as is known without reading."""
        core = self.core
        if core is None or self.error is not None or self.is_reading:
            return False
        return core.next_fetch_offset() < self.visible_end(committed_only) and core.can_acquire()

    def readable_bytes(self, max_bytes: int, committed_only: bool) -> int:
        """Return how many bytes a fetch would read, at most `max_bytes` but one batch at any size."""
        core = self.core
        if core is None or not self.has_records(committed_only):
            return 0
        end = self.visible_end(committed_only)
        return self.partition.read(core.next_fetch_offset(), max_bytes, up_to=end).length

    async def deliver(
        self, asked: Callable[[int], Acquisition], max_bytes: int, *, at_least_one: bool
    ) -> Delivered:
        """Read where records are available, and acquire them; `asked` takes the offset of the read.

        Raises KafkaError. Reading and acquiring are one step, unless the records have to come from the disk.
        """
        began_ms = self._shared.clock.monotonic_ms()
        core = self.active
        terms = self._shared.terms(self.key.group_id)
        core.limits = terms.limits
        self._log_start_moved()
        offset = core.next_fetch_offset()
        end = self.visible_end(terms.committed_only)
        if offset >= end or self.is_reading:
            return Delivered(b"", [], False)
        request = asked(offset)
        last = core.read_end(request.max_records)
        found = read_until(self.partition, last, offset, max_bytes, up_to=end, at_least_one=at_least_one)
        if not found.length:
            return Delivered(b"", [], False)
        if self.partition.is_cold(offset, found):
            await self._warm(found)
            core = self.active
        delivered = self._acquire(core, request, found, committed_only=terms.committed_only)
        self._meters.read(began_ms, self._shared.clock.monotonic_ms())
        for first, last, _ in delivered.acquired:
            self._meters.batch_size.update(last - first + 1)
        return delivered

    async def _warm(self, found: Slice) -> None:
        from ottla.broker.log.files.file_slices import warm

        self.is_reading = True
        try:
            await warm([found])
        finally:
            self.is_reading = False
            self.changed()

    def _acquire(
        self, core: SharePartition, asked: Acquisition, found: Slice, *, committed_only: bool
    ) -> Delivered:
        records = found.read()
        headers = headers_of(records)
        batches = [LogBatch(header.base_offset, header.last_offset) for header, _ in headers]
        aborted = aborted_ranges(self.partition.log, headers, found.end_offset) if committed_only else []
        if not batches:
            return Delivered(b"", [], False)
        before = core.start_offset, core.next_offset
        acquired = core.acquire(asked, batches, self._shared.clock.monotonic_ms(), aborted)
        self._plan_expiry(core)
        if not acquired:
            return Delivered(b"", [], before != (core.start_offset, core.next_offset))
        return Delivered(between(records, headers, acquired), acquired, True)

    # ---- waits

    def wait(self, wake: Callable[[], object]) -> None:
        """Wake a fetch when there may be records, one after the other, the longest waiting first.

        Hundreds of members may wait for one partition: the first takes what there is.
        """
        self.waiting[wake] = None
        self._watch()

    def stop_waiting(self, wake: Callable[[], object]) -> None:
        """Wake a fetch no more; what it has left is for the next."""
        self.waiting.pop(wake, None)
        self.wake_next()

    def _watch(self) -> None:
        if not self._is_watching and self.waiting:
            self._is_watching = True
            self.partition.watchers[self._log_changed] = None

    def _log_changed(self) -> None:
        self._is_watching = False
        if self.error is None and not self.leads():
            self.fail(NotLeaderOrFollower())
            return
        self._log_start_moved()
        self._watch()
        self.changed()

    def changed(self) -> None:
        """Wake fetches: there may be more to acquire than before."""
        self._untried = dict(self.waiting)
        self.wake_next()

    def wake_next(self) -> None:
        """Wake the first fetch that has not looked since the last change, if there is something for it."""
        if not self._untried or not self.has_records(self._shared.terms(self.key.group_id).committed_only):
            return
        while self._untried:
            wake = next(iter(self._untried))
            del self._untried[wake]
            if wake in self.waiting:
                wake()
                return

    def wake_all(self) -> None:
        """Wake every fetch: the share partition has been loaded, or has failed."""
        for wake in list(self.waiting):
            wake()

    # ---- members

    def acknowledge(self, member_id: str, batches: Sequence[Acknowledgement]) -> asyncio.Future[None] | None:
        """Take a member's acknowledgements; return the wait until they are persisted, if they have to be.

        Raises KafkaError, as the wait does.
        """
        core = self.active
        core.limits = self._shared.terms(self.key.group_id).limits
        self._log_start_moved()
        batches = core.unfinished(batches)
        write = core.acknowledge(member_id, batches, self._shared.clock.monotonic_ms())
        self._plan_expiry(core)
        if write is None:
            self._shared.metrics.acknowledged(batches)
            return None
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        settled.add_done_callback(partial(self._acknowledged, batches))
        self._put(write, settled)
        return settled

    def _acknowledged(self, batches: Sequence[Acknowledgement], done: asyncio.Future[None]) -> None:
        """Count persisted acknowledgements; ask for the error otherwise, as the client may be gone."""
        if not done.cancelled() and done.exception() is None:
            self._shared.metrics.acknowledged(batches)

    def release(self, member_id: str) -> None:
        """Release what a member holds: its session has ended."""
        if self.core is None or self.error is not None:
            return
        write = self.core.release(member_id)
        if write is not None:
            self._put(write, None)

    def expire(self) -> None:
        """End the locks whose time is over."""
        if self.core is None or self.error is not None:
            return
        write = self.core.expire(self._shared.clock.monotonic_ms())
        self._plan_expiry(self.core)
        if write is not None:
            self._meters.lock_timeouts.mark(
                sum(batch.last_offset - batch.first_offset + 1 for batch in write.batches)
            )
            self._put(write, None)
            self.changed()
        self._send_letters(self.core)
        self._end_if_left()

    def _plan_expiry(self, core: SharePartition) -> None:
        deadline_ms = core.next_deadline_ms
        self._shared.timers.set(self, None if deadline_ms == inf else deadline_ms)

    # ---- writes

    def _put(self, write: StateWrite, settled: asyncio.Future[None] | None) -> None:
        self._queue.append((write, settled))
        if not self._is_writing:
            self._is_writing = True
            self._shared.tasks.spawn(self._write_all(), "share-partition-write")

    async def _write_all(self) -> None:
        """Write the queue, all of it with each request, until it is empty."""
        try:
            while self._queue:
                queued, self._queue = self._queue, []
                error = await self._write([batch for write, _ in queued for batch in write.batches])
                self._settle(queued, error)
        finally:
            self._is_writing = False
        self._end_if_left()

    async def _write(self, batches: Sequence[StateBatch]) -> KafkaError | None:
        assert self.core is not None
        written = WrittenState(
            self._state_epoch,
            self.leader_epoch,
            self.core.start_offset,
            self.core.delivery_complete_count,
            batches,
        )
        try:
            await self._shared.persister.write(self.key, written)
            self._has_stored_start = True
        except KafkaError as error:
            return as_leader_error(error)
        except Exception:
            log.exception("state of a share partition not written", extra={"group": self.key.group_id})
            return UnknownServerError()  # members wait for the outcome
        return None

    def _settle(
        self, queued: Sequence[tuple[StateWrite, asyncio.Future[None] | None]], error: KafkaError | None
    ) -> None:
        assert self.core is not None
        now_ms = self._shared.clock.monotonic_ms()
        has_more = False
        for write, settled in queued:
            if write.number:
                has_more = self.core.persisted(write.number, now_ms, failed=error is not None) or has_more
            if settled is not None and not settled.done():
                settled.set_result(None) if error is None else settled.set_exception(error)
        self._plan_expiry(self.core)
        if error is not None:
            self._warn(error)
        if isinstance(error, NotLeaderOrFollower | UnknownTopicOrPartition):
            self.fail(error)
            return
        self._send_letters(self.core)
        if has_more:
            self.changed()

    def _warn(self, error: KafkaError) -> None:
        """Log that state was not persisted, once in a while."""
        topic_partition = str(self.partition.topic_partition)
        self._shared.warnings.warn(
            f"{self.key.group_id}:{topic_partition}",
            "state of a share partition not written",
            extra={"group": self.key.group_id, "partition": topic_partition,
                   "error": error.code.name, "reason": str(error)},
        )  # fmt: skip

    # ---- dead letters

    def _send_letters(self, core: SharePartition) -> None:
        """Begin to write the records that go to the dead-letter topic, unless a task does that already."""
        self._letters += core.take_letters()
        if self._letters and not self._is_sending:
            self._is_sending = True
            self._shared.tasks.spawn(self._send_all(core), "share-dead-letters")

    async def _send_all(self, core: SharePartition) -> None:
        """Write letters as long as there are some, and finish their records."""
        origin = Origin(self.key.group_id, self.partition.topic_partition)
        try:
            while self._letters and self.error is None:
                self._letters.sort()
                ended = await self._shared.dead_letters.write(
                    origin, self.partition, tuple(self._letters), topic=self._dead_letter_topic
                )
                self._letters = left(self._letters, ended)
                for letters in ended if self.error is None else ():
                    self._bury(core, letters)
        finally:
            self._is_sending = False
        self._end_if_left()

    def _dead_letter_topic(self) -> tuple[str, bool]:
        terms = self._shared.terms(self.key.group_id)
        return terms.dead_letter_topic, terms.copies_dead_letters

    def _bury(self, core: SharePartition, letters: DeadLetters) -> None:
        write = core.buried(letters)
        if write is not None:
            self._put(write, None)
            self.changed()
