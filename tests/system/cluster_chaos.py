"""Chaos in a real cluster, in seeded rounds: nothing acknowledged is lost, reordered or different anywhere.

Brokers and a ZooKeeper ensemble of three run as processes, each in a network namespace of its own where the
machine allows it. Idempotent producers (confluent-kafka, kafka-python and ours) write with acks=all into a
topic with three replicas and min.insync.replicas=2, while brokers and ZooKeeper servers are killed, stopped
and cut off. At the end everything is healed, and these must hold: acknowledged records stand at their
acknowledged offsets, in each writer's order, once; what a reader was given at any time is still there; the
group's members were given every record; replicas are the same bytes, and the same valid batches in Kafka's
own DumpLogSegments. Where brokers are of two kinds, each kind has the controller in turn.

python tests/system/cluster_chaos.py --profile kills --rounds 200 --seed 1
python tests/system/cluster_chaos.py --profile mixed --minutes 20 --brokers ottla,ottla,ottla,ottla
python tests/system/cluster_chaos.py --profile kills --brokers apache,apache,ottla --rounds 50
python tests/system/cluster_chaos.py --profile kills --rounds 50 --secure      # SASL_SSL, SCRAM and ACLs
python tests/system/cluster_chaos.py --self-test        # the checks must find losses that are made on purpose
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from chaos_log import Log, read_back
from cluster_checks import (
    Acknowledgements,
    acknowledgements,
    denied,
    differing,
    disordered,
    doubled,
    longest_gaps_ms,
    lost,
    misread,
    out_of_sequence,
    unexplained,
    unhandled,
    unread,
    what_is_unread,
)
from cluster_controllers import controller_kind, move_controller
from cluster_dump import judged
from cluster_faults import CUTS, PAUSES, PROFILES, Fault, plan
from cluster_nodes import SESSION_MS, ApacheBroker, NodeFailed
from cluster_of_nodes import Cluster
from cluster_perform import perform
from cluster_security import ClusterSecurity

from peers.client_access import OPEN, Access

HERE: Final = Path(__file__).resolve().parent
TOPIC: Final = "chaos"
GROUP: Final = "g"
PARTITIONS: Final = 6
WRITERS: Final = ("confluent", "kafka-python", "ottla")
STOP_BOUND_S: Final = 180.0
DRAIN_BOUND_S: Final = 120.0
FORGETFUL_MS: Final = 60_000
"""After a restart; a client repeats what was not answered much earlier, once it has a leader again."""


@dataclass
class Clients:
    """Writers and readers, each a process with its journal."""

    folder: Path
    access: Access = OPEN
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def write(self, servers: str, *, kinds: Sequence[str] = WRITERS, acks: str = "all", per_s: int) -> None:
        for kind in kinds:
            self._start(f"writer-{kind}", "cluster_writer.py", "--name", f"writer-{kind}", "--kind", kind,
                        "--acks", acks, "--per-s", str(per_s), servers=servers)  # fmt: skip

    def read(self, servers: str, *, session_ms: int = 6_000) -> None:
        self._start("follower-confluent", "cluster_reader.py", "--kind", "confluent", servers=servers)
        self._start("follower-ottla", "cluster_reader.py", "--kind", "ottla", servers=servers)
        for member in (1, 2):
            self._start(f"member-{member}", "cluster_reader.py", "--kind", "confluent", "--group", GROUP,
                        "--session-ms", str(session_ms), servers=servers)  # fmt: skip

    def _start(self, name: str, script: str, *options: str, servers: str) -> None:
        command = [
            sys.executable, str(HERE / script), *options, "--servers", servers, "--topic", TOPIC,
            "--partitions", str(PARTITIONS), "--journal", str(self.journal(name)),
            *self.access.options(self.folder / "access"),
        ]  # fmt: skip
        with (self.folder / f"{name}.out").open("wb") as output:
            self.processes[name] = subprocess.Popen(command, stdout=output, stderr=output)

    def journal(self, name: str) -> Path:
        return self.folder / f"{name}.journal"

    def of(self, kind: str) -> list[str]:
        return [name for name in self.processes if name.startswith(kind)]

    def stop(self, kind: str) -> list[str]:
        """Ask all of a kind to finish; return those that did not."""
        names = self.of(kind)
        for name in names:
            self.processes[name].terminate()
        wrong = []
        for name in names:
            try:
                if status := self.processes[name].wait(STOP_BOUND_S):
                    words = (self.folder / f"{name}.out").read_text(errors="replace")[-600:]
                    wrong.append(f"{name} ended with status {status}: {words}")
            except subprocess.TimeoutExpired:
                wrong.append(f"{name} did not end within {STOP_BOUND_S:g} s")
                self.processes[name].kill()
        return wrong

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(30)


@dataclass
class Run:
    """One run: its cluster, its clients, and what was found wrong."""

    cluster: Cluster
    clients: Clients
    wrong: list[str] = field(default_factory=list)
    windows: list[tuple[Fault, float, float]] = field(default_factory=list)
    controllers: Counter[str] = field(default_factory=Counter)
    log: Log = field(default_factory=dict)
    """The records of the topic at the end, once the run has finished."""

    def rounds(self, faults: Sequence[Fault], until: float) -> int:
        """Perform faults, each healed before the next; return how many."""
        for done, fault in enumerate(faults, 1):
            time.sleep(fault.after_s)
            try:
                self._place_controller(fault)
                begun = time.time() * 1000
                perform(fault, self.cluster, TOPIC)
            except NodeFailed as error:
                self.wrong.append(f"round {done} ({fault.kind}): {error}")
                return done
            if complaint := self.cluster.wait_until_healed(TOPIC):
                self.wrong.append(f"round {done} ({fault.kind}): {complaint}")
                return done
            self.windows.append((fault, begun, time.time() * 1000))
            if done % 10 == 0:
                print(f"  {done:>4} rounds, {self._acknowledged():>10,} records acknowledged", flush=True)
            if time.monotonic() > until:
                return done
        return len(faults)

    def _place_controller(self, fault: Fault) -> None:
        """Move the controller to the broker that the fault needs, and count its places."""
        if fault.controller and controller_kind(self.cluster) != fault.controller:
            move_controller(self.cluster, fault.controller)
            if complaint := self.cluster.wait_until_healed(TOPIC):
                raise NodeFailed(f"the controller was moved: {complaint}")
        self.controllers[controller_kind(self.cluster)] += 1

    def _acknowledged(self) -> int:
        return sum(_lines(self.clients.journal(name)) for name in self.clients.of("writer"))

    def finish(self) -> list[Acknowledgements]:
        """Stop the load, drain the readers, and compare everything."""
        self.wrong += self.clients.stop("writer")
        writers = [acknowledgements(name, self.clients.journal(name)) for name in self.clients.of("writer")]
        log = self.log = read_back(self.cluster.servers, TOPIC, PARTITIONS, access=self.cluster.access)
        for name in (*self.clients.of("follower"), *self.clients.of("member")):
            self._drain(name)
        self.wrong += self.clients.stop("follower") + self.clients.stop("member")
        for writer in writers:
            if not writer.ended:
                self.wrong.append(f"{writer.name} did not get all of its records acknowledged")
            self.wrong += writer.wrong[:3] + lost(log, writer) + disordered(log, writer.name)
            self.wrong += unexplained(writer, [*self._deposing(), *self._forgetting()]) + denied(
                writer, self._apache_starts_ms()
            )
            if writer.unknown:
                print(f"  {writer.name} was told {len(writer.unknown)} times that the topic does not exist")
            if writer.anew:
                print(f"  {writer.name} was made anew {writer.anew} times after a fatal error")
            if writer.refused:
                print(f"  {writer.name} was told that {len(writer.refused)} records are not written")
            if twice := doubled(log, writer.name):
                print(f"  {writer.name} sent {twice} records again under a new producer epoch")
        self._compare_readers(log)
        self._compare_replicas()
        return writers

    def _deposing(self) -> list[tuple[float, float]]:
        """Return when a leader may have been deposed without knowing."""
        return [(since, until) for fault, since, until in self.windows if fault.kind in (*PAUSES, *CUTS)]

    def _forgetting(self) -> list[tuple[float, float]]:
        """Return when a broker of Apache Kafka may have known a producer's last batch only."""
        brokers = [each for each in self.cluster.brokers.values() if isinstance(each, ApacheBroker)]
        return [(at - 1_000, at + FORGETFUL_MS) for each in brokers for at in each.restarted_ms]

    def _apache_starts_ms(self) -> list[float]:
        brokers = self.cluster.brokers.values()
        return [at for each in brokers if isinstance(each, ApacheBroker) for at in each.served_ms]

    def _drain(self, name: str) -> None:
        """Wait until a follower has journalled every record; members of the group together have."""
        deadline = time.monotonic() + DRAIN_BOUND_S
        names = [name] if name.startswith("follower") else self.clients.of("member")
        journals = [self.clients.journal(each) for each in names]
        total = sum(map(len, self.log.values()))
        # A group reads some records again after a rebalance: the lines suffice before the records do.
        while sum(map(_lines, journals)) < total or unread(self.log, journals):
            if time.monotonic() > deadline:
                lacking = what_is_unread(self.log, [each for each in journals if each.exists()])
                self.wrong.append(f"{name} did not read all within {DRAIN_BOUND_S:g} s of healing: {lacking}")
                return
            time.sleep(0.2)

    def _compare_readers(self, log: Log) -> None:
        for name in self.clients.of("follower"):
            self.wrong += misread(log, self.clients.journal(name), follows=True)
        members = [self.clients.journal(name) for name in self.clients.of("member")]
        if members:
            for member in members:
                self.wrong += misread(log, member, follows=False)
            self.wrong += unhandled(log, members)

    def _compare_replicas(self) -> None:
        if complaint := self.cluster.wait_until_healed(TOPIC):
            self.wrong.append(complaint)
        for broker in self.cluster.brokers.values():
            broker.stop()
        directories = {broker.name: broker.data for broker in self.cluster.brokers.values()}
        self.wrong += differing(directories, TOPIC, PARTITIONS)
        self.wrong += judged(directories, TOPIC, PARTITIONS)
        for directory in directories.values():
            self.wrong += out_of_sequence(directory, TOPIC, PARTITIONS)


