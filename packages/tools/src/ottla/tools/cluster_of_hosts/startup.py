"""Start and stop a cluster over hosts: ssh runs `on_host` on each, at once on all of them."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ottla.tools.cluster_of_hosts.plan import Host, HostsPlan

COMMAND_BOUND_S: Final = 90.0
_END_BOUND_S: Final = 5.0
_OPTIONS: Final = (
    "BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3",
)  # fmt: skip
_SSH_FAILED: Final = 255

Report = Callable[[str], object]
Running = dict[Host, list[str]]


class HostFailed(RuntimeError):
    """A host could not do what was asked, or could not be reached; the message is one line with its name."""


@dataclass(frozen=True, slots=True)
class Ssh:
    """How hosts are reached: further `-o` options of ssh, and the Python on the hosts that has Ottla."""

    options: tuple[str, ...] = ()
    python: str = "python3"
    bound_s: float = COMMAND_BOUND_S

    async def run(self, plan: HostsPlan, host: Host, *words: str) -> list[str]:
        """Run an action on a host and return the lines that it prints. Raises HostFailed."""
        process = await asyncio.create_subprocess_exec(
            *self.command(host, words), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.timeout(self.bound_s):
                out, err = await process.communicate(plan.encode().encode())
        except TimeoutError:
            raise HostFailed(f"{host.target}: no answer within {self.bound_s:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_END_BOUND_S):
                        await process.wait()
        if process.returncode:
            raise HostFailed(_complaint(host, process.returncode, err.decode(errors="replace")))
        return out.decode(errors="replace").splitlines()

    def command(self, host: Host, words: Iterable[str]) -> list[str]:
        """The command line of ssh."""
        options = [part for option in (*_OPTIONS, *self.options) for part in ("-o", option)]
        port = [] if host.ssh_port is None else ["-p", str(host.ssh_port)]
        there = [self.python, "-m", "ottla.tools.cluster_of_hosts.on_host", str(host.number), *words]
        return ["ssh", *options, *port, "--", host.target, shlex.join(there)]


def _complaint(host: Host, status: int, printed: str) -> str:
    lines = [line.strip() for line in printed.splitlines() if line.strip()] or [f"exit status {status}"]
    if status == _SSH_FAILED:
        return f"{host.target} cannot be reached: {lines[-1].removeprefix('ssh: ')}"
    return f"{host.target}: {lines[-1]}"


async def start(plan: HostsPlan, ssh: Ssh, report: Report) -> None:
    """Start what does not run on any host, ZooKeeper before the brokers.

    Raises HostFailed. Hosts are all asked before anything starts; if one fails later, what was started is
    stopped again, on all hosts.
    """
    report(f"asking {len(plan.hosts)} hosts")
    running = await _on_all(plan, ssh, dict.fromkeys(plan.hosts, ("check",)))
    try:
        await _on_all(plan, ssh, dict.fromkeys(plan.zookeeper_hosts, ("zookeeper",)), report)
        await _on_all(plan, ssh, dict.fromkeys(plan.hosts, ("brokers",)), report)
    except BaseException:
        report("stopping what was started")
        for line in await stop(plan, ssh, report, but=running):
            report(line)
        raise


async def stop(
    plan: HostsPlan, ssh: Ssh, report: Report, but: Mapping[Host, list[str]] | None = None
) -> list[str]:
    """Stop brokers, then ZooKeeper, on all hosts, but no member of `but`; return the hosts' complaints."""
    kept = but or {}
    complaints: list[str] = []
    brokers = {host: [f"broker-{broker_id}" for broker_id in host.broker_ids] for host in plan.hosts}
    for members in (brokers, {host: ["zookeeper"] for host in plan.zookeeper_hosts}):
        actions = {
            host: ("stop", *(name for name in names if name not in kept.get(host, ())))
            for host, names in members.items()
        }
        complaints += await _each(plan, ssh, actions, report)
    return list(dict.fromkeys(complaints))


async def _each(
    plan: HostsPlan, ssh: Ssh, actions: Mapping[Host, tuple[str, ...]], report: Report
) -> list[str]:
    """Run all actions, also after one that fails; return the complaints."""
    complaints: list[str] = []

    async def one(host: Host, words: tuple[str, ...]) -> None:
        try:
            for line in await ssh.run(plan, host, *words):
                report(f"{host.target}: {line}")
        except HostFailed as error:
            complaints.append(str(error))

    async with asyncio.TaskGroup() as tasks:
        for host, words in actions.items():
            tasks.create_task(one(host, words))
    return complaints


async def _on_all(
    plan: HostsPlan, ssh: Ssh, actions: Mapping[Host, tuple[str, ...]], report: Report | None = None
) -> Running:
    """Run actions at once; return what each host printed. Raises HostFailed for the first that fails."""
    found: Running = {}

    async def one(host: Host, words: tuple[str, ...]) -> None:
        found[host] = await ssh.run(plan, host, *words)
        for line in found[host] if report else ():
            assert report is not None
            report(f"{host.target}: {line}")

    try:
        async with asyncio.TaskGroup() as tasks:
            for host, words in actions.items():
                tasks.create_task(one(host, words))
    except* HostFailed as errors:
        failed = errors.exceptions[0]
        raise HostFailed(str(failed)) from None
    return found
