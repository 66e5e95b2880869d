"""The processes of a local cluster: how each is started, found, and ended, also when their files are gone."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ottla.broker.server.secure_setup import DIRECTORY, SecureFiles, SecureSetup, write_profile
from ottla.client.profiles import write_private
from ottla.protocol.storage.properties import encode_properties
from ottla.tools.local_cluster.layout import HOST, ClusterLayout, ZooKeeperKind

PROPERTIES: Final = "server.properties"
_POLL_S: Final = 0.02
_FLAGS: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.jmx.log4j.disable=true")
_HEAP: Final = "96m"
_TICK_MS: Final = 1_000

_PROCESSES: Final = Path("/proc")
_PROGRAMS: Final = ("ottla.broker", "ottla.console", "ottla.zookeeper", "org.apache.zookeeper.server.")


@dataclass(frozen=True, slots=True)
class Member:
    """One process of the cluster: its name for the user, its directory, and its command.

    `pid_file` is locked while the process lives: a broker locks its own, for another program it is done here.
    """

    name: str
    directory: Path
    command: tuple[str, ...]
    port: int
    pid_file: Path
    locks_itself: bool

    @property
    def log_file(self) -> Path:
        """The file with the output of the process."""
        return self.directory / "output.log"

    def last_words(self) -> str:
        """The last line that the process has printed."""
        with suppress(OSError):
            lines = self.log_file.read_text(errors="replace").strip().splitlines()
            return lines[-1].removeprefix("Error: ") if lines else f"see {self.log_file}"
        return "no output"


def broker_member(layout: ClusterLayout, directory: Path, broker_id: int) -> Member:
    """Return a broker's process; its directory is also its log directory."""
    home = directory / f"broker-{broker_id}"
    secure = ("--secure-dir", str(directory / DIRECTORY)) if layout.secure else ()
    command = (*broker_command(home), *secure)
    port = layout.broker_port(broker_id)
    return Member(f"broker {broker_id}", home, command, port, home / "broker.pid", locks_itself=True)


def broker_command(home: Path) -> tuple[str, ...]:
    """Return the command of a broker that has its configuration in `home`, and writes its own logs there."""
    options = ("start", "--config", str(home / PROPERTIES), "--log-dir", str(home))
    return (sys.executable, "-m", "ottla.broker", *options)


def console_member(directory: Path, command: tuple[str, ...] = ()) -> Member:
    """Return the process of the console, which the plan of the cluster does not have."""
    home = directory / "console"
    return Member("console", home, command, 0, home / "console.pid", locks_itself=False)


def console_command(layout: ClusterLayout, directory: Path, listen: str) -> tuple[str, ...]:
    """Return the console's command; that of a secured cluster logs in as its administrator.

    Raises ProfileError where the administrator's profile cannot be written.
    """
    cluster = ("--bootstrap-server", layout.bootstrap_servers)
    if layout.secure:
        setup = SecureSetup(SecureFiles(directory / DIRECTORY), is_new=False)
        cluster = ("--profile", write_profile(setup, layout.bootstrap_servers).name)
    history = console_member(directory).directory / "console.sqlite"
    own = ("--listen", listen, "--history", str(history))
    return (sys.executable, "-m", "ottla.console", *cluster, *own)


def zookeeper_member(layout: ClusterLayout, directory: Path, server_id: int) -> Member:
    """Return a ZooKeeper server's process. Raises NoZooKeeper for Apache's where Java or its jars lack."""
    number = f"-{server_id}" if layout.is_ensemble else ""
    home = directory / f"zookeeper{number}"
    port = layout.zookeeper_port(server_id)
    if layout.zookeeper is ZooKeeperKind.EMBEDDED:
        command = _embedded_command(home, port)
    else:
        command = apache_command(home)
    name = f"ZooKeeper {server_id}" if layout.is_ensemble else "ZooKeeper"
    return Member(name, home, command, port, home / "server.pid", locks_itself=False)


def _embedded_command(home: Path, port: int) -> tuple[str, ...]:
    options = ("start", "--embedded", "--port", str(port), "--data-dir", str(home))
    return (sys.executable, "-m", "ottla.zookeeper", *options)


def apache_command(home: Path) -> tuple[str, ...]:
    """Return the command of Apache's server with `zoo.cfg` in `home`. Raises NoZooKeeper."""
    from ottla.zookeeper.apache_server import MAIN_CLASS, find_installation

    classpath = find_installation().classpath
    java = shutil.which("java") or "java"
    return (java, f"-Xmx{_HEAP}", *_FLAGS, "-cp", classpath, MAIN_CLASS, str(home / "zoo.cfg"))


