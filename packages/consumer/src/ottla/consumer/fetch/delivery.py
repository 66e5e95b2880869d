"""Giving records out: one by one, in lists, in batches; and what the application has in hand of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ottla.client.interceptors import Interceptors
from ottla.consumer._records import ConsumerRecord, RecordSource
from ottla.consumer.errors import OffsetOutOfRange
from ottla.consumer.fetch.assigned_partitions import in_hand
from ottla.consumer.fetch.fetcher import Fetcher, RawPiece
from ottla.consumer.fetch.notifier import News
from ottla.consumer.fetch.positions import Place, Positions
from ottla.consumer.group.membership import Membership
from ottla.consumer.record import RecordBatch
from ottla.protocol.topics import TopicPartition

# About how much is given at once where nothing else was said: more would leave the processor's caches.
USUAL_BYTES = 256 * 1024

Records = dict[TopicPartition, list[ConsumerRecord]]


class Giver(RecordSource):
    """Gives out what the fetcher brings, a partition after the other.

    What is in hand is not finished: the last record of an iteration, or all records of a list, until the next
    are asked for. Nothing is counted per record: cursors know where they are.
    """

    def __init__(
        self,
        positions: Positions,
        fetcher: Fetcher,
        news: News,
        interceptors: Interceptors,
        timeout_ms: float,
    ) -> None:
        self._positions = positions
        self._fetcher = fetcher
        self._news = news
        self._membership: Membership | None = None
        self._handed: dict[TopicPartition, int] = {}
        self._interceptors = interceptors
        self._on_consume = interceptors.methods("on_consume")
        self._intercepts = bool(self._on_consume)
        self._timeout_ms = timeout_ms

    def _check_open(self) -> None:
        """Raise what keeps records from ever coming."""

    # --- asking

    async def _turn_to_next(self) -> None:
        """Wait for a partition with records and read from it. Raises StopAsyncIteration after a timeout."""
        self._begin()
        deadline_s = self._deadline(self._timeout_ms) if self._timeout_ms >= 0 else None
        place = await self._next_place((), deadline_s)
        if place is None:
            raise StopAsyncIteration
        if self._current is not None:  # another task asked while we waited: its partition must not get lost
            self._leave_current()
        self._current = place.pieces[0].cursor

    async def _collect(
        self, partitions: Sequence[TopicPartition], timeout_ms: float | None, limit: int | None
    ) -> Records:
        self._begin()
        await self._breathe()
        deadline_s = None if timeout_ms is None else self._deadline(timeout_ms)
        found: Records = {}
        count = size = 0
        while size < USUAL_BYTES if limit is None else count < limit:
            place = self._positions.next_ready(partitions)
            if place is None and not found:
                place = await self._next_place(partitions, deadline_s)
            if place is None:
                break
            record_bytes = place.pieces[0].record_bytes
            most = _usual(record_bytes, size) if limit is None else limit - count
            taken = self._take(place, most, found)
            if taken is None:
                break
            count += taken
            size += taken * record_bytes
        self._fetcher.look()
        return self._shown(found) if self._intercepts else found

    async def _next_batch(self, limit: int | None) -> RecordBatch | None:
        """Return records of one partition; none where a timeout was set and passed."""
        self._begin()
        await self._breathe()
        deadline_s = self._deadline(self._timeout_ms) if self._timeout_ms >= 0 else None
        found: Records = {}
        while not found:
            place = await self._next_place((), deadline_s)
            if place is None:
                return None
            piece = place.pieces[0]
            self._take(place, limit or _usual(piece.record_bytes), found)
            found = self._shown(found) if self._intercepts else found
        self._fetcher.look()
        ((partition, records),) = found.items()
        return RecordBatch(partition, records, piece.cursor.position, piece.high_watermark)

    async def _raw_pieces(
        self, max_bytes: int, timeout_ms: float | None = None, partitions: Sequence[TopicPartition] = ()
    ) -> list[RawPiece]:
        """Return fetched bytes as they are, or none after the timeout; in hand until the next ask."""
        self._begin()
        await self._breathe()
        deadline_s = None if timeout_ms is None else self._deadline(timeout_ms)
        place = await self._next_place(partitions, deadline_s)
        if place is None:
            return []
        self._positions.put_first(place)
        pieces = self._fetcher.take_raw(max_bytes, partitions)
        for piece in pieces:
            self._handed.setdefault(piece.partition, piece.since_offset)
        return pieces

    def _give_back(self, piece: RawPiece, next_offset: int) -> None:
        """Have the rest of a raw piece at hand again: it was not needed whole. The last piece comes first.

        What is not in hand any more stays where it is: one sought elsewhere since, or others have it now.
        """
        if piece.partition in self._handed:
            self._fetcher.give_back(piece, next_offset)

    # --- one turn

    def _begin(self) -> None:
        """The application asks: it is finished with what it had in hand."""
        self._check_open()
        self._asked = True
        self._in_hand = None
        if self._handed:
            self._handed.clear()
        if self._current is not None:
            self._leave_current()

    def _leave_current(self) -> None:
        current, self._current = self._current, None
        assert current is not None
        place = self._positions.get(current.topic_partition)
        if place is None or not place.pieces or place.pieces[0].cursor is not current:
            return
        if current.at_end:
            self._finish_piece(place)
        self._positions.enqueue(place)

    def _finish_piece(self, place: Place) -> None:
        place.finish_piece()
        self._fetcher.look()

    def _take(self, place: Place, limit: int, found: Records) -> int | None:
        """Take records of a partition, and say how many; None: what is next there must wait to be told."""
        piece = place.pieces[0]
        first = piece.cursor.position
        try:
            records = piece.cursor.take(limit)
        except Exception:
            self._positions.put_first(place)
            if found:
                return None  # what others had comes first; this is met again
            raise
        if piece.cursor.at_end:
            self._finish_piece(place)
        if records:
            self._handed.setdefault(place.partition, first)
            if (more := found.setdefault(place.partition, records)) is not records:
                more.extend(records)
        self._positions.enqueue(place)
        return len(records)

    async def _next_place(
        self, partitions: Sequence[TopicPartition], deadline_s: float | None
    ) -> Place | None:
        """Wait for a partition with records; raise what went wrong with one that has none."""
        is_first = True
        self._fetcher.asked_for = partitions
        while True:
            self._check_open()
            if (place := self._positions.next_ready(partitions)) is not None:
                return place
            self._raise_failures(partitions)
            if is_first:
                is_first = False
                self._fetcher.look()
                if deadline_s is not None and deadline_s <= asyncio.get_running_loop().time():
                    # Whoever polls without waiting still lets records come in.
                    await asyncio.sleep(0)
                    return self._positions.next_ready(partitions)
            if not await self._news.wait(deadline_s):
                return None

    def _raise_failures(self, partitions: Sequence[TopicPartition]) -> None:
        if self._membership is not None:
            self._membership.asked()
        failures = self._positions.take_failures(partitions)
        if not failures:
            return
        self._fetcher.look()
        places = [each.partitions for each in failures if isinstance(each, OffsetOutOfRange)]
        if places:
            raise OffsetOutOfRange(
                {partition: offset for each in places for partition, offset in each.items()}
            )
        raise failures[0]

    def _deadline(self, timeout_ms: float) -> float:
        return asyncio.get_running_loop().time() + timeout_ms / 1_000

    # --- interceptors

    def _shown(self, found: Records) -> Records:
        shown = {
            partition: list(self._interceptors.transform(self._on_consume, records))
            for partition, records in found.items()
        }
        return {partition: records for partition, records in shown.items() if records}

    def _show(self, record: ConsumerRecord) -> Any:
        shown: Sequence[Any] = self._interceptors.transform(self._on_consume, [record])
        return shown[0] if shown else None

    # --- what the group asks (assigned_partitions.Giving)

    def stop_giving(self, partitions: frozenset[TopicPartition]) -> None:
        """Go on with other partitions, from the next record on."""
        if self._current is not None and self._current.topic_partition in partitions:
            self._leave_current()

    def take_away(self, partitions: frozenset[TopicPartition]) -> None:
        """Read partitions no more. When they come back, what is in hand of them now counts no more."""
        self.stop_giving(partitions)
        for partition in partitions:
            self._forget_hand(partition)
        self._positions.assign(self._positions.assigned - partitions)

    def handled(self) -> dict[TopicPartition, int]:
        """Return what is in hand: the first offset that is not finished, by partition."""
        return in_hand(self._in_hand) | self._handed

    def asked_lately(self) -> bool:
        """Say whether records were asked for since the last call of this, or are waited for."""
        asked, self._asked = self._asked or self._news.is_awaited, False
        return asked

    def _forget_hand(self, partition: TopicPartition) -> None:
        """What is in hand of a partition does not hold its offset back any more: it goes on elsewhere."""
        if self._in_hand is not None and self._in_hand.topic_partition == partition:
            self._in_hand = None
        self._handed.pop(partition, None)


def _usual(record_bytes: int, size: int = 0) -> int:
    """Return how many records make up the usual bytes, some of which are there already."""
    return max(1, (USUAL_BYTES - size) // record_bytes)
