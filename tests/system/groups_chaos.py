"""Chaos under share groups and consumer groups: brokers are killed, members leave, die and come back.

Two producers write numbered records with acks=all into a topic of three replicas with min.insync.replicas=2.
A share group (KIP-932) with members of Apache's Java client and of ours, and a consumer group (KIP-848) with
members of these and of confluent-kafka read it. Leaders of the topic and of the internal topics, that is
coordinators of groups and of share states, and controllers are killed with SIGKILL or stopped for a while. At
the end everything is healed, and these must hold: each acknowledged record is in the log; members of the
share group have accepted each record, none after its acceptance again, and nothing is in flight; the consumer
group has read each partition in order without a gap, again only what was not committed, and has committed
the ends; replicas are the same bytes.

python tests/system/groups_chaos.py --kills 100 --seed 1
python tests/system/groups_chaos.py --kills 20 --fault "kill leader" --topic __share_group_state
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from chaos_log import Log, read_back
from cluster_chaos import counted
from cluster_chaos import kills as brokers_killed
from cluster_checks import acknowledgements, differing, disordered, lost, out_of_sequence
from cluster_faults import KILLS, PAUSES, Fault
from cluster_faults import plan as plan_faults
from cluster_nodes import SESSION_MS, NodeFailed
from cluster_of_nodes import Cluster
from cluster_perform import perform
from confluent_kafka.admin import AdminClient
from groups_checks import (
    OrderedReads,
    ShareLimits,
    deliveries,
    errors,
    fates,
    misread,
    misshared,
    read_journals,
)
from groups_processes import (
    CONSUMER,
    HOSTS,
    PARTITIONS,
    SHARE,
    STOP_BOUND_S,
    TOPIC,
    Host,
    Progress,
    Writer,
)
from transactions_checks import committed
from transactions_workers import wait_for

from ottla.admin import GROUP, Admin
from ottla.client.errors import ClientError
from ottla.protocol.errors import KafkaError

OFFSETS: Final = "__consumer_offsets"
STATES: Final = "__share_group_state"
LOCK_MS: Final = 10_000
DELIVERIES: Final = 10
SETTINGS: Final = {
    "offsets.topic.num.partitions": "2",
    "share.coordinator.state.topic.num.partitions": "3",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "group.share.delivery.count.limit": str(DELIVERIES),
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": str(LOCK_MS),
    "group.share.min.heartbeat.interval.ms": "200",
    "group.share.heartbeat.interval.ms": "500",
    "group.share.min.session.timeout.ms": "2000",
    "group.share.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.heartbeat.interval.ms": "2000",
    "group.consumer.min.session.timeout.ms": "2000",
    "group.consumer.session.timeout.ms": "8000",
}
WRITERS: Final = ("confluent", "ottla")
START_BOUND_S: Final = 300.0
PROGRESS_BOUND_S: Final = 120.0
DRAIN_BOUND_S: Final = 180.0
KILLED_BY: Final = dict.fromkeys(KILLS, 1) | {"kill two in turn": 2, "kill two at once": 2, "kill all": 3}
"""How many brokers a fault kills."""


# --- the plan


@dataclass(frozen=True)
class Round:
    """One fault, of a leader of the topic where it is a leader's, and who is away meanwhile."""

    fault: Fault
    topic: str
    away: str = ""
    """A member that leaves, or a process of members that is killed."""
    waits: bool = True
    """Whether the groups must have read on before the next round."""


def plan(
    kills: int, seed: int, kinds: Sequence[str], topics: Sequence[str], hosts: Mapping[str, Mapping[str, str]]
) -> list[Round]:
    """Return rounds with so many kills of brokers. The same arguments give the same rounds."""
    rng = random.Random(f"{seed} groups")
    # More than enough are drawn, pauses among them.
    faults = plan_faults(
        "mixed", 20 + 4 * kills, seed, session_s=SESSION_MS / 1_000, can_cut=False, kinds=kinds
    )
    rounds: list[Round] = []
    left = kills
    for fault in faults:
        rounds.append(Round(fault, rng.choice(topics), _away(rng, hosts), rng.random() < 0.7))
        left -= KILLED_BY.get(fault.kind, 0)
        if left <= 0:
            return rounds
    return rounds


