"""`ottla cluster start` and `ottla cluster stop`: a cluster of processes on this machine, or on hosts."""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from ottla.tools.local_cluster.layout import ClusterLayout
    from ottla.tools.local_cluster.startup import Processes


_START_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.1
_ORPHANS_TIMEOUT_S: Final = 10.0


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


@click.command()
@click.option("--brokers", type=click.IntRange(1, 100), help="How many brokers.  [default: 3]")
@click.option(
    "--data-dir", type=click.Path(path_type=Path), required=True,
    help="Directory of the cluster: a folder for each process, with its data and its output.",
)  # fmt: skip
@click.option(
    "--base-port", type=click.IntRange(1, 65_535),
    help="Port of the first broker; the other processes have the next ones.  [default: 9092]",
)  # fmt: skip
@click.option(
    "--zookeeper", "kind", type=click.Choice(["apache", "embedded"]),
    help="Apache's ZooKeeper, which needs Java, or Ottla's own server.  [default: apache]",
)  # fmt: skip
@click.option(
    "--zookeeper-servers", type=click.IntRange(1, 7),
    help="How many servers of Apache's ZooKeeper; of three one may fail.  [default: 3]",
)  # fmt: skip
@click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True,
    help="Set a configuration key of all brokers. Repeatable; kept for later starts.",
)  # fmt: skip
@click.option(
    "--secure", is_flag=True,
    help="Encrypt and authenticate: make certificates and an administrator in the directory, once. "
    "ZooKeeper is Ottla's own server, which asks for a secret.",
)  # fmt: skip
@click.option(
    "--console", metavar="[HOST:PORT]", is_flag=False, flag_value="127.0.0.1:8180",
    help="Serve the web console too, at 127.0.0.1:8180 unless another address is given.",
)  # fmt: skip
@click.option("--detach", is_flag=True, help="Return once the cluster is ready, and leave it running.")
@hosts_options
def start(
    brokers: int | None,
    data_dir: Path,
    base_port: int | None,
    kind: str | None,
    zookeeper_servers: int | None,
    settings: tuple[str, ...],
    secure: bool,
    console: str | None,
    detach: bool,
    hosts: HostsOptions | None,
) -> None:
    """Start a cluster on this machine.

    Of a cluster that is in the directory already, what does not run is started.

    The jars of Apache's ZooKeeper are looked for in ZOOKEEPER_HOME, Debian's package, Maven's cache and
    pyspark, in this order. Ottla's own server is one process for all brokers and needs no Java. New topics
    have up to three replicas. A directory remembers its cluster: later starts need only --data-dir.

    With --hosts the processes run on the hosts of a file, one on each line, [user@]host[:ssh port]
    [brokers=N] [address=A], and are left running. Each broker's rack is its host. The first three hosts have
    a server of Apache's ZooKeeper. Later starts need the same options; hosts may be appended to the file.

    \b
    Examples:
      ottla cluster start --data-dir ./cluster
      ottla cluster start --data-dir ./cluster --brokers 5 --base-port 19092 --detach
      ottla cluster start --data-dir ./cluster --zookeeper embedded --set num.partitions=6
      ottla cluster start --data-dir ./cluster --secure
      ottla cluster start --data-dir ./cluster --console
      ottla cluster start --hosts hosts.txt --data-dir /var/lib/ottla --python /opt/ottla/bin/python
    """
    if hosts is not None:
        if brokers or kind or zookeeper_servers or secure or console:
            raise click.UsageError(_SECURE_HOSTS if secure else _TOO_MUCH_FOR_HOSTS)
        with _one_line_errors():
            start_on_hosts(hosts, data_dir, base_port or 9092, _settings(settings))
        return
    with _one_line_errors():
        layout = _planned(data_dir, brokers, base_port, kind, zookeeper_servers, settings, secure=secure)
        asyncio.run(_run(layout, data_dir.absolute(), console, detach=detach))


_TOO_MUCH_FOR_HOSTS = "--hosts names the brokers, and has Apache's ZooKeeper: leave the others out"
_SECURE_HOSTS = "--secure is for a cluster on this machine: its coordinator is reached from here alone"


