"""Shared parts of the commands: options, groups, running a coroutine, one-line errors, tables and JSON."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ottla.client.moved_modules import MovedModules

if TYPE_CHECKING:
    from ottla.client.config import ClientConfig
    from ottla.client.profiles import Profile, SecretSource

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
BOOTSTRAP_TIMEOUT_MS = 3_000
_PROFILE: Final = f"{__name__}.profile"
"""The key of the chosen profile among the facts that the contexts of a command share."""
_PROPERTIES: Final = f"{__name__}.properties"
"""The key of the properties file of a command."""
OVERRIDES: Final = f"{__name__}.overrides"
"""The key of the settings of a command's options -X."""
_GIVEN_BY_USER: Final = click.core.ParameterSource.COMMANDLINE


def _choose_profile(ctx: click.Context, parameter: click.Parameter, name: str | None) -> None:
    if name is None or ctx.resilient_parsing:
        return
    from ottla.client.profiles import ProfileError, read_profile

    try:
        profile = read_profile(name)
    except ProfileError as error:
        raise click.UsageError(str(error), ctx) from None
    ctx.meta[_PROFILE] = profile, ctx.get_parameter_source(parameter.name or "") == _GIVEN_BY_USER


def chosen_profile(ctx: click.Context | None = None) -> tuple[Profile | None, bool]:
    """Return the profile of a command, the running one by default, and whether the command line names it."""
    context = ctx or click.get_current_context(silent=True)
    found: tuple[Profile | None, bool] = (
        (None, False) if context is None else context.meta.get(_PROFILE, (None, False))
    )
    return found


def servers_of_profile(ctx: click.Context, parameter: click.Parameter, given: str | None) -> str | None:
    """Return the brokers of the properties file or the profile, unless the user names others.

    The command line wins over the environment, and that over defaults.
    """
    source = ctx.get_parameter_source(parameter.name or "")
    if source == _GIVEN_BY_USER or ctx.resilient_parsing:
        return given
    if (named := _servers_of(ctx.meta.get(OVERRIDES, {}))) is not None:
        return named
    properties: str | None = ctx.meta.get(_PROPERTIES)
    profile, by_user = chosen_profile(ctx)
    weaker = click.core.ParameterSource.DEFAULT, click.core.ParameterSource.DEFAULT_MAP
    found = _servers_in(properties) if properties is not None else None
    if found is None and profile is not None and (by_user or source in weaker):
        found = profile.servers
    if found is None and source in weaker and any(name.startswith("OTTLA_") for name in os.environ):
        from ottla.client.profiles import misspelled_variable  # a mistake would ask the default's brokers

        known = [option.envvar for option in ctx.command.params if isinstance(option.envvar, str)]
        if (mistake := misspelled_variable(os.environ, known)) is not None:
            raise click.UsageError(mistake, ctx)
    return given if found is None else found


def _servers_in(properties: str) -> str | None:
    from ottla.client.settings import SettingError, read_properties

    try:
        return read_properties(properties).get("bootstrap.servers")
    except (OSError, SettingError):
        return None  # reading the login from it fails with the reason


def _servers_of(overrides: Mapping[str, str]) -> str | None:
    found = (
        overrides.get(name) for name in ("bootstrap.servers", "bootstrap_servers", "metadata.broker.list")
    )
    return next(filter(None, found), None)


def _keep_overrides(ctx: click.Context, _: click.Parameter, pairs: tuple[str, ...]) -> None:
    if not pairs or ctx.resilient_parsing:
        return
    from ottla.client.profiles import is_secret

    ctx.meta[OVERRIDES] = overrides = key_values(pairs)
    for key in filter(is_secret, overrides):
        raise click.UsageError(
            f"-X {key}: all users of a machine can read arguments, so put a secret into a file for "
            f"--command-config or into a profile",
            ctx,
        )


def _keep_properties(ctx: click.Context, _: click.Parameter, path: str | None) -> str | None:
    ctx.meta[_PROPERTIES] = path
    return path


