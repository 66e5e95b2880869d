"""Stream processing: ours, loops by hand, faust, Quix Streams, FastStream and Confluent's Parallel Consumer.

Each application runs in its own process, in turns, with the same records from the same broker, up to 1,000
handlers at once where it can. Figures are medians over rounds, ratios medians of ratios within a round.
Handlers check the order of each key's records; `disordered` counts those that came early, twice, or while
another of their key was handled.

Applications of other projects need an environment of their own, because they do not agree on versions with
what the rest of the tree uses: `nox -s bench_streams` makes it and gives its Python.

python benchmarks/streams_peers.py [--quick] [--rounds N] [--only TEXT] [--scenario NAME] [--broker kafka]
    [--peers-python PATH]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from contenders import Contender, apache_kafka, kafka_is_here, ottla, show
from stream_scenarios import (
    APPLICATIONS,
    CLIENT_LOOPS,
    SCENARIOS,
    Application,
    Failed,
    Result,
    Runs,
    Scenario,
    quick,
)

_SETTINGS = {"group.initial.rebalance.delay.ms": "0", "log.segment.delete.delay.ms": "200"}
_BROKERS: dict[str, Callable[..., AbstractContextManager[Contender]]] = {
    "ottla": ottla,
    "kafka": apache_kafka,
}

Results = dict[str, list[Result]]


def chosen(only: str, peers_python: str) -> list[Application]:
    """Return the applications that can run here; print what the others lack."""
    lacking = set() if peers_python else {"peers"}
    lacking |= set() if kafka_is_here() else {"java"}
    if not peers_python:
        print("  without faust, Quix Streams and FastStream: nox -s bench_streams installs them")
    return [each for each in APPLICATIONS if only in each.name and each.environment not in lacking]


def applications_of(scenario: Scenario, applications: Iterable[Application]) -> list[Application]:
    """Return the applications to measure, with a loop of `asyncio.sleep` where the scenario wants one."""
    every = [each for each in applications if scenario.is_noop or not each.is_base]
    if scenario.has_sleep_loop:
        every.append(Application("asyncio.sleep loop", "sleep_loop", str(scenario.load.handler_us)))
    return every


async def measure(runs: Runs, scenario: Scenario, applications: list[Application], rounds: int) -> Results:
    """Run all applications in turns; one that did not handle all records in its time is not run again."""
    results: Results = {}
    first = scenario.load.first or scenario.total
    async with runs.topic(f"{scenario.name}-{os.getpid()}", scenario.load, first) as topic:
        for number in range(rounds):
            for application in applications:
                if number and not all(each.all_handled for each in results.get(application.name, [])):
                    continue
                group = f"{scenario.name}-{number}-{application.program}-{application.style}".replace(
                    " ", "-"
                )
                try:
                    found = await runs.one(application, scenario, topic, group)
                except (Failed, TimeoutError) as error:
                    print(f"  {application.name} failed: {error or 'no end within its time'}", flush=True)
                    continue
                results.setdefault(application.name, []).append(found)
    return results


# --- tables


def report(scenario: Scenario, results: Results) -> None:
    """Print the table of a scenario."""
    if scenario.is_noop:
        _noop_table(scenario, results)
    elif scenario.per_s:
        _steady_table(scenario, results)
    else:
        _rate_table(scenario, results)


def _median(found: list[Result], figure: Callable[[Result], float]) -> float:
    return statistics.median(map(figure, found))


def _noop_table(scenario: Scenario, results: Results) -> None:
    rows: list[tuple[str, ...]] = []
    for name, found in results.items():
        loop = results.get(CLIENT_LOOPS.get(name, ""), [])
        over = [mine.cpu_us - theirs.cpu_us for mine, theirs in zip(found, loop, strict=False)]
        rows.append((
            name,
            f"{_median(found, lambda each: each.cpu_us):.2f}",
            f"{statistics.median(over):.2f}" if over else "",
            f"{_median(found, lambda each: each.per_s):,.0f}",
            f"{_median(found, lambda each: each.peak_mib):.0f}",
        ))  # fmt: skip
    show(scenario.title, rows, ("", "CPU µs/record", "over its client's loop", "records/s", "peak MiB"))


def _rate_table(scenario: Scenario, results: Results) -> None:
    ideal = scenario.load.ideal_per_s
    rows: list[tuple[str, ...]] = [
        (
            name,
            f"{_median(found, lambda each: each.per_s):,.0f}",
            f"{_median(found, lambda each: each.per_s / ideal):.1%}",
            f"{_median(found, lambda each: each.cpu_us):.1f}",
            f"{_median(found, lambda each: each.cpu_s / each.wall_s):.0%}",
            f"{max(each.disordered for each in found):,}",
            f"{_median(found, lambda each: each.peak_mib):.0f}",
        )
        for name, found in results.items()
    ]
    header = ("", "records/s", "of the ideal", "CPU µs/record", "CPU", "disordered", "peak MiB")
    show(f"{scenario.title}; ideal {ideal:,.0f} records/s", rows, header)


def _steady_table(scenario: Scenario, results: Results) -> None:
    rows: list[tuple[str, ...]] = [
        (
            name,
            f"{_median(found, lambda each: each.per_s):,.0f}"
            + ("" if _kept_up(found) else " (falls behind)"),
            f"{_median(found, lambda each: each.p50_ms):,.1f}",
            f"{_median(found, lambda each: each.p99_ms):,.1f}",
            f"{_median(found, lambda each: each.cpu_us):.0f}",
            f"{max(each.metadata_bytes for each in found):,}",
            f"{max(each.disordered for each in found):,}",
            f"{_median(found, lambda each: each.peak_mib):.0f}",
        )
        for name, found in results.items()
    ]
    header = (
        "",
        "records/s",
        "p50 ms",
        "p99 ms",
        "CPU µs/record",
        "metadata bytes",
        "disordered",
        "peak MiB",
    )
    show(scenario.title, rows, header)


def _kept_up(found: list[Result]) -> bool:
    return all(each.all_handled for each in found)


# --- the program


async def run(servers: str, options: argparse.Namespace) -> int:
    """Measure the wanted scenarios; return how many runs of ours failed."""
    runs = Runs(servers, options.peers_python)
    failed = 0
    applications = chosen(options.only, options.peers_python)
    for scenario in SCENARIOS:
        if options.scenario not in ("", scenario.name):
            continue
        wanted = quick(scenario) if options.quick else scenario
        every = applications_of(wanted, applications)
        results = await measure(runs, wanted, every, options.rounds)
        report(wanted, results)
        failed += sum(each.environment == "ours" and each.name not in results for each in every)
    return failed


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--only", default="", help="applications whose name contains this text")
    parser.add_argument("--scenario", default="", choices=["", *(each.name for each in SCENARIOS)])
    parser.add_argument("--broker", default="ottla", choices=sorted(_BROKERS))
    parser.add_argument("--peers-python", default="", help="a Python with faust, Quix Streams and FastStream")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (1 if options.quick else 3)
    with (
        tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder,
        _BROKERS[options.broker](Path(folder), _SETTINGS) as broker,
    ):
        print(f"broker: {broker.name}")
        return 1 if asyncio.run(run(broker.bootstrap_servers, options)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
