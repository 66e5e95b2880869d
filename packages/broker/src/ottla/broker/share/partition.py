"""One share partition on its leader: acquisition, acknowledgement and the start offset. Pure.

    AVAILABLE --acquire--> ACQUIRED --accept--> ACKNOWLEDGED
        ^                      |  |---reject or a gap--> ARCHIVED
        +--release, lock over--+  +--release or lock over at the delivery limit--> ARCHIVED

In a group with a dead-letter topic, rejected records and those at the delivery limit are ARCHIVING first.
Once that is persisted `take_letters` hands them on, and they are ARCHIVED with `buried`: a leader that begins
in between hands them on again.

Events go in as method calls with `now_ms`. A `StateWrite` comes out where state has to be persisted. What a
member asked for holds once its write is persisted: until then its records are neither available nor finished,
and a failed write gives them back to the member, or to nobody if its lock is over by then. A lock that ends
takes effect at once, for no member waits for the answer.

Offsets between the start offset and `next_offset` that no batch covers are available, as after a load. The
start offset moves over finished records only.

The module has over 500 lines because the transitions of one record stand together.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from operator import attrgetter
from typing import Final, NamedTuple

from ottla.broker.share.in_flight import (
    FINAL,
    Acquired,
    Batch,
    DeadLetters,
    Reason,
    RecordState,
    Run,
    StateBatch,
    joined,
)
from ottla.protocol.errors import InvalidRecordState, InvalidRequest

GAP: Final = 0
ACCEPT: Final = 1
RELEASE: Final = 2
REJECT: Final = 3
RENEW: Final = 4
_ACKNOWLEDGED: Final = {
    GAP: RecordState.ARCHIVED,
    ACCEPT: RecordState.ACKNOWLEDGED,
    RELEASE: RecordState.AVAILABLE,
    REJECT: RecordState.ARCHIVED,
}
_LEAST_THROTTLED_DELIVERIES: Final = 2
_FIRST: Final = attrgetter("first")
_LAST_OFFSET: Final = attrgetter("last_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLimits:
    """The settings of a share group that hold for each of its partitions."""

    max_record_locks: int = 2000
    delivery_count_limit: int = 5
    record_lock_duration_ms: int = 30_000
    renew_enabled: bool = True
    dead_letters: bool = False
    """Whether records that end without being accepted go to a dead-letter topic."""


class LogBatch(NamedTuple):
    """The offsets of one batch of the log."""

    base_offset: int
    last_offset: int


class Acquisition(NamedTuple):
    """The records that a member asks for with one fetch."""

    member_id: str
    fetch_offset: int
    """Where the log was read."""
    batch_size: int
    """About how many records become one unit of delivery."""
    max_records: int
    record_limit: bool = False
    """Whether `max_records` is exact (`share.acquire.mode=record_limit`, KIP-1206)."""


class Acknowledgement(NamedTuple):
    """Types of acknowledgement for offsets: one for all, or one for each."""

    first_offset: int
    last_offset: int
    types: Sequence[int]

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """Iterate over (first, last, type), neighbours of one type together."""
        if len(self.types) == 1:
            yield self.first_offset, self.last_offset, self.types[0]
            return
        start = 0
        for end in range(1, len(self.types) + 1):
            if end == len(self.types) or self.types[end] != self.types[start]:
                yield self.first_offset + start, self.first_offset + end - 1, self.types[start]
                start = end


@dataclass(frozen=True, slots=True)
class StateWrite:
    """A change that has to be persisted. With a `number`, `SharePartition.persisted` takes the outcome."""

    number: int
    batches: tuple[StateBatch, ...]


@dataclass(slots=True)
class _Taken:
    """The records that one acquisition has taken so far."""

    wanted: int
    records: list[Acquired] = field(default_factory=list)
    count: int = 0
    is_over: bool = False

    @property
    def left(self) -> int:
        return self.wanted - self.count

    def add(self, first: int, last: int, delivery_count: int) -> None:
        self.records.append(Acquired(first, last, delivery_count))
        self.count += last - first + 1


class SharePartition:
    """The delivery state of one partition for one share group, while this broker leads the partition."""

    def __init__(
        self, start_offset: int, state: Iterable[StateBatch] = (), limits: ShareLimits | None = None
    ) -> None:
        """Begin at `start_offset` with the batches that are persisted.

        Raises ValueError for batches that contradict the start offset or each other.
        """
        self.start_offset = start_offset
        """The first record that is not finished."""
        self.next_offset = start_offset
        """The first offset that was never in flight."""
        self.limits = ShareLimits() if limits is None else limits
        self.next_deadline_ms = inf
        """No lock ends before that time."""
        self._batches: list[Batch] = []
        self._may_be_available = False
        self._writes: dict[int, list[Run]] = {}
        self._last_write = 0
        self._letters: list[DeadLetters] = []
        for batch in sorted(state):
            self._load(batch)
        self._advance_start()

    def _load(self, batch: StateBatch) -> None:
        if batch.first_offset < self.next_offset or batch.last_offset < batch.first_offset:
            raise ValueError(f"offsets {batch.first_offset} to {batch.last_offset} contradict others")
        state = RecordState(batch.delivery_state)
        if state is RecordState.ACQUIRED:
            raise ValueError("records are persisted as acquired")
        run = Run(batch.first_offset, batch.last_offset, state, batch.delivery_count)
        if state is RecordState.ARCHIVING:  # the reason is not persisted
            is_over = run.delivery_count >= self.limits.delivery_count_limit
            run.reason = Reason.EXHAUSTED if is_over else Reason.REJECTED
            self._hand_on(run)
        self._batches.append(Batch.of(run))
        self.next_offset = batch.last_offset + 1
        self._may_be_available = True

    # ---- facts

    @property
    def in_flight(self) -> int:
        """How many offsets are between the start offset and the end."""
        return self.next_offset - self.start_offset

    @property
    def acquired(self) -> int:
        """How many records members hold, and have not acknowledged."""
        return sum(run.last - run.first + 1 for run in self.runs() if run.is_acquired)

    @property
    def batch_count(self) -> int:
        """How many batches are in flight."""
        return len(self._batches)

    @property
    def delivery_complete_count(self) -> int:
        """How many offsets at or above the start offset are finished, or will be with their write."""
        return sum(
            run.last - run.first + 1 for batch in self._batches for run in batch.runs if run.state in FINAL
        )

    def runs(self) -> Iterator[Run]:
        """Iterate over the records in flight, in order."""
        for batch in self._batches:
            yield from batch.runs

    def held_by(self, member_id: str) -> int:
        """Return how many records a member holds."""
        return sum(
            run.last - run.first + 1 for run in self.runs() if run.is_acquired and run.member_id == member_id
        )

    def next_fetch_offset(self) -> int:
        """Return the first available offset, where the log is read next."""
        if not self._may_be_available:
            return self.next_offset
        position = self.start_offset
        for batch in self._batches:
            if position < batch.first:
                return position
            for run in batch.runs:
                if run.is_available:
                    return run.first
            position = batch.last + 1
        self._may_be_available = False
        return self.next_offset

    def can_acquire(self) -> bool:
        """Return whether a fetch could acquire anything."""
        return self.next_fetch_offset() != self.next_offset or self.in_flight < self.limits.max_record_locks

    def read_end(self, wanted: int) -> int:
        """Return the last offset that an acquisition of so many records needs, from `next_fetch_offset` on.

        It takes less where the log lacks offsets; what is behind would be read for nothing.
        """
        position, left = self.next_fetch_offset(), min(wanted, self.limits.max_record_locks - self.in_flight)
        if left <= 0:
            return self.next_offset - 1
        for batch in self._overlapping(position, self.next_offset - 1):
            if position + left <= batch.first:
                break
            left -= max(0, batch.first - position)
            position = batch.last + 1
            left -= sum(run.last - run.first + 1 for run in batch.runs if run.is_available)
            if left <= 0:
                return batch.last
        return position + left - 1

    # ---- acquisition

    def acquire(
        self,
        asked: Acquisition,
        log: Sequence[LogBatch],
        now_ms: float,
        aborted: Sequence[tuple[int, int]] = (),
    ) -> list[Acquired]:
        """Acquire available records among batches that were read from the log; return them in order.

        `aborted` are ranges of aborted transactions that the group must not see: they are finished at once.
        """
        if asked.max_records <= 0 or not log or log[-1].last_offset < self.start_offset:
            return []
        last, wanted = self._bounds(asked, log[-1].last_offset)
        if wanted <= 0:
            return []
        self._archive_missing(min(asked.fetch_offset, self.next_offset), log[0].base_offset)
        taken = _Taken(wanted)
        self._take_all(taken, asked, log, last, now_ms + self.limits.record_lock_duration_ms)
        records = self._without_aborted(taken.records, aborted) if aborted else taken.records
        self._advance_start()
        return records

    def _bounds(self, asked: Acquisition, last: int) -> tuple[int, int]:
        """Return up to which offset and how many records are acquired, within the limit of locks.

        At the limit only records that are in flight are delivered again.
        """
        wanted = min(asked.max_records, self.limits.max_record_locks - self.in_flight)
        if wanted > 0 or asked.fetch_offset >= self.next_offset:
            return last, wanted
        end = self.next_offset - 1
        return min(last, end), min(asked.max_records, end - asked.fetch_offset + 1)

    def _take_all(
        self, taken: _Taken, asked: Acquisition, log: Sequence[LogBatch], last: int, until_ms: float
    ) -> None:
        position = max(log[0].base_offset, self.start_offset)
        for batch in self._overlapping(position, last):
            if taken.left <= 0:
                return
            if position < batch.first:
                self._take_new(taken, asked, log, (position, batch.first - 1), until_ms)
                if taken.left <= 0:
                    return
            position = batch.last + 1
            self._take_again(taken, asked, batch, (log[0].base_offset, last), until_ms)
            if taken.is_over:
                return
        if taken.left > 0 and position <= last:
            self._take_new(taken, asked, log, (position, last), until_ms)

    def _take_again(
        self, taken: _Taken, asked: Acquisition, batch: Batch, span: tuple[int, int], until_ms: float
    ) -> None:
        """Acquire the available records of a batch in flight.

        Records that were often delivered without an end are delivered with few others, and alone the last
        time, so that one bad record does not use up the deliveries of its neighbours.
        """
        first, last = span
        throttled = self._is_throttled(batch, first, last)
        if throttled and taken.count:
            taken.is_over = True
            return
        is_full = first <= batch.first and batch.last <= last
        exceeds = asked.record_limit and len(batch) > taken.left
        if is_full and batch.is_whole and not exceeds and not throttled:
            run = batch.runs[0]
            if run.is_available:
                self._lock(run, asked.member_id, until_ms)
                taken.add(run.first, run.last, run.delivery_count)
            return
        limit = taken.left if asked.record_limit else len(batch)
        before = taken.count
        self._take_parts(taken, asked.member_id, batch, (first, last, limit), until_ms)
        taken.is_over = throttled and taken.count > before

    def _throttle_from(self) -> int:
        return max(_LEAST_THROTTLED_DELIVERIES, ceil(self.limits.delivery_count_limit / 2))

    def _is_throttled(self, batch: Batch, first: int, last: int) -> bool:
        limit = self._throttle_from()
        return any(run.is_available and run.delivery_count >= limit for run in batch.between(first, last))

    def _take_parts(
        self, taken: _Taken, member_id: str, batch: Batch, bounds: tuple[int, int, int], until_ms: float
    ) -> None:
        first, last, left = bounds
        limit, throttle_from = self.limits.delivery_count_limit, self._throttle_from()
        throttled = False
        pieces: list[Acquired] = []
        for run in list(batch.between(first, last)):
            if not run.is_available:
                continue
            is_last_delivery = limit > 2 and run.delivery_count == limit - 1
            if is_last_delivery and pieces:
                break
            if run.delivery_count >= throttle_from and not throttled:
                throttled = True
                least = max(1, len(batch) >> (run.delivery_count - throttle_from + 1))
                left = min(left, least - _size(pieces)) if least > _size(pieces) else left
            end = run.first if is_last_delivery else min(run.last, last, max(run.first, first) + left - 1)
            part = batch.isolate(run, first, max(end, first) if is_last_delivery else end)
            self._lock(part, member_id, until_ms)
            _append(pieces, part)
            left -= part.last - part.first + 1
            if is_last_delivery or left <= 0:
                break
        batch.join_runs()
        taken.records.extend(pieces)
        taken.count += _size(pieces)

    def _take_new(
        self,
        taken: _Taken,
        asked: Acquisition,
        log: Sequence[LogBatch],
        span: tuple[int, int],
        until_ms: float,
    ) -> None:
        """Acquire offsets that are in no batch: whole batches of the log, also beyond the number asked."""
        first, last = span
        if taken.left < last - first + 1:
            last = min(last, _end_of_batch(log, first + taken.left - 1))
        if asked.record_limit:
            self._take_exactly(taken, asked.member_id, (first, last), until_ms)
        else:
            for start, end in _chunks(log, first, last, asked.batch_size):
                self._insert(Batch.of(self._locked(start, end, asked.member_id, until_ms)))
                taken.add(start, end, 1)
        self.next_offset = max(self.next_offset, last + 1)

    def _take_exactly(self, taken: _Taken, member_id: str, span: tuple[int, int], until_ms: float) -> None:
        first, last = span
        end = min(last, first + taken.left - 1)
        runs = [self._locked(first, end, member_id, until_ms)]
        if end < last:
            runs.append(Run(end + 1, last, RecordState.AVAILABLE, 0))
            self._may_be_available = True
        self._insert(Batch(first, last, runs))
        taken.add(first, end, 1)

    def _locked(self, first: int, last: int, member_id: str, until_ms: float) -> Run:
        run = Run(first, last, RecordState.AVAILABLE, 0)
        self._lock(run, member_id, until_ms)
        return run

    def _lock(self, run: Run, member_id: str, until_ms: float) -> None:
        run.state = RecordState.ACQUIRED
        run.delivery_count += 1
        run.member_id = member_id
        run.locked_until_ms = until_ms
        self.next_deadline_ms = min(self.next_deadline_ms, until_ms)

    def _without_aborted(
        self, acquired: list[Acquired], aborted: Sequence[tuple[int, int]]
    ) -> list[Acquired]:
        """Finish acquired records of aborted transactions, and return the others."""
        for first, last in aborted:
            kept: list[Acquired] = []
            for piece in acquired:
                start, end = max(piece.first_offset, first), min(piece.last_offset, last)
                if start > end:
                    kept.append(piece)
                    continue
                self._archive(start, end, RecordState.ACQUIRED)
                if piece.first_offset < start:
                    kept.append(piece._replace(last_offset=start - 1))
                if end < piece.last_offset:
                    kept.append(piece._replace(first_offset=end + 1))
            acquired = kept
        return acquired

    # ---- records that are not delivered

    def _archive_missing(self, first: int, end: int) -> None:
        """Finish available offsets below `end` that the log did not return: compaction has removed them."""
        first = max(first, self.start_offset)
        if first >= end:
            return
        self._archive(first, end - 1, RecordState.AVAILABLE)
        position = first
        for batch in self._overlapping(first, end - 1):
            self._fill(position, batch.first - 1)
            position = max(position, batch.last + 1)
        self._fill(position, end - 1)
        self.next_offset = max(self.next_offset, end)
        self._advance_start()

    def _fill(self, first: int, last: int) -> None:
        if first <= last:
            self._insert(Batch.of(Run(first, last, RecordState.ARCHIVED, 0)))

    def _archive(self, first: int, last: int, state: RecordState) -> None:
        for batch in self._overlapping(first, last):
            for run in list(batch.between(first, last)):
                if run.state is state and not run.write:
                    part = batch.isolate(run, first, last)
                    _finish(part, RecordState.ARCHIVED)
            batch.join_runs()

    def log_start_moved(self, log_start_offset: int) -> bool:
        """Forget records that the log has deleted; return whether the start offset moved."""
        if log_start_offset <= self.start_offset:
            return False
        self._drop_below(log_start_offset)
        self.start_offset = log_start_offset
        self.next_offset = max(self.next_offset, log_start_offset)
        self._may_be_available = True
        self._advance_start()
        return True

    def _drop_below(self, offset: int) -> None:
        self._batches = [batch for batch in self._batches if batch.last >= offset]
        if self._batches and self._batches[0].first < offset:
            self._batches[0].drop_below(offset)

    # ---- acknowledgement

    def unfinished(self, acknowledgements: Sequence[Acknowledgement]) -> Sequence[Acknowledgement]:
        """Return those at or above the start offset, of acknowledgements in order: others are finished."""
        return acknowledgements[bisect_left(acknowledgements, self.start_offset, key=_LAST_OFFSET) :]

    def acknowledge(
        self, member_id: str, acknowledgements: Iterable[Acknowledgement], now_ms: float
    ) -> StateWrite | None:
        """Take a member's acknowledgements, all of them or none.

        None where nothing is to be persisted: records below the start offset are finished already, and a
        renewed lock is no state. Raises InvalidRecordState or InvalidRequest.
        """
        write = self._begin_write()
        try:
            for acknowledgement in acknowledgements:
                if acknowledgement.last_offset < self.start_offset:
                    continue
                self._check_in_flight(acknowledgement)
                for first, last, kind in acknowledgement.ranges():
                    self._acknowledge(member_id, (max(first, self.start_offset), last), kind, now_ms)
        except (InvalidRecordState, InvalidRequest):
            self._roll_back(self._writes.pop(write), now_ms)
            raise
        return self._write_of(write)

    def _check_in_flight(self, acknowledgement: Acknowledgement) -> None:
        at = self._floor(acknowledgement.first_offset)
        if at < 0 and acknowledgement.first_offset < self.start_offset:
            at = self._floor(self.start_offset)
        if at < 0:
            raise InvalidRecordState(
                "Batch record not found. The request batch offsets are not found in the cache."
            )
        last = self._batches[max(at, self._floor(acknowledgement.last_offset))].last
        for offset, name in ((acknowledgement.first_offset, "first"), (acknowledgement.last_offset, "last")):
            if last < offset:
                raise InvalidRequest(
                    f"Batch record not found. The {name} offset in request is past acquired records."
                )

    def _acknowledge(self, member_id: str, span: tuple[int, int], kind: int, now_ms: float) -> None:
        first, last = span
        if first > last:
            return
        for batch in self._overlapping(first, last):
            for run in list(batch.between(first, last)):
                self._check_owner(run, member_id)
                if kind == RENEW:
                    self._renew(batch.isolate(run, first, last), now_ms)
                elif kind in _ACKNOWLEDGED:
                    self._begin(batch.isolate(run, first, last), self._asked_state(kind))
                else:
                    raise InvalidRequest(f"Unknown acknowledge type id: {kind}")

    def _asked_state(self, kind: int) -> RecordState:
        if kind == REJECT and self.limits.dead_letters:
            return RecordState.ARCHIVING
        return _ACKNOWLEDGED[kind]

    def _check_owner(self, run: Run, member_id: str) -> None:
        if not run.is_acquired:
            raise InvalidRecordState(
                "The batch cannot be acknowledged. The batch is not in the acquired state."
            )
        if run.member_id != member_id:
            raise InvalidRecordState("Member is not the owner of batch record")

    def _renew(self, run: Run, now_ms: float) -> None:
        if not self.limits.renew_enabled:
            raise InvalidRecordState("Renewing acquisition locks is not enabled for the group.")
        run.locked_until_ms = now_ms + self.limits.record_lock_duration_ms
        self.next_deadline_ms = min(self.next_deadline_ms, run.locked_until_ms)

    def release(self, member_id: str) -> StateWrite | None:
        """Release everything that a member holds, as when its session ends."""
        write = self._begin_write()
        for run in self.runs():
            if run.is_acquired and run.member_id == member_id:
                self._begin(run, RecordState.AVAILABLE)
        return self._write_of(write)

    # ---- writes

    def _begin_write(self) -> int:
        self._last_write += 1
        self._writes[self._last_write] = []
        return self._last_write

    def _begin(self, run: Run, state: RecordState) -> None:
        """Change the state of acquired records, once the write is persisted."""
        run.state = self._limited(run, state)
        if run.state is RecordState.ARCHIVING:
            run.reason = Reason.REJECTED if state is RecordState.ARCHIVING else Reason.EXHAUSTED
        run.owner_before, run.member_id = run.member_id, ""
        run.write = self._last_write
        self._writes[self._last_write].append(run)

    def _limited(self, run: Run, state: RecordState) -> RecordState:
        """Return the state; records that were delivered as often as allowed are not available again."""
        if state is RecordState.AVAILABLE and run.delivery_count >= self.limits.delivery_count_limit:
            return RecordState.ARCHIVING if self.limits.dead_letters else RecordState.ARCHIVED
        return state

    def _write_of(self, number: int) -> StateWrite | None:
        runs = self._writes[number]
        if not runs:
            del self._writes[number]
            return None
        return StateWrite(number, tuple(joined(run.as_state() for run in runs)))

    def persisted(self, number: int, now_ms: float, *, failed: bool = False) -> bool:
        """Take the outcome of a write; return whether there may be more to acquire."""
        runs = self._writes.pop(number, [])
        if failed:
            self._roll_back(runs, now_ms)
        else:
            for run in runs:
                run.write, run.owner_before = 0, ""
                if run.state is RecordState.AVAILABLE:
                    self._may_be_available = True
                run.locked_until_ms = inf
                self._hand_on(run)
            self._join(runs)
        moved = self._advance_start()
        return moved or self._may_be_available

    def _roll_back(self, runs: Sequence[Run], now_ms: float) -> None:
        for run in runs:
            run.write = 0
            if run.locked_until_ms <= now_ms:
                self._free(run)
                self._hand_on(run)
            else:
                run.state, run.member_id, run.reason = RecordState.ACQUIRED, run.owner_before, None
                self.next_deadline_ms = min(self.next_deadline_ms, run.locked_until_ms)
            run.owner_before = ""
        self._join(runs)

    def _free(self, run: Run) -> None:
        state = self._limited(run, RecordState.AVAILABLE)
        _finish(run, state)
        run.reason = Reason.EXHAUSTED if state is RecordState.ARCHIVING else None
        self._may_be_available = self._may_be_available or state is RecordState.AVAILABLE

    # ---- locks

    def expire(self, now_ms: float) -> StateWrite | None:
        """End the locks whose time is over; a write without a number is only to be sent.

        Dead letters are handed on with the outcome of the write, whichever it is.
        """
        freed: list[Run] = []
        next_ms = inf
        write = self._begin_write()
        for run in self.runs():
            if not run.is_acquired:
                continue
            if run.locked_until_ms <= now_ms:
                self._free(run)
                freed.append(run)
                if run.state is RecordState.ARCHIVING:
                    run.write, run.locked_until_ms = write, now_ms
                    self._writes[write].append(run)
            else:
                next_ms = min(next_ms, run.locked_until_ms)
        self.next_deadline_ms = next_ms
        if not self._writes[write]:
            del self._writes[write]
            write = 0
        if not freed:
            return None
        states = [run.as_state() for run in freed]
        self._join(freed)
        self._advance_start()
        return StateWrite(write, tuple(joined(states)))

    # ---- dead letters

    def _hand_on(self, run: Run) -> None:
        """Put a record among the letters to be taken, if it is one."""
        if run.reason is None:
            return
        if run.last >= self.start_offset:
            first = max(run.first, self.start_offset)
            self._letters.append(DeadLetters(first, run.last, run.delivery_count, run.reason))
        run.reason = None

    def take_letters(self) -> list[DeadLetters]:
        """Return the records that go to the dead-letter topic now, each of them once."""
        taken, self._letters = self._letters, []
        return taken

    def buried(self, letters: DeadLetters) -> StateWrite | None:
        """Finish records that are in the dead-letter topic, or cannot get there.

        The write is only to be sent; None where the log has deleted them meanwhile.
        """
        states: list[StateBatch] = []
        for batch in self._overlapping(letters.first_offset, letters.last_offset):
            for run in list(batch.between(letters.first_offset, letters.last_offset)):
                if run.state is RecordState.ARCHIVING and not run.write:
                    part = batch.isolate(run, letters.first_offset, letters.last_offset)
                    _finish(part, RecordState.ARCHIVED)
                    states.append(part.as_state())
            batch.join_runs()
        self._advance_start()
        return StateWrite(0, tuple(joined(states))) if states else None

    # ---- the start offset

    def _advance_start(self) -> bool:
        """Move the start offset over finished records; return whether it moved."""
        before, finished = self.start_offset, 0
        for batch in self._batches:
            if batch.first != self.start_offset:
                break  # what is between has not been delivered
            for run in batch.runs:
                if not run.is_finished:
                    break
                self.start_offset = run.last + 1
            if self.start_offset <= batch.last:
                break
            finished += 1
        del self._batches[:finished]
        if self._batches and self._batches[0].first < self.start_offset:
            self._batches[0].drop_below(self.start_offset)
        return self.start_offset != before

    # ---- batches

    def _floor(self, offset: int) -> int:
        """Return the index of the last batch that begins at or below an offset, or -1."""
        return bisect_right(self._batches, offset, key=_FIRST) - 1

    def _overlapping(self, first: int, last: int) -> list[Batch]:
        at = max(self._floor(first), 0)
        end = self._floor(last) + 1
        return [batch for batch in self._batches[at:end] if batch.last >= first]

    def _insert(self, batch: Batch) -> None:
        self._batches.insert(self._floor(batch.first) + 1, batch)

    def _join(self, runs: Sequence[Run]) -> None:
        """Join the runs of the batches that hold these."""
        if not runs:
            return
        for batch in self._overlapping(runs[0].first, runs[-1].last):
            if not batch.is_whole:
                batch.join_runs()


def _finish(run: Run, state: RecordState) -> None:
    run.state, run.member_id, run.locked_until_ms = state, "", inf


def _size(pieces: Iterable[Acquired]) -> int:
    return sum(piece.last_offset - piece.first_offset + 1 for piece in pieces)


def _append(pieces: list[Acquired], run: Run) -> None:
    if pieces and pieces[-1].last_offset + 1 == run.first and pieces[-1].delivery_count == run.delivery_count:
        pieces[-1] = pieces[-1]._replace(last_offset=run.last)
    else:
        pieces.append(Acquired(run.first, run.last, run.delivery_count))


def _end_of_batch(log: Sequence[LogBatch], offset: int) -> int:
    """Return the last offset of the log's batch that holds an offset, or the offset where none does."""
    at = bisect_right(log, offset, key=attrgetter("base_offset")) - 1
    return log[at].last_offset if at >= 0 and offset <= log[at].last_offset else offset


def _chunks(log: Sequence[LogBatch], first: int, last: int, size: int) -> Iterator[tuple[int, int]]:
    """Cut offsets at the borders of the log's batches, into parts of at least `size`."""
    if last - first + 1 > size:
        for batch in log:
            if batch.base_offset > last:
                break
            if batch.base_offset - first >= size:
                yield first, batch.base_offset - 1
                first = batch.base_offset
    yield first, last