profile_option: Final = click.option(
    "--profile",
    metavar="NAME",
    envvar="OTTLA_PROFILE",
    show_envvar=True,
    is_eager=True,
    expose_value=False,
    callback=_choose_profile,
    help="The brokers and the login of a profile; `ottla profile list` lists profiles.",
)

bootstrap_option: Final = click.option(
    "--bootstrap-server",
    "-b",
    metavar="HOST:PORT",
    envvar="OTTLA_BOOTSTRAP_SERVER",
    default=DEFAULT_BOOTSTRAP,
    show_default=True,
    show_envvar=True,
    callback=servers_of_profile,
    help="A broker of the cluster, or several separated by commas.",
)


def completion_target(context: click.Context) -> tuple[str, ClientConfig]:
    """Return the brokers and the login of a command line that a shell completes."""
    from ottla.client.config import ClientConfig
    from ottla.client.profiles import read_profile

    given = context.params.get("bootstrap_server")
    if (name := context.params.get("profile") or os.environ.get("OTTLA_PROFILE")) is not None:
        profile = read_profile(name)
        return given or profile.servers or DEFAULT_BOOTSTRAP, profile.config()
    properties = context.params.get("properties")
    config = ClientConfig() if properties is None else _config(properties)
    found = _servers_in(properties) if properties is not None else None
    return given or found or os.environ.get("OTTLA_BOOTSTRAP_SERVER") or DEFAULT_BOOTSTRAP, config


def login_options(command: F) -> F:
    """Add the options of a command that finds the brokers elsewhere, and logs in there."""
    properties = click.option(
        "--command-config",
        "properties",
        type=click.Path(exists=True, dir_okay=False),
        is_eager=True,
        callback=_keep_properties,
        help="A properties file with brokers, security and timeouts (bootstrap.servers, sasl.username, ...).",
    )
    override = click.option(
        "-X", "overrides",
        metavar="KEY=VALUE",
        multiple=True,
        is_eager=True,
        expose_value=False,
        callback=_keep_overrides,
        help="A setting of clients, over the profile and the file: request.timeout.ms=5000. Repeatable.",
    )  # fmt: skip
    return profile_option(properties(override(command)))


def cluster_options(command: F) -> F:
    """Add the options of a command that connects to a cluster."""
    return bootstrap_option(login_options(command))


def secret_options(noun: str, prefix: str) -> Callable[[F], F]:
    """Add options that say where a secret is: --PREFIX-env, -file, -command and -keyring.

    None takes the secret itself: all users of a machine can read the arguments of its processes.
    """

    def add(command: F) -> F:
        for kind, metavar, place in (
            ("keyring", "SERVICE/USER", "an entry of the system's keyring"),
            ("command", "COMMAND", "the output of a command of the shell"),
            ("file", "PATH", "a file; its last line end is left out"),
            ("env", "NAME", "an environment variable"),
        ):
            command = click.option(f"--{prefix}-{kind}", metavar=metavar, help=f"The {noun} is in {place}.")(
                command
            )
        return command

    return add


def secret_source(prefix: str, given: Mapping[str, Any]) -> SecretSource | None:
    """Return where the options of `secret_options` find a secret; None if none of them is given."""
    from ottla.client.profiles import SecretSource

    name = prefix.replace("-", "_")
    found = {kind: given[f"{name}_{kind}"] for kind in ("env", "file", "command", "keyring")}
    named = [SecretSource(kind, reference) for kind, reference in found.items() if reference is not None]
    if len(named) > 1:
        raise click.UsageError(
            f"give one of --{prefix}-env, --{prefix}-file, --{prefix}-command, --{prefix}-keyring"
        )
    return named[0] if named else None


def json_option(command: F) -> F:
    """Add the option --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(command)


class Count(click.IntRange):
    """A whole number of at least `min`. Errors and the help say "number", not click's "integer range"."""

    name = "number"


