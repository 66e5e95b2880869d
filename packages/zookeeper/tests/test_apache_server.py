"""Finding a ZooKeeper, running one, and the commands around it."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.zookeeper.apache_server import Installation, NoZooKeeper, RealZooKeeper, find_installation
from ottla.zookeeper.cli import zookeeper
from ottla.zookeeper.embedded import EmbeddedCoordinator
from ottla.zookeeper.embedded.access import access_to
from ottla.zookeeper.errors import ConnectionLoss, NotStored
from ottla.zookeeper.kazoo_session import KazooSession

COMMAND = [sys.executable, "-c", "from ottla.zookeeper.cli import zookeeper; zookeeper()"]


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a java that does nothing, and no jars but those a test makes."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(java.parent))
    monkeypatch.setenv("M2_REPOSITORY", str(tmp_path / "m2"))
    monkeypatch.delenv("ZOOKEEPER_HOME", raising=False)
    return tmp_path


def make(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


def test_without_java_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NoZooKeeper, match="no java on the PATH") as caught:
        find_installation()
    assert "\n" not in str(caught.value)


def test_the_newest_jars_of_a_home_are_taken(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = bare_machine / "home"
    monkeypatch.setenv("ZOOKEEPER_HOME", str(home))
    make(
        home / "lib",
        "zookeeper-3.8.4.jar",
        "zookeeper-3.10.0.jar",
        "zookeeper-3.10.0-tests.jar",
        "zookeeper-jute-3.10.0.jar",
        "slf4j-api-1.7.36.jar",
        "metrics-core-2.2.0.jar",
        "metrics-core-4.1.12.1.jar",
    )

    found = find_installation()

    names = [Path(jar).name for jar in found.classpath.split(os.pathsep)]
    assert names == [
        "zookeeper-3.10.0.jar",
        "slf4j-api-1.7.36.jar",
        "zookeeper-jute-3.10.0.jar",
        "metrics-core-4.1.12.1.jar",
    ]


def test_mavens_cache_is_searched(bare_machine: Path) -> None:
    repository = bare_machine / "m2"
    make(repository / "org/apache/zookeeper/zookeeper/3.9.2", "zookeeper-3.9.2.jar")
    make(repository / "org/slf4j/slf4j-api/2.0.1", "slf4j-api-2.0.1.jar")

    assert isinstance(find_installation(), Installation)


@pytest.mark.java
async def test_a_real_server_keeps_its_data_over_a_restart(tmp_path: Path) -> None:
    try:
        find_installation()
    except NoZooKeeper as error:
        pytest.skip(str(error))
    for expected in (None, b"kept"):
        async with (
            RealZooKeeper(tmp_path / "zk") as server,
            KazooSession(server.connect_string) as session,
        ):
            if expected is None:
                await session.create("/a", b"kept")
            else:
                assert (await session.get("/a"))[0] == expected


async def output_of(*arguments: str) -> bytes:
    process = await asyncio.create_subprocess_exec(*COMMAND, *arguments, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    return printed


async def test_the_embedded_command_serves_until_interrupted(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *("start", "--embedded", "--port", "0", "--data-dir", str(tmp_path / "zk")),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(30):
        line = (await process.stdout.readline()).decode()
        address = line.split(" at ")[1].split(",")[0]
        assert f"zookeeper.connect={tmp_path / 'zk'}" in (await process.stdout.readline()).decode()
        access = access_to(tmp_path / "zk")
        assert access.connect_string == address
        async with KazooSession(address, credentials=access.credentials) as session:
            await session.create("/a", b"hello")
        where = str(tmp_path / "zk")
        get = await asyncio.create_subprocess_exec(
            *COMMAND, "get", where, "/a", stdout=asyncio.subprocess.PIPE
        )
        stranger = await asyncio.create_subprocess_exec(
            *COMMAND, "get", address, "/a", stderr=asyncio.subprocess.PIPE
        )
        ls = await asyncio.create_subprocess_exec(*COMMAND, "ls", where, stdout=asyncio.subprocess.PIPE)
        printed, _ = await get.communicate()
        listed, _ = await ls.communicate()
        _, refusal = await stranger.communicate()
        process.send_signal(signal.SIGINT)
        status = await process.wait()

    assert (printed, listed) == (b"hello\n", b"a\nzookeeper\n")
    assert refusal.startswith(b"Error: NoAuth: /a: the server asks for a secret")
    assert status == 0


async def test_a_full_disk_refuses_changes_until_there_is_room(tmp_path: Path) -> None:
    directory = tmp_path / "zk"
    serve = [*COMMAND, "start", "--embedded", "--port", "0", "--data-dir", str(directory), "--no-secret"]
    process = await asyncio.create_subprocess_exec(
        *serve, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        where = (await process.stdout.readline()).decode().split(" at ")[1].split(",")[0]
        unlimited = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        async with KazooSession(where, session_timeout_ms=20_000) as session:
            session_id = session.session_id
            await session.create("/kept", bytes(10_000))
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (16_384, unlimited[1]))

            with pytest.raises(ConnectionLoss):
                await session.create("/too-much", bytes(10_000))
            await session.wait_connected()
            with pytest.raises(NotStored):
                await session.create("/too-much", bytes(10_000))
            assert await session.children("/") == ["kept", "zookeeper"]

            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, unlimited)
            assert process.stderr is not None
            while b"can write again" not in (line := await process.stderr.readline()):
                pass
            assert line.decode().rstrip().endswith(f"the coordinator can write again directory={directory}")
            await session.create("/too-much", bytes(10_000))
            assert session.session_id == session_id
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0

    async with EmbeddedCoordinator(directory) as again:
        assert again.service.tree.nodes.keys() >= {"/kept", "/too-much"}


def test_every_command_has_help_with_an_example() -> None:
    for name in zookeeper.commands:
        result = CliRunner().invoke(zookeeper, [name, "--help"])
        assert result.exit_code == 0
        assert "Example" in result.output


def test_a_wrong_combination_is_a_usage_error() -> None:
    result = CliRunner().invoke(zookeeper, ["start", "--in-memory"])
    assert result.exit_code == 2
    assert "--embedded" in result.output
