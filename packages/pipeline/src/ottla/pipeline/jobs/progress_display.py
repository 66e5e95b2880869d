"""The progress of a run at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

COLUMNS = ("query", "batch", "rows", "rows/s", "lag", "median ms", "p95 ms", "late", "counts")


class ProgressDisplay:
    """A progress bar with `--once`, otherwise a line that is refreshed; nothing without a terminal."""

    def __init__(self, *, once: bool, quiet: bool) -> None:
        self._once = once
        self._is_on = not quiet and sys.stderr.isatty()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._last: Mapping[str, Any] = {}

    def __enter__(self) -> ProgressDisplay:
        if self._is_on:
            self._bar = _bar(self._once)
            self._task = self._bar.add_task("starting", total=None)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, status: Mapping[str, Any]) -> None:
        """Show the status of a run."""
        self._last = status
        if self._bar is None or self._task is None:
            return
        rows, lag = rows_and_lag(status)
        total = rows + lag if self._once and lag is not None and rows else None
        self._bar.update(self._task, completed=rows, total=total, description=running_line(status))

    @property
    def rows(self) -> int:
        """The rows of the run so far."""
        return rows_and_lag(self._last)[0]

    def print_summary(self) -> None:
        """Print a one-line summary."""
        click.echo(f"{self._last.get('name')}: {summary_line(self._last)}")


def running_line(status: Mapping[str, Any]) -> str:
    """Return a line about a running pipeline, which may wait for Spark's start or for records."""
    queries = status.get("queries", {}).values()
    if any(query["batches"] for query in queries):
        return summary_line(status)
    return "no batch is complete yet" if queries else "starting"


def _bar(once: bool) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    text = TextColumn("{task.description}")
    columns = (SpinnerColumn(), BarColumn(), MofNCompleteColumn()) if once else (SpinnerColumn(),)
    return Progress(*columns, text, Elapsed(), console=Console(stderr=True), transient=True)


def rows_and_lag(status: Mapping[str, Any]) -> tuple[int, int | None]:
    """Return the rows read and the rows left; queries over the same topics count once."""
    queries = status.get("queries", {}).values()
    lags = [query["lag"] for query in queries if query["lag"] is not None]
    return int(_together(status, "rows")), int(_of_all(status)(lags)) if lags else None


def summary_line(status: Mapping[str, Any]) -> str:
    """Return a line about all queries."""
    rows, lag = rows_and_lag(status)
    parts = [f"{rows:,} rows", f"{rate(status):,.0f} rows/s"]
    if lag is not None:
        parts.append(f"lag {lag:,}")
    counted = ", ".join(f"{count:,} {name}" for name, count in counts(status).items())
    return ", ".join(parts) + (f"; total {counted}" if counted else "")


def rate(status: Mapping[str, Any]) -> float:
    """Return rows per second: the maximum over queries, or the sum if their rows add up."""
    return _together(status, "rows_per_s")


def _together(status: Mapping[str, Any], what: str) -> float:
    found = [float(query[what]) for query in status.get("queries", {}).values()]
    return _of_all(status)(found) if found else 0.0


def _of_all(status: Mapping[str, Any]) -> Callable[[list[float]], float]:
    return sum if status.get("adds_up") else max


def counts(status: Mapping[str, Any]) -> dict[str, int]:
    """Return the counts since the first run of the pipeline: the maximum of each over all queries."""
    found: dict[str, int] = {}
    for query in status.get("queries", {}).values():
        for name, count in query["counts"].items():
            found[name] = max(count, found.get(name, 0))
    return found


def status_rows(status: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Return the output of `status`: columns, and a row for each query."""
    return COLUMNS, [_row(name, query) for name, query in status.get("queries", {}).items()]


def _row(name: str, query: Mapping[str, Any]) -> tuple[object, ...]:
    counted = dict(query["counts"])
    late = counted.pop("late", None)
    others = ", ".join(f"{count} {what}" for what, count in counted.items())
    times = query["batch_ms"]
    rates = round(query["rows_per_s"], 1)
    return (
        name,
        query["batch"] if (query["batch"] or 0) >= 0 else None,
        query["rows"],
        rates,
        query["lag"],
        times["median"],
        times["p95"],
        late,
        others,
    )