def zookeeper_config(layout: ClusterLayout, home: Path, server_id: int) -> str:
    """Return the `zoo.cfg` of one of Apache's servers."""
    lines: dict[str, object] = {
        "dataDir": home,
        "clientPort": layout.zookeeper_port(server_id),
        "clientPortAddress": HOST,
        "tickTime": _TICK_MS,
        "initLimit": 10,
        "syncLimit": 5,
        "maxClientCnxns": 0,
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "srvr,ruok,isro,stat,envi",
        "autopurge.purgeInterval": 24,
    }
    if layout.is_ensemble:
        for server_id in layout.zookeeper_ids:
            peers, elections = layout.ensemble_ports(server_id)
            lines[f"server.{server_id}"] = f"{HOST}:{peers}:{elections}"
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def write_files(layout: ClusterLayout, directory: Path) -> None:
    """Write the configurations of all processes."""
    for broker_id in layout.broker_ids:
        home = directory / f"broker-{broker_id}"
        home.mkdir(0o700, parents=True, exist_ok=True)
        properties = encode_properties(layout.broker_settings(broker_id, home))
        write_private(home / PROPERTIES, properties.decode())  # with --secure it has a password
    for server_id in layout.zookeeper_ids:
        home = zookeeper_member(layout, directory, server_id).directory
        home.mkdir(0o700, parents=True, exist_ok=True)
        if layout.zookeeper is ZooKeeperKind.APACHE:
            (home / "zoo.cfg").write_text(zookeeper_config(layout, home, server_id))
            (home / "myid").write_text(f"{server_id}\n")


def spawn(member: Member) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, so that Ctrl-C does not reach it."""
    with member.log_file.open("ab") as output, member.pid_file.open("a+") as locked:
        kept: tuple[int, ...] = ()
        if not member.locks_itself:
            # The process inherits the locked file, and with it holds the lock as long as it lives.
            fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
            kept = (locked.fileno(),)
        process = subprocess.Popen(
            member.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True, pass_fds=kept,
        )  # fmt: skip
        if not member.locks_itself:
            locked.truncate(0)
            locked.write(f"{process.pid}\n")
    return process


def running_pid(member: Member) -> int | None:
    """Return the id of a member's process, None when it does not run."""
    try:
        with member.pid_file.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return int(file.read())
    except (OSError, ValueError):
        return None
    return None


def stop(members: Iterable[Member], timeout_s: float) -> list[Member]:
    """End processes with SIGTERM, all at once; return those that had to be killed after `timeout_s`."""
    waiting = {member: pid for member in members if (pid := running_pid(member)) is not None}
    for pid in waiting.values():
        _signal(pid, signal.SIGTERM)
        _signal(pid, signal.SIGCONT)
    deadline_s = time.monotonic() + timeout_s
    while waiting and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
        waiting = {member: pid for member, pid in waiting.items() if running_pid(member) == pid}
    for pid in waiting.values():
        _signal(pid, signal.SIGKILL)
    return list(waiting)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def orphans_of(directory: Path) -> dict[int, str]:
    """Return the ids of processes that were started for a cluster in `directory`, with their names.

    Empty where the system does not tell of processes in /proc.
    """
    found = {}
    for process in _PROCESSES.glob("[0-9]*"):
        if name := _name_in(directory, _command_of(int(process.name))):
            found[int(process.name)] = name
    return dict(sorted(found.items(), key=lambda found: found[1]))


def _name_in(directory: Path, command: list[str]) -> str | None:
    if not any(part.startswith(_PROGRAMS) for part in command):
        return None
    homes = [
        Path(part) for part in command if Path(part).is_relative_to(directory) and Path(part) != directory
    ]
    return homes[0].relative_to(directory).parts[0] if homes else None


def _command_of(pid: int) -> list[str]:
    with suppress(OSError):
        return (_PROCESSES / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    return []


def end(pids: Iterable[int], timeout_s: float) -> None:
    """End processes with SIGTERM, and with SIGKILL those that still run after `timeout_s`."""
    running = {pid: _command_of(pid) for pid in pids}
    for pid in running:
        _signal(pid, signal.SIGTERM)
    deadline_s = time.monotonic() + timeout_s
    while running and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
        # Another process may get the id; one that has ended and was not waited for has no command.
        running = {
            pid: command for pid, command in running.items() if command and _command_of(pid) == command
        }
    for pid in running:
        _signal(pid, signal.SIGKILL)
