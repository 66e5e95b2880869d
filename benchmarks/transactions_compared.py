"""Transactions of one producer on a broker: Ottla beside Apache Kafka 4.4, with the same clients.

Run `python benchmarks/transactions_compared.py [--quick] [--clients confluent ottla]`. Each transaction
begins, sends its records one by one, and commits. Each turn takes some seconds, on a topic of its own;
brokers alternate within a round, and the order changes with it. Round 0 is not counted: a JVM compiles in
it. A ratio is the median of the ratios of each round, above 1 where Ottla is ahead. CPU is that of the
whole broker process, in ticks of a hundredth of a second.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import Producer as ConfluentProducer

from contenders import KAFKA, Contender, apache_kafka, kafka_is_here, ottla, quiet, show
from ottla.admin import Admin
from ottla.producer import Producer

_BOUND_S: Final = 60.0
_PARTITIONS: Final = 4
_BEST_IS_MORE: Final = ("records/s", "transactions/s")
# Both have this by default; it is said so that it stays the same.
_SETTINGS: Final = {"transaction.state.log.num.partitions": "50"}
Figures = dict[str, float]


@dataclass(frozen=True)
class Case:
    """The records of a transaction."""

    records: int
    value_bytes: int

    def __str__(self) -> str:
        plural = "s" if self.records > 1 else ""
        return f"{self.records:,} record{plural} of {self.value_bytes:,} B"


CASES: Final = (Case(1, 100), Case(100, 100), Case(1_000, 100), Case(1_000, 1_000))


@dataclass
class Turn:
    """The transactions of one producer: it goes on until its time is over."""

    seconds: float
    commits_ms: list[float] = field(default_factory=list)
    took_s: float = 0.0
    cpu_s: float = 0.0

    def figures(self, case: Case) -> Figures:
        """The throughput, commit latency and CPU of the transactions of a turn."""
        count = len(self.commits_ms)
        percentiles = statistics.quantiles(self.commits_ms, n=100)
        megabytes = count * case.records * case.value_bytes / 1e6
        return {
            "records/s": count * case.records / self.took_s,
            "transactions/s": count / self.took_s,
            "commit p50 ms": percentiles[49],
            "commit p99 ms": percentiles[98],
            "CPU ms/transaction": self.cpu_s * 1000 / count,
            "CPU ms/MB": self.cpu_s * 1000 / megabytes,
        }


def with_confluent(contender: Contender, topic: str, case: Case, turn: Turn) -> None:
    """Transactions of confluent-kafka, one after the other."""
    producer = ConfluentProducer(
        {
            "bootstrap.servers": contender.bootstrap_servers,
            "transactional.id": topic,
            "linger.ms": 0 if case.records == 1 else 5,
            "log_level": 0,
        }
    )
    producer.init_transactions(_BOUND_S)
    value = b"v" * case.value_bytes
    for is_counted in (False, True):
        cpu, begun = contender.cpu_seconds(), time.perf_counter()
        ends = begun + (turn.seconds if is_counted else turn.seconds / 4)
        turn.commits_ms.clear()
        while time.perf_counter() < ends:
            producer.begin_transaction()
            for number in range(case.records):
                producer.produce(topic, value, partition=number % _PARTITIONS)
            before = time.perf_counter()
            producer.commit_transaction(_BOUND_S)
            turn.commits_ms.append((time.perf_counter() - before) * 1000)
        turn.took_s, turn.cpu_s = time.perf_counter() - begun, contender.cpu_seconds() - cpu


def with_ours(contender: Contender, topic: str, case: Case, turn: Turn) -> None:
    """Transactions of Ottla's producer, one after the other."""
    asyncio.run(_with_ours(contender, topic, case, turn))


async def _with_ours(contender: Contender, topic: str, case: Case, turn: Turn) -> None:
    value = b"v" * case.value_bytes
    async with Producer(bootstrap_servers=contender.bootstrap_servers, transactional_id=topic) as producer:
        for is_counted in (False, True):
            cpu, begun = contender.cpu_seconds(), time.perf_counter()
            ends = begun + (turn.seconds if is_counted else turn.seconds / 4)
            turn.commits_ms.clear()
            while time.perf_counter() < ends:
                async with producer.transaction():
                    for number in range(case.records):
                        await producer.send(topic, value, partition=number % _PARTITIONS)
                    before = time.perf_counter()
                turn.commits_ms.append((time.perf_counter() - before) * 1000)
            turn.took_s, turn.cpu_s = time.perf_counter() - begun, contender.cpu_seconds() - cpu


CLIENTS: Final[dict[str, Callable[[Contender, str, Case, Turn], None]]] = {
    "confluent": with_confluent,
    "ottla": with_ours,
}


async def _create(contender: Contender, topic: str) -> None:
    async with Admin(contender.bootstrap_servers) as admin:
        await admin.topics.create(topic, partitions=_PARTITIONS)


async def _delete(contender: Contender, topic: str) -> None:
    async with Admin(contender.bootstrap_servers) as admin:
        await admin.topics.delete(topic)


def measure(contender: Contender, client: str, case: Case, topic: str, seconds: float) -> Figures:
    """One turn of one client on one broker."""
    asyncio.run(_create(contender, topic))
    turn = Turn(seconds)
    CLIENTS[client](contender, topic, case, turn)
    asyncio.run(_delete(contender, topic))
    return turn.figures(case)


def report(title: str, rounds: list[list[Figures]]) -> None:
    """Print medians, and the median of the ratios of each round: above 1 is better than Kafka."""
    rows = []
    for name in rounds[0][0]:
        ours, theirs = ([one[side][name] for one in rounds] for side in (0, 1))
        pairs = zip(ours, theirs, strict=True)
        ratios = [(a / b if name in _BEST_IS_MORE else b / a) if a and b else 1.0 for a, b in pairs]
        figures = (statistics.median(each) for each in (ours, theirs, ratios))
        rows.append((name, *(f"{one:,.2f}" for one in figures)))
    show(title, rows, ("", "ottla", KAFKA, "ahead by"))


def run_rounds(both: list[Contender], args: argparse.Namespace) -> dict[str, list[list[Figures]]]:
    """Every case with every client, on one broker and then on the other."""
    found: dict[str, list[list[Figures]]] = {}
    for number in range(args.rounds + 1):
        for client in args.clients:
            for case in CASES:
                sides = {}
                for one in both[:: -1 if number % 2 else 1]:
                    topic = f"{client}-{case.records}-{case.value_bytes}-{number}"
                    sides[one.name] = measure(one, client, case, topic, args.seconds)
                title = f"{client}: transactions of {case}"
                if number:
                    found.setdefault(title, []).append([sides[one.name] for one in both])
        print(f"round {number} of {args.rounds} done", flush=True)
    return found


def main() -> None:
    """Measure in alternating rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a round of one second each")
    parser.add_argument("--clients", nargs="+", choices=[*CLIENTS], default=[*CLIENTS])
    args = parser.parse_args()
    args.rounds, args.seconds = (1, 1.0) if args.quick else (3, 2.5)
    if not kafka_is_here():
        return
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        both = [stack.enter_context(start(Path(name), _SETTINGS)) for start in (ottla, apache_kafka)]
        for one in both:
            quiet(one)
        for title, rounds in run_rounds(both, args).items():
            report(title, rounds)


if __name__ == "__main__":
    main()
