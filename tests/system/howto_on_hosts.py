"""Run the commands of docs/howto/run-a-cluster-on-hosts.md on hosts: network namespaces with an sshd each.

Each host has an address, a name, its own `/var/lib/ottla` and an `/opt/ottla` with this tree; the commands
run on a machine of their own, as they stand on the page, but for the user of ssh. A confluent-kafka producer
writes meanwhile with acks=all; at the end everything that was acknowledged must be read. Needs root.

python tests/system/howto_on_hosts.py
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from chaos_log import read_back
from cluster_checks import acknowledgements, disordered, places_lost
from cluster_network import Host, Namespaces

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs/howto/run-a-cluster-on-hosts.md"
TOPIC: Final = "orders"
PARTITIONS: Final = 6
COMMAND_BOUND_S: Final = 400.0
CONSOLE: Final = re.compile(r"^## (.*?)$|^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands() -> dict[str, list[str]]:
    """The commands of the page by the heading that they stand under."""
    found: dict[str, list[str]] = {}
    heading = ""
    for each in CONSOLE.finditer(PAGE.read_text()):
        if each[1]:
            heading = each[1]
        else:
            lines = (line[2:] for line in each[2].splitlines() if line.startswith("$ "))
            found[heading] = [line.replace("ottla@", "") for line in lines]
    return found


def hosts_file() -> str:
    """The file of hosts on the page."""
    written = re.search(r"^```text\n# hosts.txt\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert written is not None
    return written[1].replace("ottla@", "")


class Machines:
    """Hosts with sshd, and the operator's machine; `folder` has what each has of its own."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.network = stack.enter_context(Namespaces())
        self.operator = self.network.host("operator")
        self.hosts = {f"kafka{number}.example": self.network.host(f"kafka{number}") for number in range(1, 5)}
        self._stack = stack
        names = "".join(f"{each.address} {name}\n" for name, each in self.hosts.items())
        (folder / "etc-hosts").write_text(f"127.0.0.1 localhost\n{names}")
        for name in ("host", "client"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(command, check=True, timeout=60)
        self._install()
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for host in self.hosts.values():
            self._serve(host)

    def _install(self) -> None:
        """Install this tree's packages under this Python at /opt/ottla on every host."""
        bin_folder = self.folder / "opt" / "bin"
        bin_folder.mkdir(parents=True)
        path = os.pathsep.join(each for each in sys.path if each)
        exports = f'export PYTHONPATH={shlex.quote(path)} PATH="$PATH":{shlex.quote(os.environ["PATH"])}'
        start = f"#!/bin/sh\n{exports}\nexec {shlex.quote(sys.executable)}"
        program = shlex.quote("from ottla.client.cli import main; main()")
        for name, text in (("python", f'{start} "$@"\n'), ("ottla", f'{start} -c {program} "$@"\n')):
            (bin_folder / name).write_text(text)
            (bin_folder / name).chmod(0o755)

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
        script = f'cd {self.folder} && export PATH={ssh.parent}:/opt/ottla/bin:"$PATH" && set -o pipefail && '
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

    @contextmanager
    def writing(self, journal: Path) -> Iterator[None]:
        """Write with acks=all while the block runs. Raises SystemExit when something came to the client."""
        servers = ",".join(f"{name}:9092" for name in self.hosts)
        writer = [
            sys.executable, str(ROOT / "tests/system/cluster_writer.py"), "--kind", "confluent",
            "--name", "w", "--servers", servers, "--topic", TOPIC, "--partitions", str(PARTITIONS),
            "--journal", str(journal),
        ]  # fmt: skip
        process = subprocess.Popen([*self.prefix, *writer])
        self._stack.callback(_end, process)
        yield
        process.terminate()
        if process.wait(180):
            raise SystemExit("the writer failed")

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


def follow_the_page(machines: Machines) -> list[str]:
    """Run everything in the page's order; return what is wrong."""
    page = commands()
    (machines.folder / "hosts.txt").write_text(hosts_file())
    for each in page["Run it on three machines"]:
        machines.run(each)
    machines.run(f"ottla topic create {TOPIC} --partitions {PARTITIONS} -b kafka1.example:9092")
    journal = machines.folder / "journal"
    with machines.writing(journal):
        for host, broker in ((1, 101), (1, 102), (2, 201), (2, 202), (3, 301), (3, 302)):
            asked = f"kafka{host % 3 + 1}.example:9092"
            for each in page["Upgrade it"]:
                command = each.replace("broker-101", f"broker-{broker}").replace("kafka2.example:9092", asked)
                machines.run(command.replace("ssh kafka1.", f"ssh kafka{host}."))
        machines.run("ssh kafka2.example 'kill -9 $(cat /var/lib/ottla/broker-201/broker.pid)'")
        for heading in ("Replace a broker", "Expand it"):
            for each in page[heading]:
                machines.run(each)
        machines.run("ottla cluster describe -b kafka1.example:9092")
        machines.run(f"ottla replica lag --topic {TOPIC} -b kafka1.example:9092")
    machines.run(f"ottla replica verify --topic {TOPIC} -b kafka1.example:9092")
    writer = acknowledgements("w", journal)
    log = read_back("kafka1.example:9092", TOPIC, PARTITIONS, machines.prefix)
    for each in page["Stop it"]:
        machines.run(each)
    gone = places_lost(log, writer)
    print(f"{len(writer.places):,} records acknowledged, {len(gone)} lost")
    lost = [f"{len(gone)} records lost"] if gone else []
    unfinished = [] if writer.ended else ["records stayed without acknowledgement"]
    return [*writer.wrong, *lost, *unfinished, *disordered(log, "w")]


def main() -> int:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    with tempfile.TemporaryDirectory(prefix="ottla-hosts-") as made, ExitStack() as stack:
        for folder in map(Path, ("/var/lib/ottla", "/opt/ottla")):  # something to mount on
            if not folder.exists():
                folder.mkdir()
                stack.callback(folder.rmdir)
        machines = Machines(Path(made), stack)
        stack.callback(machines.kill_all)
        wrong = follow_the_page(machines)
    for line in wrong:
        print(f"WRONG {line}")
    print("ok" if not wrong else f"{len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