def _away(rng: random.Random, hosts: Mapping[str, Mapping[str, str]]) -> str:
    """Draw a member that leaves, or a process that is killed, or none."""
    drawn = rng.random()
    if drawn < 0.5:
        return rng.choice(sorted(member for members in hosts.values() for member in members))
    return rng.choice(sorted(hosts)) if drawn < 0.7 else ""


# --- the run


class Run:
    """One run: its processes, and what is found wrong."""

    def __init__(self, folder: Path, cluster: Cluster, per_s: int) -> None:
        self.folder = folder
        self.cluster = cluster
        self.wrong: list[str] = []
        self.windows_us: list[tuple[int, int]] = []
        self.kinds: Counter[str] = Counter()
        self.waits_s: dict[str, list[float]] = defaultdict(list)
        """By group, the seconds after the healing of a fault until all partitions were read on."""
        self.hosts = {name: Host(name, members, folder, cluster.servers) for name, members in HOSTS.items()}
        self.writers: list[Writer] = []
        self._per_s = per_s
        self._progress = Progress(folder)
        self._admin = AdminClient({"bootstrap.servers": cluster.servers, "log_level": 0})

    def start(self) -> None:
        """Start all members and the writers; each member has read something when it returns."""
        asyncio.run(begin_at_the_start(self.cluster.servers))
        for host in self.hosts.values():
            host.start()
        for kind in WRITERS:
            self.writers.append(Writer(kind, self.folder, self.cluster.servers, self._per_s))
        if complaint := wait_for("a record for each member", self._has_each_read, START_BOUND_S):
            self.wrong.append(f"{complaint}; {self._described(SHARE)}; {self._described(CONSUMER)}")

    def _has_each_read(self) -> bool:
        members = (member for members in HOSTS.values() for member in members)
        return all(self._progress.counts()[member] for member in members)

    def kill(self) -> None:
        for host in self.hosts.values():
            host.kill()
        for writer in self.writers:
            writer.process.kill()
            writer.process.wait(30)

    def perform(self, rounds: Sequence[Round], until: float) -> int:
        """Perform rounds as long as nothing is wrong; return how many."""
        begun = time.monotonic()
        for done, each in enumerate(rounds, 1):
            try:
                self._perform(each)
            except NodeFailed as error:
                self.wrong.append(str(error))
            if self.wrong:
                self.wrong[0] = f"round {done} ({each}): {self.wrong[0]}"
            if done % 5 == 0 or self.wrong:
                reads = sum(self._progress.counts().values()) // 2  # each counts twice
                print(
                    f"  round {done:>4} at {time.monotonic() - begun:5.0f} s, {self.kills:>3} kills, "
                    f"{reads:>9,} records read", flush=True,
                )  # fmt: skip
            if self.wrong or time.monotonic() > until:
                return done
        return len(rounds)

    @property
    def kills(self) -> int:
        return sum(broker.kills for broker in self.cluster.brokers.values())

    def _perform(self, each: Round) -> None:
        time.sleep(each.fault.after_s)
        begun_us = time.time_ns() // 1_000
        self._send_away(each.away)
        perform(each.fault, self.cluster, each.topic)
        where = f" of {each.topic}" if each.fault.kind.endswith("leader") else ""
        self.kinds[each.fault.kind + where] += 1
        if complaint := self.cluster.wait_until_healed(TOPIC, OFFSETS, STATES):
            raise NodeFailed(complaint)
        self.windows_us.append((begun_us, time.time_ns() // 1_000))
        self._bring_back(each.away)
        if each.waits:
            self._await_reads()

    def _send_away(self, away: str) -> None:
        if away in self.hosts:
            self.hosts[away].kill()
        elif away:
            self._host_of(away).leave(away)

    def _bring_back(self, away: str) -> None:
        if away in self.hosts:
            self.hosts[away].start()
        elif away:
            self._host_of(away).join(away)

    def _host_of(self, member: str) -> Host:
        return next(host for host in self.hosts.values() if member in host.members)

    def _await_reads(self) -> None:
        """Wait until both groups have read more of each partition."""
        before, since = self._progress.counts(), time.monotonic()
        for group in (SHARE, CONSUMER):
            has_read = partial(self._has_read, group, before)
            if complaint := wait_for(f"reading by {group}", has_read, PROGRESS_BOUND_S):
                now = self._progress.counts()
                still = [index for index in range(PARTITIONS) if now[group, index] <= before[group, index]]
                self.wrong.append(f"{complaint}: partitions {still}; {self._described(group)}")
            self.waits_s[group].append(time.monotonic() - since)

    def _has_read(self, group: str, before: Mapping[str | tuple[str, int], int]) -> bool:
        now = self._progress.counts()
        return all(now[group, index] > before.get((group, index), 0) for index in range(PARTITIONS))

    def _described(self, group: str) -> str:
        """Describe a group, and the last lines of its members."""
        last = {
            journal.stem: journal.read_text().splitlines()[-1:]
            for journal in sorted(self.folder.glob("*.journal"))
        }
        return f"{asyncio.run(describe(self.cluster.servers, group))}; the members' last lines: {last}"

    # --- the end

    def finish(self) -> None:
        """Stop the writers, wait until all is read, make the members leave, and compare."""
        for writer in self.writers:
            writer.process.terminate()
        for writer in self.writers:
            self._end(writer)
        log = read_back(self.cluster.servers, TOPIC, PARTITIONS)
        ends = {partition: max(records, default=-1) + 1 for partition, records in log.items()}
        self._drain(ends)
        for host in self.hosts.values():
            if complaint := host.stop():
                self.wrong.append(complaint)
        for group in (SHARE, CONSUMER):
            self.wrong += asyncio.run(until_empty(self.cluster.servers, group))
        self._compare(log, ends)
        self._compare_replicas()

    def _end(self, writer: Writer) -> None:
        try:
            status = writer.process.wait(STOP_BOUND_S)
        except subprocess.TimeoutExpired:
            status = -1
        if status:
            self.wrong.append(f"{writer.name} ended with status {status}")

    def _drain(self, ends: Mapping[int, int]) -> None:
        """Wait until the consumer group has committed the ends, and the share group has nothing left."""
        is_read = partial(self._is_committed, ends)
        if complaint := wait_for("committing the ends", is_read, DRAIN_BOUND_S):
            self.wrong.append(f"{complaint}; {self._described(CONSUMER)}")
        if complaint := asyncio.run(until_finished(self.cluster.servers, ends)):
            self.wrong.append(f"{complaint}; {self._described(SHARE)}")

    def _is_committed(self, ends: Mapping[int, int]) -> bool:
        found = committed(self._admin, CONSUMER, TOPIC, PARTITIONS)
        return all(max(0, found[partition]) == end for partition, end in ends.items())

    def _compare(self, log: Log, ends: Mapping[int, int]) -> None:
        for each in self.writers:
            writer = acknowledgements(each.name, each.journal)
            if not writer.ended:
                self.wrong.append(f"{each.name} did not get all of its records acknowledged")
            self.wrong += writer.wrong[:3] + lost(log, writer) + disordered(log, each.name)
            print(f"  {each.name}: {len(writer.places):,} records acknowledged")
        lines = read_journals(sorted(self.folder.glob("*.journal")))
        self.wrong += misread(log, lines)
        reads = OrderedReads()
        for line in lines:
            reads.follow(line)
        self.wrong += reads.finish(ends, committed(self._admin, CONSUMER, TOPIC, PARTITIONS))
        shared = deliveries(lines)
        self.wrong += misshared(log, shared, ShareLimits(DELIVERIES, LOCK_MS * 1_000, self.windows_us))
        print(f"  consumer group: {reads.distinct:,} records, {reads.reads - reads.distinct:,} read again")
        print(f"  share group: {fates(shared)}")
        for word in ("refused", "uncommitted", "failed", "told"):
            print(f"  {word}: {errors(lines, word)}")

    def _compare_replicas(self) -> None:
        for broker in self.cluster.brokers.values():
            broker.stop()
        directories = {broker.name: broker.data for broker in self.cluster.brokers.values()}
        self.wrong += differing(directories, TOPIC, PARTITIONS)
        for directory in directories.values():
            self.wrong += out_of_sequence(directory, TOPIC, PARTITIONS)

    def report(self) -> None:
        """Print what was done, and how soon the groups went on."""
        starts = sum(host.starts for host in self.hosts.values())
        print(f"  {brokers_killed(self.cluster)}; {starts} starts of processes of members")
        print(f"  {counted(self.kinds)}")
        for group, waits in self.waits_s.items():
            print(
                f"  {group}: every partition read on after a median of {statistics.median(waits):.1f} s, "
                f"at most {max(waits):.1f} s"
            )


# --- questions to the cluster


async def begin_at_the_start(servers: str) -> None:
    """Make the share group begin at the start of the log."""
    async with asyncio.timeout(PROGRESS_BOUND_S), Admin(servers) as admin:
        await admin.configs.alter(GROUP, SHARE, {"share.auto.offset.reset": "earliest"})


async def describe(servers: str, group: str) -> str:
    """Describe a group, or say why it is not described."""
    try:
        async with asyncio.timeout(30), Admin(servers) as admin:
            return repr(await admin.groups.describe(group))
    except (ClientError, KafkaError, TimeoutError) as error:
        return f"{group} is not described: {error!r}"


async def until_finished(servers: str, ends: Mapping[int, int]) -> str:
    """Wait until the share group has accepted all; return what is left after a time.

    A lag of nothing says so: the start offset that is persisted lies behind until the next write.
    """
    wanted = {index: 0 for index, end in ends.items() if end}
    found: dict[int, int | None] = {}
    try:
        async with asyncio.timeout(DRAIN_BOUND_S), Admin(servers) as admin:
            while found != wanted:
                await asyncio.sleep(0.2)  # the coordinator learns it from the leaders
                offsets = await admin.groups.share_offsets(SHARE)
                found = {each.partition.partition: each.lag for each in offsets}
    except TimeoutError:
        return f"{SHARE} has not accepted all within {DRAIN_BOUND_S:g} s: lags {found} of {ends}"
    return ""


async def until_empty(servers: str, group: str) -> list[str]:
    """Wait until a group has no members; return a complaint when they stay."""
    state = ""
    try:
        async with asyncio.timeout(PROGRESS_BOUND_S), Admin(servers) as admin:
            while state != "Empty":
                await asyncio.sleep(0.2)
                state = (await admin.groups.describe(group)).state
    except TimeoutError:
        return [f"{group} is {state}, though its members have left"]
    return []


# --- the program


def chaos(options: argparse.Namespace, folder: Path) -> list[str]:
    """Run it and print its figures; return what is wrong."""
    rounds = plan(options.kills, options.seed, options.fault or (*KILLS, *PAUSES), options.topic, HOSTS)
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(folder, ["ottla"] * 3, SETTINGS))
        cluster.create(TOPIC, PARTITIONS, min_insync_replicas="2")
        if complaint := cluster.wait_until_healed(TOPIC):
            return [complaint]
        cluster.wait_until_served(TOPIC)
        members = folder / "members"
        members.mkdir(exist_ok=True)
        run = Run(members, cluster, options.per_s)
        stack.callback(run.kill)
        run.start()
        if not run.wrong:
            done = run.perform(rounds, time.monotonic() + options.minutes * 60)
            print(f"  {done} of {len(rounds)} rounds done; now everything is compared", flush=True)
        run.finish()
        run.report()
    return run.wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100, help="of brokers, by SIGKILL")
    parser.add_argument("--fault", action="append", default=[], help="only this kind of fault; repeatable")
    parser.add_argument(
        "--topic", action="append", default=[], help="whose leaders; repeatable (default: all three)"
    )
    parser.add_argument("--minutes", type=float, default=1_000.0, help="no new round after this time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-s", type=int, default=50, help="records a second of each writer")
    parser.add_argument("--keep", type=Path, help="a folder for logs and journals, which stays")
    options = parser.parse_args()
    options.topic = options.topic or [TOPIC, OFFSETS, STATES]
    with tempfile.TemporaryDirectory(prefix="ottla-groups-") as made:
        folder = options.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        wrong = chaos(options, folder)
    for line in wrong[:20]:
        print(f"  WRONG {line}")
    ends = f"{len(wrong)} problems; the same faults again: --seed {options.seed}"
    print(ends if wrong else f"ok: seed {options.seed}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
