"""Hosts of a cluster that ssh reaches: network namespaces with an sshd each, and two versions of Ottla."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from cluster_network import Host, Namespaces

from ottla.zookeeper.apache_server import find_installation

ROOT: Final = Path(__file__).resolve().parents[2]
FIRST: Final = "0.1"
SECOND: Final = "0.2"
"""The folders in /opt/ottla of the earlier version and of this tree, whatever the versions are called."""
COMMAND_BOUND_S: Final = 400.0
ENDED_BOUND_S: Final = 180.0


class Machines:
    """Hosts with sshd, and the operator's machine; `folder` has what each has of its own."""

    def __init__(self, folder: Path, earlier: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.version = FIRST
        """The version of the commands that the operator gives."""
        self.network = stack.enter_context(Namespaces())
        self.operator = self.network.host("operator")
        self.hosts = {f"kafka{number}.example": self.network.host(f"kafka{number}") for number in range(1, 5)}
        self._stack = stack
        names = "".join(f"{each.address} {name}\n" for name, each in self.hosts.items())
        (folder / "etc-hosts").write_text(f"127.0.0.1 localhost\n{names}")
        for name in ("host", "client"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(command, check=True, timeout=60)
        self._install(earlier)
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for host in self.hosts.values():
            self._serve(host)

    def _install(self, earlier: Path) -> None:
        """Install both versions at /opt/ottla: the earlier Python, and this one with this tree."""
        self._find_zookeeper()
        path = os.pathsep.join(each for each in sys.path if each)
        pythons = (
            (FIRST, earlier, "unset PYTHONPATH"),
            (SECOND, sys.executable, f"export PYTHONPATH={shlex.quote(path)}"),
        )
        for version, python, paths in pythons:
            start = f"#!/bin/sh\n{self._exports()}\n{paths}\nexec {shlex.quote(str(python))}"
            program = shlex.quote("from ottla.client.cli import main; main()")
            bin_folder = self.folder / "opt" / version / "bin"
            bin_folder.mkdir(parents=True)
            for name, text in (("python", f'{start} "$@"\n'), ("ottla", f'{start} -c {program} "$@"\n')):
                (bin_folder / name).write_text(text)
                (bin_folder / name).chmod(0o755)

    def _exports(self) -> str:
        return f'export ZOOKEEPER_HOME={self.folder}/zookeeper PATH="$PATH":{shlex.quote(os.environ["PATH"])}'

    def _find_zookeeper(self) -> None:
        """Make both versions find the jars that this Python finds, which may be those of its pyspark."""
        jars = self.folder / "zookeeper/lib"
        jars.mkdir(parents=True)
        for each in map(Path, find_installation().classpath.split(os.pathsep)):
            (jars / each.name).symlink_to(each)

    def _within(self, host: Host, script: str) -> list[str]:
        """Return the command that runs a script on a host, with that host's own files mounted."""
        own = self.folder / host.name
        own.mkdir(exist_ok=True)
        mounts = [
            (own, "/var/lib/ottla"),
            (self.folder / "opt", "/opt/ottla"),
            (self.folder / "etc-hosts", "/etc/hosts"),
        ]
        binds = " && ".join(f"mount --bind {shlex.quote(str(what))} {where}" for what, where in mounts)
        return [*host.prefix, "unshare", "-m", "bash", "-c", f"{binds} && {script}"]

    def _serve(self, host: Host) -> None:
        config = self.folder / f"sshd-{host.name}"
        config.write_text(
            f"Port 22\nListenAddress {host.address}\nHostKey {self.folder / 'host'}\n"
            f"AuthorizedKeysFile {self.folder / 'client.pub'}\nPidFile none\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nPermitRootLogin prohibit-password\n"
        )
        command = self._within(host, f"exec /usr/sbin/sshd -D -e -f {config}")
        with (self.folder / f"sshd-{host.name}.log").open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        self._stack.callback(_end, process)

    @property
    def prefix(self) -> list[str]:
        """The words before a command that runs on the operator's machine."""
        return [*self._within(self.operator, 'exec "$@"'), "bash"]

    def run(self, command: str) -> float:
        """Run a command on the operator's machine, and print both. Raises SystemExit if it fails."""
        options = (
            f"-o IdentityFile={self.folder / 'client'} -o IdentitiesOnly=yes -o StrictHostKeyChecking=no "
            f"-o UserKnownHostsFile={self.folder / 'known'} -o LogLevel=ERROR"
        )
        ssh = self.folder / "ssh" / "ssh"
        if not ssh.exists():  # the operator's ~/.ssh/config
            ssh.parent.mkdir()
            ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh {options} "$@"\n')
            ssh.chmod(0o755)
        path = f'{ssh.parent}:/opt/ottla/{self.version}/bin:"$PATH"'
        script = f"cd {self.folder} && export PATH={path} && set -o pipefail && "
        print(f"$ {command}", flush=True)
        begun_s = time.monotonic()
        done = subprocess.run(
            self._within(self.operator, script + command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=COMMAND_BOUND_S, check=False,
        )  # fmt: skip
        took_s = time.monotonic() - begun_s
        print("".join(f"    {line}\n" for line in done.stdout.splitlines()[-12:]) + f"    [{took_s:.1f} s]")
        if done.returncode:
            raise SystemExit(f"status {done.returncode}: {command}")
        return took_s

    @property
    def servers(self) -> str:
        """The address of the first broker of each host."""
        return ",".join(f"{name}:9092" for name in self.hosts)

    @contextmanager
    def client(self, script: str, *options: str) -> Iterator[None]:
        """Run one of the client scripts while the block runs. Raises SystemExit when it fails."""
        path = str(ROOT / "tests/system" / script)
        process = subprocess.Popen([*self.prefix, sys.executable, path, "--servers", self.servers, *options])
        self._stack.callback(_end, process)
        yield
        process.terminate()
        if process.wait(ENDED_BOUND_S):
            raise SystemExit(f"{script} failed")

    def kill_all(self) -> None:
        """End what still runs on the hosts."""
        for host in (*self.hosts.values(), self.operator):
            space = host.prefix[3]
            found = subprocess.run(
                ["ip", "netns", "pids", space], capture_output=True, text=True, check=False
            )
            for pid in found.stdout.split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), 9)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(30)
