"""Outputs of handlers until a transaction has committed them, and which of them go into the next. Pure.

A transaction commits the offsets that a plan of the scheduler names: everything below an offset, and
some records above it. Each output must be in the same transaction as the offset of the record it was made
from. Four rules, kept per partition:

1. Outputs of a work go into a transaction only if the plan covers all its records.
2. A plan that covers some records of a finished work but not all (a batch, at the limit of the metadata) is
   not committed: the partition waits for a later transaction. Its handlers go on, so that a later plan covers
   more.
3. A plan that covers less than the last commit did is not committed: what it left out would run again, though
   its outputs are visible. So the first plan of an assignment must be complete: it continues what another
   member committed.
4. Finished works leave in the order in which they finished, which is the order of a key.

Nothing is removed before its transaction is committed: an aborted one leaves everything where it was.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.consumer import ConsumerRecord
from ottla.protocol.topics import TopicPartition
from ottla.streams.seams import Plan

Headers = tuple[tuple[str, bytes | None], ...]

RECORD_OVERHEAD_BYTES: Final = 96
"""The bytes of memory that an output takes beside its key, value and headers, roughly."""


@dataclass(frozen=True, slots=True)
class Output:
    """A record that a handler sent, serialized."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Headers = ()

    @property
    def size_bytes(self) -> int:
        """The memory it holds, roughly."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return RECORD_OVERHEAD_BYTES + len(self.key or b"") + len(self.value or b"") + headers


@dataclass(eq=False, slots=True)
class FinishedWork:
    """The outputs of a handler that finished, and the records of a partition it was called with."""

    number: int
    """Its place in the order of finishing."""
    partition: TopicPartition
    offsets: tuple[int, ...]
    outputs: tuple[Output, ...]
    size_bytes: int
    records: Sequence[ConsumerRecord] = ()
    """The records, for dead letters."""
    attempts: int = 1
    changelogs: Collection[str] = ()
    """The topics among those of its outputs that have state."""

    def is_covered_by(self, plan: Plan) -> bool:
        """Whether a commit would keep all its records from running again."""
        return all(plan.covers(offset) for offset in self.offsets)

    def is_split_by(self, plan: Plan) -> bool:
        """Whether a commit would keep some of its records from running again, and others not."""
        return len(self.offsets) > 1 and len({plan.covers(offset) for offset in self.offsets}) > 1


@dataclass(frozen=True, slots=True)
class Transaction:
    """The next transaction: outputs in the order of finishing, and the commits of partitions."""

    works: tuple[FinishedWork, ...]
    plans: Mapping[TopicPartition, Plan]


@dataclass(frozen=True, slots=True)
class _Commit:
    """The committed offsets of an assigned partition."""

    offset: int
    metadata: str
    end: int


class BufferedOutputs:
    """Finished works in their order, the open transaction, and what each partition committed last."""

    def __init__(self) -> None:
        self._commits: dict[TopicPartition, _Commit] = {}
        self._waiting: list[FinishedWork] = []
        self._open: Transaction | None = None
        self._dropped: set[TopicPartition] = set()
        self._number = 0
        self.size_bytes = 0
        """The bytes of outputs of finished works, those of the open transaction included."""

    def __len__(self) -> int:
        """Return the number of finished works that no transaction has committed."""
        return len(self._waiting) + (len(self._open.works) if self._open is not None else 0)

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self._open is not None

    def finish(
        self,
        partition: TopicPartition,
        offsets: tuple[int, ...],
        outputs: tuple[Output, ...],
        records: Sequence[ConsumerRecord] = (),
        *,
        attempts: int = 1,
        changelogs: Collection[str] = (),
    ) -> None:
        """Add the outputs of a work whose handler finished; plans from now on may cover its records."""
        self._number += 1
        size_bytes = sum(output.size_bytes for output in outputs)
        self._waiting.append(
            FinishedWork(self._number, partition, offsets, outputs, size_bytes, records, attempts, changelogs)
        )
        self.size_bytes += size_bytes

    def replace(self, work: FinishedWork, outputs: tuple[Output, ...]) -> None:
        """Give finished work that waits other outputs, since its own will never be committed."""
        if any(waiting is work for waiting in self._waiting):
            self.size_bytes -= work.size_bytes
            work.outputs, work.size_bytes = outputs, sum(output.size_bytes for output in outputs)
            self.size_bytes += work.size_bytes

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Forget partitions that were revoked or lost, with the outputs made from their records.

        What the open transaction holds of them is forgotten if it is aborted. If it is committed, their next
        owner waits for its end, and starts behind it; that may be this member again.
        """
        gone = [work for work in self._waiting if work.partition in partitions]
        self.size_bytes -= sum(work.size_bytes for work in gone)
        self._waiting = [work for work in self._waiting if work.partition not in partitions]
        for partition in partitions:
            self._commits.pop(partition, None)
        if self._open is not None:
            self._dropped.update(partitions)

    def next_transaction(self, plans: Mapping[TopicPartition, Plan]) -> Transaction | None:
        """Open the next transaction; None if the plans add nothing to the last commits.

        The plans are those of this moment. End it with `committed` or `aborted` before the next.
        """
        assert self._open is None, "one transaction is open already"
        allowed = self._allowed(plans)
        works: list[FinishedWork] = []
        rest: list[FinishedWork] = []
        for work in self._waiting:
            plan = allowed.get(work.partition)
            (works if plan is not None and work.is_covered_by(plan) else rest).append(work)
        touched = {work.partition for work in works}
        changed = {
            partition: plan
            for partition, plan in allowed.items()
            if partition in touched or self._is_new(partition, plan)
        }
        if not changed:
            return None
        self._waiting = rest
        self._dropped.clear()
        self._open = Transaction(tuple(works), changed)
        return self._open

    def committed(self) -> None:
        """End the open transaction: its outputs are visible, its offsets are committed."""
        done = self._close()
        self.size_bytes -= sum(work.size_bytes for work in done.works)
        for partition, plan in done.plans.items():
            if partition not in self._dropped:
                self._commits[partition] = _Commit(plan.offset, plan.metadata, plan.end)

    def aborted(self) -> None:
        """End the open transaction: its outputs wait for the next, in their old order."""
        done = self._close()
        again = [work for work in done.works if work.partition not in self._dropped]
        self._waiting = sorted(again + self._waiting, key=lambda work: work.number)
        kept_bytes = sum(work.size_bytes for work in again)
        self.size_bytes -= sum(work.size_bytes for work in done.works) - kept_bytes

    def committed_among(self, plans: Collection[Plan]) -> list[Plan]:
        """Return the plans, one per partition, that equal the last commit and cover no output that waits."""
        last = {plan.partition: plan for plan in plans if not self._is_new(plan.partition, plan)}
        for work in self._waiting:
            if (plan := last.get(work.partition)) is not None and work.is_covered_by(plan):
                del last[work.partition]
        return list(last.values())

    # --- inside

    def _close(self) -> Transaction:
        done, self._open = self._open, None
        assert done is not None, "no transaction is open"
        return done

    def _allowed(self, plans: Mapping[TopicPartition, Plan]) -> dict[TopicPartition, Plan]:
        """Return the plans that may be committed by rules 2 and 3."""
        split = {
            work.partition
            for work in self._waiting
            if (plan := plans.get(work.partition)) is not None and work.is_split_by(plan)
        }
        return {
            partition: plan
            for partition, plan in plans.items()
            if partition not in split and self._keeps_last_commit(partition, plan)
        }

    def _keeps_last_commit(self, partition: TopicPartition, plan: Plan) -> bool:
        last = self._commits.get(partition)
        return plan.is_complete or (last is not None and plan.end >= last.end)

    def _is_new(self, partition: TopicPartition, plan: Plan) -> bool:
        last = self._commits.get(partition)
        return last is None or (last.offset, last.metadata) != (plan.offset, plan.metadata)
