"""Start a local cluster: refuse what cannot work before anything runs, then start and await all processes."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from ottla.broker.server.readiness import until_complete
from ottla.broker.server.secure_setup import prepare
from ottla.client.security import SecurityConfig
from ottla.tools.local_cluster.layout import FILE, HOST, ClusterLayout, ZooKeeperKind, read_layout
from ottla.tools.local_cluster.members import (
    Member,
    broker_member,
    console_command,
    console_member,
    running_pid,
    spawn,
    stop,
    write_files,
    zookeeper_member,
)

STOP_TIMEOUT_S = 30.0
_POLL_S = 0.02

Report = Callable[[str], object]
Processes = dict[Member, subprocess.Popen[bytes]]


class ClusterRefused(RuntimeError):
    """The cluster cannot start as asked; the message is one line that says what to change."""


class ClusterFailed(RuntimeError):
    """A process of the cluster ended or was not ready in time; the message holds its last line."""


def members_of(layout: ClusterLayout, directory: Path) -> list[Member]:
    """Return all processes, ZooKeeper's first. Raises ClusterRefused where Java is missing."""
    from ottla.zookeeper.apache_server import NoZooKeeper

    try:
        servers = [zookeeper_member(layout, directory, server_id) for server_id in layout.zookeeper_ids]
    except NoZooKeeper as error:
        text = str(error).removeprefix("NoZooKeeper: ")
        raise ClusterRefused(f"{text}; or run without Java: --zookeeper embedded") from None
    return servers + [broker_member(layout, directory, broker_id) for broker_id in layout.broker_ids]


def with_console(members: list[Member], directory: Path) -> list[Member]:
    """Return members, and the console if one was started beside them."""
    console = console_member(directory)
    return [*members, console] if console.pid_file.exists() else members


def check_console() -> None:
    """Raise ClusterRefused where the console is not installed."""
    if find_spec("ottla.console") is None:
        raise ClusterRefused("--console needs ottla-console: python -m pip install ottla-console")


def start_console(layout: ClusterLayout, directory: Path, listen: str) -> Processes:
    """Start the console of a cluster, and return its process. Raises ProfileError."""
    console = console_member(directory, console_command(layout, directory, listen))
    console.directory.mkdir(0o700, parents=True, exist_ok=True)
    return {console: spawn(console)} if running_pid(console) is None else {}


def check_directory(directory: Path) -> ClusterLayout | None:
    """Return the plan of the cluster that lives in a directory; None for a new or empty one.

    Raises ClusterRefused for a directory that holds something else, MalformedLayout for a damaged plan.
    """
    if directory.exists() and not directory.is_dir():
        raise ClusterRefused(f"{directory} is a file: choose a directory")
    known = read_layout(directory)
    if known is None and directory.is_dir() and any(directory.iterdir()):
        what = "the data of a broker" if (directory / "meta.properties").exists() else "other files"
        raise ClusterRefused(f"{directory} holds {what}, and no {FILE}: choose an empty directory")
    return known


def check_ports(layout: ClusterLayout, running: Mapping[int, str]) -> None:
    """Raise ClusterRefused for a port that is taken, but not by a process of this cluster."""
    for port, owner in layout.ports():
        if port > 65_535:
            raise ClusterRefused(f"{owner} would get port {port}: choose a smaller --base-port")
        if port not in running and _is_taken(port):
            raise ClusterRefused(
                f"port {port} for {owner} is in use: stop the process that uses it, "
                "or choose another --base-port"
            )


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False


async def start(layout: ClusterLayout, directory: Path, report: Report, timeout_s: float) -> Processes:
    """Start the processes that do not run, and return them once the cluster is whole.

    Raises ClusterRefused before anything is written, or ClusterFailed, after which nothing that was started
    here runs.
    """
    missing = await asyncio.to_thread(_prepare, layout, directory)
    report(f"starting {_counted(layout)} in {directory}")
    started: Processes = {}
    try:
        for member in missing:
            started[member] = spawn(member)
        async with asyncio.timeout(timeout_s):
            await _all_ready(layout, directory, started, report)
    except BaseException as error:
        end(list(started.values()))
        if isinstance(error, TimeoutError):
            raise ClusterFailed(_who_is_late(started, timeout_s)) from None
        raise
    return started


