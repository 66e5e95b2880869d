"""The tables of `streams_peers`, in Markdown, as `docs/design/streams-compared.md` shows them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from figures import Figure, figure
from stream_scenarios import CLIENT_LOOPS, Result, Scenario

Results = dict[str, list[Result]]


def table(scenario: Scenario, results: Results) -> str:
    """Return the table of a scenario; figures are medians over its rounds."""
    if scenario.is_noop:
        return _noop_table(results)
    return _steady_table(results) if scenario.per_s else _rate_table(scenario, results)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column is text and whose other columns are numbers."""
    rule = "|".join(["---", *("---:" for _ in header[1:])])
    return "\n".join([_row(header), f"|{rule}|", *map(_row, rows)])


def _row(cells: Sequence[str]) -> str:
    return "|" + "|".join(f" {each} " if each else " " for each in cells) + "|"


def median(found: list[Result], figure: Callable[[Result], float]) -> float:
    """Return the median of a figure."""
    return statistics.median(map(figure, found))


def figures_of(scenario: Scenario, results: Results) -> Iterator[Figure]:
    """Yield the figures of a scenario, those of its latency where records come steadily."""
    for name, found in results.items():
        yield figure(scenario.title, "handled", "records/s", name, found, lambda run: run.per_s)
        yield figure(scenario.title, "CPU per record", "µs", name, found, lambda run: run.cpu_us)
        yield figure(scenario.title, "memory", "MiB", name, found, lambda run: run.peak_mib)
        if not scenario.is_noop:
            yield figure(scenario.title, "out of order", "records", name, found, lambda run: run.disordered)
        if scenario.per_s:
            yield figure(scenario.title, "p99", "ms", name, found, lambda run: run.p99_ms)


def _noop_table(results: Results) -> str:
    rows = []
    for name, found in results.items():
        loop = results.get(CLIENT_LOOPS.get(name, ""), [])
        over = [mine.cpu_us - theirs.cpu_us for mine, theirs in zip(found, loop, strict=False)]
        rows.append((
            name,
            f"{median(found, lambda each: each.cpu_us):.2f}",
            f"{statistics.median(over):.2f}" if over else "",
            f"{median(found, lambda each: each.per_s):,.0f}",
            f"{median(found, lambda each: each.peak_mib):.0f}",
        ))  # fmt: skip
    return markdown(("", "CPU µs/record", "over its client's loop", "records/s", "peak MiB"), rows)


def _rate_table(scenario: Scenario, results: Results) -> str:
    ideal = scenario.load.ideal_per_s
    rows = [
        (
            name,
            f"{median(found, lambda each: each.per_s):,.0f}",
            f"{median(found, lambda each: each.per_s / ideal):.1%}",
            f"{median(found, lambda each: each.cpu_us):.1f}",
            f"{median(found, lambda each: each.cpu_s / each.wall_s):.0%}",
            f"{max(each.disordered for each in found):,}",
            f"{median(found, lambda each: each.peak_mib):.0f}",
        )
        for name, found in results.items()
    ]
    header = ("", "records/s", "of the ideal", "CPU µs/record", "CPU", "disordered", "peak MiB")
    return markdown(header, rows)


def _steady_table(results: Results) -> str:
    rows = [
        (
            name,
            f"{median(found, lambda each: each.per_s):,.0f}" + ("" if _kept_up(found) else " (falls behind)"),
            f"{median(found, lambda each: each.p50_ms):,.1f}",
            f"{median(found, lambda each: each.p99_ms):,.1f}",
            f"{median(found, lambda each: each.cpu_us):.0f}",
            f"{max(each.metadata_bytes for each in found):,}",
            f"{max(each.disordered for each in found):,}",
            f"{median(found, lambda each: each.peak_mib):.0f}",
        )
        for name, found in results.items()
    ]
    latencies = ("p50 ms", "p99 ms", "CPU µs/record")
    header = ("", "records/s", *latencies, "metadata bytes", "disordered", "peak MiB")
    return markdown(header, rows)


def _kept_up(found: list[Result]) -> bool:
    return all(each.all_handled for each in found)
