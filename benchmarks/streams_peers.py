"""Stream processing: ours, loops by hand, faust, Quix Streams, FastStream and Confluent's Parallel Consumer.

Each application runs in its own process, in turns, with the same records from the same broker, up to 1,000
handlers at once where it can. Figures are medians over rounds, ratios medians of ratios within a round.
Handlers check the order of each key's records; `disordered` counts those that came early, twice, or while
another of their key was handled. An application that cannot handle all records in its time runs once, and
one that reaches less than half of a steady rate with the same handlers is not run at that rate.

The tables are printed at the end, in Markdown. Two rounds take ten minutes.

Applications of other projects need an environment of their own, because they do not agree on versions with
what the rest of the tree uses: `nox -s bench_streams` makes it and gives its Python.

python benchmarks/streams_peers.py [--quick] [--rounds N] [--only TEXT] [--scenario NAME ...] [--broker kafka]
    [--peers-python PATH]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from contenders import Contender, apache_kafka, kafka_is_here, ottla
from figures import keep
from stream_scenarios import APPLICATIONS, SCENARIOS, Application, Failed, Runs, Scenario, quick
from stream_tables import Results, figures_of, median, table

_SETTINGS = {"group.initial.rebalance.delay.ms": "0", "log.segment.delete.delay.ms": "200"}
_BROKERS: dict[str, Callable[..., AbstractContextManager[Contender]]] = {
    "ottla": ottla,
    "kafka": apache_kafka,
}


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


def too_slow(rates: Results, scenario: Scenario) -> dict[str, float]:
    """Return the applications that cannot keep up with the rate of a scenario, and their rates.

    `rates` were measured with handlers that take as long, and all records there at the start.
    """
    measured = {name: median(found, lambda each: each.per_s) for name, found in rates.items()}
    return {name: per_s for name, per_s in measured.items() if per_s < scenario.per_s / 2}


async def measure(runs: Runs, scenario: Scenario, applications: list[Application], rounds: int) -> Results:
    """Run all applications in turns; one that did not handle all records in its time is not run again."""
    results: Results = {}
    first = scenario.load.first or scenario.total
    async with runs.topic(f"{scenario.name}-{os.getpid()}", scenario.load, first) as topic:
        for number in range(rounds):
            for application in applications:
                if number and not all(each.all_handled for each in results.get(application.name, [])):
                    continue
                await _measure_one(runs, scenario, application, topic, number, results)
    return results


async def _measure_one(
    runs: Runs, scenario: Scenario, application: Application, topic: str, number: int, results: Results
) -> None:
    group = f"{scenario.name}-{number}-{application.program}-{application.style}".replace(" ", "-")
    began_s = time.monotonic()
    try:
        found = await runs.one(application, scenario, topic, group)
    except (Failed, TimeoutError) as error:
        print(f"  {application.name} failed: {error or 'no end within its time'}", flush=True)
        return
    results.setdefault(application.name, []).append(found)
    print(f"  {scenario.name}, {application.name}: {time.monotonic() - began_s:.0f} s", flush=True)


# --- the program


async def run(servers: str, options: argparse.Namespace) -> int:
    """Measure the wanted scenarios; return how many runs of ours failed."""
    runs = Runs(servers, options.peers_python)
    failed, tables = 0, []
    rates: Results = {}
    applications = chosen(options.only, options.peers_python)
    for scenario in SCENARIOS:
        if options.scenario and scenario.name not in options.scenario:
            continue
        wanted = quick(scenario) if options.quick else scenario
        slow = too_slow(rates, scenario)
        every = [each for each in applications_of(wanted, applications) if each.name not in slow]
        results = await measure(runs, wanted, every, options.rounds)
        tables.append(f"{scenario.title}\n\n{table(wanted, results)}")
        keep(figures_of(wanted, results))
        if slow:
            names = "; ".join(f"{name} ({per_s:,.0f})" for name, per_s in slow.items())
            tables.append(f"Not run, because they handle too few records/s even when all are there: {names}")
        if not scenario.per_s:
            rates = results
        failed += sum(each.environment == "ours" and each.name not in results for each in every)
    print("", *tables, sep="\n\n")
    return failed


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--only", default="", help="applications whose name contains this text")
    parser.add_argument("--scenario", action="append", choices=[each.name for each in SCENARIOS])
    parser.add_argument("--broker", default="ottla", choices=sorted(_BROKERS))
    parser.add_argument("--peers-python", default="", help="a Python with faust, Quix Streams and FastStream")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (1 if options.quick else 2)
    with (
        tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder,
        _BROKERS[options.broker](Path(folder), _SETTINGS) as broker,
    ):
        print(f"broker: {broker.name}")
        return 1 if asyncio.run(run(broker.bootstrap_servers, options)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
