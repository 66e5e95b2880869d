"""Writes of one ZooKeeper server in a JVM: what a broker's death or a controller's failover costs it.

Each write sets the data of a znode, as a controller does with the state of a partition; many are under way
at a time, and the server syncs them to its disk. CPU is that of the server's process. Round 0 is not
counted: a JVM compiles in it.

python benchmarks/zookeeper_writes.py [--writes 5000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import psutil

from ottla.zookeeper.apache_server import RealZooKeeper
from ottla.zookeeper.kazoo_session import KazooSession

ZNODES = 1_000
DATA = b"x" * 150
"""About as long as the state of a partition."""


async def write(session: KazooSession, writes: int) -> None:
    """Set the data of the znodes in turn; all writes are under way together."""
    async with asyncio.TaskGroup() as group:
        for number in range(writes):
            group.create_task(session.set(f"/znode-{number % ZNODES}", DATA))


async def measure(folder: Path, writes: int, rounds: int) -> None:
    """Print the figures of each round and their medians."""
    async with (
        RealZooKeeper(folder / "zookeeper") as server,
        KazooSession(server.connect_string, max_in_flight=writes, operation_timeout_ms=120_000) as session,
    ):
        await session.wait_connected()
        for number in range(ZNODES):
            await session.create(f"/znode-{number}", DATA)
        process = server_process(folder)
        figures = [await one_round(session, process, writes) for _ in range(rounds + 1)][1:]
    for rate, cpu_ms in figures:
        print(f"{rate:7,.0f} writes/s  {cpu_ms:.2f} ms of CPU each")
    rates, costs = zip(*figures, strict=True)
    print(f"median {statistics.median(rates):,.0f} writes/s, {statistics.median(costs):.2f} ms of CPU each")


async def one_round(session: KazooSession, process: psutil.Process, writes: int) -> tuple[float, float]:
    """Return writes a second, and milliseconds of the server's CPU for each."""
    before, begun = cpu_s(process), time.perf_counter()
    await write(session, writes)
    took_s = time.perf_counter() - begun
    return writes / took_s, (cpu_s(process) - before) / writes * 1_000


def server_process(folder: Path) -> psutil.Process:
    """The JVM that was started with the server's folder."""
    children = psutil.Process().children()
    return next(each for each in children if any(str(folder) in part for part in each.cmdline()))


def cpu_s(process: psutil.Process) -> float:
    """The processor time that a process has used."""
    times = process.cpu_times()
    return times.user + times.system


def main() -> None:
    """Measure on a disk of this machine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--writes", type=int, default=5_000, help="of each round")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ottla-zookeeper-") as folder:
        asyncio.run(measure(Path(folder), given.writes, given.rounds))


if __name__ == "__main__":
    main()
