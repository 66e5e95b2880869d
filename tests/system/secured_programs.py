"""Programs that write, copy with transactions, and read, for a cluster that is secured under them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from chaos_log import Log
from cluster_of_nodes import Cluster
from confluent_kafka.admin import AdminClient
from transactions_checks import committed, journalled
from transactions_workers import Workers

from peers.client_access import Access

HERE: Final = Path(__file__).resolve().parent
ORDERS: Final = "orders"
PARTITIONS: Final = 6
INTERNAL: Final = {"__consumer_offsets": 4, "__transaction_state": 4}
WRITERS: Final = ("ottla", "confluent", "aiokafka")
COPIERS: Final = ("ottla", "java")
"""confluent-kafka's may hang in a transaction when a coordinator moves; see `transactions_workers.Worker`."""
READERS: Final = ("ottla", "confluent")
PER_S: Final = 30
BOUND_S: Final = 240.0


@dataclass
class Programs:
    """Programs that write, copy with transactions, and read, all with one access to the brokers."""

    folder: Path
    generation: int
    servers: str
    shop: Access
    billing: Access
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    copiers: Workers = field(init=False)

    def start(self, stack: ExitStack) -> None:
        for kind in WRITERS:
            self._start(f"writer-{kind}", "cluster_writer.py", ORDERS, self.shop, "--kind", kind,
                        "--name", self.name(f"writer-{kind}"), "--per-s", str(PER_S))  # fmt: skip
        for kind in COPIERS:
            for reader in READERS:
                self._start(f"{reader}-reads-{kind}", "cluster_reader.py", f"copy-{kind}", self.billing,
                            "--kind", reader)  # fmt: skip
        self.copiers = stack.enter_context(
            Workers(self.folder, self.servers, ORDERS, PARTITIONS, each=1, access=self.billing)
        )
        for kind in COPIERS:
            self.copiers.add(kind, session_ms=30_000)
        stack.callback(self.kill)

    def _start(self, name: str, script: str, topic: str, access: Access, *options: str) -> None:
        command = [
            sys.executable, str(HERE / script), *options, "--servers", self.servers, "--topic", topic,
            "--partitions", str(PARTITIONS), "--journal", str(self.journal(name)),
            *access.options(self.folder / f"{access.user}.access"),
        ]  # fmt: skip
        with (self.folder / f"{self.name(name)}.out").open("wb") as output:
            self.processes[name] = subprocess.Popen(command, stdout=output, stderr=output)

    def name(self, name: str) -> str:
        return f"{name}-{self.generation}"

    def journal(self, name: str) -> Path:
        return self.folder / f"{self.name(name)}.journal"

    def stop(self, which: str) -> list[str]:
        """Ask those with a text in their names to finish; return those that did not end well."""
        chosen = {name: process for name, process in self.processes.items() if which in name}
        for process in chosen.values():
            process.terminate()
        wrong = []
        for name, process in chosen.items():
            if status := process.wait(BOUND_S):
                words = (self.folder / f"{self.name(name)}.out").read_text(errors="replace")[-600:]
                wrong.append(f"{self.name(name)} ended with status {status}: {words}")
        return wrong

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(30)

    def has_lines(self, name: str, wanted: int) -> bool:
        return self.lines(name) >= wanted

    def lines(self, name: str) -> int:
        journal = self.journal(name)
        return journal.read_bytes().count(b"\n") if journal.exists() else 0


def has_committed(admin: AdminClient, group: str, ends: Mapping[int, int]) -> bool:
    """Whether a group has committed the ends of the partitions."""
    found = committed(admin, group, ORDERS, PARTITIONS)
    return all(max(0, found[partition]) >= end for partition, end in ends.items())


def read_wrongly(journal: Path, copy: Log, *, is_complete: bool) -> list[str]:
    """Return what is wrong with the records that a reader was given, and the errors."""
    wrong = [f"{journal.stem}: {line}" for line in journal.read_text().splitlines() if line[:5] == "error"]
    given: dict[int, list[tuple[int, str, int]]] = {partition: [] for partition in copy}
    for partition, offset, writer, number in journalled(journal):
        given[partition].append((offset, writer, number))
    for partition, records in copy.items():
        wanted = [(offset, *records[offset]) for offset in sorted(records)]
        if given[partition] != (wanted if is_complete else wanted[: len(given[partition])]):
            difference = next(
                (f"record {at} is {one}, not {other}"
                 for at, one, other in zip(count(), given[partition], wanted, strict=False) if one != other),
                f"{len(given[partition])} records of {len(wanted)}",
            )  # fmt: skip
            wrong.append(f"{journal.stem} read partition {partition} wrongly: {difference}")
    return wrong[:3]


def create_topics(cluster: Cluster) -> None:
    for topic in (ORDERS, *(f"copy-{kind}" for kind in COPIERS)):
        cluster.create(topic, PARTITIONS, min_insync_replicas="2")
        cluster.wait_until_served(topic)
