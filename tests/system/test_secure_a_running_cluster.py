"""The page about securing a running cluster, typed under load: nothing is lost, and no program fails."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from chaos_log import Log, read_back
from cluster_checks import (
    Acknowledgements,
    acknowledgements,
    denied,
    disordered,
    doubled,
    lost,
    unexplained,
)
from cluster_nodes import ApacheBroker, Broker
from cluster_of_nodes import Cluster, start
from cluster_security import ClusterSecurity, password_of
from confluent_kafka.admin import AdminClient
from secured_programs import (
    BOUND_S,
    COPIERS,
    INTERNAL,
    ORDERS,
    PARTITIONS,
    READERS,
    WRITERS,
    Programs,
    create_topics,
    has_committed,
    read_wrongly,
)
from transactions_checks import miscopied, still_open
from transactions_workers import wait_for

from ottla.zookeeper.errors import NoAuth
from ottla.zookeeper.kazoo_session import KazooSession
from peers.certificates import missing_openssl
from peers.client_access import OPEN, Access
from peers.maven import missing_tools
from peers.processes import free_port
from peers.snippets import ROOT, Block, blocks, commands

MISSING: Final = missing_tools() or missing_openssl()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]

PAGE: Final = ROOT / "docs/howto/secure-a-running-cluster.md"
ZOOKEEPERS_PAGE: Final = ROOT / "docs/howto/secure-zookeeper.md"
MARK: Final = "needs SecuredCluster"
RESTART: Final = "Restart the brokers"
PREPARE: Final = "Prepare"
BACK: Final = "Back"
STARTS: Final = "ottla broker start --config server.properties --daemon"
SHOP: Final = "shop"
BILLING: Final = "billing"
COMMITS: Final = 3
"""Transactions of each kind between two restarts."""
COMMAND_BOUND_S: Final = 240.0
FORGETFUL_MS: Final = 60_000.0
SETTINGS: Final = {
    "min.insync.replicas": "2",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "zookeeper.session.timeout.ms": "30000",  # no broker dies: a busy machine must not end the sessions
}


# ---- the page


@dataclass
class Step:
    """The text under one heading of the page."""

    broker: dict[str, str] = field(default_factory=dict)
    client: str = ""
    typed: list[Block] = field(default_factory=list)


def read_page(page: Path = PAGE) -> dict[str, Step]:
    """Return the steps of a page by their headings, or the numbers in them."""
    text = page.read_text(encoding="utf-8")
    found_heads = re.finditer("^## (.+)$", text, re.MULTILINE)
    heads = [(text.count("\n", 0, found.start()), found[1]) for found in found_heads]
    steps = {_name(head): Step() for _, head in heads}

    def under(line: int) -> Step:
        return steps[_name([head for begin, head in heads if begin <= line][-1])]

    for block in blocks(page, MARK):
        under(block.line).typed.append(block)
    for found in re.finditer(r"^```properties\n# (\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        step = under(text.count("\n", 0, found.start()))
        if found[1] == "client.properties":
            step.client = found[2]
        else:
            step.broker |= dict(line.split("=", 1) for line in found[2].splitlines())
    return steps


def _name(head: str) -> str:
    number, dot, _ = head.partition(". ")
    return number if dot else head


def _its_own(names: Mapping[str, str], found: re.Match[str]) -> str:
    return names[found[0]]


# ---- the reader of the page


@dataclass
class Reader:
    """Somebody who follows the page, with the names of this cluster, while programs run."""

    cluster: Cluster
    folder: Path
    stack: ExitStack
    page: Mapping[str, Step] = field(default_factory=read_page)
    security: ClusterSecurity = field(init=False)
    ports: dict[int, tuple[int, int]] = field(init=False)
    programs: list[Programs] = field(default_factory=list)
    before: list[dict[int, dict[str, str]]] = field(default_factory=list)
    """The brokers' settings before each step that changed them."""
    restarts: int = 0
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.security = ClusterSecurity(self.folder)
        self.ports = {node: (broker.port, free_port()) for node, broker in self.cluster.brokers.items()}
        for broker in self.cluster.brokers.values():
            self.security.key_store(broker)
        shutil.copy(self.security.authority.cafile, self.security.folder / "authority.pem")
        for user in ("admin", "broker", SHOP, BILLING):
            (self.security.folder / f"{user}.password").write_text(f"{password_of(user)}\n")

    def servers(self, listener: int) -> str:
        brokers = self.cluster.brokers.items()
        return ",".join(f"{broker.host.address}:{self.ports[node][listener]}" for node, broker in brokers)

    def named(self, text: str) -> str:
        """Put the names of this cluster in place of those of the page."""
        for number, broker in self.cluster.brokers.items():
            for listener, port in enumerate(("9092", "9093")):
                place = f"{broker.host.address}:{self.ports[number][listener]}"
                text = text.replace(f"kafka{number}.example:{port}", place)
        return text.replace("/etc/ottla", str(self.security.folder))

    def lines_of(self, broker: Broker, name: str) -> dict[str, str]:
        """Return the lines of a step for a broker; those of the page are kafka1's."""
        own = {"kafka1.example": f"kafka{broker.id}.example", "kafka1.pem": f"{broker.name}.pem"}
        return {
            key: self.named(re.sub("|".join(own), partial(_its_own, own), value))
            for key, value in self.page[name].broker.items()
        }

    # -- typing

    def type(self, name: str) -> None:
        """Run the commands that stand under a heading; each of them succeeds."""
        for block in self.page[name].typed:
            for command, _ in commands(block.code):
                for line in self._for_each_copier(command):
                    self._succeed(self.named(line))

    def _for_each_copier(self, command: str) -> Iterable[str]:
        """Yield a command once, or for each program that copies, where it is about one."""
        if "acl add --principal User:billing" not in command:
            return [command]
        lines = []
        for kind in COPIERS:
            own = {
                "--group billing-archive": "--group follower", "--group billing": f"--group g-{kind}",
                "invoices": f"copy-{kind}", "billing-1": f"{kind}-1",
            }  # fmt: skip
            lines.append(re.sub("|".join(own), partial(_its_own, own), command))
        return lines

    def _succeed(self, command: str) -> None:
        status, said = self.run(command)
        assert status == 0, (command, said)

    def run(self, command: str) -> tuple[int, str]:
        """Run a command; return its status, and all that it prints."""
        done = subprocess.run(
            command, shell=True, cwd=self.folder, timeout=COMMAND_BOUND_S, check=False, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=os.environ | {
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "OTTLA_PROFILES": str(self.folder / "profiles.toml"),
            },
        )  # fmt: skip
        print(f"$ {command}\n{done.stdout}", end="", flush=True)
        return done.returncode, done.stdout

    # -- brokers

    def change(self, name: str) -> None:
        """Add the lines of a step to the brokers' files, and restart the brokers as the page has it."""
        self.before.append({node: dict(broker.settings) for node, broker in self.cluster.brokers.items()})
        for broker in self.cluster.brokers.values():
            lines = self.lines_of(broker, name)
            assert lines, f"the page has no lines in step {name}"
            self.restart(broker, broker.settings | lines)

    def undo(self) -> None:
        """Put back the lines of before the last step, and restart the brokers."""
        for node, settings in self.before.pop().items():
            self.restart(self.cluster.brokers[node], settings)

    def restart(self, broker: Broker, settings: Mapping[str, str]) -> None:
        began_s = time.monotonic()
        for block in self.page[RESTART].typed:
            for command, _ in commands(block.code):
                if command == STARTS:
                    broker.settings = {}
                    broker.configure(settings)
                    start(broker)
                elif "broker stop" in command:
                    self._stop(broker, command)
                else:
                    self._succeed(command)
        assert self.cluster.wait_until_healed(ORDERS, *(f"copy-{kind}" for kind in COPIERS), *INTERNAL) == ""
        self.restarts += 1
        print(f"# {broker.name} restarted and in sync after {time.monotonic() - began_s:.1f} s", flush=True)
        self.until_more_is_done()

    def _stop(self, broker: Broker, command: str) -> None:
        if not isinstance(broker, ApacheBroker):
            self._succeed(command.replace("server.properties", str(broker.properties)))
        broker.stop()

    # -- programs

    def begin(self, listener: int, access: tuple[Access, Access] = (OPEN, OPEN)) -> None:
        """Stop the programs that run, one kind after the other, and start them with other settings."""
        if self.programs:
            self.end_programs()
        programs = Programs(self.folder, len(self.programs), self.servers(listener), *access)
        programs.start(self.stack)
        self.programs.append(programs)
        self.until_more_is_done()

    def end_programs(self) -> None:
        last = self.programs[-1]
        self.wrong += last.stop("writer")
        self.wrong += last.copiers.stop()
        self.wrong += last.stop("reads")

    def until_more_is_done(self) -> None:
        """Wait until each program has gone on."""
        last = self.programs[-1]
        commits = {kind: last.copiers.commits(kind) for kind in COPIERS}
        lines = {name: last.lines(name) for name in last.processes}

        def is_more() -> bool:
            more = all(last.copiers.commits(kind) >= commits[kind] + COMMITS for kind in COPIERS)
            return more and all(last.lines(name) > lines[name] for name in lines)

        complaint = wait_for("work of all programs", is_more, BOUND_S)
        assert complaint == "", (
            complaint,
            {name: (lines[name], last.lines(name)) for name in lines},
            [worker.lines()[-3:] for worker in last.copiers.all],
        )

    def drain(self, access: Access) -> Log:
        """Stop the writers, and wait until all that they wrote is copied, and read."""
        last = self.programs[-1]
        self.wrong += last.stop("writer")
        source = read_back(self.cluster.servers, ORDERS, PARTITIONS, access=access)
        ends = {partition: max(records, default=-1) + 1 for partition, records in source.items()}
        admin = AdminClient({"bootstrap.servers": self.cluster.servers, "log_level": 0} | access.librdkafka())
        for kind in COPIERS:
            are_committed = partial(has_committed, admin, f"g-{kind}", ends)
            if complaint := wait_for(f"copying by {kind}", are_committed, BOUND_S):
                self.wrong.append(complaint)
        self.wrong += last.copiers.stop()
        self.wrong += still_open(admin, {f"copy-{kind}": PARTITIONS for kind in COPIERS} | INTERNAL, 60.0)
        return source

    # -- the end

    def judge(self) -> None:
        """Compare everything; `wrong` has what is not as it must be."""
        access = self.cluster.access
        source = self.drain(access)
        for kind in COPIERS:
            copy = read_back(self.cluster.servers, f"copy-{kind}", PARTITIONS, access=access)
            self.wrong += miscopied(source, copy, kind)
            self._judge_readers(kind, copy)
        for programs in self.programs:
            self._judge_writers(programs, source)
        failures = [line for worker in self.workers() for line in worker if line.startswith("failed ")]
        self.wrong += failures
        starts = [line for worker in self.workers() for line in worker if line == "started"]
        if len(starts) != len(COPIERS) * len(self.programs):
            self.wrong.append(f"programs that copy were started {len(starts)} times")
        records = sum(map(len, source.values()))
        commits = {kind: self.programs[-1].copiers.commits(kind) for kind in COPIERS}
        print(f"# {self.restarts} restarts, {records:,} records copied {len(COPIERS)} times, {commits}")

    def workers(self) -> Iterable[Sequence[str]]:
        return [worker.lines() for worker in self.programs[-1].copiers.all]

    def _judge_writers(self, programs: Programs, source: Log) -> None:
        for kind in WRITERS:
            name = f"writer-{kind}"
            writer = acknowledgements(programs.name(name), programs.journal(name))
            if not writer.ended:
                self.wrong.append(f"{writer.name} did not get all of its records acknowledged")
            self.wrong += writer.wrong[:3] + lost(source, writer) + disordered(source, writer.name)
            self.wrong += self._unexcused(writer)
            if not writer.anew and (twice := doubled(source, writer.name)):
                self.wrong.append(f"{writer.name} wrote {twice} records twice")

    def _unexcused(self, writer: Acknowledgements) -> list[str]:
        """Return the refusals that no start of an Apache broker explains; see `cluster_checks`."""
        brokers = [each for each in self.cluster.brokers.values() if isinstance(each, ApacheBroker)]
        windows = [(at - 1_000, at + FORGETFUL_MS) for each in brokers for at in each.restarted_ms]
        served = [at for each in brokers for at in each.served_ms]
        return unexplained(writer, windows) + denied(writer, served)

    def _judge_readers(self, kind: str, copy: Log) -> None:
        """Each reader was given committed records, in order and once; those of the end all of them."""
        total = sum(map(len, copy.values()))
        for programs in self.programs:
            for reader in READERS:
                name = f"{reader}-reads-{kind}"
                is_last = programs is self.programs[-1]
                if is_last:
                    wait_for("reading", partial(programs.has_lines, name, total), BOUND_S)
                self.wrong += read_wrongly(programs.journal(name), copy, is_complete=is_last)
        self.wrong += self.programs[-1].stop(f"reads-{kind}")


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(["ottla"] * 3, id="three brokers of Ottla"),
        pytest.param(["apache", "ottla", "ottla"], id="two of ours and one of Apache Kafka"),
    ],
)
def test_a_cluster_is_secured_under_load_and_opened_again(tmp_path: Path, kinds: Sequence[str]) -> None:
    with Cluster(tmp_path, kinds, SETTINGS) as cluster, ExitStack() as stack:
        create_topics(cluster)
        reader = Reader(cluster, tmp_path, stack)
        shop = Access.from_properties(reader.named(reader.page["2"].client))
        assert (shop.user, shop.password) == (SHOP, password_of(SHOP))
        billing = Access(BILLING, password_of(BILLING), shop.cafile, shop.mechanism)
        admin = Access("admin", password_of("admin"), shop.cafile, "PLAIN")
        reader.begin(0)

        reader.type(PREPARE)
        reader.change("1")
        reader.type("1")
        reader.begin(1, (shop, billing))
        cluster.connect(admin, reader.servers(1))
        reader.change("3")
        reader.change("4")
        reader.change("5")
        reader.type("5")
        reader.change("6")
        reader.type("6")
        reader.until_more_is_done()

        typed_back = reader.page[BACK].typed
        assert len(typed_back) == 2
        reader.page[BACK].typed = typed_back[:1]
        reader.type(BACK)
        reader.before.pop()  # the lines of steps 5 and 6 go together
        reader.undo()
        reader.undo()
        cluster.connect(OPEN, reader.servers(0))
        reader.undo()
        reader.begin(0)
        reader.page[BACK].typed = typed_back[1:]
        reader.type(BACK)
        reader.undo()
        reader.until_more_is_done()

        reader.judge()
    assert reader.wrong == [], "\n".join(reader.wrong)


