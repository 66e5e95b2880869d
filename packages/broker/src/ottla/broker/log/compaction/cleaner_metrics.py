"""The cleaner's gauges, under Kafka's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.metrics import Metrics


@dataclass(slots=True, eq=False, repr=False)
class CleanerFigures:
    """The figures of the last cleanings, and of the last look at the logs."""

    buffer_utilization: float = 0.0
    recopied: float = 0.0
    clean_time_ms: float = 0.0
    overdue_ms: float = 0.0
    dirty_ratio: float = 0.0
    looked_at_ms: float | None = None
    uncleanable: dict[Path, tuple[int, int]] = field(default_factory=dict)
    """Log directory -> partitions that are not cleaned any more, and their bytes."""


def show(
    metrics: Metrics | None,
    figures: CleanerFigures,
    monotonic_ms: Callable[[], float],
    directories: Iterable[Path],
) -> None:
    """Register the gauges; does nothing without a registry of metrics."""
    if metrics is None:
        return
    cleaner: dict[str, Callable[[], float]] = {
        "max-buffer-utilization-percent": lambda: int(100 * figures.buffer_utilization),
        "cleaner-recopy-percent": lambda: int(100 * figures.recopied),
        "max-clean-time-secs": lambda: int(figures.clean_time_ms / 1000),
        "max-compaction-delay-secs": lambda: int(figures.overdue_ms / 1000),
    }
    for name, read in cleaner.items():
        metrics.gauge("kafka.log", "LogCleaner", name, read)
    kind = ("kafka.log", "LogCleanerManager")
    metrics.gauge(*kind, "max-dirty-percent", lambda: int(100 * figures.dirty_ratio))
    metrics.gauge(*kind, "time-since-last-run-ms", lambda: _since(figures, monotonic_ms))
    for path in directories:
        tags = {"logDirectory": str(path)}
        metrics.gauge(*kind, "uncleanable-partitions-count", _part(figures, path, 0), **tags)
        metrics.gauge(*kind, "uncleanable-bytes", _part(figures, path, 1), **tags)


def _since(figures: CleanerFigures, monotonic_ms: Callable[[], float]) -> float:
    return 0 if figures.looked_at_ms is None else int(monotonic_ms() - figures.looked_at_ms)


def _part(figures: CleanerFigures, path: Path, number: int) -> Callable[[], float]:
    return lambda: figures.uncleanable.get(path, (0, 0))[number]
