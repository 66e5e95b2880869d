"""`ottla cluster start --hosts` over a real ssh server; the hosts are addresses of this machine."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ottla.client.cli import main
from ottla.tools.cluster_of_hosts.on_host import brokers_of, zookeeper_of
from ottla.tools.cluster_of_hosts.plan import HostsPlan, parse_hosts
from ottla.tools.local_cluster.members import Member, running_pid
from peers.sshd import Sshd, missing_sshd

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

HOSTS = "{user}127.0.0.2:{port} brokers=2\n{user}127.0.0.3:{port}\n127.0.0.4:{port}  # the third\n"
BOUND_S = 60.0


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    """A server that lets this user in with a key."""
    if reason := missing_sshd():
        pytest.skip(reason)
    with Sshd(tmp_path / "ssh") as running:
        yield running


class Hosts:
    """A file of three hosts, the commands with it, and the processes that they start."""

    def __init__(self, folder: Path, sshd: Sshd) -> None:
        self.data_dir = folder / "cluster"
        self.file = folder / "hosts.txt"
        self.file.write_text(HOSTS.format(user="", port=sshd.port))
        self.base_port = _free_ports(5)
        self.zookeeper_port = self.base_port + 2
        python = folder / "python"
        path = os.pathsep.join(each for each in sys.path if each)
        exports = f"export PYTHONPATH={shlex.quote(path)} PATH={shlex.quote(os.environ['PATH'])}"
        python.write_text(f'#!/bin/sh\n{exports}\nexec {shlex.quote(sys.executable)} "$@"\n')
        python.chmod(0o755)
        self._options = ["--python", str(python)]
        self._options += [part for each in sshd.client_options for part in ("--ssh-option", each)]

    def run(self, command: str) -> Result:
        """`ottla cluster start` or `stop` with the file."""
        ports = ["--zookeeper-port", str(self.zookeeper_port)]
        ports += ["--base-port", str(self.base_port)] if command == "start" else []
        arguments = ["--hosts", str(self.file), "--data-dir", str(self.data_dir), *ports, *self._options]
        return CliRunner().invoke(main, ["cluster", command, *arguments])

    def members(self) -> list[Member]:
        plan = HostsPlan(hosts=parse_hosts(self.file.read_text()), directory=str(self.data_dir))
        return [each for host in plan.hosts for each in (*zookeeper_of(plan, host), *brokers_of(plan, host))]

    def running(self) -> list[str]:
        return [each.directory.name for each in self.members() if running_pid(each) is not None]

    def kill(self, name: str) -> None:
        member = next(each for each in self.members() if each.directory.name == name)
        if (pid := running_pid(member)) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: running_pid(member) is None)


@pytest.fixture
def hosts(tmp_path: Path, sshd: Sshd) -> Iterator[Hosts]:
    """Three hosts, on which nothing is left running."""
    made = Hosts(tmp_path, sshd)
    yield made
    for name in made.running():
        made.kill(name)


def _free_ports(count: int) -> int:
    """The first of some ports in a row that are free at every address of the hosts."""
    for first in range(32_000 - os.getpid() % 400 * 20, 20_000, -20):
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise RuntimeError("no ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def _lag(topic: str, servers: str) -> list[dict[str, Any]]:
    """Replica lag as the command prints it, once the broker that it asks has heard of the new topic."""
    deadline_s = time.monotonic() + BOUND_S
    while True:
        lag = CliRunner().invoke(main, ["replica", "lag", "--topic", topic, "--json", "-b", servers])
        if lag.exit_code == 0:
            found: list[dict[str, Any]] = json.loads(lag.output)
            return found
        assert lag.output == f"Error: topic '{topic}' does not exist\n"
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_a_cluster_over_hosts_starts_spreads_replicas_and_stops(
    hosts: Hosts, record_property: Callable[[str, object], None]
) -> None:
    since_s = time.monotonic()
    begun = hosts.run("start")
    took_s = time.monotonic() - since_s
    record_property("figure", f"4 brokers and 3 ZooKeepers on 3 hosts in {took_s:.1f} s")

    assert begun.exit_code == 0, begun.output
    servers = ",".join(f"127.0.0.{each}:{hosts.base_port}" for each in (2, 3, 4))
    assert begun.output.splitlines()[-1] == f"the cluster of 4 is ready at {servers}"
    described = CliRunner().invoke(main, ["cluster", "describe", "--json", "-b", servers])
    racks = {each["broker"]: each["rack"] for each in json.loads(described.output)["brokers"]}
    assert racks == {101: "127.0.0.2", 102: "127.0.0.2", 201: "127.0.0.3", 301: "127.0.0.4"}
    made = CliRunner().invoke(main, ["topic", "create", "t", "--partitions", "8", "-b", servers])
    assert made.exit_code == 0, made.output
    replicas: dict[int, list[str]] = {}
    for each in _lag("t", servers):
        replicas.setdefault(each["partition"], []).append(racks[each["broker"]])
    assert [sorted(each) for each in replicas.values()] == [["127.0.0.2", "127.0.0.3", "127.0.0.4"]] * 8

    hosts.kill("broker-102")
    again = hosts.run("start")
    assert again.exit_code == 0, again.output
    assert sum("is ready at" in line for line in again.output.splitlines()[:-1]) == 1
    assert len(hosts.running()) == 7
    done = hosts.run("stop")
    assert done.exit_code == 0, done.output
    assert (hosts.running(), done.output.count("has stopped")) == ([], 7)


def test_a_host_that_cannot_be_reached_is_one_line_and_nothing_starts(hosts: Hosts) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.5", 0))
        hosts.file.write_text(f"{hosts.file.read_text()}127.0.0.5:{closed.getsockname()[1]}\n")

        done = hosts.run("start")

    assert done.exit_code == 1
    assert done.output.splitlines()[-1].startswith("Error: 127.0.0.5 cannot be reached: ")
    assert "Connection refused" in done.output.splitlines()[-1]
    assert not hosts.data_dir.exists()


def test_a_broker_that_cannot_start_stops_what_was_started_on_all_hosts(hosts: Hosts) -> None:
    (hosts.data_dir / "broker-301").mkdir(parents=True)
    foreign = "version=0\nbroker.id=301\ncluster.id=another\n"
    (hosts.data_dir / "broker-301" / "meta.properties").write_text(foreign)

    done = hosts.run("start")

    assert done.exit_code == 1
    last = done.output.splitlines()[-1]
    assert last.startswith("Error: 127.0.0.4: broker-301 did not start: ")
    assert "another" in last
    assert hosts.running() == []


def test_a_port_that_is_taken_is_named_with_its_host(hosts: Hosts) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.3", hosts.base_port))
        taken.listen()

        done = hosts.run("start")

    where = f"127.0.0.3:{hosts.base_port}"
    assert f"Error: 127.0.0.3: broker-201 cannot listen at {where} (Address already in use)" in done.output
    assert not hosts.data_dir.exists()


@pytest.mark.long
def test_a_cluster_over_hosts_is_upgraded_repaired_and_expanded(hosts: Hosts, sshd: Sshd) -> None:
    begun = hosts.run("start")
    assert begun.exit_code == 0, begun.output
    servers = f"127.0.0.2:{hosts.base_port},127.0.0.3:{hosts.base_port}"

    def ottla(*arguments: str) -> Result:
        return CliRunner().invoke(main, [*arguments, "-b", servers])

    def is_healthy() -> bool:
        return ottla("cluster", "health").exit_code == 0

    assert ottla("topic", "create", "t", "--partitions", "4").exit_code == 0
    sent = CliRunner().invoke(main, ["produce", "t", "-b", servers], "one\ntwo\nthree\n")
    assert sent.exit_code == 0, sent.output

    stopped = CliRunner().invoke(main, ["broker", "stop", "--data-dir", str(hosts.data_dir / "broker-201")])
    assert stopped.exit_code == 0, stopped.output
    shutil.rmtree(hosts.data_dir / "broker-201")
    with hosts.file.open("a") as file:
        file.write(f"127.0.0.5:{sshd.port}\n")
    again = hosts.run("start")
    assert again.exit_code == 0, again.output
    until(is_healthy)
    plan = hosts.data_dir / "move.json"
    made = ottla("reassign", "generate", "--topic", "t", "--brokers", "101,201,301,401")
    plan.write_text(made.stdout)
    assert ottla("reassign", "execute", str(plan)).exit_code == 0
    until(lambda: ottla("reassign", "verify", str(plan)).exit_code == 0)
    until(is_healthy)
    compared = json.loads(ottla("replica", "verify", "--topic", "t", "--json").stdout)
    assert {each["result"] for each in compared} == {"equal"}
    assert any(401 in each["replicas"] for each in json.loads(plan.read_text())["partitions"])
    assert hosts.run("stop").exit_code == 0
    assert hosts.running() == []
