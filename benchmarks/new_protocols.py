"""Consumer groups, share groups and transactions beside Apache Kafka 4.4: paired and interleaved in one run.

    rebalance      1,000 members in 10 groups: until all are stable, records not read meanwhile, CPU
    share          100 members on one partition: records a second, and how late a record is accepted
    transactions   10 producers, one record each: transactions a second in version 1 and in version 2
    idle           memory of a broker that has just started

Both brokers run all the time; each round measures one after the other, and begins with another one than the
round before. Round 0 is not counted: a JVM compiles in it. Idle memory is that of brokers which are started
for it. A ratio is the median of the ratios within rounds.

python benchmarks/new_protocols.py [--quick] [--rounds N] [--only rebalance ...]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import rebalances
import share_groups
import transaction_rates
from comparison_page import machine, versions
from contenders import KAFKA, Contender, apache_kafka, kafka_is_here, ottla, quiet, show
from figures import Figure, keep, number, ratio, spread
from ottla.admin import Admin

STARTS: Final = {"ottla": ottla, KAFKA: apache_kafka}
SETTINGS: Final = {**rebalances.SETTINGS, **share_groups.SETTINGS, **transaction_rates.SETTINGS}
Figures = dict[tuple[str, str], float]
Measure = Callable[[Contender, str, bool], Figures]


class Part(NamedTuple):
    """One part of the benchmark: `measure` takes a broker, a name that is new in each round, and `quick`."""

    title: str
    measure: Measure


def rebalance(contender: Contender, run: str, quick: bool) -> Figures:
    """A thousand members, and two changes of each group; with `quick` one change."""
    asyncio.run(_topic(contender, run, rebalances.PARTITIONS))
    return asyncio.run(rebalances.measure(contender, run, run, 1_000, 1 if quick else 2))


def share(contender: Contender, run: str, quick: bool) -> Figures:
    """A hundred members, at 500 records a second, which both sustain."""
    records, seconds = (100_000, 5.0) if quick else (1_000_000, 15.0)
    return asyncio.run(share_groups.measure(contender, run, 100, records, 500, seconds))


def transactions(contender: Contender, run: str, quick: bool) -> Figures:
    """Ten producers."""
    return asyncio.run(transaction_rates.measure(contender, run, 10, 2.0 if quick else 5.0))


async def _topic(contender: Contender, name: str, partitions: int) -> None:
    async with Admin(contender.bootstrap_servers) as admin:
        await admin.topics.create(name, partitions=partitions)


PARTS: Final[Mapping[str, Part]] = {
    "rebalance": Part("Rebalances of 1,000 members in 10 groups", rebalance),
    "share": Part("A share group of 100 members on one partition, 100 B", share),
    "transactions": Part("Transactions of 10 producers, a record of 100 B each", transactions),
}
IDLE: Final = "idle"
IDLE_TITLE: Final = "Memory of a broker without load"


def run_rounds(part: str, brokers: Sequence[Contender], rounds: int, quick: bool) -> list[Figure]:
    """Measure a part on each broker in turn."""
    found: dict[str, list[Figures]] = {broker.name: [] for broker in brokers}
    for number_of_round in range(rounds + 1):
        for broker in brokers[:: -1 if number_of_round % 2 else 1]:
            run = f"{part}-{number_of_round}-{time.monotonic_ns()}"
            figures = PARTS[part].measure(broker, run, quick)
            if number_of_round:
                found[broker.name].append(figures)
        print(f"{part}: round {number_of_round} of {rounds} done", flush=True)
    return _figures(PARTS[part].title, found)


def idle(rounds: int) -> list[Figure]:
    """Start brokers for their memory alone, with the settings that they have by themselves."""
    found: dict[str, list[Figures]] = {name: [] for name in STARTS}
    for _ in range(rounds):
        for name, start in STARTS.items():
            with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder, start(Path(folder)) as broker:
                quiet(broker)
                found[name].append({("resident", "MiB"): broker.resident_mib()})
    return _figures(IDLE_TITLE, found)


def _figures(title: str, found: Mapping[str, Sequence[Figures]]) -> list[Figure]:
    return [
        Figure(title, measure, unit, name, tuple(figures[measure, unit] for figures in rounds))
        for name, rounds in found.items()
        for measure, unit in rounds[0]
    ]


def report(figures: Sequence[Figure]) -> None:
    """Print a table, with Kafka's figure divided by ours, or for rates ours by Kafka's: above 1 is ahead."""
    ours = {found.measure: found for found in figures if found.subject == "ottla"}
    theirs = {found.measure: found for found in figures if found.subject == KAFKA}
    rows = []
    for measure, found in ours.items():
        other = theirs[measure]
        is_rate = found.unit.endswith("/s")
        ahead = ratio(found, other) if is_rate else ratio(other, found)
        rows.append((f"{measure}, {found.unit}", spread(found.values), spread(other.values), number(ahead)))
    show(figures[0].table, rows, ("", "ottla", KAFKA, "ahead by"))


def main() -> int:
    """Measure the parts one after another."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=(*PARTS, IDLE))
    options = parser.parse_args()
    if not kafka_is_here():
        return 0
    for told in (machine(), versions("")):
        print(", ".join(f"{name}: {value}" for name, value in told.items()))
    wanted = options.only or [*PARTS, IDLE]
    if IDLE in wanted:
        figures = idle(options.rounds)
        keep(figures)
        report(figures)
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder, ExitStack() as stack:
        parts = [part for part in PARTS if part in wanted]
        brokers = [stack.enter_context(start(Path(folder), SETTINGS)) for start in STARTS.values() if parts]
        for broker in brokers:
            quiet(broker)
        for part in parts:
            figures = run_rounds(part, brokers, options.rounds, options.quick)
            keep(figures)
            report(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
