"""The cost of ACLs and quotas for a broker, and how soon a change of them reaches open connections.

The broker's CPU per request with both, against the same broker without them: they serve the same load in
turns, twenty times; a third broker, without them too, shows how much two equal processes differ. The client
has a quota of each kind that it does not reach, and rules that allow it what it does, among a hundred others.
The goal is 1.02 at most, as the median over the pairs.

Then 500 connections of three brokers ask all the time, until each has been answered by a changed quota, and
by changed ACLs. The goal is a second.

python benchmarks/limits.py [--rounds 20] [--seconds 1]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from broker_network import CASES, Case, compile_native, prepare
from contenders import Contender, ottla, show
from ottla.admin import USER, Acl, AclFilter, Admin, Operation, PatternType, PermissionType, ResourceType
from ottla.broker.api.testing import batch_of
from ottla.broker.testing import BrokerCluster
from ottla.client.cluster import Cluster
from ottla.client.connection import Connection
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

WARM_UP_S: Final = 1.0
LONGEST_S: Final = 3_600
ON: Final = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:root",
    # Of the cluster, so that the broker may be set up; topics have rules.
    "allow.everyone.if.no.acl.found": "true",
}
PLAIN, AGAIN, LIMITED = "without", "without, again", "with ACLs and quotas"
SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {PLAIN: {}, AGAIN: {}, LIMITED: ON}
MEASURED: Final = ("produce 200 B, 32 in flight x 16", "fetch 64 KB, 4 in flight x 8")
GOAL: Final = 1.02
TURNS: Final = 8
CONNECTIONS: Final = 500
PAUSE_S: Final = 0.2


async def limit(broker: Contender) -> None:
    """Give the load's user rules and quotas."""
    async with Admin(broker.bootstrap_servers) as admin:
        await admin.quotas.alter(
            {USER: None},
            {"producer_byte_rate": 1e12, "consumer_byte_rate": 1e12, "request_percentage": 1e6},
        )
        operations = (Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE)
        await admin.acls.create([
            *(rule("*", "User:ANONYMOUS", operation) for operation in operations),
            *(rule(f"topic-{number}", f"User:user-{number}", Operation.READ) for number in range(100)),
        ])  # fmt: skip


def rule(topic: str, principal: str, operation: Operation) -> Acl:
    return Acl(
        ResourceType.TOPIC, topic, PatternType.LITERAL, principal, "*", operation, PermissionType.ALLOW
    )


