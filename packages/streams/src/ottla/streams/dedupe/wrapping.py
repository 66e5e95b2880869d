"""Dedupe at the seams of a processor: around its handler, outputs, failure policy and commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, TypeVar

from ottla.consumer.record import ConsumerRecord
from ottla.protocol.topics import TopicPartition
from ottla.streams.dedupe.guard import NONE, Dedupe
from ottla.streams.dedupe.in_flight import Admission
from ottla.streams.seams import Commits, FailurePolicy, Handler, Outputs, Plan, Retry, Verdict, Work

C = TypeVar("C")

RETRY_WAIT_MS: Final = 100
"""The wait after a time-out that was not the record's."""


class Guard:
    """One handler with dedupe: `handler`, `outputs` and `failures` go in place of the given ones.

    With transactions (`after`), records are marked after the one that has their offsets: a crash in between
    leaves records without a mark, whose copies are handled again, and loses nothing.
    """

    def __init__(
        self,
        dedupe: Dedupe,
        handler: Handler,
        outputs: Outputs,
        failures: FailurePolicy,
    ) -> None:
        self._dedupe = dedupe
        self._handled: dict[int, tuple[Work, Admission]] = {}
        self._marked_before: dict[int, tuple[Work, frozenset[bytes]]] = {}
        self._interrupted: dict[int, Work] = {}
        self.handler: Handler = _GuardedHandler(self, handler)
        self.failures: FailurePolicy = _GuardedFailures(self, failures)
        self._uncommitted: dict[TopicPartition, dict[int, Admission]] = {}
        self.outputs: Outputs = _GuardedOutputs(self, outputs)
        self._waits_for_commit = False

    def after(self, commits: Callable[[C], Commits]) -> Callable[[C], Commits]:
        """Return a maker of commits in place of one of transactions: marks are written after them."""
        self._waits_for_commit = True
        return lambda consumer: _GuardedCommits(self, commits(consumer))

    async def handle(self, work: Work, handler: Handler) -> None:
        """Call a handler with those records of a work that are not handled yet, if there are any."""
        _, own = self._marked_before.get(id(work), (work, NONE))
        try:
            admission = await self._dedupe.admit(work.partition, work.records, own)
        except asyncio.CancelledError:
            self._interrupted[id(work)] = work
            raise
        if not admission.records:
            self._dedupe.abandon(admission)
            return
        if admission.is_marked:
            self._marked_before[id(work)] = work, frozenset(identity for _, identity in admission.held)
        whole = len(admission.records) == len(work.records)
        try:
            await handler(work if whole else PartOfWork(work, admission.records))
        except BaseException:
            self._dedupe.abandon(admission)
            raise
        self._handled[id(work)] = work, admission

    def settle(self, work: Work, acknowledged: asyncio.Future[None] | None) -> asyncio.Future[None] | None:
        """Mark handled work when its outputs are acknowledged; the returned future is done after that."""
        self._marked_before.pop(id(work), None)
        if self._waits_for_commit:
            self._hold(work)
            return acknowledged
        _, admission = self._handled.pop(id(work), (work, None))
        if admission is None:
            return acknowledged
        return self._dedupe.finish_soon(admission, acknowledged)

    def _hold(self, work: Work) -> None:
        """Keep handled work until it is committed."""
        _, admission = self._handled.pop(id(work), (work, None))
        if admission is not None:
            self._uncommitted.setdefault(work.partition, {})[work.offset] = admission

    def committed(self, plan: Plan) -> None:
        """Mark the work that a commit covers."""
        held = self._uncommitted.get(plan.partition, {})
        for offset in [finished for finished in held if plan.covers(finished)]:
            self._dedupe.finish_soon(held.pop(offset), None)

    def discard(self, work: Work) -> None:
        """Give the locks of abandoned work back."""
        _, admission = self._handled.pop(id(work), (work, None))
        if admission is not None:
            self._dedupe.abandon(admission)

    def failed(self, work: Work, verdict: Verdict) -> None:
        """Forget what was kept for another attempt, if there is none."""
        if not isinstance(verdict, Retry):
            self._marked_before.pop(id(work), None)

    def was_interrupted(self, work: Work) -> bool:
        """Return whether an attempt was cancelled before its handler had begun."""
        return self._interrupted.pop(id(work), None) is not None

    def revoked(self, partition: TopicPartition) -> None:
        """Forget the admissions and marks of a partition."""
        for admission in self._uncommitted.pop(partition, {}).values():
            self._dedupe.abandon(admission)
        for key in [key for key, (work, _) in self._marked_before.items() if work.partition == partition]:
            del self._marked_before[key]
        for key in [key for key, work in self._interrupted.items() if work.partition == partition]:
            del self._interrupted[key]
        self._dedupe.revoked(partition)


