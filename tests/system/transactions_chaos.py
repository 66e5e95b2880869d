"""Consume, transform, produce with transactions while clients, brokers and coordinators are killed.

For each kind of client (Apache's Java client of Kafka 3.9 and of 4.4, confluent-kafka, kafka-python, aiokafka
and ours; that of Kafka 4.4 and ours use transactions of version 2) workers copy a source topic into a target
of their own, exactly once; the offsets are committed with the transactions. One after the other a worker, a
broker they write to, or the broker that coordinates their transactions is killed with SIGKILL and started
again, a worker with the same transactional id. Readers of committed records follow the targets all the while.
At the end these must hold: each target has the source's records, each once, in order; so has every reader
been given them, at their offsets; the groups have committed the source's ends; no transaction is open
anywhere, and a reader that begins now sees the same.

python tests/system/transactions_chaos.py --kills 200 --seed 1
python tests/system/transactions_chaos.py --clients java,ottla --kills 20 --brokers ottla,ottla,apache
python tests/system/transactions_chaos.py --seed 1 --kills 200 --first 120     # the rest of a run
python tests/system/transactions_chaos.py --self-test       # faults that are made on purpose must be found
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from chaos_log import Log, read_back
from cluster_chaos import counted
from cluster_chaos import kills as brokers_killed
from cluster_controllers import controller_kind
from cluster_nodes import Broker, NodeFailed
from cluster_of_nodes import Cluster, start
from confluent_kafka.admin import AdminClient
from transactions_checks import committed, miscopied, misread, still_open
from transactions_plan import CLIENT, COORDINATOR, VICTIMS, Kill, plan
from transactions_workers import HERE, KINDS, Worker, Workers, wait_for

from ottla.client.cluster import TRANSACTION
from ottla.client.cluster import Cluster as Client
from ottla.client.errors import ClientError
from ottla.protocol.errors import KafkaError

SOURCE: Final = "source"
PARTITIONS: Final = 6
INTERNAL: Final = {"__consumer_offsets": 4, "__transaction_state": 4}
SETTINGS: Final = {
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "group.min.session.timeout.ms": "1000",
}
PROGRESS_BOUND_S: Final = 180.0
DRAIN_BOUND_S: Final = 240.0
OPEN_BOUND_S: Final = 60.0
AMID_BOUND_S: Final = 10.0
STOP_BOUND_S: Final = 180.0
READERS: Final = ("confluent", "ottla")


class Load:
    """The writer of the source and the readers of the targets, each a process with its journal."""

    def __init__(self, folder: Path, servers: str) -> None:
        self.folder = folder
        self._servers = servers
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def write(self, per_s: int) -> None:
        self._start("writer", "cluster_writer.py", SOURCE, "--name", "writer", "--kind", "confluent",
                    "--per-s", str(per_s))  # fmt: skip

    def follow(self, target: str, isolation: str) -> None:
        for kind in READERS:
            self._start(f"{kind}-reads-{target}", "cluster_reader.py", target, "--kind", kind,
                        "--isolation", isolation)  # fmt: skip

    def journals(self, target: str) -> list[Path]:
        return [self.folder / f"{kind}-reads-{target}.journal" for kind in READERS]

    def _start(self, name: str, script: str, topic: str, *options: str) -> None:
        command = [
            sys.executable, str(HERE / script), *options, "--servers", self._servers, "--topic", topic,
            "--partitions", str(PARTITIONS), "--journal", str(self.folder / f"{name}.journal"),
        ]  # fmt: skip
        with (self.folder / f"{name}.out").open("wb") as output:
            self._processes[name] = subprocess.Popen(command, stdout=output, stderr=output)

    def stop(self, which: str) -> list[str]:
        """Ask those whose name has a text in it to finish; return those that did not end well."""
        chosen = {name: each for name, each in self._processes.items() if which in name}
        for process in chosen.values():
            process.terminate()
        wrong = []
        for name, process in chosen.items():
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_BOUND_S)
            if process.poll() != 0:
                words = (self.folder / f"{name}.out").read_text(errors="replace")[-600:]
                wrong.append(f"{name} ended with status {process.poll()}: {words}")
        return wrong

    def kill(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait(30)


class Run:
    """One run: what is killed, and what is found wrong."""

    def __init__(self, kinds: Sequence[str], cluster: Cluster, workers: Workers, load: Load) -> None:
        self.kinds = list(kinds)
        self.cluster = cluster
        self.workers = workers
        self.load = load
        self.wrong: list[str] = []
        self.kills: Counter[tuple[str, str]] = Counter()
        self.controllers: Counter[str] = Counter()
        """The kind of the controller at each kill."""
        self.waits_s: dict[str, list[float]] = defaultdict(list)
        """By victim, the seconds from a kill until the kind has committed again."""
        self._admin = AdminClient({"bootstrap.servers": cluster.servers, "log_level": 0})
        self.targets = {f"copy-{kind}": PARTITIONS for kind in self.kinds}

    # --- kills

    def perform(self, kills: Sequence[Kill], until: float) -> None:
        """Perform kills one after the other, as long as nothing is wrong."""
        begun = time.monotonic()
        for done, kill in enumerate(kills, 1):
            try:
                self._perform(kill)
            except NodeFailed as error:
                self.wrong.append(f"kill {kill.number} ({kill.kind}: {kill.victim}): {error}")
            if done % 10 == 0 or self.wrong:
                total = sum(map(self.workers.commits, self.kinds))
                spent_s = time.monotonic() - begun
                print(f"  kill {kill.number:>4} at {spent_s:5.0f} s, {total:>8,} transactions", flush=True)
            if self.wrong or time.monotonic() > until:
                return

    def _perform(self, kill: Kill) -> None:
        time.sleep(kill.after_s)
        self.controllers[controller_kind(self.cluster)] += 1
        workers = self.workers.of(kill.kind)
        worker = workers[kill.draw % len(workers)]
        if kill.amid:  # not every group keeps each of its members busy: then the kill comes all the same
            wait_for("a transaction", lambda: any(each.is_amid() for each in workers), AMID_BOUND_S)
            worker = next((each for each in workers if each.is_amid()), worker)
        before, at = self.workers.commits(kill.kind), time.monotonic()
        if kill.victim == CLIENT:
            worker.kill()
            time.sleep(kill.lasts_s)
            worker.start()
        else:
            self._kill_broker(self._broker(kill, worker), kill.lasts_s)
        self.kills[kill.kind, kill.victim] += 1
        complaint = wait_for(
            f"a transaction of {kill.kind} after kill {kill.number} ({kill.victim})",
            partial(self.has_committed, kill.kind, before),
            PROGRESS_BOUND_S,
        )
        self.waits_s[kill.victim].append(time.monotonic() - at)
        if complaint:
            last = {each.name: each.lines()[-2:] for each in workers}
            self.wrong.append(f"{complaint}; the workers said last: {last}")

    def has_committed(self, kind: str, before: int) -> bool:
        """Whether a kind has committed more transactions than before."""
        return self.workers.commits(kind) > before

    def _broker(self, kill: Kill, worker: Worker) -> Broker:
        brokers = self.cluster.brokers
        found: int | None = None
        if kill.victim == COORDINATOR:
            found = asyncio.run(coordinator(self.cluster.servers, worker.name))
        elif partitions := self.cluster.describe(f"copy-{kill.kind}"):
            found = partitions[kill.draw % len(partitions)].leader
        return brokers[found] if found in brokers else brokers[1 + kill.draw % len(brokers)]

    def _kill_broker(self, broker: Broker, lasts_s: float) -> None:
        broker.kill()
        time.sleep(lasts_s)
        start(broker)
        if complaint := self.cluster.wait_until_healed(SOURCE, *self.targets, *INTERNAL):
            self.wrong.append(complaint)

    # --- the end

    def finish(self) -> None:
        """Stop the writer, wait until all is copied, stop the workers, and compare."""
        self.wrong += self.load.stop("writer")
        source = read_back(self.cluster.servers, SOURCE, PARTITIONS)
        self._drain(source)
        self.wrong += self.workers.stop()
        self.wrong += still_open(self._admin, {**self.targets, **INTERNAL}, OPEN_BOUND_S)
        copies = {kind: read_back(self.cluster.servers, f"copy-{kind}", PARTITIONS) for kind in self.kinds}
        for kind, copy in copies.items():
            self.wrong += miscopied(source, copy, kind)
            self._await_readers(f"copy-{kind}", copy)
        self.load.stop("reads")
        for kind, copy in copies.items():
            for journal in self.load.journals(f"copy-{kind}"):
                self.wrong += misread(copy, journal)
        print(f"  {sum(map(len, source.values())):,} records in the source, copied {len(self.kinds)} times")

    def _drain(self, source: Log) -> None:
        """Wait until the groups have committed the ends of the source."""
        ends = {partition: max(records, default=-1) + 1 for partition, records in source.items()}
        for kind in self.kinds:
            if complaint := self._until_committed(f"g-{kind}", ends):
                last = {each.name: each.lines()[-2:] for each in self.workers.of(kind)}
                self.wrong.append(f"{complaint}; said last: {last}")

    def _until_committed(self, group: str, ends: Mapping[int, int]) -> str:
        """Wait for a group to commit these offsets; complain once it commits nothing any more."""
        found: dict[int, int] = {}
        deadline = 0.0
        while True:
            before, found = found, committed(self._admin, group, SOURCE, PARTITIONS)
            if all(max(0, found[partition]) >= end for partition, end in ends.items()):
                return ""
            if found != before:
                deadline = time.monotonic() + DRAIN_BOUND_S
            elif time.monotonic() > deadline:
                return f"{group} has committed nothing for {DRAIN_BOUND_S:g} s: {found} of {ends}"
            time.sleep(0.05)

    def _await_readers(self, target: str, copy: Log) -> None:
        total = sum(map(len, copy.values()))
        for journal in self.load.journals(target):
            wait_for("reading", partial(has_lines, journal, total), OPEN_BOUND_S)

    def report(self) -> None:
        for kind in self.kinds:
            counts = ", ".join(f"{victim} {self.kills[kind, victim]}" for victim in VICTIMS)
            most = self.workers.failures(kind).most_common(6)
            failed = ", ".join(f"{name} {count}" for name, count in most)
            print(
                f"  {kind:<13}{self.workers.commits(kind):>7,} transactions; killed: {counts}; "
                f"{sum(each.starts for each in self.workers.of(kind))} starts; hung: "
                f"{sum(each.hung for each in self.workers.of(kind))}; ended by themselves: "
                f"{failed or 'never'}"
            )
        print(f"  {brokers_killed(self.cluster)}; controller at kills: {counted(self.controllers)}")
        for victim, waits in self.waits_s.items():
            print(
                f"  {victim:<13}killed {len(waits)} times; committed again after a median of "
                f"{statistics.median(waits):.1f} s, at most {max(waits):.1f} s"
            )


async def coordinator(servers: str, transactional_id: str) -> int | None:
    """Return the broker that coordinates a transactional id, or None while nobody says."""
    try:
        async with asyncio.timeout(10), Client(servers) as client:
            return await client.coordinator(transactional_id, TRANSACTION)
    except (ClientError, KafkaError, TimeoutError):
        return None


def has_lines(journal: Path, count: int) -> bool:
    """Whether a journal has so many lines by now."""
    return journal.exists() and journal.read_bytes().count(b"\n") >= count


def chaos(
    options: argparse.Namespace, folder: Path, *, isolation: str = "read_committed", broken: bool = False
) -> list[str]:
    """Run it and print its figures; return what is wrong."""
    kills = plan(options.clients, options.kills, options.seed, options.victims)[options.first - 1 :]
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(folder, options.brokers, SETTINGS))
        load = Load(folder, cluster.servers)
        stack.callback(load.kill)
        print(f"  {len(cluster.brokers)} brokers ({', '.join(options.brokers)}), 3 ZooKeepers")
        targets = [f"copy-{kind}" for kind in options.clients]
        for topic in (SOURCE, *targets):
            cluster.create(topic, PARTITIONS, min_insync_replicas="2")
        if complaint := cluster.wait_until_healed(SOURCE, *targets):
            return [complaint]
        cluster.wait_until_served(SOURCE)
        workers = stack.enter_context(
            Workers(folder, cluster.servers, SOURCE, PARTITIONS, each=options.workers, broken=broken)
        )
        run = Run(options.clients, cluster, workers, load)
        load.write(options.per_s)
        for kind in options.clients:
            load.follow(f"copy-{kind}", isolation)
            workers.add(kind, options.session_ms)
        run.wrong += first_transactions(run)
        run.perform(kills, time.monotonic() + options.minutes * 60)
        print("  now everything is compared", flush=True)
        run.finish()
        run.report()
        print(f"  {run.kills.total()} of {len(kills)} kills were done")
    return run.wrong


def first_transactions(run: Run) -> list[str]:
    """Wait until every kind has committed something."""
    complaints = []
    for kind in run.kinds:
        complaint = wait_for(
            f"the first transaction of {kind}",
            partial(run.has_committed, kind, 0),
            PROGRESS_BOUND_S,
        )
        if complaint:
            last = {each.name: each.lines()[-2:] for each in run.workers.of(kind)}
            complaints.append(f"{complaint}; the workers said last: {last}")
    return complaints


def self_test(options: argparse.Namespace, folder: Path) -> list[str]:
    """Make two faults on purpose; return those that were not found."""
    options.clients, options.victims, options.workers = ["confluent"], [CLIENT], 1
    made = {
        "a reader of uncommitted records": ({"isolation": "read_uncommitted"}, "that are not committed"),
        "offsets that are committed outside": ({"broken": True}, "wrongly"),
    }
    wrong = []
    for number, (name, (fault, words)) in enumerate(made.items()):
        place = folder / str(number)
        place.mkdir(parents=True)
        found = [line for line in chaos(options, place, **fault) if words in line]  # type: ignore[arg-type]
        print(f"  {name}: {found[0] if found else 'nothing found'}", flush=True)
        if not found:
            wrong.append(f"{name} was not found")
    return wrong


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def names(text: str) -> list[str]:
        return text.split(",")

    parser.add_argument("--clients", type=names, default=list(KINDS), help=f"of {','.join(KINDS)}")
    parser.add_argument("--kills", type=int, default=200, help="kills in all, in turn for each of --clients")
    parser.add_argument("--victims", type=names, default=list(VICTIMS), help=f"of {','.join(VICTIMS)}")
    parser.add_argument("--first", type=int, default=1, help="begin with this kill of the plan")
    parser.add_argument("--minutes", type=float, default=1_000.0, help="no new kill after this time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-s", type=int, default=100, help="records a second in the source")
    parser.add_argument("--workers", type=int, default=2, help="workers of each kind in a group")
    parser.add_argument("--session-ms", type=int, default=4_000, help="the workers' session timeout")
    parser.add_argument("--brokers", type=names, default=["ottla"] * 3)
    parser.add_argument("--self-test", action="store_true", help="make faults and see them found")
    parser.add_argument("--keep", type=Path, help="a folder for logs and journals, which stays")
    options = parser.parse_args(arguments)
    for given, known in ((options.clients, KINDS), (options.victims, VICTIMS)):
        if strangers := set(given) - set(known):
            parser.error(f"{', '.join(sorted(strangers))}: known are {', '.join(known)}")
    return options


def main() -> int:
    options = options_of()
    with tempfile.TemporaryDirectory(prefix="ottla-transactions-") as made:
        folder = options.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        wrong = self_test(options, folder) if options.self_test else chaos(options, folder)
    for line in wrong[:20]:
        print(f"  WRONG {line}")
    ends = f"{len(wrong)} problems; the same kills again: --seed {options.seed}"
    print(ends if wrong else f"ok: seed {options.seed}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