class ExtensibleGroup(click.Group):
    """The commands of a module, and those that installed packages bring as entry points of a group.

    `packages` has the package of each command that may be missing, for the error.
    """

    def __init__(
        self,
        *args: Any,
        entry_point_group: str = "",
        packages: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._entry_point_group = entry_point_group
        self.packages = packages or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        from importlib.metadata import entry_points  # slow to import

        added = (entry.name for entry in entry_points(group=self._entry_point_group))
        return sorted({*super().list_commands(ctx), *added})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported when it is needed."""
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        from importlib.metadata import entry_points  # slow to import

        if entries := entry_points(group=self._entry_point_group, name=cmd_name):
            added = next(iter(entries)).load()
            return added if isinstance(added, click.Command) else None
        if (package := self.packages.get(cmd_name)) is not None:
            raise not_installed(cmd_name, package, ctx)
        return None


def not_installed(command: str, package: str, ctx: click.Context) -> click.UsageError:
    """Return the error for a command of a package that is not installed."""
    return click.UsageError(f"No such command {command!r}: python -m pip install {package} brings it.", ctx)


def load_config(properties: str | None) -> ClientConfig:
    """Read the profile, or a properties file with Kafka's dotted names; an unknown name is a usage error."""
    from dataclasses import replace

    # The user waits at a terminal: fail soon when no broker can be reached.
    return replace(_config(properties), bootstrap_timeout_ms=BOOTSTRAP_TIMEOUT_MS)


def _config(properties: str | None) -> ClientConfig:
    from ottla.client.config import ClientConfig
    from ottla.client.settings import from_properties

    profile, by_user = chosen_profile()
    if profile is not None and properties is not None and by_user:
        raise click.UsageError("give --profile or --command-config, not both")
    try:
        if overrides := _overrides():
            return from_properties(ClientConfig, _overridden(overrides, properties, profile))
        if properties is not None:
            return from_properties(ClientConfig, properties)
        return ClientConfig() if profile is None else profile.config()
    except (ValueError, OSError) as error:
        raise click.UsageError(f"{properties}: {error}" if properties is not None else str(error)) from None


def _overrides() -> Mapping[str, str]:
    context = click.get_current_context(silent=True)
    found: Mapping[str, str] = {} if context is None else context.meta.get(OVERRIDES, {})
    return found


def _overridden(
    overrides: Mapping[str, str], properties: str | None, profile: Profile | None
) -> dict[str, Any]:
    """Return the settings of the file or the profile, with those of -X in their place."""
    from ottla.client.settings import read_properties

    if properties is not None:
        given: Mapping[str, Any] = read_properties(properties)
    else:
        given = {} if profile is None else profile.resolved()
    replaced = {key.replace(".", "_") for key in overrides}
    return {key: value for key, value in given.items() if key.replace(".", "_") not in replaced} | dict(
        overrides
    )


def run(call: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine; errors of brokers and networks become a one-line message."""
    import asyncio

    from ottla.client.errors import ClientError
    from ottla.protocol.errors import KafkaError

    async def main() -> T:
        return await call()

    try:
        return asyncio.run(main())
    except (ClientError, KafkaError) as error:
        raise click.ClickException(one_line(error)) from None
    except ValueError as error:  # malformed addresses and names
        raise click.UsageError(str(error)) from None


def one_line(error: Exception) -> str:
    """Return the message of an error in one line, with advice where no broker can be reached."""
    from ottla.client.errors import OTHER_PROTOCOL, DeadlineExceeded, NoBrokerAvailable

    text = _line(error)
    cause = error.__cause__ if isinstance(error, DeadlineExceeded) else error
    if isinstance(cause, NoBrokerAvailable):
        if OTHER_PROTOCOL in str(cause):  # something listens there
            return f"{_line(cause)}, in a file for --command-config or in a profile for --profile."
        return f"{_line(cause)}. Is a broker running there? Name one with --bootstrap-server HOST:PORT."
    return text + _advice(text)


def _line(error: Exception) -> str:
    """Return an error's message in one line: that of a broker may have any characters."""
    return printable(" ".join(str(error).split()))


def _advice(text: str) -> str:
    """Return the command by which an administrator gives the permission that an error names."""
    import re

    found = re.search(r"not permitted to ([A-Z_]+) ([A-Z_]+) '(.*?)'", text)
    if found is None or found[2] not in _RESOURCE_OPTIONS:
        return ""
    return f". A rule allows it: {allowing('User:NAME', found[1], found[2], found[3])}"


def allowing(principal: str, operation: str, resource_type: str, name: str) -> str:
    """Return the command that adds a rule, by which an operation is allowed."""
    option = _RESOURCE_OPTIONS[resource_type]
    named = option if resource_type == "CLUSTER" else f"{option} {name}"
    return f"ottla acl add --principal {principal} -o {operation} {named}"


_RESOURCE_OPTIONS: Final = {
    "TOPIC": "--topic", "GROUP": "--group", "CLUSTER": "--cluster", "TRANSACTIONAL_ID": "--transactional-id",
    "USER": "--user-resource", "DELEGATION_TOKEN": "--delegation-token",
}  # fmt: skip


def show(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    as_json: bool,
    max_cell_length: int | None = None,
) -> None:
    """Print rows under upper-case column names, or as a JSON list of objects with snake-case keys.

    A table has escapes for control characters, and cuts cells that are longer than `max_cell_length`.
    """
    if as_json:
        show_json(records(columns, rows))
        return
    for line in table_lines(columns, rows, max_cell_length):
        click.echo(line)


def table_lines(
    columns: Sequence[str], rows: Sequence[Sequence[object]], max_cell_length: int | None = None
) -> list[str]:
    """Return the lines of a table: names in upper case, numbers at the right."""
    cells = [
        [column.upper() for column in columns],
        *([_shown(_cell(value), max_cell_length) for value in row] for row in rows),
    ]
    numeric = [all(_is_number(row[i]) or row[i] is None for row in rows) for i in range(len(columns))]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    ]


def records(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[dict[str, object]]:
    """Turn rows into JSON objects with snake-case keys."""
    keys = [column.replace(" ", "_") for column in columns]
    return [dict(zip(keys, row, strict=True)) for row in rows]


def show_json(value: object) -> None:
    """Print indented JSON."""
    import json

    click.echo(json.dumps(value, indent=2, default=str))


def _shown(cell: str, max_length: int | None) -> str:
    return printable(cell) if max_length is None else shortened(cell, max_length)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value) or "-"
    return str(value)


def read_time(text: str) -> int:
    """Read a time, `2026-01-31T08:00Z`, `-1h` or `yesterday`, and return its timestamp in ms."""
    from ottla.client.times import time_ms

    try:
        return time_ms(text)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def key_values(pairs: Sequence[str]) -> dict[str, str]:
    """Read KEY=VALUE arguments."""
    parted = [pair.partition("=") for pair in pairs]
    for pair, (key, separator, _) in zip(pairs, parted, strict=True):
        if not key or not separator:
            raise click.UsageError(f"{pair!r} must be KEY=VALUE")
    return {key: value for key, _, value in parted}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question that names the nearest of the known names; nothing where none is near."""
    import difflib  # for a mistake only

    near = difflib.get_close_matches(name, list(known), 1)
    return f": did you mean {near[0]!r}?" if near else ""


def printable(text: str) -> str:
    r"""Escape unprintable characters: controls, line ends, invisible marks, lone surrogates.

    They become `\n`, `\x1b` or `\u2028`, as in a Python literal. Backslashes stay.
    """
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escape(character) for character in text)


def shortened(text: str, max_length: int) -> str:
    """Return printable text of at most `max_length` characters; an ellipsis says that it was cut."""
    shown = printable(text)
    return shown if len(shown) <= max_length else shown[: max_length - 1] + "…"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


# --- the parts that ottla-admin has now

_ADMIN = "ottla.admin.commands"
_ADMIN_COMMANDS = ("cluster", "config", "group", "leader", "reassign", "replica", "topic", "txn")
_ADMIN_PARTS = ("check_partition", "named_partitions", "with_admin")
_MOVED = MovedModules(
    {f"{__name__}.{name}": f"{_ADMIN}.{name}" for name in (*_ADMIN_COMMANDS, *_ADMIN_PARTS)}, "ottla-admin"
)
_MOVED.install()


def __getattr__(name: str) -> Any:
    return _MOVED.attribute(__name__, name)