def _planned(
    data_dir: Path,
    brokers: int | None,
    base_port: int | None,
    kind: str | None,
    zookeeper_servers: int | None,
    settings: tuple[str, ...],
    *,
    secure: bool,
) -> ClusterLayout:
    """Return the plan of the cluster in a directory, as the options ask for it. Raises UsageError."""
    from ottla.tools.local_cluster import startup

    known = startup.check_directory(data_dir)
    kind = _kind(kind, known, secure=secure)
    layout = _layout(known, data_dir, brokers, base_port, kind, zookeeper_servers)
    return replace(
        layout,
        settings={**layout.settings, **_settings(settings)},
        secure=secure if known is None else known.secure,
    )


def _kind(kind: str | None, known: ClusterLayout | None, *, secure: bool) -> str | None:
    """Return the kind of ZooKeeper that the options ask for: a secure cluster has one with a secret."""
    if not secure:
        return kind
    if kind == "apache":
        raise click.UsageError("--secure needs --zookeeper embedded: Apache's would ask nobody for a login")
    if known is not None and not known.secure:
        raise click.UsageError("the cluster in this directory was made without --secure: choose another one")
    return "embedded"


def _layout(
    known: ClusterLayout | None,
    data_dir: Path,
    brokers: int | None,
    base_port: int | None,
    kind: str | None,
    zookeeper_servers: int | None,
) -> ClusterLayout:
    """Return the plan that the options ask for; what the directory holds cannot be changed."""
    from ottla.tools.local_cluster.layout import ClusterLayout, ZooKeeperKind

    zookeeper = None if kind is None else ZooKeeperKind(kind)
    if zookeeper is ZooKeeperKind.EMBEDDED and (zookeeper_servers or 1) > 1:
        raise click.UsageError("--zookeeper embedded is one server: leave out --zookeeper-servers")
    if known is None:
        return ClusterLayout(
            brokers=brokers or 3,
            base_port=base_port or 9092,
            zookeeper=zookeeper or ZooKeeperKind.APACHE,
            zookeeper_servers=zookeeper_servers or (1 if zookeeper is ZooKeeperKind.EMBEDDED else 3),
        )
    for option, given, is_now in (
        ("--brokers", brokers, known.brokers),
        ("--base-port", base_port, known.base_port),
        ("--zookeeper", kind, known.zookeeper.value),
        ("--zookeeper-servers", zookeeper_servers, known.zookeeper_servers),
    ):
        if given not in (None, is_now):
            raise click.UsageError(
                f"{data_dir} holds a cluster with {option} {is_now}: leave the option out, "
                "or choose another --data-dir"
            )
    return known


def _settings(given: tuple[str, ...]) -> dict[str, str]:
    from ottla.broker.config import ALIASES, BrokerConfig, ConfigError, is_known, keys_of, nearest_key
    from ottla.client.commands import key_values
    from ottla.tools.local_cluster.layout import OWN_KEYS

    settings = key_values(given)
    known = keys_of(BrokerConfig)
    for key, text in settings.items():
        if key in OWN_KEYS:
            raise click.UsageError(f"--set {key} would be the same for all brokers: the cluster sets it")
        if not is_known(key):
            near = nearest_key(key)
            advice = f"; did you mean {near}?" if near else ""
            raise click.UsageError(f"{key} is not a broker configuration{advice}")
        if setting := known.get(ALIASES.get(key, key)):
            try:
                setting.parse(text)  # a broker would refuse it once it is remembered, at every later start
            except ConfigError as error:
                raise click.UsageError(str(error)) from None
    return settings


async def _run(layout: ClusterLayout, directory: Path, console: str | None, *, detach: bool) -> None:
    from ottla.tools.local_cluster import startup

    if console is not None:
        startup.check_console()
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    is_new = not (directory / "secure").exists()
    started = await _start(layout, directory, stopping)
    if started is None:
        return
    if layout.secure:
        click.echo(_introduced(layout, directory, is_new=is_new), nl=False)
    if console is not None:
        started |= await asyncio.to_thread(startup.start_console, layout, directory, console)
        click.echo(f"the console starts at http://{console}/; its output is in {directory / 'console'}")
    took = f"the cluster of {layout.brokers} is ready"
    if detach:
        click.echo(
            f"{took} at {layout.bootstrap_servers}; `ottla cluster stop --data-dir {directory}` ends it"
        )
        return
    click.echo(f"{took} at {layout.bootstrap_servers}; Ctrl-C ends it")
    await _until_ended(started, stopping)
    click.echo("stopping")
    members = startup.with_console(startup.members_of(layout, directory), directory)
    await asyncio.to_thread(startup.stop_all, members, click.echo)