def cpu_ns(pid: int) -> int:
    """Return the CPU time of a process so far, all threads that live; finer than the ticks of its status."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads)


class PausedLoad:
    """A load whose connections stay open, and that goes on for a turn at a time."""

    def __init__(self, folder: Path, broker: Contender, case: Case) -> None:
        topic, last = prepare(folder, broker, case)
        self._broker = broker
        self._progress = folder / f"{topic}.progress"
        self._progress.write_bytes(bytes(8))
        arguments = [case.api, topic, 0, case.size, case.connections, case.in_flight, LONGEST_S, last]
        self._process = subprocess.Popen(
            [str(folder / "load"), "127.0.0.1", str(broker.port), *map(str, arguments)],
            env={**os.environ, "OTTLA_PROGRESS": str(self._progress)},
        )

    def __enter__(self) -> PausedLoad:
        self.turn(WARM_UP_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def _answered(self) -> int:
        return int.from_bytes(self._progress.read_bytes(), sys.byteorder)

    def turn(self, seconds: float) -> float:
        """Load the broker for a while; return its CPU in µs per request."""
        before, cpu_before = self._answered, cpu_ns(self._broker.pid)
        self._process.send_signal(signal.SIGCONT)
        time.sleep(seconds)
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(PAUSE_S / 10)  # what is on the way is served
        if self._process.poll() is not None:
            raise RuntimeError("the load has ended")
        answered = self._answered - before
        return (cpu_ns(self._broker.pid) - cpu_before) / max(answered, 1) / 1000


def run(folder: Path, brokers: Mapping[str, Contender], case: Case, rounds: int, seconds: float) -> None:
    """Measure pairs, each of several short turns, of which the cheapest counts.

    What else the machine does makes turns dearer, never cheaper, and changes from second to second.
    """
    taken_us: dict[str, list[float]] = {name: [] for name in brokers}
    with ExitStack() as stack:
        loads = {
            name: stack.enter_context(PausedLoad(folder, broker, case)) for name, broker in brokers.items()
        }
        for _ in range(rounds):
            in_turns: dict[str, list[float]] = {name: [] for name in brokers}
            for turn in range(TURNS):
                for name in list(brokers) if turn % 2 else list(brokers)[::-1]:
                    in_turns[name].append(loads[name].turn(seconds / TURNS))
            for name, turns_us in in_turns.items():
                taken_us[name].append(min(turns_us))
    rows: list[tuple[str, ...]] = []
    for name, own_us in taken_us.items():
        ratios = [own / plain for own, plain in zip(own_us, taken_us[PLAIN], strict=True)]
        least, median, most = statistics.quantiles(ratios, n=4)
        spread = "" if name == PLAIN else f"{least:.3f}-{most:.3f}"
        rows.append((name, f"{statistics.median(own_us):.2f}", f"{median:.3f}", spread))
    header = ("broker", "CPU µs", f"x {PLAIN}, median", "half of the pairs")
    show(f"{case.name}: CPU per request, {rounds} pairs; goal {GOAL} x", rows, header)


# ---- changes


class Change(NamedTuple):
    """A change, and how an answer to Produce shows that it holds."""

    name: str
    make: Callable[[Admin], Awaitable[object]]
    holds: Callable[[ProduceResponse], bool]


def _code(response: ProduceResponse) -> int:
    return response.responses[0].partition_responses[0].error_code


DENIAL: Final = Acl(
    ResourceType.TOPIC, "t", PatternType.LITERAL, "User:ANONYMOUS", "*", Operation.WRITE, PermissionType.DENY
)
CHANGES: Final = (
    Change(
        "a rule that denies",
        lambda admin: admin.acls.create([DENIAL]),
        lambda response: _code(response) == ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ),
    Change(
        "the rule's removal",
        lambda admin: admin.acls.delete([AclFilter(resource_name="t", permission_type=PermissionType.DENY)]),
        lambda response: _code(response) == ErrorCode.NONE,
    ),
    Change(  # the last: clients wait after it
        "a quota",
        lambda admin: admin.quotas.alter({USER: None}, {"producer_byte_rate": 1.0}),
        lambda response: response.throttle_time_ms > 0,
    ),
)


async def changes(folder: Path) -> None:
    """Make each change while all connections produce, and print when they have seen it."""
    with BrokerCluster(folder / "cluster", {**ON, "num.partitions": "1"}) as cluster:
        async with AsyncExitStack() as stack:
            admin = await stack.enter_async_context(Admin(cluster.bootstrap_servers))
            await admin.topics.create("t", partitions=3, replication_factor=1)
            await admin.acls.create([rule("*", "User:ANONYMOUS", Operation.WRITE)])
            asked = await producing(stack, cluster)
            await asyncio.gather(*(until(connection, request, CHANGES[1]) for connection, request in asked))
            rows = [await seen_after(change, admin, asked) for change in CHANGES]
    show(f"A change, seen on {CONNECTIONS} open connections of three brokers", rows, ("", "half", "all"))


async def producing(stack: AsyncExitStack, cluster: BrokerCluster) -> list[tuple[Connection, ProduceRequest]]:
    """Open the connections, and return each with a request to a partition that its broker leads."""
    metadata = await stack.enter_async_context(Cluster(cluster.bootstrap_servers))
    topic = await metadata.topic("t")
    opened = []
    for number in range(CONNECTIONS):
        partition = topic.partitions[number % len(topic.partitions)]
        connection = Connection(metadata.nodes[partition.leader].address)
        await stack.enter_async_context(connection)
        data = PartitionProduceData(index=partition.index, records=batch_of(b"x" * 100))
        topic_data = [TopicProduceData(name="t", partition_data=[data])]
        opened.append((connection, ProduceRequest(acks=1, timeout_ms=30_000, topic_data=topic_data)))
    return opened


async def until(connection: Connection, request: ProduceRequest, change: Change) -> float:
    """Send a request again and again; return when an answer showed the change."""
    while not change.holds(await connection.send(request, ProduceResponse, max_version=9)):  # noqa: ASYNC110
        await asyncio.sleep(PAUSE_S)  # it has to ask
    return time.perf_counter()


async def seen_after(
    change: Change, admin: Admin, asked: Sequence[tuple[Connection, ProduceRequest]]
) -> tuple[str, ...]:
    began_s = time.perf_counter()
    seen = [asyncio.create_task(until(connection, request, change)) for connection, request in asked]
    await change.make(admin)
    took_s = sorted(await asyncio.gather(*seen))
    half, last = took_s[len(took_s) // 2] - began_s, took_s[-1] - began_s
    return change.name, f"{half * 1000:.0f} ms", f"{last * 1000:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.0, help="of load in each")
    parser.add_argument("--changes", action="store_true", help="measure the changes only")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        compile_native(folder)
        if options.changes:
            asyncio.run(changes(folder))
            return
        brokers = {
            name: stack.enter_context(ottla(folder / str(number), settings))
            for number, (name, settings) in enumerate(SETTINGS.items())
        }
        asyncio.run(limit(brokers[LIMITED]))
        for case in CASES:
            if case.name in MEASURED:
                run(folder, brokers, case, options.rounds, options.seconds)
    asyncio.run(changes(folder))


if __name__ == "__main__":
    main()
