"""`ottla zookeeper`: run a ZooKeeper server, list and print znodes."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Coroutine, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click

from ottla.zookeeper.acl_migration import (
    Identities,
    Plan,
    check_lock_out,
    described,
    migrate,
    own_identities,
    plan,
)
from ottla.zookeeper.apache_server import RealZooKeeper, find_installation
from ottla.zookeeper.client_security import (
    NO_SECURITY,
    SecuritySettingError,
    client_security_from,
    settings_in,
)
from ottla.zookeeper.embedded import EmbeddedCoordinator, Fsync
from ottla.zookeeper.embedded.access import (
    SECRET_FILE,
    Access,
    access_to,
    read_or_make_secret,
    write_address,
)
from ottla.zookeeper.errors import NoAuth, ZooKeeperError
from ottla.zookeeper.kazoo_session import KazooSession

EMBEDDED_DIR = Path("data/zookeeper-embedded")
REAL_DIR = Path("data/zookeeper")
_CONNECTION_TIMEOUT_MS = 10_000


_USUAL = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class _FactsFormatter(logging.Formatter):
    """Appends the facts of a line to its event, as `name=value`. (That of ottla-client is out of reach.)"""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class' name
        facts = (f"{name}={value}" for name, value in vars(record).items() if name not in _USUAL)
        return " ".join([super().formatMessage(record), *facts])


class ExtensibleGroup(click.Group):
    """The commands of this module, and those that installed packages bring as entry points of a group.

    `packages` has the package of each command that may be missing, for the error. (The same class in
    ottla-client is out of reach: this package stands alone.)
    """

    def __init__(
        self, *args: Any, entry_point_group: str, packages: Mapping[str, str], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.entry_point_group = entry_point_group
        self.packages = packages

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        added = (entry.name for entry in entry_points(group=self.entry_point_group))
        return sorted({*super().list_commands(ctx), *added})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported when it is needed."""
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        if entries := entry_points(group=self.entry_point_group, name=cmd_name):
            added = next(iter(entries)).load()
            return added if isinstance(added, click.Command) else None
        if (package := self.packages.get(cmd_name)) is not None:
            raise click.UsageError(
                f"No such command {cmd_name!r}: python -m pip install {package} brings it.", ctx
            )
        return None


@click.group(
    cls=ExtensibleGroup,
    entry_point_group="ottla.zookeeper.commands",
    packages={
        "export-offsets": "ottla-consumer",
        "import-offsets": "ottla-consumer",
        "rebuild": "ottla-tools",
    },
)
def zookeeper() -> None:
    """Run a ZooKeeper server on one machine; list and print znodes of any server."""


_settings_option = click.option(
    "--command-config",
    "properties",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A properties file with keys for ZooKeeper's credentials and TLS, such as a broker's.",
)