class _GuardedHandler:
    def __init__(self, guard: Guard, handler: Handler) -> None:
        self._guard = guard
        self._handler = handler

    async def __call__(self, work: Work) -> None:
        await self._guard.handle(work, self._handler)


class _GuardedOutputs:
    def __init__(self, guard: Guard, outputs: Outputs) -> None:
        self._guard = guard
        self._outputs = outputs

    def settle(self, work: Work) -> asyncio.Future[None] | None:
        acknowledged = self._outputs.settle(work)
        return self._guard.settle(work, acknowledged)

    def discard(self, work: Work) -> None:
        self._guard.discard(work)
        self._outputs.discard(work)

    def revoked(self, partition: TopicPartition) -> None:
        self._guard.revoked(partition)
        self._outputs.revoked(partition)


class _GuardedFailures:
    def __init__(self, guard: Guard, failures: FailurePolicy) -> None:
        self._guard = guard
        self._failures = failures

    def decide(self, work: Work, error: BaseException, now_ms: int) -> Verdict:
        # A time-out while the work waited for the store, or for a record with the same identity, is no
        # failure of the record: it must not end among the dead letters.
        if self._guard.was_interrupted(work):
            return Retry(now_ms + RETRY_WAIT_MS)
        verdict = self._failures.decide(work, error, now_ms)
        self._guard.failed(work, verdict)
        return verdict

    async def set_aside(self, work: Work, error: BaseException) -> None:
        await self._failures.set_aside(work, error)


class _GuardedCommits:
    def __init__(self, guard: Guard, commits: Commits) -> None:
        self._guard = guard
        self._commits = commits

    @property
    def interval_ms(self) -> int:
        return self._commits.interval_ms

    @property
    def is_pending(self) -> bool:
        return self._commits.is_pending

    async def commit(self, plans: Sequence[Plan]) -> Sequence[Plan]:
        committed = await self._commits.commit(plans)
        for plan in committed:
            self._guard.committed(plan)
        return committed


class PartOfWork:
    """A batch without its duplicates; everything else is that of the whole batch."""

    def __init__(self, whole: Work, records: Sequence[ConsumerRecord]) -> None:
        self._whole = whole
        self._records = records

    @property
    def context(self) -> Any:
        return self._whole.context

    @context.setter
    def context(self, context: Any) -> None:
        self._whole.context = context

    @property
    def partition(self) -> TopicPartition:
        return self._whole.partition

    @property
    def record(self) -> ConsumerRecord:
        return self._records[0]

    @property
    def records(self) -> Sequence[ConsumerRecord]:
        return self._records

    @property
    def offset(self) -> int:
        return self._records[0].offset

    @property
    def lane(self) -> Hashable:
        return self._whole.lane

    @property
    def attempt(self) -> int:
        return self._whole.attempt

    @property
    def started_ms(self) -> int:
        return self._whole.started_ms

    @started_ms.setter
    def started_ms(self, started_ms: int) -> None:
        self._whole.started_ms = started_ms