def _prepare(layout: ClusterLayout, directory: Path) -> list[Member]:
    """Check what could prevent the start, then write all files; return the members that do not run."""
    members = members_of(layout, directory)
    running = [member for member in members if running_pid(member) is not None]
    if len(running) == len(members):
        raise ClusterRefused(
            f"the cluster in {directory} runs already: `ottla cluster stop --data-dir {directory}` ends it"
        )
    check_ports(layout, _ports_of(layout, running))
    directory.mkdir(0o700, parents=True, exist_ok=True)
    (directory / FILE).write_text(layout.encode())
    write_files(layout, directory)
    return [member for member in members if member not in running]


def _counted(layout: ClusterLayout) -> str:
    brokers = "1 broker" if layout.brokers == 1 else f"{layout.brokers} brokers"
    kind = "ZooKeeper" if layout.zookeeper is ZooKeeperKind.APACHE else "embedded ZooKeeper"
    servers = f"{layout.zookeeper_servers} {kind} servers" if layout.is_ensemble else f"1 {kind} server"
    return f"{servers} and {brokers}"


def _ports_of(layout: ClusterLayout, running: list[Member]) -> dict[int, str]:
    names = {member.name for member in running}
    ours = {member.port: member.name for member in running}
    zookeepers = any(name.startswith("ZooKeeper") for name in names)
    return ours | {port: owner for port, owner in layout.ports() if zookeepers and owner == "ZooKeeper"}


async def _all_ready(layout: ClusterLayout, directory: Path, started: Processes, report: Report) -> None:
    loop = asyncio.get_running_loop()
    since_s = loop.time()
    setup = prepare(directory, []) if layout.secure else None
    security = None if setup is None else SecurityConfig(**setup.client_settings())

    def ready(name: str, where: str) -> None:
        report(f"{name} is ready at {where} ({loop.time() - since_s:.1f} s)")

    async def await_zookeeper(member: Member) -> None:
        await _until(lambda: _serves(layout, member.port))
        ready(member.name, f"{HOST}:{member.port}")

    async def await_broker(member: Member) -> None:
        address = f"{HOST}:{member.port}"
        await until_complete([address], layout.broker_ids, float("inf"), security)
        ready(member.name, address)

    async with asyncio.TaskGroup() as tasks:
        waits = [
            tasks.create_task(await_broker(member) if member.locks_itself else await_zookeeper(member))
            for member in started
        ]
        watch = tasks.create_task(_watch(started))
        await asyncio.wait(waits)
        watch.cancel()


async def _watch(started: Processes) -> None:
    """Raise ClusterFailed as soon as a process ends."""
    while True:
        for member, process in started.items():
            if process.poll() is not None:
                raise ClusterFailed(f"{member.name} did not start: {member.last_words()}")
        await asyncio.sleep(_POLL_S)


async def _until(condition: Callable[[], Coroutine[None, None, bool]]) -> None:
    while not await condition():  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)


async def _serves(layout: ClusterLayout, port: int) -> bool:
    """Whether a ZooKeeper server serves: Apache's is asked, for it may still elect a leader."""
    with suppress(OSError):
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            if layout.zookeeper is ZooKeeperKind.EMBEDDED:
                return True
            writer.write(b"srvr")
            return b"Mode:" in await reader.read(4_096)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
    return False


def _who_is_late(started: Processes, timeout_s: float) -> str:
    words = "; ".join(f"{member.name}: {member.last_words()}" for member in started)
    return f"the cluster was not ready within {timeout_s:g} s ({words})"


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Kill processes that did not get as far as to serve."""
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


def stop_all(members: list[Member], report: Report) -> None:
    """Stop the brokers, then ZooKeeper, which they need for that."""
    for some in (
        [member for member in members if member.locks_itself],
        [member for member in members if not member.locks_itself],
    ):
        for killed in stop(some, STOP_TIMEOUT_S):
            report(f"{killed.name} did not stop within {STOP_TIMEOUT_S:g} s and was killed")