def _lines(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def chaos(options: argparse.Namespace, folder: Path) -> list[str]:
    """Run one profile and print its figures; return what is wrong."""
    with ExitStack() as stack:
        security = ClusterSecurity(folder) if options.secure else None
        cluster = stack.enter_context(Cluster(folder, options.brokers, security=security))
        clients = Clients(folder, OPEN if security is None else security.client)
        stack.callback(clients.kill)
        where = "a namespace each" if cluster.network.can_cut else "loopback: nothing is cut"
        how = "SASL_SSL with ACLs" if security is not None else "PLAINTEXT"
        print(
            f"  {len(cluster.brokers)} brokers ({', '.join(options.brokers)}), 3 ZooKeepers, {where}; {how}"
        )
        cluster.create(TOPIC, PARTITIONS, min_insync_replicas="2")
        run = Run(cluster, clients)
        if complaint := cluster.wait_until_healed(TOPIC):
            return [complaint]
        cluster.wait_until_served(TOPIC)
        if security is not None:
            security.allow(cluster.servers, [TOPIC], [GROUP, "follower"])
        clients.write(cluster.servers, per_s=options.per_s)
        clients.read(cluster.servers)
        faults = plan(
            options.profile, options.rounds, options.seed, session_s=SESSION_MS / 1000,
            can_cut=cluster.network.can_cut, kinds=options.fault, controllers=in_turn(options),
        )  # fmt: skip
        begun = time.monotonic()
        done = run.rounds(faults, begun + options.minutes * 60)
        print(f"  {kills(cluster)}; controller at the beginning of rounds: {counted(run.controllers)}")
        print(f"  {done} rounds in {time.monotonic() - begun:.0f} s; now everything is compared", flush=True)
        report(run, run.finish())
    return run.wrong


def in_turn(options: argparse.Namespace) -> list[str]:
    """Return the kinds of brokers that have the controller in turn; none where there is one kind only."""
    kinds = options.controllers or sorted(set(options.brokers))
    return kinds if options.controllers or len(kinds) > 1 else []


def kills(cluster: Cluster) -> str:
    """Return how many brokers were killed, in all and of each kind."""
    by_kind: Counter[str] = Counter()
    for broker in cluster.brokers.values():
        by_kind[broker.kind] += broker.kills
    return f"{by_kind.total()} brokers killed ({counted(by_kind)})"


def counted(found: Counter[str]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(found.items()))


def report(run: Run, writers: Sequence[Acknowledgements]) -> None:
    """Print how long partitions were without an acknowledgement, by kind of fault."""
    print(f"  {sum(len(each.places) for each in writers):,} records acknowledged")
    by_kind: dict[str, list[int]] = {}
    for fault, since_ms, until_ms in run.windows:
        gaps = longest_gaps_ms(writers, since_ms, until_ms)
        by_kind.setdefault(fault.kind, []).append(max(gaps.values(), default=0))
    print(f"  {'fault':<28}{'rounds':>7}{'median gap':>12}{'longest':>10}")
    for kind, gaps_ms in sorted(by_kind.items()):
        print(f"  {kind:<28}{len(gaps_ms):>7}{statistics.median(gaps_ms):>9.0f} ms{max(gaps_ms):>7} ms")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", choices=sorted(PROFILES), default="mixed")
    parser.add_argument("--fault", action="append", default=[], help="only this kind of fault; repeatable")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=1_000.0, help="no new round after this time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-s", type=int, default=100, help="records a second of each writer")
    parser.add_argument("--brokers", type=lambda text: text.split(","), default=["ottla"] * 3)
    parser.add_argument(
        "--controllers", type=lambda text: text.split(","), default=[], metavar="KINDS",
        help="kinds of brokers that have the controller in turn, for at most five rounds each "
             "(default: both where brokers are of two kinds)",
    )  # fmt: skip
    parser.add_argument("--secure", action="store_true", help="SASL_SSL, users by SCRAM, and ACLs")
    parser.add_argument("--self-test", action="store_true", help="make losses and see them found")
    parser.add_argument("--keep", type=Path, help="a folder for logs and journals, which stays")
    options = parser.parse_args()
    if strangers := set(options.controllers) - set(options.brokers):
        parser.error(f"--controllers: none of --brokers is of the kind {', '.join(sorted(strangers))}")
    with tempfile.TemporaryDirectory(prefix="ottla-cluster-") as made:
        folder = options.keep or Path(made)
        if options.self_test:
            from cluster_self_test import self_test

            wrong = self_test(folder)
        else:
            wrong = chaos(options, folder)
    for line in wrong[:20]:
        print(f"  WRONG {line}")
    print("ok" if not wrong else f"{len(wrong)} problems; the same faults again: --seed {options.seed}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
