"""Actions on one host of a cluster: `python -m ottla.tools.cluster_of_hosts.on_host NUMBER ACTION`, by ssh.

The plan comes over standard input as JSON. `check` prints the members that run, `zookeeper` and `brokers`
start those that do not and wait until they serve, `stop NAME...` ends some. What cannot work is one line on
standard error and status 1, and nothing that was started here is left.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from ottla.broker.server.readiness import until_complete
from ottla.protocol.storage.properties import encode_properties
from ottla.tools.cluster_of_hosts.plan import Host, HostsPlan
from ottla.tools.local_cluster.members import (
    PROPERTIES,
    Member,
    apache_command,
    broker_command,
    running_pid,
    spawn,
    stop,
)
from ottla.zookeeper.apache_server import NoZooKeeper

READY_BOUND_S: Final = 60.0
_STOP_BOUND_S: Final = 30.0
_POLL_S: Final = 0.05


class HostRefused(RuntimeError):
    """This host cannot carry out an action; the message is one line."""


def zookeeper_of(plan: HostsPlan, host: Host) -> list[Member]:
    """The ZooKeeper server of a host, if it has one. Raises NoZooKeeper where Java or its jars lack."""
    if host not in plan.zookeeper_hosts:
        return []
    home = Path(plan.directory) / f"zookeeper-{host.number}"
    command = apache_command(home)
    return [Member("zookeeper", home, command, plan.zookeeper_port, home / "server.pid", locks_itself=False)]


def brokers_of(plan: HostsPlan, host: Host) -> list[Member]:
    """The brokers of a host."""
    return [_broker(plan, host, broker_id) for broker_id in host.broker_ids]


def _broker(plan: HostsPlan, host: Host, broker_id: int) -> Member:
    home = Path(plan.directory) / f"broker-{broker_id}"
    command = broker_command(home)
    port = plan.broker_port(host, broker_id)
    return Member(f"broker-{broker_id}", home, command, port, home / "broker.pid", locks_itself=True)


def check(plan: HostsPlan, host: Host) -> None:
    """Print the members that run. Raises HostRefused where the others could not be started."""
    for member in (*zookeeper_of(plan, host), *brokers_of(plan, host)):
        if running_pid(member) is not None:
            _say(member.name)
            continue
        ports = [member.port, member.port + 1, member.port + 2]
        for port in ports if member.name == "zookeeper" and len(plan.zookeeper_hosts) > 1 else ports[:1]:
            _check_port(host.address, port, member.name)


def _check_port(address: str, port: int, name: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise HostRefused(f"{name} cannot listen at {address}:{port} ({error.strerror})") from None


def start(plan: HostsPlan, host: Host, members: list[Member]) -> None:
    """Start the members that do not run and wait until they serve; end them if one does not."""
    missing = [member for member in members if running_pid(member) is None]
    started: dict[Member, subprocess.Popen[bytes]] = {}
    try:
        for member in missing:
            _write_files(plan, host, member)
            started[member] = spawn(member)
        asyncio.run(_all_serve(plan, host, started))
    except BaseException:
        for process in started.values():
            process.kill()
            process.wait()
        raise


def _write_files(plan: HostsPlan, host: Host, member: Member) -> None:
    home = member.directory
    home.mkdir(0o700, parents=True, exist_ok=True)
    if member.name == "zookeeper":
        (home / "zoo.cfg").write_text(plan.zookeeper_config(host, str(home)))
        (home / "myid").write_text(f"{host.number}\n")
        return
    broker_id = int(member.name.removeprefix("broker-"))
    (home / PROPERTIES).write_bytes(encode_properties(plan.broker_settings(host, broker_id, str(home))))


async def _all_serve(plan: HostsPlan, host: Host, started: Mapping[Member, subprocess.Popen[bytes]]) -> None:
    try:
        async with asyncio.timeout(READY_BOUND_S), asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(_watch(started))
            waits = [tasks.create_task(_until_ready(plan, host, member)) for member in started]
            await asyncio.gather(*waits)
            watch.cancel()
    except TimeoutError:
        words = "; ".join(f"{member.name}: {member.last_words()}" for member in started)
        raise HostRefused(f"not ready within {READY_BOUND_S:g} s ({words})") from None
    except ExceptionGroup as errors:
        raise HostRefused(str(errors.exceptions[0])) from None


async def _watch(started: Mapping[Member, subprocess.Popen[bytes]]) -> None:
    """Raise HostRefused as soon as a process ends."""
    while True:
        for member, process in started.items():
            if process.poll() is not None:
                raise HostRefused(f"{member.name} did not start: {member.last_words()}")
        await asyncio.sleep(_POLL_S)


async def _until_ready(plan: HostsPlan, host: Host, member: Member) -> None:
    where = f"{host.address}:{member.port}"
    while not await _serves(host.address, member):  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)
    if member.name != "zookeeper":
        await until_complete([where], plan.broker_ids, READY_BOUND_S)
    _say(f"{member.name} is ready at {where}")


async def _serves(address: str, member: Member) -> bool:
    with suppress(OSError):
        reader, writer = await asyncio.open_connection(address, member.port)
        try:
            if member.name != "zookeeper":
                return True
            writer.write(b"srvr")
            return b"Mode:" in await reader.read(4_096)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
    return False


def end(plan: HostsPlan, host: Host, names: list[str]) -> None:
    """Stop members and print which ran; the cluster's brokers before its ZooKeeper is the caller's care."""
    members = [member for member in brokers_of(plan, host) if member.name in names]
    if "zookeeper" in names:
        with suppress(NoZooKeeper):
            members += zookeeper_of(plan, host)
    running = [member for member in members if running_pid(member) is not None]
    killed = stop(running, _STOP_BOUND_S)
    for member in running:
        _say(f"{member.name} {'was killed, for it did not stop' if member in killed else 'has stopped'}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Do one action; return the exit status."""
    number, action, *names = arguments
    try:
        plan = HostsPlan.decode(sys.stdin.read())
        host = next(host for host in plan.hosts if host.number == int(number))
        if action == "check":
            check(plan, host)
        elif action == "stop":
            end(plan, host, names)
        else:
            start(plan, host, zookeeper_of(plan, host) if action == "zookeeper" else brokers_of(plan, host))
    except (HostRefused, NoZooKeeper, OSError) as error:
        sys.stderr.write(str(error).removeprefix("NoZooKeeper: ") + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
