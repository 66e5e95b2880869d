"""A thousand groups rebalance together on one broker: at their start, after its restart, with a new member.

Run `python benchmarks/groups_together.py`; `--contenders ottla` leaves Apache Kafka out, and `--groups 100`
measures with fewer. Members are requests on connections: JoinGroup, SyncGroup, Heartbeat. Each has a
connection of its own, as a broker answers the requests of one connection in order and holds back an answer
to JoinGroup. A process of its own asks the broker for its API versions every 20 ms: the slowest answer
shows how long a request waits at most behind those of the members, and what the machine's load adds. After a
restart, that begins when the port is open. The longest stall is what Ottla's own metrics say of its event
loop: how much later than due a timer fired, in the last minute or two.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from contenders import kafka_is_here, show
from ottla.broker.testing import BrokerProcess, free_port
from ottla.client.config import Address, ClientConfig
from ottla.client.connection import Connection
from ottla.client.errors import ClientError
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from ottla.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from peers.kraft_kafka import KraftKafka

_BOUND_S = 180.0
# Of the samples of two minutes, 1,200, the largest but one at most.
_LAG = re.compile(r'^ottla_broker_eventloop_lagms\{quantile="0.999"\} (\S+)$', re.MULTILINE)
_EVERY_S = 0.02
_HEARTBEAT_S = 3.0
Figures = dict[str, float]
_SETTINGS = {"offsets.topic.num.partitions": "50", "group.initial.rebalance.delay.ms": "3000"}


@dataclass
class Group:
    """A group of so many members, and the generation that each has its assignment of."""

    name: str
    size: int
    generations: dict[int, int] = field(default_factory=dict)

    @property
    def is_stable(self) -> bool:
        return len(self.generations) == self.size and len(set(self.generations.values())) == 1


class Member:
    """One member: it joins again whenever the coordinator wants it to, or cannot be reached."""

    def __init__(self, group: Group, number: int, port: int) -> None:
        self._group = group
        self._number = number
        self._address = Address("127.0.0.1", port)
        self._id = ""
        self._generation = -1

    async def run(self) -> None:
        """Stay a member until cancelled."""
        while True:
            try:
                config = ClientConfig(client_id="groups", request_timeout_ms=120_000)
                async with Connection(self._address, config) as connection:
                    await self._belong(connection)
            except ClientError:
                self._group.generations.pop(self._number, None)
                await asyncio.sleep(0.2)

    async def _belong(self, connection: Connection) -> None:
        joined = self._generation >= 0
        while True:
            if not joined:
                self._group.generations.pop(self._number, None)
                joined = await self._join(connection)
                continue
            request = HeartbeatRequest(
                group_id=self._group.name, generation_id=self._generation, member_id=self._id
            )
            error = (await connection.send(request, HeartbeatResponse)).error_code
            if error == ErrorCode.UNKNOWN_MEMBER_ID:
                self._id = ""
            joined = error == 0
            if joined:
                self._group.generations[self._number] = self._generation
                await asyncio.sleep(_HEARTBEAT_S)
            elif error != ErrorCode.REBALANCE_IN_PROGRESS:
                await asyncio.sleep(0.1)

    async def _join(self, connection: Connection) -> bool:
        request = JoinGroupRequest(
            group_id=self._group.name, session_timeout_ms=45_000, rebalance_timeout_ms=60_000,
            member_id=self._id, protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\0" * 40)],
        )  # fmt: skip
        answer = await connection.send(request, JoinGroupResponse)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._id = answer.member_id
            return False
        if answer.error_code:
            # With another id the group would wait for the old one, while the coordinator loads for example.
            if answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                self._id = ""
            await asyncio.sleep(0.1)
            return False
        self._id, self._generation = answer.member_id, answer.generation_id
        return await self._sync(connection, [one.member_id for one in answer.members])

    async def _sync(self, connection: Connection, members: list[str]) -> bool:
        request = SyncGroupRequest(
            group_id=self._group.name, generation_id=self._generation, member_id=self._id,
            protocol_type="consumer", protocol_name="range",
            assignments=[SyncGroupRequestAssignment(member_id=one, assignment=b"\0" * 40)
                for one in members],
        )  # fmt: skip
        answer = await connection.send(request, SyncGroupResponse)
        return not answer.error_code


@dataclass(frozen=True)
class Contender:
    """A running broker; `stall_ms` returns the longest stall of its event loop, where it has one."""

    port: int
    restart: Callable[[], object]
    stall_ms: Callable[[], float] | None = None


@contextmanager
def probing(contender: Contender, what: str, into: Figures) -> Iterator[None]:
    """Note how long it took, the slowest answer of the broker meanwhile, and its longest stall so far."""
    command = [sys.executable, __file__, "--probe", str(contender.port)]
    begun, load = time.perf_counter(), os.getloadavg()[0]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as probe:
        try:
            yield
            took_s = time.perf_counter() - begun
        finally:
            said, _ = probe.communicate("", timeout=30)
    loads = f"load {load:.1f} to {os.getloadavg()[0]:.1f}"
    stalled = "" if contender.stall_ms is None else f"longest stall {contender.stall_ms():.0f} ms; "
    print(f"  {what}: {took_s:.2f} s; slowest answer {said.strip()} ms; {stalled}{loads}", flush=True)
    into[f"{what}: stable after s"], into[f"{what}: slowest answer ms"] = took_s, float(said)


def probe(port: int) -> None:
    """Ask for API versions until the standard input ends; print the slowest answer in milliseconds."""
    os.set_blocking(0, False)
    slowest, ask = 0.0, bytes.fromhex("0000000a0012000000000001ffff")
    wire: socket.socket | None = None
    while os.read(0, 1) if _readable() else True:
        begun = time.perf_counter()
        try:
            wire = wire or socket.create_connection(("127.0.0.1", port), 30)
            wire.sendall(ask)
            left = int.from_bytes(wire.recv(4, socket.MSG_WAITALL), "big")
            if not left or len(wire.recv(left, socket.MSG_WAITALL)) < left:
                raise ConnectionError
            slowest = max(slowest, (time.perf_counter() - begun) * 1000)
        except OSError:
            wire = None  # it is restarting
        time.sleep(_EVERY_S)
    print(f"{slowest:.0f}")


def _readable() -> bool:
    import select

    return bool(select.select([0], [], [], 0)[0])


async def all_stable(groups: list[Group]) -> None:
    """Return once every group is stable."""
    try:
        async with asyncio.timeout(_BOUND_S):
            while not all(one.is_stable for one in groups):  # noqa: ASYNC110 - the members are many
                await asyncio.sleep(0.05)
    except TimeoutError:
        left = [one for one in groups if not one.is_stable]
        raise TimeoutError(f"{len(left)} groups are not stable, for one {left[0]}") from None


async def coordinator_is_there(port: int) -> None:
    """Return once the topic of the groups exists."""
    async with (
        asyncio.timeout(_BOUND_S),
        Connection(Address("127.0.0.1", port), ClientConfig()) as connection,
    ):
        while True:
            request = FindCoordinatorRequest(key="any")
            answer = await connection.send(request, FindCoordinatorResponse, max_version=3)
            if not answer.error_code:
                return
            await asyncio.sleep(0.1)


async def measure(contender: Contender, count: int, size: int) -> Figures:
    """All groups start, live through a restart, and get one more member each."""
    port = contender.port
    await coordinator_is_there(port)
    found: Figures = {}
    groups = [Group(f"group-{number}", size) for number in range(count)]
    async with asyncio.TaskGroup() as tasks:
        with probing(contender, "start", found):
            running = [
                tasks.create_task(Member(group, number, port).run())
                for group in groups
                for number in range(size)
            ]
            await all_stable(groups)
        await asyncio.to_thread(contender.restart)
        for group in groups:
            group.generations.clear()
        with probing(contender, "restart", found):
            await all_stable(groups)
        with probing(contender, "one more member", found):
            for group in groups:
                running.append(tasks.create_task(Member(group, group.size, port).run()))
                group.size += 1
            await all_stable(groups)
        for task in running:
            task.cancel()
    return found


def main() -> None:
    """Measure the contenders one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--contenders", nargs="+", choices=["ottla", "kafka"], default=["ottla", "kafka"])
    parser.add_argument("--probe", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.probe:
        probe(args.probe)
        return
    if "kafka" in args.contenders and not kafka_is_here():
        args.contenders.remove("kafka")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.contenders:
            print(name, flush=True)
            with _broker(name, Path(folder) / name) as contender:
                found[name] = asyncio.run(measure(contender, args.groups, args.members))
    report(f"{args.groups:,} groups of {args.members} members", found)


def report(title: str, found: dict[str, Figures]) -> None:
    """Print a column for each broker, and with both the ratio: above 1 is better than Kafka."""
    rows = []
    for name in next(iter(found.values()), {}):
        each = [figures[name] for figures in found.values()]
        ratio = [f"{found['kafka'][name] / found['ottla'][name]:.2f}"] if len(each) == 2 else []
        rows.append((name, *(f"{one:.2f}" for one in each), *ratio))
    show(title, rows, ("", *found, *(["ahead by"] if len(found) == 2 else [])))


@contextmanager
def _broker(name: str, folder: Path) -> Iterator[Contender]:
    if name == "ottla":
        metrics_port = free_port()
        with BrokerProcess(folder, {**_SETTINGS, "metrics.port": str(metrics_port)}) as broker:
            yield Contender(broker.port, broker.restart, partial(loop_stall_ms, metrics_port))
        return
    with KraftKafka(folder, _SETTINGS, heap="1g") as kafka:
        yield Contender(kafka.port, kafka.restart)


def loop_stall_ms(metrics_port: int) -> float:
    """Return how much later than due a timer of Ottla's loop fired at most, in the last minute or two."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=30) as answer:
        found = _LAG.search(answer.read().decode())
    assert found is not None, "the broker does not tell the lag of its event loop"
    return float(found[1])


if __name__ == "__main__":
    main()
