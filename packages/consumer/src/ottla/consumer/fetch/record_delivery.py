"""Deliver fetched records to the application: one by one, in lists, in batches, or undecoded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ottla.client.interceptors import Interceptors
from ottla.client.serialization import MOST_PREPARATIONS
from ottla.consumer._records import ConsumerRecord, RecordCursor, RecordIterator
from ottla.consumer.errors import (
    ConsumerStopped,
    OffsetOutOfRange,
    RecordDeserializationFailed,
    RecordUnprepared,
    UnreadableBatch,
)
from ottla.consumer.fetch.decoding import RecordDecoder
from ottla.consumer.fetch.fetcher import Fetcher
from ottla.consumer.fetch.positions import FetchedData, PartitionState, Positions
from ottla.consumer.fetch.state_change_notifier import StateChangeNotifier
from ottla.consumer.record import RecordBatch
from ottla.protocol.messages.fetch import AbortedTransaction
from ottla.protocol.topics import TopicPartition

# The bytes of records that one call returns unless the caller sets a limit: more would leave the processor's
# caches before the application reads them.
DEFAULT_BYTES = 256 * 1024

Records = dict[TopicPartition, list[ConsumerRecord[Any, Any]]]


class RecordDelivery(RecordIterator):
    """Delivers buffered records, one partition after the other.

    Delivered records are unfinished until the application asks for more: the last record of an iteration, or
    all records of a list. Nothing is counted per record: cursors know their positions. `RecordIterator`, the
    native half, iterates over the cursor of one partition; `_wait_for_next_cursor` gives it the next cursor.

    `check_open` raises what ended the consumer, `check_group` what the group or its listener failed with.
    """

    def __init__(
        self,
        positions: Positions,
        fetcher: Fetcher,
        raw: RawFetches,
        notifier: StateChangeNotifier,
        interceptors: Interceptors,
        timeout_ms: float,
        *,
        check_open: Callable[[], None],
        check_group: Callable[[], None],
        preparation_timeout_s: float,
    ) -> None:
        self.timeout_ms = timeout_ms
        """The iteration ends after so long without a record; negative: never."""
        self._positions = positions
        self._fetcher = fetcher
        self._raw = raw
        self._notifier = notifier
        self._interceptors = interceptors
        self._check_open = check_open
        self._check_group = check_group
        self._unfinished: dict[TopicPartition, int] = {}
        self.has_lost_records = False
        """Whether a partition was unassigned while records of it, delivered last, were unfinished."""
        self._preparation_timeout_s = preparation_timeout_s
        self._preparations = 0
        self._prepared_for: tuple[TopicPartition, int] | None = None
        """The record for whose deserializer so many preparations were awaited."""
        self._on_consume = interceptors.methods("on_consume")
        self._intercepts = bool(self._on_consume)

    # --- lists and batches

    async def collect(
        self, partitions: Sequence[TopicPartition], timeout_ms: float | None, limit: int | None
    ) -> Records:
        """Return buffered records of all partitions or some, waiting up to a timeout for the first."""
        self._begin()
        await self._yield_if_due()
        deadline_s = None if timeout_ms is None else self._deadline(timeout_ms)
        found: Records = {}
        count = size = 0
        while size < DEFAULT_BYTES if limit is None else count < limit:
            state = self._positions.next_ready(partitions)
            if state is None and not found:
                state = await self._next_state(partitions, deadline_s)
            if state is None:
                break
            record_bytes = state.buffered[0].record_bytes
            most = _default_count(record_bytes, size) if limit is None else limit - count
            try:
                taken = self._take(state, most, found)
            except RecordUnprepared as unprepared:
                await self._prepare(unprepared)
                continue
            if taken is None:
                break
            count += taken
            size += taken * record_bytes
        self._fetcher.wake()
        return self._intercepted(found) if self._intercepts else found

    async def next_batch(self, limit: int | None) -> RecordBatch[Any, Any] | None:
        """Return records of one partition; None after the timeout of iterations."""
        self._begin()
        await self._yield_if_due()
        deadline_s = self._deadline(self.timeout_ms) if self.timeout_ms >= 0 else None
        found: Records = {}
        while not found:
            state = await self._next_state((), deadline_s)
            if state is None:
                return None
            fetched = state.buffered[0]
            try:
                self._take(state, limit or _default_count(fetched.record_bytes), found)
            except RecordUnprepared as unprepared:
                await self._prepare(unprepared)
                continue
            found = self._intercepted(found) if self._intercepts else found
        self._fetcher.wake()
        ((partition, records),) = found.items()
        return RecordBatch(partition, records, fetched.cursor.position, fetched.high_watermark)

    async def take_raw(
        self, max_bytes: int, timeout_ms: float | None = None, partitions: Sequence[TopicPartition] = ()
    ) -> list[RawFetchedData]:
        """Return fetched bytes undecoded, or none after the timeout; unfinished until the next call."""
        self._begin()
        await self._yield_if_due()
        deadline_s = None if timeout_ms is None else self._deadline(timeout_ms)
        state = await self._next_state(partitions, deadline_s)
        if state is None:
            return []
        self._positions.put_first(state)
        taken = self._raw.take(max_bytes, partitions)
        self._fetcher.wake()
        for raw in taken:
            self._unfinished.setdefault(raw.partition, raw.since_offset)
        return taken

    def give_back(self, raw: RawFetchedData, next_offset: int) -> None:
        """Buffer the rest of undecoded data again. The last of several must be given back first.

        Data of partitions that were sought or unassigned since is dropped.
        """
        if raw.partition in self._unfinished:
            self._raw.give_back(raw, next_offset)

    def refetch(self, partition: TopicPartition) -> None:
        """Fetch a partition again: undecoded data that were given back cannot be read."""
        if partition in self._unfinished and (state := self._positions.get(partition)) is not None:
            self._fetcher.refetch(state)

    async def _prepare(self, unprepared: RecordUnprepared) -> None:
        """Await what the deserializer of a record needs before it is read again.

        Raises RecordDeserializationFailed if that fails or takes too long: asking again tries again.
        """
        self._polled = True
        self._preparations += 1
        where = (unprepared.partition, unprepared.offset)
        if where != self._prepared_for:
            self._preparations, self._prepared_for = 1, where
        try:
            if self._preparations > MOST_PREPARATIONS:
                raise RuntimeError(f"{MOST_PREPARATIONS} preparations did not suffice")
            async with asyncio.timeout(self._preparation_timeout_s):
                await unprepared.prepare()
        except Exception as error:
            self._prepared_for = None
            raise RecordDeserializationFailed(unprepared.what, *where, error) from error

    # --- the next partition

    async def _wait_for_next_cursor(self) -> None:
        """Wait for a partition with records and iterate over it, or for the deserializer of the next record.

        Raises StopAsyncIteration on a timeout, and when the consumer was stopped by another task.
        """
        current = self._current_cursor
        if current is not None and (unprepared := current.take_unprepared()) is not None:
            await self._prepare(unprepared)
            return
        deadline_s = self._deadline(self.timeout_ms) if self.timeout_ms >= 0 else None
        try:
            self._begin()
            state = await self._next_state((), deadline_s)
        except ConsumerStopped:
            raise StopAsyncIteration from None
        if state is None:
            raise StopAsyncIteration
        if self._current_cursor is not None:  # another task asked meanwhile: queue its partition again
            self._leave_current()
        self._current_cursor = state.buffered[0].cursor

    def _begin(self) -> None:
        """Finish what was delivered: the application asks for more."""
        self._check_open()
        self._polled = True
        self._last_cursor = None
        self.has_lost_records = False
        if self._unfinished:
            self._unfinished.clear()
        if self._current_cursor is not None:
            self._leave_current()

    def _leave_current(self) -> None:
        current, self._current_cursor = self._current_cursor, None
        assert current is not None
        state = self._positions.get(current.topic_partition)
        if state is None or not state.buffered or state.buffered[0].cursor is not current:
            return
        if current.is_unreadable:
            self._fetcher.refetch(state)
            return
        if current.at_end:
            self._pop_finished(state)
        self._positions.enqueue(state)

    def _pop_finished(self, state: PartitionState) -> None:
        state.pop_finished()
        self._fetcher.wake()

    def _take(self, state: PartitionState, limit: int, found: Records) -> int | None:
        """Add records of a partition and return their number; None: the next one fails, in a later call."""
        fetched = state.buffered[0]
        first = fetched.cursor.position
        try:
            records = fetched.cursor.take(limit)
        except Exception as error:
            if found:
                self._positions.put_first(state)
                return None  # records of other partitions are returned first; the next call fails here again
            if isinstance(error, UnreadableBatch):
                self._fetcher.refetch(state)
            else:
                self._positions.put_first(state)
            raise
        if fetched.cursor.at_end:
            self._pop_finished(state)
        if records:
            self._unfinished.setdefault(state.partition, first)
            if (more := found.setdefault(state.partition, records)) is not records:
                more.extend(records)
        self._positions.enqueue(state)
        return len(records)

    async def _next_state(
        self, partitions: Sequence[TopicPartition], deadline_s: float | None
    ) -> PartitionState | None:
        """Wait for a partition with records; raise the failure of one that has none."""
        is_first = True
        self._fetcher.asked_for = partitions
        while True:
            self._check_open()
            if (state := self._positions.next_ready(partitions)) is not None:
                return state
            self._raise_failures(partitions)
            if is_first:
                is_first = False
                self._fetcher.wake()
                if deadline_s is not None and deadline_s <= asyncio.get_running_loop().time():
                    # A poll with timeout 0 still lets responses arrive.
                    await asyncio.sleep(0)
                    return self._positions.next_ready(partitions)
            if not await self._notifier.wait(deadline_s):
                return None

    def _raise_failures(self, partitions: Sequence[TopicPartition]) -> None:
        self._check_group()
        failures = self._positions.take_failures(partitions)
        if not failures:
            return
        self._fetcher.wake()
        out_of_range = [failure.partitions for failure in failures if isinstance(failure, OffsetOutOfRange)]
        if out_of_range:
            raise OffsetOutOfRange(
                {partition: offset for positions in out_of_range for partition, offset in positions.items()}
            )
        raise failures[0]

    def _deadline(self, timeout_ms: float) -> float:
        return asyncio.get_running_loop().time() + timeout_ms / 1_000

    # --- interceptors

    def _intercepted(self, found: Records) -> Records:
        shown = {
            partition: list(self._interceptors.transform(self._on_consume, records))
            for partition, records in found.items()
        }
        return {partition: records for partition, records in shown.items() if records}

    def _intercept(self, record: ConsumerRecord[Any, Any]) -> Any:
        shown: Sequence[Any] = self._interceptors.transform(self._on_consume, [record])
        return shown[0] if shown else None

    # --- control over partitions (assigned_partitions.PartitionDelivery)

    def suspend(self, partitions: frozenset[TopicPartition]) -> None:
        """Continue with other partitions, from the next record on."""
        if self._current_cursor is not None and self._current_cursor.topic_partition in partitions:
            self._leave_current()

    def discard(self, state: PartitionState) -> None:
        """Deliver no more buffered records of a partition, and forget its unfinished ones."""
        self.suspend(frozenset((state.partition,)))
        self._forget_unfinished(state.partition)

    def unassign(self, partitions: frozenset[TopicPartition]) -> None:
        """Unassign partitions. Their unfinished records are forgotten, also if they are assigned again."""
        self.suspend(partitions)
        self.has_lost_records |= not partitions.isdisjoint(self.unfinished())
        for partition in partitions:
            self._forget_unfinished(partition)
        self._positions.assign(self._positions.assigned - partitions)

    def unfinished(self) -> dict[TopicPartition, int]:
        """Return the first unfinished offset of each partition of which records were delivered last."""
        return _last_delivered(self._last_cursor) | self._unfinished

    def finish(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Count delivered records below offsets as finished: the application commits them."""
        delivered = _last_delivered(self._last_cursor)
        for partition, offset in offsets.items():
            if delivered.get(partition, offset) < offset:
                self._last_cursor = None
            state = self._positions.get(partition)
            if state is None or state.position is None or state.position <= offset:
                self._unfinished.pop(partition, None)
            elif partition in self._unfinished:
                self._unfinished[partition] = max(self._unfinished[partition], offset)

    def was_polled(self) -> bool:
        """Return whether records were asked for since the last call of this, or are waited for."""
        was_polled, self._polled = self._polled or self._notifier.has_waiters, False
        return was_polled

    def _forget_unfinished(self, partition: TopicPartition) -> None:
        """Stop holding back the committable offset of a partition: its position moves elsewhere."""
        if self._last_cursor is not None and self._last_cursor.topic_partition == partition:
            self._last_cursor = None
        self._unfinished.pop(partition, None)


