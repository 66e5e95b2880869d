"""Return fetched bytes undecoded, for readers that make no Python object per record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ottla.consumer.fetch.decoding import RecordDecoder
from ottla.consumer.fetch.positions import FetchedData, PartitionState, Positions
from ottla.protocol.messages.fetch import AbortedTransaction
from ottla.protocol.topics import TopicPartition


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
