"""`ottla cluster start` and `stop`: processes of a cluster on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ottla.client.cli import main
from ottla.tools.cluster_cli import start, stop
from ottla.tools.local_cluster.layout import ClusterLayout, read_layout
from ottla.tools.local_cluster.members import console_member, orphans_of, running_pid
from ottla.tools.local_cluster.startup import members_of, with_console
from ottla.zookeeper.apache_server import NoZooKeeper, find_installation, free_port

TIMEOUT_S = 90


def ran(command: object, *arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)  # type: ignore[arg-type]


def started(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `ottla cluster start --detach` in a process that ends before those that it starts."""
    program = "from ottla.client.cli import main; main()"
    command = [sys.executable, "-c", program, "cluster", "start", "--detach", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@pytest.fixture
def base_port() -> int:
    """The first of twenty ports that are free; processes that run tests at once begin at different ports."""
    begin = os.getpid() * 20 % 11_000
    for first in (21_000 + (begin + offset) % 11_000 for offset in range(0, 11_000, 20)):
        if all(map(_is_free, range(first, first + 20))):
            return first
    raise RuntimeError("no ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory for a cluster, of which no process is left after the test."""
    yield tmp_path / "cluster"
    layout = read_layout(tmp_path / "cluster")
    members = members_of(layout, tmp_path / "cluster") if layout else []
    for member in with_console(members, tmp_path / "cluster"):
        if (pid := running_pid(member)) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def pids(directory: Path) -> dict[str, int | None]:
    layout = read_layout(directory)
    assert layout is not None
    return {member.name: running_pid(member) for member in members_of(layout, directory)}


def test_a_console_starts_and_stops_with_its_cluster(directory: Path, base_port: int) -> None:
    pytest.importorskip("ottla.console")  # which the command runs, and this package does not need
    listen = f"127.0.0.1:{free_port()}"
    options = ("--zookeeper", "embedded", "--brokers", "1", "--base-port", str(base_port))

    done = started("--data-dir", str(directory), *options, "--console", listen)
    said = wait_for_line(directory / "console" / "output.log")
    with urllib.request.urlopen(f"http://{listen}/c/local/", timeout=TIMEOUT_S) as answer:
        page = answer.read().decode()
    ended = ran(stop, "--data-dir", str(directory))

    assert f"the console starts at http://{listen}/" in done.stdout
    assert said.startswith(f"Open http://{listen}/")
    assert "No problem found" in page
    assert "console" in ended.output
    assert running_pid(console_member(directory)) is None


def wait_for_line(file: Path) -> str:
    for _ in range(600):
        if file.exists() and "\n" in (text := file.read_text()):
            return text
        time.sleep(0.1)
    raise AssertionError(f"nothing stands in {file}")


@pytest.mark.long
@pytest.mark.parametrize("zookeeper", ["embedded", pytest.param("apache", marks=pytest.mark.java)])
def test_a_cluster_starts_replaces_a_killed_broker_and_stops(
    zookeeper: str, directory: Path, base_port: int
) -> None:
    if zookeeper == "apache":
        try:
            find_installation()
        except NoZooKeeper as error:
            pytest.skip(str(error))
    where = ("--data-dir", str(directory))

    begun = started(*where, "--base-port", str(base_port), "--zookeeper", zookeeper)

    assert begun.returncode == 0, begun.stderr
    assert begun.stdout.splitlines()[-1].startswith("the cluster of 3 is ready at 127.0.0.1:")
    first = pids(directory)
    assert None not in first.values()
    described = ran(main, "cluster", "describe", "--json", "-b", f"127.0.0.1:{base_port}")
    assert [each["broker"] for each in json.loads(described.output)["brokers"]] == [1, 2, 3]
    assert ran(main, "cluster", "health", "-b", f"127.0.0.1:{base_port}").exit_code == 0
    again = ran(start, *where)
    assert (again.exit_code, again.output.count("\n")) == (1, 1)
    assert "runs already" in again.output

    os.kill(first["broker 2"] or 0, signal.SIGKILL)
    wait_until_ended(directory, "broker 2")
    assert started(*where).returncode == 0
    second = pids(directory)
    assert second.pop("broker 2") not in (None, first.pop("broker 2"))
    assert second == first

    done = ran(stop, *where)
    assert done.exit_code == 0, done.output
    assert set(pids(directory).values()) == {None}
    assert ran(stop, *where).output == f"Error: the cluster in {directory} does not run\n"
    for number in (1, 2, 3):
        assert (directory / f"broker-{number}" / "server.log").read_text()
    assert any(file.read_text() for file in directory.glob("broker-*/controller.log"))


def wait_until_ended(directory: Path, name: str) -> None:
    async def ended() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while pids(directory)[name] is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    asyncio.run(ended())


def test_a_cluster_whose_directory_was_deleted_is_stopped(directory: Path, base_port: int) -> None:
    where = ("--data-dir", str(directory))
    options = ("--zookeeper", "embedded", "--brokers", "2", "--base-port", str(base_port))
    assert started(*where, *options).returncode == 0
    running = [pid for pid in pids(directory).values() if pid]
    try:
        while directory.exists():  # the brokers still write
            shutil.rmtree(directory, ignore_errors=True)

        done = ran(stop, *where)

        assert (done.exit_code, done.output.count("\n")) == (0, 1), done.output
        assert done.output.endswith("zookeeper, whose directory was deleted\n")
        assert not orphans_of(directory)
        assert ran(stop, *where).output.startswith(f"Error: {directory} holds no cluster")
    finally:
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_ctrl_c_ends_all_processes(directory: Path, base_port: int) -> None:
    options = ["--zookeeper", "embedded", "--brokers", "2", "--base-port", str(base_port)]
    program = "from ottla.client.cli import main; main()"
    command = [sys.executable, "-c", program, "cluster", "start", "--data-dir", str(directory), *options]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if "Ctrl-C ends it" in line:
                break
        running.send_signal(signal.SIGINT)
        printed, _ = running.communicate(timeout=TIMEOUT_S)

    assert (running.returncode, printed) == (0, "stopping\n")
    assert set(pids(directory).values()) == {None}


def test_a_port_that_is_taken_is_refused_before_anything_is_written(directory: Path, base_port: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", base_port + 1))
        taken.listen()

        done = ran(
            start, "--data-dir", str(directory), "--base-port", str(base_port), "--zookeeper", "embedded"
        )

    advice = "stop the process that uses it, or choose another --base-port"
    assert done.output == f"Error: port {base_port + 1} for broker 2 is in use: {advice}\n"
    assert not directory.exists()


def test_a_directory_with_something_else_is_refused(directory: Path) -> None:
    directory.mkdir()
    (directory / "meta.properties").write_text("version=0\n")

    done = ran(start, "--data-dir", str(directory))

    held = "holds the data of a broker, and no cluster.json: choose an empty directory"
    assert done.output == f"Error: {directory} {held}\n"
    (directory / "cluster.json").write_text("{")
    assert "cluster.json cannot be read" in ran(start, "--data-dir", str(directory)).output
    (directory / "cluster.json").write_text(ClusterLayout(brokers=5).encode())
    done = ran(start, "--data-dir", str(directory), "--brokers", "3")
    assert "holds a cluster with --brokers 5: leave the option out" in done.output


def test_a_directory_that_cannot_be_made_is_named_without_the_number_of_its_error(base_port: int) -> None:
    done = ran(start, "--data-dir", "/proc/cluster", "--zookeeper", "embedded", "--base-port", str(base_port))

    assert done.output.splitlines()[-1] == "Error: /proc/cluster: No such file or directory"


def test_without_java_the_embedded_server_is_offered(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(directory))

    done = ran(start, "--data-dir", str(directory))

    assert done.output.startswith("Error: no java on the PATH")
    assert done.output.endswith("; or run without Java: --zookeeper embedded\n")
    assert not directory.exists()


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("--brokers", "0"), "0 is not in the range 1<=x<=100"),
        (("--set", "broker.id=7"), "the cluster sets it"),
        (("--set", "num.partition=7"), "did you mean num.partitions?"),
        (("--set", "num.partitions=x"), "num.partitions must be a 32-bit integer, not 'x'"),
        (("--set", "num.partitions=0"), "num.partitions must be at least 1"),
        (("--zookeeper", "embedded", "--zookeeper-servers", "3"), "leave out --zookeeper-servers"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(arguments: tuple[str, ...], advice: str, directory: Path) -> None:
    done = ran(start, "--data-dir", str(directory), *arguments)

    assert (done.exit_code, advice in done.output, directory.exists()) == (2, True, False)


def test_a_broker_that_cannot_start_ends_the_others_and_is_named(directory: Path, base_port: int) -> None:
    (directory / "broker-2").mkdir(parents=True)
    (directory / "broker-2" / "meta.properties").write_text("version=0\nbroker.id=2\ncluster.id=another\n")
    layout = ClusterLayout(brokers=2, base_port=base_port)
    (directory / "cluster.json").write_text(layout.encode().replace('"apache"', '"embedded"'))

    done = ran(start, "--data-dir", str(directory))

    assert done.exit_code == 1
    assert done.output.splitlines()[-1].startswith("Error: broker 2 did not start: ")
    assert "another" in done.output.splitlines()[-1]
    assert set(pids(directory).values()) == {None}


def test_the_ports_of_a_layout_follow_each_other() -> None:
    layout = ClusterLayout(brokers=3, base_port=100, zookeeper_servers=3)

    assert [port for port, _ in layout.ports()] == [
        100,
        101,
        102,
        103,
        106,
        107,
        104,
        108,
        109,
        105,
        110,
        111,
    ]
    assert ClusterLayout.decode(layout.encode(), Path("x")) == layout
    assert layout.zookeeper_connect == "127.0.0.1:103,127.0.0.1:104,127.0.0.1:105"


@pytest.mark.parametrize("brokers", [1, 2, 3, 5])
def test_no_internal_topic_wants_more_replicas_than_there_are_brokers(brokers: int) -> None:
    settings = ClusterLayout(brokers=brokers).common_settings()

    for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
        assert int(settings[f"{topic}.replication.factor"]) == min(brokers, 3)
