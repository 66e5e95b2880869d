"""Follows a processor by its events: metrics, log lines, and what status and health are made of.

`started` and `finished` are called per record, so they do the least: a dict entry and four counters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from ottla.protocol.topics import TopicPartition
from ottla.streams.handlers.context import key_hash
from ottla.streams.operating.health import HealthFacts, Standstill
from ottla.streams.operating.log_lines import LogLines
from ottla.streams.operating.metrics import Sizes, StreamsMetrics
from ottla.streams.seams import DeadLetter, Plan, Retry, Skip, Verdict, Work

MAX_FAILURE_CHARS: Final = 300
MAX_RETRYING: Final = 20
"""Works in the status that wait for a retry."""


@dataclass(slots=True)
class PartitionState:
    """The state of an assigned partition, by its events."""

    offset: int | None
    """The committed offset."""
    metadata_bytes: int = 0
    handled: int = 0
    failed: int = 0
    is_paused: bool = False


class ProcessorObserver:
    """Implements `Observer` of a processor, and the gauges of its metrics."""

    def __init__(
        self, group_id: str, *, now_ms: Callable[[], float], dead_letter_topic: str | None = None
    ) -> None:
        self.metrics = StreamsMetrics()
        self.metrics.gauges = self
        self.partitions: dict[TopicPartition, PartitionState] = {}
        self._now_ms = now_ms
        self.dead_letter_topic = dead_letter_topic
        self.last_failure: tuple[str, float] | None = None
        """The error of the last attempt that failed in one line, and when that was."""
        self._log = LogLines(group_id, now_ms=now_ms, dead_letter_topic=dead_letter_topic)
        self._running: dict[Work, None] = {}
        self._parked: dict[Work, None] = {}
        self._commits_fail_since_ms: float | None = None
        self._commit_error = ""
        self.last_started_ms: int | None = None
        """When an attempt was started last."""

    def watch(self, sizes: Sizes) -> None:
        """Read sizes from the parts of the processor from now on."""
        self.metrics.sizes = sizes

    # --- events of the processor

    def on_assigned(self, partition: TopicPartition, offset: int | None) -> None:
        """Begin a partition."""
        self.metrics.assigned_total += 1
        self.partitions[partition] = PartitionState(offset)
        self._log.assigned(partition, offset)

    def on_revoked(self, partition: TopicPartition, *, lost: bool) -> None:
        """Forget a partition, with the works of it that were abandoned."""
        self.metrics.lost_total += lost
        self.metrics.revoked_total += not lost
        self.partitions.pop(partition, None)
        for works in (self._running, self._parked):
            for work in [work for work in works if work.partition == partition]:
                del works[work]
        self._log.revoked(partition, lost=lost)

    def on_started(self, work: Work) -> None:
        """Note an attempt that runs."""
        if work.attempt > 1:
            self._parked.pop(work, None)
        self._running[work] = None
        self.last_started_ms = work.started_ms

    def on_finished(self, work: Work, duration_ms: float) -> None:
        """Count a call that succeeded."""
        self._running.pop(work, None)
        records = len(work.records)
        self.metrics.handled(records, duration_ms)
        state = self.partitions.get(work.partition)
        if state is not None:
            state.handled += records

    def on_failed(self, work: Work, error: BaseException, verdict: Verdict) -> None:
        """Count an attempt that failed."""
        self._running.pop(work, None)
        self.metrics.handler_error_total += 1
        text = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_FAILURE_CHARS]
        self.last_failure = f"{describe(work)}: {text}", self._now_ms()
        if (state := self.partitions.get(work.partition)) is not None:
            state.failed += 1
        if isinstance(verdict, Retry):
            self.metrics.retry_total += 1
            self._parked[work] = None
        elif isinstance(verdict, Skip):
            self.metrics.skip_total += 1
        elif isinstance(verdict, DeadLetter):
            self._parked.pop(work, None)
        self._log.failed(work, error, verdict)

    def on_set_aside(self, work: Work) -> None:
        """Count dead letters."""
        self._running.pop(work, None)  # it is there if an earlier try was delayed
        self._parked.pop(work, None)
        self.metrics.dead_letter_total += len(work.records)
        self._log.set_aside(work)

    def on_commit(self, plans: Sequence[Plan], error: BaseException | None) -> None:
        """Count a commit, and note when commits begin to fail."""
        self._log.commits(plans, error)
        if error is not None:
            self.metrics.commit_error_total += 1
            self._commit_error = f"{type(error).__name__}: {error}"
            if self._commits_fail_since_ms is None:
                self._commits_fail_since_ms = self._now_ms()
            return
        self._commits_fail_since_ms = None
        self.metrics.commit_total += 1
        self.metrics.commit_metadata_bytes = max((len(plan.metadata) for plan in plans), default=0)
        for plan in plans:
            if (state := self.partitions.get(plan.partition)) is not None:
                state.offset, state.metadata_bytes = plan.offset, len(plan.metadata)

    def on_paused(self, partition: TopicPartition, *, paused: bool) -> None:
        """Note whether intake of a partition is paused."""
        if (state := self.partitions.get(partition)) is not None:
            state.is_paused = paused

    # --- gauges

    def in_flight(self) -> int:
        """Handlers that run."""
        return len(self._running)

    def parked(self) -> int:
        """Works that wait for a retry."""
        return len(self._parked)

    def paused_partitions(self) -> int:
        """Partitions whose intake is paused."""
        return sum(partition.is_paused for partition in self.partitions.values())

    def retrying(self) -> list[Work]:
        """Return works that wait for a retry, those that wait longest first; at most twenty."""
        return list(islice(self._parked, MAX_RETRYING))

    def oldest(self) -> Work | None:
        """The work whose attempt runs for the longest time."""
        return min(self._running, key=lambda work: work.started_ms, default=None)

    def oldest_in_flight_ms(self) -> float:
        """How long the oldest running attempt has taken so far."""
        work = self.oldest()
        return 0.0 if work is None else max(0.0, self._now_ms() - work.started_ms)

    def running(self) -> dict[TopicPartition, list[Work]]:
        """Return the works whose handlers run, by partition."""
        found: dict[TopicPartition, list[Work]] = {}
        for work in self._running:
            found.setdefault(work.partition, []).append(work)
        return found

    def health_facts(self, *, failure: str | None = None, is_stopped: bool = False) -> HealthFacts:
        """Return what health is judged by."""
        oldest, since_ms = self.oldest(), self._commits_fail_since_ms
        standing = self.metrics.sizes.standing()
        return HealthFacts(
            failure=failure,
            is_stopped=is_stopped,
            oldest_in_flight_ms=self.oldest_in_flight_ms(),
            oldest_offset="" if oldest is None else describe(oldest),
            standing_ms=0.0 if standing is None else self._now_ms() - standing.since_ms,
            standing="" if standing is None else describe_standstill(standing),
            since_intake_ms=self.metrics.sizes.since_intake_ms(),
            commits_failing_ms=None if since_ms is None else self._now_ms() - since_ms,
            commit_error=self._commit_error,
        )


def describe_standstill(standing: Standstill) -> str:
    """Name a partition that stands still."""
    return f"{standing.partition} at offset {standing.offset}, {standing.unfinished} records unfinished"


def describe(work: Work) -> str:
    """Name the first record of a work, with the hash of its key."""
    hashed = key_hash(work.record.key)
    return f"{work.partition} at offset {work.offset}" + (f", key {hashed}" if hashed else "")
