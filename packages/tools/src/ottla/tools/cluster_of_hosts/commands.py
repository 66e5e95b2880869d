"""`ottla cluster start` and `stop` with --hosts."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class HostsOptions:
    """The file of hosts, and how they are reached."""

    file: Path
    zookeeper_port: int
    python: str
    ssh_options: tuple[str, ...]


def hosts_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of hosts to a command, which gets them as `hosts`, None without --hosts."""

    @click.option(
        "--hosts", "file", type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="File of the hosts whose processes ssh starts or stops; --data-dir is the same on all.",
    )  # fmt: skip
    @click.option(
        "--zookeeper-port", type=click.IntRange(1, 65_533), default=2181, show_default=True,
        help="With --hosts: port of ZooKeeper; its servers use the next two among each other.",
    )  # fmt: skip
    @click.option(
        "--python", default="python3", show_default=True,
        help="With --hosts: the Python on the hosts that has Ottla installed.",
    )  # fmt: skip
    @click.option(
        "--ssh-option", "ssh_options", metavar="OPTION", multiple=True,
        help="With --hosts: what ssh gets with -o, for example IdentityFile=KEY. Repeatable.",
    )  # fmt: skip
    @functools.wraps(command)
    def with_hosts(
        *, file: Path | None, zookeeper_port: int, python: str, ssh_options: tuple[str, ...], **others: Any
    ) -> None:
        hosts = None if file is None else HostsOptions(file, zookeeper_port, python, ssh_options)
        command(**others, hosts=hosts)

    return with_hosts


def start_on_hosts(
    options: HostsOptions, data_dir: Path, base_port: int, settings: Mapping[str, str]
) -> None:
    """Start the cluster. Raises HostFailed, after which nothing runs that was started here."""
    from ottla.tools.cluster_of_hosts.plan import OWN_KEYS, HostsPlan, parse_hosts
    from ottla.tools.cluster_of_hosts.startup import Ssh, start

    if own := next((key for key in settings if key in OWN_KEYS), None):
        raise click.UsageError(f"--set {own} would be the same for all brokers: the cluster sets it")
    plan = HostsPlan(
        hosts=parse_hosts(options.file.read_text()), directory=_directory(data_dir), base_port=base_port,
        zookeeper_port=options.zookeeper_port, settings=settings,
    )  # fmt: skip
    asyncio.run(start(plan, Ssh(options.ssh_options, options.python), click.echo))
    click.echo(f"the cluster of {len(plan.broker_ids)} is ready at {plan.bootstrap_servers}")


def stop_on_hosts(options: HostsOptions, data_dir: Path) -> None:
    """Stop what runs of the cluster. Raises HostFailed, once the other hosts are done."""
    from ottla.tools.cluster_of_hosts.plan import HostsPlan, parse_hosts
    from ottla.tools.cluster_of_hosts.startup import HostFailed, Ssh, stop

    plan = HostsPlan(
        hosts=parse_hosts(options.file.read_text()), directory=_directory(data_dir),
        zookeeper_port=options.zookeeper_port,
    )  # fmt: skip
    if complaints := asyncio.run(stop(plan, Ssh(options.ssh_options, options.python), click.echo)):
        raise HostFailed("; ".join(complaints))


def _directory(data_dir: Path) -> str:
    if not data_dir.is_absolute():
        raise click.UsageError(f"--data-dir {data_dir} is a directory of the hosts: write its whole path")
    return str(data_dir)
