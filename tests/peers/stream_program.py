"""A program of the stream language for tests that kill it: tables, joins, aggregates and windows.

Run it: python -m peers.stream_program SERVERS STATE_DIR SEED
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from ottla.producer import Producer
from ottla.streams import Processor
from ottla.streams.config import StreamsConfig
from ottla.streams.handlers.direct_outputs import DirectOutputs
from ottla.streams.language.runtime import FOLLOW_GLOBAL_TABLES_S, TopologyRuntime
from ottla.streams.language.topology import Topology
from ottla.streams.language.windows import WindowValue, tumbling

APP = "shop"
SIZE_MS = 1_000
GRACE_MS = 200
SAID_EVERY = 10
"""After how many orders a program that is run says how many it has handled."""


class Order(msgspec.Struct):
    """A record of the topic of orders."""

    number: int
    region: str
    amount: int


class Priced(msgspec.Struct):
    """An order with the name of its customer."""

    number: int
    customer: str
    amount: int


class Sum(msgspec.Struct):
    """The sum of a window."""

    start_ms: int
    amount: int


def topology(chance: random.Random | None = None) -> Topology:
    """Return the program: four results of orders and customers."""

    handled = 0

    async def slowly(order: Order) -> Order:
        nonlocal handled
        if chance is not None:
            await asyncio.sleep(chance.random() * 0.005)
            handled += 1
            if handled % SAID_EVERY == 0:
                print(handled, flush=True)
        return order

    def row(window: WindowValue[int]) -> Sum:
        return Sum(window.start_ms, window.value)

    program = Topology()
    customers = program.table("customers", key=str, value=str)
    orders = program.stream("orders", key=str, value=Order).map_values(slowly)
    orders.join(customers, lambda order, name: Priced(order.number, name, order.amount)).to("priced")
    orders.aggregate(int, _added, name="totals", store="sqlite").to("totals")
    windows = orders.window(tumbling(SIZE_MS), grace_ms=GRACE_MS)
    windows.final().aggregate(int, _added, name="sums").map_values(row).to("sums")
    by_region = orders.key_by(lambda order: order.region).through("by-region", key=str, value=Order)
    by_region.count(name="regions").to("regions")
    return program


def _added(total: int, order: Order) -> int:
    return total + order.amount


def config(servers: str, **settings: Any) -> StreamsConfig:
    """Return settings under which a killed member is noticed soon."""
    return StreamsConfig.of(
        bootstrap_servers=servers,
        group_id=APP,
        commit_interval_ms=100,
        session_timeout_ms=2_000,
        heartbeat_interval_ms=300,
        **settings,
    )


@asynccontextmanager
async def running(
    program: Topology,
    settings: StreamsConfig,
    state_dir: Path | str,
    follow_tables_s: float = FOLLOW_GLOBAL_TABLES_S,
) -> AsyncIterator[tuple[Processor, TopologyRuntime]]:
    """Run a topology: its producer, its state, and its processor."""
    plan = program.plan()
    async with Producer(config=settings.producer) as producer:
        outputs = DirectOutputs(producer)
        async with TopologyRuntime(
            plan, settings, outputs, app_id=APP, state_dir=state_dir, follow_tables_s=follow_tables_s
        ) as runtime:
            async with Processor(
                runtime, *plan.topics, config=settings, outputs=outputs, states=runtime
            ) as processor:
                yield processor, runtime


async def main(servers: str, state_dir: str, seed: str) -> None:
    """Run until the process is killed."""
    async with running(topology(random.Random(int(seed))), config(servers), state_dir) as (processor, _):
        await processor.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