@zookeeper.command(
    epilog="""\b
Examples:
  ottla zookeeper start
  ottla zookeeper start --embedded --port 2181 --data-dir /var/lib/ottla/zookeeper
  ottla zookeeper start --embedded --in-memory
"""
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=2181,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 chooses a free one.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Data directory.  [default: {REAL_DIR}, or {EMBEDDED_DIR}]",
)
@click.option(
    "--embedded", is_flag=True, help="Run Ottla's own server in this process: no Java, one machine only."
)
@click.option(
    "--in-memory", is_flag=True, help="With --embedded: keep all data in memory, and ask for no secret."
)
@click.option(
    "--no-secret",
    is_flag=True,
    help="With --embedded: serve every user of this machine, without the secret in the data directory.",
)
@click.option(
    "--fsync",
    type=click.Choice([policy.value for policy in Fsync]),
    default=Fsync.ALWAYS.value,
    show_default=True,
    help="With --embedded: when to sync writes to disk.",
)
@click.option("--heap", default="512m", show_default=True, help="Heap of the Java server.")
def start(
    host: str,
    port: int,
    data_dir: Path | None,
    embedded: bool,
    in_memory: bool,
    no_secret: bool,
    fsync: str,
    heap: str,
) -> None:
    """Run a ZooKeeper server until Ctrl-C.

    The embedded one serves those that can read the secret in its data directory: brokers with
    zookeeper.connect=DATA_DIR, and Apache's tools with -Djava.security.auth.login.config=DATA_DIR/jaas.conf.

    Without --embedded it runs Apache's server, which needs Java. It looks for the jars in ZOOKEEPER_HOME,
    Debian's package, Maven's cache and pyspark, in this order.
    """
    for option, is_given in (("--in-memory", in_memory), ("--no-secret", no_secret)):
        if is_given and not embedded:
            raise click.UsageError(f"{option} needs --embedded")
    handler = logging.StreamHandler()
    handler.setFormatter(_FactsFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    if embedded:
        directory = None if in_memory else data_dir or EMBEDDED_DIR
        _run(_serve_embedded(directory, host, port, Fsync(fsync), asks=not no_secret))
    else:
        output = sys.stderr.buffer
        _run(_serve_real(RealZooKeeper(data_dir or REAL_DIR, port, host=host, heap=heap, output=output)))


@zookeeper.command(
    epilog="""\b
Examples:
  ottla zookeeper ls localhost:2181 /brokers/ids
  ottla zookeeper ls ./data /brokers/topics
"""
)
@click.argument("connect")
@click.argument("path", default="/")
@_settings_option
def ls(connect: str, path: str, properties: Path | None) -> None:
    """List the children of PATH at the ZooKeeper CONNECT.

    CONNECT is host:port[,host:port...][/chroot], or the data directory of a broker with its own coordinator.
    """

    async def show() -> None:
        async with _session_with(connect, properties) as session:
            for name in await session.children(path):
                click.echo(name)

    _run(show())


@zookeeper.command(epilog="\b\nExample:\n  ottla zookeeper get localhost:2181 /controller")
@click.argument("connect")
@click.argument("path")
@click.option("--stat", is_flag=True, help="Also print version and times, on standard error.")
@_settings_option
def get(connect: str, path: str, stat: bool, properties: Path | None) -> None:
    """Print the data of PATH at the ZooKeeper CONNECT.

    CONNECT is host:port[,host:port...][/chroot], or the data directory of a broker with its own coordinator.
    """

    async def show() -> None:
        async with _session_with(connect, properties) as session:
            data, facts = await session.get(path)
            click.echo(data)
            if stat:
                for name, value in facts._asdict().items():
                    click.echo(f"{name} = {value}", err=True)

    _run(show())


_apply_option = click.option("--apply", is_flag=True, help="Change the ACLs. Without it they are only shown.")
_list_option = click.option(
    "--list", "names_all", is_flag=True, help="Show each znode that would be changed."
)


@zookeeper.command(
    epilog="""\b
Examples:
  ottla zookeeper secure zk1:2181/kafka --command-config server.properties
  ottla zookeeper secure zk1:2181/kafka --command-config server.properties --apply
"""
)
@click.argument("connect")
@_settings_option
@_list_option
@_apply_option
def secure(connect: str, properties: Path | None, names_all: bool, apply: bool) -> None:
    """Close the znodes of a cluster to all but its brokers.

    Without --apply it shows what that would change.

    Only the identity of this command may write then, which must be that of the brokers; all may read, but for
    the znodes with secrets (/config/users, /config/brokers, /delegation_token/tokens). /consumers stays open.
    It refuses while a live broker has other credentials, or none. Brokers need zookeeper.set.acl=true, so
    that new znodes are closed, too.
    """
    _run(_migrate(connect, properties, close=True, names_all=names_all, apply=apply))


@zookeeper.command(
    "open",
    epilog="""\b
Examples:
  ottla zookeeper open zk1:2181/kafka --command-config server.properties --apply
""",
)
@click.argument("connect")
@_settings_option
@_list_option
@_apply_option
def open_znodes(connect: str, properties: Path | None, names_all: bool, apply: bool) -> None:
    """Open the znodes of a cluster to everybody again.

    Without --apply it shows what that would change.

    Restart the brokers with zookeeper.set.acl=false before, or what they create is closed again.
    """
    _run(_migrate(connect, properties, close=False, names_all=names_all, apply=apply))


async def _migrate(
    connect: str, properties: Path | None, *, close: bool, names_all: bool, apply: bool
) -> None:
    async with _session_with(connect, properties) as session:
        own = await own_identities(session)
        if close and not own:
            raise SecuritySettingError(
                "--command-config",
                "ZooKeeper knows no identity of this command: give it the brokers' credentials",
            )
        is_embedded = _is_directory(connect)
        if close and not is_embedded:
            await check_lock_out(session, own)
        await _show(await plan(session, own, close=close), own, close=close, names_all=names_all)
        if apply:
            changed = await migrate(session, own, close=close, checks_brokers=not is_embedded)
            click.echo(f"Changed the ACLs of {changed} znodes.")
        else:
            click.echo("Nothing was changed: --apply does it.")


async def _show(found: Plan, own: Identities, *, close: bool, names_all: bool) -> None:
    for change in found.changes if names_all else ():
        click.echo(change.path)
    what = f"closed to all but {described(own)}" if close else "opened to everybody"
    roots = ", ".join(f"{root} {count}" for root, count in sorted(found.by_root().items()))
    click.echo(
        f"{len(found.changes)} znodes to be {what}{f' ({roots})' if roots else ''}; {found.unchanged} are so."
    )
    if close and found.sensitive:
        click.echo(f"{found.sensitive} of them may hold secrets, and others can no longer read them.")


def _is_directory(connect: str) -> bool:
    return Path(connect).is_dir()


def _session_with(connect: str, properties: Path | None = None) -> KazooSession:
    """Return a session; the coordinator of a data directory is asked with the secret in it."""
    access = access_to(Path(connect)) if _is_directory(connect) else Access(connect, ())
    return KazooSession(
        access.connect_string,
        credentials=access.credentials,
        security=NO_SECURITY if properties is None else client_security_from(settings_in(properties)),
        connection_timeout_ms=_CONNECTION_TIMEOUT_MS,
    )


async def _serve_embedded(directory: Path | None, host: str, port: int, fsync: Fsync, *, asks: bool) -> None:
    secret = read_or_make_secret(directory) if directory is not None and asks else None
    async with EmbeddedCoordinator(directory, host, port, fsync=fsync, secret=secret) as coordinator:
        where = f"data in {directory}" if directory else "in memory"
        click.echo(f"ZooKeeper (embedded) at {coordinator.connect_string}, {where}; Ctrl-C ends it")
        if directory is not None and secret is not None:
            write_address(directory, coordinator.connect_string)
            click.echo(f"It asks for the secret in {directory / SECRET_FILE}: zookeeper.connect={directory}")
        else:
            click.echo("It asks for no secret: every user of this machine can change all of it", err=True)
        await _until_signalled(coordinator.serve_forever())


async def _serve_real(server: RealZooKeeper) -> None:
    click.echo(f"starting ZooKeeper from {find_installation().source}")
    async with server:
        click.echo(f"ZooKeeper at {server.connect_string}; Ctrl-C ends it")
        await _until_signalled(server.wait())


async def _until_signalled(serving: Coroutine[None, None, object]) -> None:
    """Serve until SIGINT or SIGTERM; raises the error that ends the server before."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        async with asyncio.TaskGroup() as tasks:
            stopped = tasks.create_task(stop.wait())
            served = tasks.create_task(serving)
            await asyncio.wait([stopped, served], return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            served.cancel()
    except* OSError as group:
        raise click.ClickException(str(group.exceptions[0])) from group
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _run(main: Coroutine[None, None, None]) -> None:
    try:
        asyncio.run(main)
    except NoAuth as error:
        raise click.ClickException(
            f"{error}: the server asks for a secret; give its data directory instead of an address"
        ) from error
    except (ZooKeeperError, OSError) as error:
        raise click.ClickException(str(error)) from error
