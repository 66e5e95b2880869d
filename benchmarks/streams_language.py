"""The stream language: what a record costs on its way through a topology, without a broker.

One partition, 1,000 keys, values of 40 bytes of JSON, stores in memory; what is written is thrown away. Time
is processor time of this process, decoding and encoding included, the scheduler and the producer not
(`streams_overhead`, `producer_sdk`).

python benchmarks/streams_language.py [--quick] [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable

import msgspec

from ottla.consumer import ConsumerRecord
from ottla.producer import ProducerRecord
from ottla.streams.language.declarations import TableNode
from ottla.streams.language.runs import Counters, Run
from ottla.streams.language.steps import CompiledPart
from ottla.streams.language.stream import Stream
from ottla.streams.language.topology import Topology
from ottla.streams.language.windows import WindowValue, tumbling
from ottla.streams.state.memory import MemoryStore
from ottla.streams.state.store import StorePartition

TOPIC = "orders"
KEYS = 1_000


class Order(msgspec.Struct):
    """A value."""

    number: int
    region: str
    amount: int


Orders = Stream[str, Order]


class Nowhere:
    """An outbox that throws away what it gets, and a table without rows."""

    async def send(self, output: ProducerRecord) -> None: ...

    async def acknowledged(self) -> None: ...

    def row(self, table: TableNode, key: bytes) -> None:
        return None

    def name_row(self, table: TableNode, key: bytes) -> str:
        return table.topic


def doubled(order: Order) -> Order:
    return Order(order.number, order.region, 2 * order.amount)


def pair(window: WindowValue[int]) -> tuple[int, int]:
    return window.start_ms, window.value


def stateless(orders: Orders) -> None:
    orders.filter(lambda order: order.amount > 0).map_values(doubled).to("out")


def count(orders: Orders) -> None:
    orders.count(name="counts").to("out")


def windows(orders: Orders) -> None:
    orders.window(tumbling(1_000), grace_ms=200).count(name="counts").map_values(pair).to("out")


def final_windows(orders: Orders) -> None:
    orders.window(tumbling(1_000), grace_ms=200).final().count(name="counts").map_values(pair).to("out")


PROGRAMS: dict[str, tuple[Callable[[Orders], None], str]] = {
    "filter, map_values, to": (stateless, "at most 5"),
    "count, to": (count, "at most 12"),
    "count of windows, to": (windows, "at most 20"),
    "count of windows when they close, to": (final_windows, "at most 20"),
}


def records(number: int) -> list[ConsumerRecord]:
    return [
        ConsumerRecord(
            TOPIC, 0, at, 10_000 + at // 10, b"k%d" % (at % KEYS), msgspec.json.encode(Order(at, "north", 7))
        )
        for at in range(number)
    ]


async def handle(program: Callable[[Orders], None], given: list[ConsumerRecord]) -> float:
    """Take records through a program; return the microseconds of the processor for each."""
    topology = Topology()
    program(topology.stream(TOPIC, key=str, value=Order))
    plan = topology.plan().parts[TOPIC]
    part, nowhere, counters = CompiledPart(plan), Nowhere(), Counters()
    stores = {spec.name: StorePartition(MemoryStore(), f"{spec.name}-changelog") for spec in plan.stores}
    since_s = time.process_time()
    for record in given:
        run = Run(record, stores, nowhere, counters)
        waiting = part.process(run, record.timestamp_ms - 10_000)
        if waiting is not None:
            await waiting
        await run.finish(nowhere)
        run.release()
    return (time.process_time() - since_s) / len(given) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    given = records(10_000 if options.quick else 100_000)
    for name, (program, goal) in PROGRAMS.items():
        spent = [asyncio.run(handle(program, given)) for _ in range(2 if options.quick else options.rounds)]
        print(f"{name}: {statistics.median(spent):.1f} µs of processor time per record (goal: {goal})")


if __name__ == "__main__":
    main()