def _introduced(layout: ClusterLayout, directory: Path, *, is_new: bool) -> str:
    from ottla.broker.server.secure_setup import SecureFiles, SecureSetup

    setup = SecureSetup(SecureFiles(directory / "secure"), is_new)
    return setup.introduce(layout.bootstrap_servers)


async def _start(layout: ClusterLayout, directory: Path, stopping: asyncio.Event) -> Processes | None:
    """Start the cluster; None when a signal ended that."""
    from ottla.tools.local_cluster import startup

    async with asyncio.TaskGroup() as tasks:
        starting = tasks.create_task(startup.start(layout, directory, click.echo, _START_TIMEOUT_S))
        stopped = tasks.create_task(stopping.wait())
        await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
        for task in (starting, stopped):
            task.cancel()  # without effect on the one that is done
    if starting.cancelled():
        click.echo("stopped before it was ready")
        return None
    return starting.result()


async def _until_ended(started: Processes, stopping: asyncio.Event) -> None:
    """Wait for a signal or the end of all processes, and say which have ended by themselves."""
    running = dict(started)
    while running and not stopping.is_set():
        for member, process in list(running.items()):
            if (status := process.poll()) is not None:
                del running[member]
                ended = f"exit status {status}" if status >= 0 else signal.Signals(-status).name
                click.echo(f"{member.name} has ended ({ended}); the same command starts it again")
        try:
            async with asyncio.timeout(_POLL_S):
                await stopping.wait()
        except TimeoutError:
            continue


@click.command()
@click.option(
    "--data-dir", type=click.Path(path_type=Path), required=True,
    help="The directory that the cluster was started with.",
)  # fmt: skip
@hosts_options
def stop(data_dir: Path, hosts: HostsOptions | None) -> None:
    """Stop all processes of the cluster in a directory.

    The brokers are stopped first and cleanly, then ZooKeeper.

    \b
    Example:
      ottla cluster stop --data-dir ./cluster
      ottla cluster stop --hosts hosts.txt --data-dir /var/lib/ottla --python /opt/ottla/bin/python
    """
    from ottla.tools.local_cluster.layout import read_layout
    from ottla.tools.local_cluster.members import running_pid
    from ottla.tools.local_cluster.startup import members_of, stop_all, with_console

    if hosts is not None:
        with _one_line_errors():
            stop_on_hosts(hosts, data_dir)
        return
    with _one_line_errors():
        layout = read_layout(data_dir.absolute())
        if layout is None:
            _stop_orphans(data_dir)
            return
        members = with_console(members_of(layout, data_dir.absolute()), data_dir.absolute())
        running = [member for member in members if running_pid(member) is not None]
        if not running:
            raise click.ClickException(f"the cluster in {data_dir} does not run")
        stop_all(running, click.echo)
        click.echo(f"stopped {', '.join(member.name for member in running)}")


def _stop_orphans(data_dir: Path) -> None:
    """End the processes of a cluster whose directory is gone; nothing is left to be closed cleanly."""
    from ottla.tools.local_cluster.members import end, orphans_of

    found = orphans_of(data_dir.absolute())
    if not found:
        raise click.ClickException(f"{data_dir} holds no cluster: name its directory with --data-dir")
    end(found, _ORPHANS_TIMEOUT_S)
    click.echo(f"stopped {', '.join(found.values())}, whose directory was deleted")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Print errors that the user can correct in one line."""
    from ottla.tools.cluster_of_hosts.plan import MalformedHosts
    from ottla.tools.cluster_of_hosts.startup import HostFailed
    from ottla.tools.local_cluster.layout import MalformedLayout
    from ottla.tools.local_cluster.startup import ClusterFailed, ClusterRefused

    try:
        yield
    except Exception as error:
        cause: BaseException = error
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        ours = (ClusterRefused, ClusterFailed, HostFailed, MalformedHosts, MalformedLayout, OSError)
        if not isinstance(cause, ours):
            raise
        raise click.ClickException(_words(cause)) from None


def _words(error: BaseException) -> str:
    """Return an error in one line; one of a file names the file first."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


@dataclass(frozen=True, slots=True)
class HostsOptions:
    """The file of hosts, and how they are reached."""

    file: Path
    zookeeper_port: int
    python: str
    ssh_options: tuple[str, ...]


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
