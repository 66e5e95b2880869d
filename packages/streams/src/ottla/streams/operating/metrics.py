"""Counters and timers of a processor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from ottla.client.metrics import Description, Metrics, Sample, average, counter, gauge, total
from ottla.protocol.topics import TopicPartition
from ottla.streams.operating.health import Standstill


class Sizes(Protocol):
    """Sizes that only the processor's parts know; read on demand."""

    def lanes(self) -> int:
        """Lanes with records."""

    def buffered_records(self) -> int:
        """Records that wait or are handled."""

    def buffered_bytes(self) -> int:
        """Bytes of them."""

    def dedupe_hits(self) -> int:
        """Records that were duplicates."""

    def late(self) -> int:
        """Records of streams that came after their window was closed."""

    def keyless(self) -> int:
        """Records of streams without a key before a join or an aggregate."""

    def valueless(self) -> int:
        """Records of streams without a value."""

    def buffered_output_bytes(self) -> int:
        """Bytes of outputs that wait for a transaction."""

    def lags(self) -> Mapping[TopicPartition, int]:
        """Records between the finished ones and the end, of each partition."""

    def since_intake_ms(self) -> float | None:
        """How long nothing was handled though the broker has records and none are buffered; else None."""

    def standing(self) -> Standstill | None:
        """The partition that stands still for the longest time."""


class NoSizes:
    """Sizes before the processor has started."""

    def _none(self) -> int:
        return 0

    lanes = buffered_records = buffered_bytes = _none
    dedupe_hits = late = keyless = valueless = buffered_output_bytes = _none

    def lags(self) -> Mapping[TopicPartition, int]:
        """Return nothing."""
        return {}

    def since_intake_ms(self) -> None:
        """Return that nothing waits."""

    def standing(self) -> None:
        """Return that nothing stands still."""


class Gauges(Protocol):
    """Metrics that follow from the events of a processor, read on demand."""

    def in_flight(self) -> int:
        """Handlers that run."""

    def oldest_in_flight_ms(self) -> float:
        """How long the oldest of them runs."""

    def parked(self) -> int:
        """Works that wait for a retry."""

    def paused_partitions(self) -> int:
        """Partitions whose intake is paused."""


class NoGauges:
    """Gauges without a processor."""

    def _none(self) -> int:
        return 0

    in_flight = oldest_in_flight_ms = parked = paused_partitions = _none


LAG = Description(
    "records_lag", "gauge", "Records between the finished ones and the end.", ("topic", "partition")
)


@dataclass(slots=True)
class StreamsMetrics(Metrics):
    """The metrics of a processor. Attributes can be read at any time; `samples` yields all for exporters."""

    prefix = "streams"
    derived: ClassVar = {
        "handler_latency_avg": "Average milliseconds of a handler that succeeded.",
        "lanes": "Lanes with records: keys, with order by key.",
        "in_flight": "Handlers that run.",
        "oldest_in_flight_ms": "Milliseconds that the oldest running handler has taken so far.",
        "buffered_records": "Records that wait or are handled.",
        "buffered_bytes": "Bytes of records that wait or are handled.",
        "parked": "Works that wait for a retry.",
        "paused_partitions": "Partitions whose intake is paused.",
        "dedupe_hit_total": "Records that were duplicates, and were not handled.",
        "late_total": "Records of streams that came after their window was closed, and were dropped.",
        "keyless_total": "Records of streams without a key before a join or an aggregate; they were dropped.",
        "valueless_total": "Records of streams that had no value, and were dropped.",
        "buffered_output_bytes": "Bytes of outputs that wait for a transaction.",
        "records_lag_max": "Records between the finished ones and the end, of the partition with the most.",
    }

    record_handled_total: int = counter("Records whose handler succeeded.")
    handler_call_total: int = counter("Calls of the handler that succeeded.")
    handler_error_total: int = counter("Calls of the handler that failed.")
    retry_total: int = counter("Failed calls that are repeated.")
    skip_total: int = counter("Works that were skipped after a failure.")
    dead_letter_total: int = counter("Records that were written to the dead-letter topic.")
    handler_latency_total_ms: float = total("Milliseconds of all calls that succeeded.")
    handler_latency_max: float = gauge("Milliseconds of the slowest call that succeeded.")
    commit_total: int = counter("Commits that succeeded.")
    commit_error_total: int = counter("Commits that failed.")
    commit_metadata_bytes: float = gauge("Bytes of metadata in the last commit, of the partition with most.")
    assigned_total: int = counter("Partitions that were assigned.")
    revoked_total: int = counter("Partitions that were revoked.")
    lost_total: int = counter("Partitions that were lost without a last commit.")
    gauges: Gauges = field(default_factory=NoGauges, repr=False)
    sizes: Sizes = field(default_factory=NoSizes, repr=False)

    def handled(self, records: int, duration_ms: float) -> None:
        """Count a call of the handler that succeeded."""
        self.handler_call_total += 1
        self.record_handled_total += records
        self.handler_latency_total_ms += duration_ms
        if duration_ms > self.handler_latency_max:
            self.handler_latency_max = duration_ms

    @property
    def handler_latency_avg(self) -> float:
        """Average milliseconds of a handler that succeeded."""
        return average(self.handler_latency_total_ms, self.handler_call_total)

    @property
    def lanes(self) -> int:
        """Lanes with records."""
        return self.sizes.lanes()

    @property
    def in_flight(self) -> int:
        """Handlers that run."""
        return self.gauges.in_flight()

    @property
    def oldest_in_flight_ms(self) -> float:
        """Milliseconds that the oldest running handler has taken so far."""
        return self.gauges.oldest_in_flight_ms()

    @property
    def buffered_records(self) -> int:
        """Records that wait or are handled."""
        return self.sizes.buffered_records()

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that wait or are handled."""
        return self.sizes.buffered_bytes()

    @property
    def parked(self) -> int:
        """Works that wait for a retry."""
        return self.gauges.parked()

    @property
    def paused_partitions(self) -> int:
        """Partitions whose intake is paused."""
        return self.gauges.paused_partitions()

    @property
    def dedupe_hit_total(self) -> int:
        """Records that were duplicates."""
        return self.sizes.dedupe_hits()

    @property
    def late_total(self) -> int:
        """Records of streams that came after their window was closed."""
        return self.sizes.late()

    @property
    def keyless_total(self) -> int:
        """Records of streams without a key before a join or an aggregate."""
        return self.sizes.keyless()

    @property
    def valueless_total(self) -> int:
        """Records of streams without a value."""
        return self.sizes.valueless()

    @property
    def buffered_output_bytes(self) -> int:
        """Bytes of outputs that wait for a transaction."""
        return self.sizes.buffered_output_bytes()

    @property
    def records_lag_max(self) -> int:
        """Records between the finished ones and the end, of the partition with the most."""
        return max(self.sizes.lags().values(), default=0)

    @classmethod
    def all_descriptions(cls) -> tuple[Description, ...]:
        """Return the descriptions of all metrics, including that of partitions."""
        return (*cls.descriptions(), LAG)

    def samples(self) -> Iterator[Sample]:
        """Yield every metric with its value, including that of partitions."""
        yield from self.tagged({})
        for (topic, partition), lag in self.sizes.lags().items():
            yield Sample(LAG, {"topic": topic, "partition": str(partition)}, lag)