def test_znodes_are_closed_and_opened_under_load(tmp_path: Path) -> None:
    login, config = digest_login(tmp_path)
    with Cluster(tmp_path, ["ottla"] * 3, SETTINGS) as cluster, ExitStack() as stack:
        create_topics(cluster)
        reader = Reader(cluster, tmp_path, stack)
        reader.begin(0)
        reader.type(PREPARE)
        first, *others = brokers = list(cluster.brokers.values())
        before = {broker.id: dict(broker.settings) for broker in brokers}
        shows, closes, opens = zookeeper_commands(cluster, config)

        reader.restart(first, first.settings | login)
        for command in (shows, closes):
            status, said = reader.run(command)
            assert (status, "brokers 2, 3 run without the credentials" in said) == (1, True), said
        for broker in others:
            reader.restart(broker, broker.settings | login)
        status, said = reader.run(shows)
        assert (status, "Nothing was changed: --apply does it." in said) == (0, True), said
        assert stranger_writes(cluster)
        for broker in brokers:
            reader.restart(broker, broker.settings | {"zookeeper.set.acl": "true"})

        assert reader.run(closes)[0] == 0
        reader.until_more_is_done()
        assert not stranger_writes(cluster)
        reader.restart(first, first.settings)
        cluster.create("made-while-closed", 3)
        assert cluster.wait_until_healed("made-while-closed") == ""

        for broker in brokers:
            reader.restart(broker, broker.settings | {"zookeeper.set.acl": "false"})
        assert reader.run(opens)[0] == 0
        assert stranger_writes(cluster)
        for broker in brokers:
            reader.restart(broker, before[broker.id])
        cluster.create("made-while-open", 3)

        reader.judge()
    assert reader.wrong == [], "\n".join(reader.wrong)