def _last_delivered(cursor: RecordCursor | None) -> dict[TopicPartition, int]:
    """Return the offset of the record that a cursor delivered last, by partition."""
    return {} if cursor is None or cursor.last_offset < 0 else {cursor.topic_partition: cursor.last_offset}


def _default_count(record_bytes: int, size: int = 0) -> int:
    """Return how many records fill the default bytes, `size` of which are used."""
    return max(1, (DEFAULT_BYTES - size) // record_bytes)


@dataclass(frozen=True, slots=True)
class RawFetchedData:
    """Bytes of a partition as they were fetched; records below `since_offset` must be skipped."""

    partition: TopicPartition
    data: memoryview
    since_offset: int
    aborted: Sequence[AbortedTransaction] | None
    high_watermark: int
    next_offset: int
    """The offset after this data."""
    end_epoch: int
    """The leader epoch of its last batch."""
    generation: int
    """The generation of the partition's state when the data was taken."""


class RawFetches:
    """Takes undecoded data out of the buffers, and puts back what was not read of it."""

    def __init__(
        self, positions: Positions, decoder: RecordDecoder, look_up_offsets: Callable[[], None]
    ) -> None:
        self._positions = positions
        self._decoder = decoder
        self._look_up_offsets = look_up_offsets

    def take(self, max_bytes: int, partitions: Sequence[TopicPartition] = ()) -> list[RawFetchedData]:
        """Return about `max_bytes` of buffered data, but at least one piece, and move positions past it."""
        taken: list[RawFetchedData] = []
        size = 0
        while size < max_bytes and (state := self._positions.next_ready(partitions)) is not None:
            fetched = state.buffered[0]
            taken.append(self._take_first(state))
            size += fetched.cursor.size_in_bytes
        return taken

    def _take_first(self, state: PartitionState) -> RawFetchedData:
        since = state.buffered[0].cursor.position
        fetched = state.pop_finished()
        self._positions.enqueue(state)
        return RawFetchedData(
            state.partition,
            memoryview(fetched.data),
            since,
            fetched.aborted,
            fetched.high_watermark,
            max(fetched.end_offset, since),
            fetched.end_epoch,
            state.generation,
        )

    def give_back(self, raw: RawFetchedData, next_offset: int) -> None:
        """Buffer data again from an offset on.

        If buffered data was invalidated since, the rest is fetched again, unless the position was moved
        before it. With the epoch of the data, a truncation within it is detected again.
        """
        state = self._positions.get(raw.partition)
        if state is None or next_offset >= raw.next_offset:
            return
        if state.generation != raw.generation:
            if state.position is None or next_offset < state.position:
                state.seek(next_offset, raw.end_epoch)
                self._look_up_offsets()
            return
        state.buffered.appendleft(
            FetchedData(
                self._decoder.cursor(state.partition, raw.data, next_offset, raw.aborted),
                raw.data,
                raw.aborted,
                raw.next_offset,
                raw.end_epoch,
                raw.high_watermark,
                max(1, len(raw.data) // max(1, raw.next_offset - raw.since_offset)),
            )
        )
        self._positions.enqueue(state)
