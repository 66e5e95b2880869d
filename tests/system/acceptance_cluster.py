"""A cluster of `ottla cluster start`, whose processes can be killed one by one."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from ottla.tools.local_cluster.layout import ClusterLayout, ZooKeeperKind
from ottla.tools.local_cluster.members import Member, running_pid
from ottla.tools.local_cluster.startup import members_of
from peers.processes import free_port

BOUND_S: Final = 90.0
_PROGRAM: Final = "from ottla.client.cli import main; main()"


class AcceptanceCluster:
    """Three brokers and three ZooKeeper servers in `directory`, none of which runs after leaving."""

    def __init__(self, directory: Path, topic: str, session_s: float) -> None:
        self.directory = directory
        self.layout = ClusterLayout(
            brokers=3, base_port=_free_range(12), zookeeper=ZooKeeperKind.APACHE, zookeeper_servers=3
        )
        self.session_s = session_s
        self._topic = topic
        self._admin: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in members_of(self.layout, self.directory):
            if (pid := running_pid(member)) is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    # ---- commands

    def start(self) -> float:
        """Start what does not run; return the seconds it took."""
        since_s = time.monotonic()
        options = ["--brokers", "3", "--base-port", str(self.layout.base_port), "--detach"]
        options += ["--set", f"zookeeper.session.timeout.ms={self.session_s * 1000:.0f}"]
        if any(running_pid(each) is None for each in members_of(self.layout, self.directory)):
            ottla("cluster", "start", "--data-dir", str(self.directory), *options)
        took_s = time.monotonic() - since_s
        if self._admin is None:
            self._admin = AdminClient(
                {"bootstrap.servers": self.layout.bootstrap_servers, "socket.timeout.ms": 3_000,
                 "reconnect.backoff.max.ms": 200, "log_level": 0}
            )  # fmt: skip
        return took_s

    def stop(self) -> None:
        ottla("cluster", "stop", "--data-dir", str(self.directory))

    def create(self, partitions: int) -> None:
        ottla("topic", "create", self._topic, "--partitions", str(partitions), "--replication-factor", "3",
              "--bootstrap-server", self.layout.bootstrap_servers)  # fmt: skip
        self.wait_until_whole()

    def described(self, away: Collection[int]) -> str:
        """The output of `ottla cluster describe`, asked of a broker that is there."""
        there = [self.layout.address(each) for each in self.layout.broker_ids if each not in away]
        return ottla("cluster", "describe", "--bootstrap-server", ",".join(there)).rstrip()

    def elect_preferred_leaders(self) -> None:
        ottla("leader", "elect", "--preferred", "--all", "--bootstrap-server", self.layout.bootstrap_servers)
        wait_until(lambda: all(leader == replicas[0] for leader, replicas, _ in self._partitions()))

    # ---- faults

    def kill(self, *broker_ids: int) -> Collection[int]:
        for each in broker_ids:
            self._signal(f"broker {each}", signal.SIGKILL)
        return broker_ids

    def shut_down(self, broker_id: int) -> Collection[int]:
        self._signal(f"broker {broker_id}", signal.SIGTERM)
        member = self._member(f"broker {broker_id}")
        wait_until(lambda: running_pid(member) is None)
        return (broker_id,)

    def kill_zookeeper_leader(self) -> Collection[int]:
        leader = next(each for each in self.layout.zookeeper_ids if self._mode(each) == "leader")
        self._signal(f"ZooKeeper {leader}", signal.SIGKILL)
        wait_until(lambda: any(self._mode(each) == "leader" for each in self.layout.zookeeper_ids))
        return ()

    def _mode(self, server_id: int) -> str:
        address = "127.0.0.1", self.layout.zookeeper_port(server_id)
        with suppress(OSError), socket.create_connection(address, timeout=2) as link:
            link.sendall(b"srvr")
            answer = b"".join(iter(lambda: link.recv(4096), b"")).decode(errors="replace")
            found = re.search(r"^Mode: (\w+)", answer, re.MULTILINE)
            return found[1] if found else ""
        return ""

    def _signal(self, name: str, number: signal.Signals) -> None:
        pid = running_pid(self._member(name))
        assert pid is not None, f"{name} does not run"
        os.kill(pid, number)

    def _member(self, name: str) -> Member:
        return next(each for each in members_of(self.layout, self.directory) if each.name == name)

    # ---- what the cluster says of itself

    def controller(self) -> int:
        """The controller's broker id."""
        found: list[int] = []

        def known() -> bool:
            with suppress(KafkaException):
                found.append(int(self._admin.list_topics(timeout=3).controller_id))
            return bool(found) and found[-1] in self.layout.broker_ids

        wait_until(known)
        return found[-1]

    def _partitions(self) -> list[tuple[int, list[int], set[int]]]:
        """Leader, replicas and ISR of each partition; one that nobody leads while nobody answers."""
        with suppress(KafkaException):
            topic = self._admin.list_topics(self._topic, timeout=3).topics[self._topic]
            if topic.partitions:
                return [(each.leader, each.replicas, set(each.isrs)) for each in topic.partitions.values()]
        return [(-1, [0], set())]

    def wait_until_served_without(self, away: Collection[int]) -> float:
        """Wait until others lead and are in sync; return the time of day."""
        missing = {-1, *away}
        wait_until(
            lambda: all(leader not in missing and not isr & missing for leader, _, isr in self._partitions())
        )
        return time.time()

    def wait_until_whole(self) -> None:
        """Wait until every replica is in sync."""
        wait_until(lambda: all(isr == set(replicas) for _, replicas, isr in self._partitions()))


def ottla(*arguments: str) -> str:
    """Run a command of `ottla` in a process; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise RuntimeError(f"ottla {' '.join(arguments)}: {done.stdout[-500:]}{done.stderr[-500:]}")
    return done.stdout


def wait_until(condition: Callable[[], bool]) -> None:
    """Return once a condition holds; raise TimeoutError when that takes too long."""
    deadline_s = time.monotonic() + BOUND_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {BOUND_S:g} s")
        time.sleep(0.05)


def _free_range(count: int) -> int:
    """The first of `count` ports in a row that are free."""
    while True:
        first = free_port()
        if first + count < 65_535 and all(map(_is_free, range(first, first + count))):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