def digest_login(folder: Path) -> tuple[dict[str, str], Path]:
    """Return the settings of a broker that shows ZooKeeper an identity, and the file for the commands."""
    digest, config = folder / "zookeeper.digest", folder / "client.properties"
    for file, text in ((digest, "kafka:open-sesame\n"), (config, f"zookeeper.digest.file={digest}\n")):
        file.touch(mode=0o600)
        file.write_text(text)
    return {"zookeeper.digest.file": str(digest), "zookeeper.set.acl": "false"}, config


def zookeeper_commands(cluster: Cluster, config: Path) -> list[str]:
    """Return the commands of the page about ZooKeeper: one that shows, one that closes, one that opens."""
    page = read_page(ZOOKEEPERS_PAGE)
    names = {"zk1:2181/kafka": cluster.ensemble.connect_string, "server.properties": str(config)}
    return [
        re.sub("|".join(names), partial(_its_own, names), line)
        for name in ("Close a running cluster", BACK)
        for block in page[name].typed
        for line, _ in commands(block.code)
    ]


def stranger_writes(cluster: Cluster) -> bool:
    """Return whether a client of ZooKeeper without credentials may write a topic's znodes."""

    async def write() -> bool:
        async with KazooSession(cluster.ensemble.connect_string) as session:
            try:
                await session.create(f"/brokers/topics/{ORDERS}/strange")
                await session.delete(f"/brokers/topics/{ORDERS}/strange")
            except NoAuth:
                return False
            return True

    return asyncio.run(write())
