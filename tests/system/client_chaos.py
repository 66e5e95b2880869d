"""Chaos between clients and their broker, in seeded rounds: no acknowledged record is lost or duplicated.

In each round producers of every kind and the members of a group work through a proxy that closes, resets,
delays, truncates, drops and stops answering, while the broker is killed and paused. At the end all faults are
removed, another client reads the log back, and these must hold: acknowledged records are at their
acknowledged offsets; idempotent writers have no duplicates; each writer's records are in order in each
partition; every acknowledgement arrived or failed; the group handled everything, and its committed offsets
were never ahead of that; closing is bounded; no task, descriptor or memory is leaked.

python tests/system/client_chaos.py --rounds 100 --seed 1

A failed round prints how to repeat it: `--rounds 1 --seed N`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import random
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import uvloop
from chaos_checks import compare
from chaos_faults import LOAD_S, Faults, PausedOnly, Victim, plan
from chaos_log import Log, read_back
from chaos_proxy import ProxyProcess
from chaos_readers import CLOSE_BOUND_S, Handled, Member, follow
from chaos_readers import available_ways as ways_to_read
from chaos_writers import CLOSE_BOUND_S as WRITER_CLOSE_BOUND_S
from chaos_writers import PARTITIONS, Writer
from chaos_writers import available_ways as ways_to_send

from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess, free_port
from ottla.client.cluster import NoSuchTopic
from ottla.client.config import ClientConfig
from ottla.client.errors import ClientError
from ottla.protocol.errors import KafkaError, TopicAlreadyExists
from ottla.protocol.topics import TopicPartition

# After the last fault: the bound until producers are done, and until a group has read everything.
WRITERS_BOUND_S = 20.0
READERS_BOUND_S = 25.0
ROUND_BOUND_S = 110.0
ALLOWED_GROWTH_MIB = 64
TRANSACTION_S = 3.0
_NETWORK: dict[str, Any] = {
    "request_timeout_ms": 1_500,
    "socket_connection_setup_timeout_ms": 1_500,
    "retry_backoff_ms": 20,
    "retry_backoff_max_ms": 200,
}


@dataclass
class Round:
    """One round: its load, its faults, and its errors."""

    seed: int
    servers: str
    faults: Faults
    wrong: list[str] = field(default_factory=list)
    writers: list[Writer] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    member_tasks: list[asyncio.Task[None]] = field(default_factory=list)
    handled: Handled = field(default_factory=Handled)
    followed: dict[int, list[int]] = field(default_factory=dict)
    acknowledged: int = 0

    def __post_init__(self) -> None:
        self.topic = f"chaos-{self.seed}"
        self.group = f"readers-{self.seed}"
        self.faults_planned = plan(self._rng("plan"))

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"{self.seed} {name}")

    async def run(self) -> None:
        """Run the round; every error is added to `wrong`."""
        asyncio.get_running_loop().set_exception_handler(self._unhandled)
        admin_config = ClientConfig(bootstrap_timeout_ms=60_000, **_NETWORK)
        async with Admin(self.servers, admin_config) as admin:
            with contextlib.suppress(
                TopicAlreadyExists
            ):  # created by the first attempt, whose answer took too long
                await admin.topics.create(self.topic, partitions=PARTITIONS)
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(self._watch_commits(admin))
                await self._load(tasks, admin)
                watch.cancel()
            with contextlib.suppress(NoSuchTopic):  # likewise
                await admin.topics.delete(self.topic)
        self.wrong += [line for writer in self.writers for line in writer.wrong]
        self.wrong += [line for member in self.members for line in member.wrong]

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.wrong.append(f"unhandled: {context.get('message')}: {context.get('exception')!r}")

    # --- the load

    async def _load(self, tasks: asyncio.TaskGroup, admin: Admin) -> None:
        stopping, rng = asyncio.Event(), self._rng("load")
        others = [way for way in ways_to_send() if way != "transaction"]
        for number, kind in enumerate(["transaction", *rng.sample(others, k=2)]):
            self._writer(kind, number)
        running = {writer.name: tasks.create_task(writer.run(stopping)) for writer in self.writers}
        for _ in range(rng.choice((1, 2, 3))):
            self._join(tasks)
        follower = tasks.create_task(
            follow(self.topic, PARTITIONS, self._consumer_settings(self._rng("follower")), self.followed)
        )
        await self._suffer(tasks, running)
        await asyncio.sleep(0.3)
        stopping.set()
        await self._end_of_writing(running)
        if any(each.fate == "unknown" for writer in self.writers for each in writer.transactions):
            await asyncio.sleep(2 * TRANSACTION_S)  # until the broker has aborted open transactions
        log = await asyncio.to_thread(read_back, self.servers, self.topic, PARTITIONS)
        self.wrong += compare(log, self.writers)
        self.acknowledged = sum(bool(record.place) for writer in self.writers for record in writer.records)
        await self._all_read(log)
        follower.cancel()
        await self._leave_all()
        await self._check_commits(admin)
        for partition, records in log.items():
            self.wrong += self.handled.ahead(partition, records)

    async def _suffer(self, tasks: asyncio.TaskGroup, running: dict[str, asyncio.Task[None]]) -> None:
        begun = time.monotonic()
        for fault in self.faults_planned:
            await asyncio.sleep(max(0.0, begun + fault.at_s - time.monotonic()))
            match fault.kind:
                case "join":
                    self._join(tasks)
                case "leave":
                    await self._leave(self._rng(f"leave {fault.at_s}"))
                case "quit":
                    await self._quit(running)
                case _:
                    await self.faults.do(fault)
        await asyncio.sleep(max(0.0, begun + LOAD_S - time.monotonic()))
        self.faults.heal()

    def _writer(self, kind: str, number: int) -> Writer:
        rng = self._rng(f"writer {number}")
        idempotent = rng.random() < 0.7
        patient = rng.random() < 0.75
        settings: dict[str, Any] = {
            **_NETWORK,
            "bootstrap_servers": self.servers,
            "bootstrap_timeout_ms": 60_000,
            "linger_ms": rng.choice((0, 1, 5, 20)),
            "batch_size": rng.choice((300, 4_000, 16_384, 131_072)),
            "buffer_memory": rng.choice((20_000, 500_000, 32 * 1024 * 1024)),
            "compression_type": rng.choice(("none", "none", "gzip", "lz4", "zstd", "snappy")),
            "delivery_timeout_ms": 40_000 if patient else rng.choice((300, 2_000)),
            "max_in_flight_requests_per_connection": rng.choice((1, 2, 5)),
        }
        if kind == "transaction":
            settings |= {"transactional_id": self.topic, "transaction_timeout_ms": int(TRANSACTION_S * 1000)}
        elif not idempotent:
            settings |= {"enable_idempotence": False, "acks": rng.choice((1, -1))}
        writer = Writer(f"w{number}", kind, self.topic, settings, rng, patient)
        self.writers.append(writer)
        return writer

    def _consumer_settings(self, rng: random.Random) -> dict[str, Any]:
        return {
            **_NETWORK,
            "bootstrap_servers": self.servers,
            "bootstrap_timeout_ms": 60_000,
            "auto_offset_reset": "earliest",
            "isolation_level": "read_committed",
            "fetch_max_wait_ms": rng.choice((20, 100, 500)),
            "max_partition_fetch_bytes": rng.choice((2_000, 50_000, 1_048_576)),
        }

    # --- members and writers that join and leave

    def _join(self, tasks: asyncio.TaskGroup) -> None:
        if not ways_to_read():
            return
        rng = self._rng(f"member {len(self.members)}")
        by_hand = rng.random() < 0.4
        settings = self._consumer_settings(rng) | {
            "group_id": self.group,
            "session_timeout_ms": 3_000,
            "heartbeat_interval_ms": 200,
            "max_poll_interval_ms": 8_000,  # also the bound for the answer to a lost join
            "enable_auto_commit": not by_hand,
            "auto_commit_interval_ms": rng.choice((20, 100, 500)),
            "default_api_timeout_ms": 5_000,
        }
        if strategy := self._rng("strategy").choice(
            ("", "range", "roundrobin", "sticky", "cooperative-sticky")
        ):
            settings["partition_assignment_strategy"] = strategy
        name = f"m{len(self.members)}"
        member = Member(name, rng.choice(ways_to_read()), self.topic, self.handled, settings, rng, by_hand)
        self.members.append(member)
        self.member_tasks.append(tasks.create_task(member.run(), name=name))

    async def _leave(self, rng: random.Random) -> None:
        """Cancel a member in the middle of its work; the last one stays."""
        alive = [task for task in self.member_tasks if not task.done() and not task.cancelling()]
        if len(alive) > 1:
            rng.choice(alive).cancel()

    async def _leave_all(self) -> None:
        for task in self.member_tasks:
            task.cancel()
        if self.member_tasks:
            _, left = await asyncio.wait(self.member_tasks, timeout=CLOSE_BOUND_S + 5)
            self.wrong += [f"{task.get_name()} did not close" for task in left]

    async def _quit(self, running: dict[str, asyncio.Task[None]]) -> None:
        """Cancel a producer during the faults: it closes at once, and no caller waits for it any more."""
        alive = [writer for writer in self.writers if not running[writer.name].done()]
        if len(alive) < 2:
            return
        task = running[alive[0].name]
        task.cancel()
        await asyncio.wait([task], timeout=WRITER_CLOSE_BOUND_S + 5)
        if not task.done() or alive[0].closing_s > WRITER_CLOSE_BOUND_S:
            self.wrong.append(f"{alive[0].name} ({alive[0].kind}) took {alive[0].closing_s:.1f} s to quit")

    async def _end_of_writing(self, running: dict[str, asyncio.Task[None]]) -> None:
        begun = time.monotonic()
        _, late = await asyncio.wait(running.values(), timeout=WRITERS_BOUND_S)
        if late:
            names = [writer.name for writer in self.writers if running[writer.name] in late]
            self.wrong.append(f"{names} were not done {time.monotonic() - begun:.0f} s after the last fault")
            for task in late:
                task.cancel()
            await asyncio.wait(late, timeout=10)

    # --- invariants

    async def _all_read(self, log: Log) -> None:
        """Wait until the follower and the group have read the whole log."""
        deadline = time.monotonic() + READERS_BOUND_S
        while time.monotonic() < deadline and (self._unread(log) or self._unfollowed(log)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        if unread := self._unread(log):
            self.wrong.append(f"the group did not handle {len(unread)} records, {unread[:3]} among them")
            self.wrong += [f"then {member}" for member in self.members]
        self.wrong += [
            f"the follower read {len(self.followed.get(partition, ()))} records of partition {partition} "
            f"in another order or number than the {len(records)} that are there"
            for partition, records in log.items()
            if self.followed.get(partition, []) != sorted(records)
        ]

    def _unread(self, log: Log) -> list[str]:
        if not self.members:
            return []
        return [f"{p}:{o}" for p, records in log.items() for o in records if not self.handled.holds(p, o)]

    def _unfollowed(self, log: Log) -> bool:
        return any(len(self.followed.get(partition, ())) < len(log[partition]) for partition in log)

    async def _watch_commits(self, admin: Admin) -> None:
        """Check the committed offsets continuously: none may be ahead of the handled records."""
        while True:
            with contextlib.suppress(ClientError, KafkaError):
                await self._check_commits(admin)
            await asyncio.sleep(0.1)

    async def _check_commits(self, admin: Admin) -> None:
        partitions = [TopicPartition(self.topic, index) for index in range(PARTITIONS)]
        for commit in await admin.groups.offsets(self.group, partitions):
            self.handled.saw_commit(commit.partition.partition, commit.offset)


class Leftovers:
    """The resources of the process before a round, for a comparison afterwards."""

    def __init__(self) -> None:
        self._before = _descriptors()

    async def check(self) -> list[str]:
        """Return the resources that a round has leaked; transports take a moment to close."""
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline and (_tasks() or self._more()):
            gc.collect()
            await asyncio.sleep(0.02)
        wrong = [f"a task is left: {task!r}" for task in _tasks()]
        return wrong + [f"a descriptor is left: {number} is {what}" for number, what in self._more().items()]

    def _more(self) -> dict[str, str]:
        now = _descriptors()
        if len(now) <= len(self._before):
            return {}
        return {number: what for number, what in now.items() if number not in self._before}


def _tasks() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


def _descriptors() -> dict[str, str]:
    """Return the descriptors of this process with their targets."""
    found: dict[str, str] = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this listing is closed again
            found[entry.name] = str(entry.readlink())
    return {number: what for number, what in found.items() if what != "/dev/null"}  # uvloop keeps one open


def one_round(seed: int, servers: str, faults: Faults) -> Round:
    """Run one round in an event loop of its own, asyncio's or uvloop's."""
    this = Round(seed, servers, faults)

    async def run() -> None:
        # A loop keeps resources open that it opens at first use.
        await asyncio.to_thread(gc.collect)
        leftovers = Leftovers()
        try:
            async with asyncio.timeout(ROUND_BOUND_S):
                await this.run()
        except TimeoutError:
            this.wrong.append(f"the round was not over after {ROUND_BOUND_S:.0f} s")
        except Exception as error:
            this.wrong.append("".join(traceback.format_exception(error)))
        this.wrong += await leftovers.check()

    factory = uvloop.new_event_loop if seed % 2 else asyncio.new_event_loop
    unraisable: list[str] = []
    sys.unraisablehook = lambda found: unraisable.append(
        f"unraisable: {found.exc_value!r} in {found.object!r}"
    )
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run())
    gc.collect()
    this.wrong += unraisable
    return this


@contextlib.contextmanager
def victim(kind: str, folder: Path, port: int) -> Iterator[Victim]:
    """Run the broker under test; it advertises the proxy's port."""
    settings = {
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "group.initial.rebalance.delay.ms": "50",
        "group.min.session.timeout.ms": "100",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.num.partitions": "4",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    }
    if kind == "ottla":
        with BrokerProcess(folder, settings) as broker:
            yield broker
        return
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from peers.apache_kafka import ApacheKafka

    with ApacheKafka(folder, settings, heap="512m") as kafka:
        yield PausedOnly(kafka.port, kafka.pid)


def chaos(folder: Path, rounds: int, seed: int, kind: str) -> int:
    """Run rounds, print the results, and return how many failed."""
    failed, acknowledged, given, seconds, memory_mib = 0, 0, 0, [], []
    port = free_port()
    with victim(kind, folder, port) as broker, ProxyProcess(port, broker.port) as proxy:
        for number in range(seed, seed + rounds):
            begun = time.monotonic()
            faults = Faults(proxy, broker)
            this = one_round(number, f"127.0.0.1:{port}", faults)
            seconds.append(time.monotonic() - begun)
            memory_mib.append(psutil.Process().memory_info().rss / 2**20)
            acknowledged += this.acknowledged
            given += sum(member.given for member in this.members)
            failed += bool(this.wrong)
            report(this)
            if (number - seed + 1) % 10 == 0:
                print(
                    f"  {number - seed + 1:>4} rounds  {acknowledged:>10,} acknowledged  {failed} failed",
                    flush=True,
                )
    growth_mib = statistics.median(memory_mib[-10:]) - statistics.median(memory_mib[5:15] or memory_mib)
    print(
        f"  {rounds} rounds of {statistics.median(seconds):.1f} s (longest {max(seconds):.1f} s), "
        f"{acknowledged:,} records acknowledged, {given:,} given to groups, "
        f"{memory_mib[-1]:.0f} MiB in the end ({growth_mib:+.0f})"
    )
    if growth_mib > ALLOWED_GROWTH_MIB:
        print(f"  WRONG the clients' process grew by {growth_mib:.0f} MiB")
        failed += 1
    return failed


def report(this: Round) -> None:
    """Print the errors of a round, and how to repeat it."""
    if not this.wrong:
        return
    print(f"  round {this.seed} failed; again with: --rounds 1 --seed {this.seed}")
    print(f"    faults: {'; '.join(map(str, this.faults_planned))}")
    for writer in this.writers:
        print(f"    {writer.name}: {writer.kind}, {len(writer.records)} records, {writer.settings}")
    for member in this.members:
        print(f"    {member}")
    for line in dict.fromkeys(this.wrong[:15]):
        print(f"    WRONG {line}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--broker",
        choices=("ottla", "kafka"),
        default="ottla",
        help="kafka: Apache Kafka 3.9, which is paused where ours is killed",
    )
    options = parser.parse_args()
    logging.getLogger("ottla").addHandler(logging.NullHandler())  # clients log the faults as expected
    with tempfile.TemporaryDirectory(prefix="ottla-chaos-") as folder:
        failed = chaos(Path(folder), options.rounds, options.seed, options.broker)
    print(
        "ok: nothing lost, nothing doubled, all in order, nothing left"
        if not failed
        else f"{failed} rounds failed"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
