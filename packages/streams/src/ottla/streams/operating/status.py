"""The status of processors as JSON: what `/status` serves and `ottla streams top` shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ottla.protocol.topics import TopicPartition
from ottla.streams.handlers.context import key_hash
from ottla.streams.operating.health import Health
from ottla.streams.operating.observer import PartitionState, ProcessorObserver
from ottla.streams.seams import Work

STATUS_VERSION = 1

COUNTERS = (
    "record_handled_total",
    "handler_error_total",
    "retry_total",
    "skip_total",
    "dead_letter_total",
    "dedupe_hit_total",
    "late_total",
    "keyless_total",
    "valueless_total",
    "commit_total",
    "commit_error_total",
)
GAUGES = (
    "lanes",
    "in_flight",
    "oldest_in_flight_ms",
    "buffered_records",
    "buffered_bytes",
    "buffered_output_bytes",
    "parked",
    "paused_partitions",
    "commit_metadata_bytes",
    "handler_latency_avg",
    "handler_latency_max",
)


def processor_status(
    name: str, group_id: str, observer: ProcessorObserver, health: Health, *, now_ms: float
) -> dict[str, Any]:
    """Return the status of one processor; `now_ms` is its monotonic clock."""
    metrics = observer.metrics
    lags, running = observer.metrics.sizes.lags(), observer.running()
    return {
        "name": name,
        "group": group_id,
        "healthy": health.is_healthy,
        "reasons": list(health.reasons),
        **{name: getattr(metrics, name) for name in (*COUNTERS, *GAUGES)},
        "oldest": _work(observer.oldest(), now_ms),
        "partitions": [
            _partition(partition, state, lags.get(partition), running.get(partition, []), now_ms)
            for partition, state in sorted(observer.partitions.items())
        ],
    }


def app_status(name: str, now_ms: float, processors: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the status of an app; `monotonic_ms` lets a viewer compute rates."""
    found = list(processors)
    return {
        "version": STATUS_VERSION,
        "app": name,
        "monotonic_ms": round(now_ms),
        "healthy": all(processor["healthy"] for processor in found),
        "processors": found,
    }


def _partition(
    partition: TopicPartition, state: PartitionState, lag: int | None, running: list[Work], now_ms: float
) -> dict[str, Any]:
    oldest = min(running, key=lambda work: work.started_ms, default=None)
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "offset": state.offset,
        "lag": lag,
        "handled": state.handled,
        "failed": state.failed,
        "in_flight": len(running),
        "metadata_bytes": state.metadata_bytes,
        "paused": state.is_paused,
        "oldest": _work(oldest, now_ms),
    }


def _work(work: Work | None, now_ms: float) -> dict[str, Any] | None:
    if work is None:
        return None
    return {
        "topic": work.partition.topic,
        "partition": work.partition.partition,
        "offset": work.offset,
        "key_hash": key_hash(work.record.key),
        "attempt": work.attempt,
        "age_ms": round(max(0.0, now_ms - work.started_ms)),
    }
