"""`ottla config`."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import click

from ottla.admin.commands import complete_groups, complete_keys, with_admin
from ottla.admin.commands.letter_topics import LETTER_TOPIC, why_no_letters
from ottla.client.commands import cluster_options, did_you_mean, json_option, key_values, show
from ottla.client.commands.completion import complete_topics, completes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ottla.admin import Admin
    from ottla.admin.configs import ConfigEntry
    from ottla.client.config import ClientConfig

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
_NOUNS: Final = {CLIENT_METRICS: "client metrics", GROUP: "group"}
"""The resources that exist by their configuration alone, or that need none."""
_MAX_CELL_LENGTH: Final = 120


@click.group()
def config() -> None:
    """Show and change settings of topics, groups, brokers and telemetry."""


async def _subscriptions(servers: str, config: ClientConfig) -> list[str]:
    from ottla.admin import Admin

    async with Admin(servers, config) as admin:
        return await admin.configs.names(CLIENT_METRICS)


_group_option: Final = click.option(
    "--group", shell_complete=complete_groups, help="A consumer, share or streams group, by name."
)
_client_metrics_option: Final = click.option(
    "--client-metrics", metavar="NAME", shell_complete=completes(_subscriptions),
    help="A subscription to the metrics that clients push (KIP-714), by name.",
)  # fmt: skip
_BY_NAME: Final = {"topic": TOPIC, "group": GROUP, "client_metrics": CLIENT_METRICS}


def _resource_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name a resource; the command takes its kind and its name."""

    @wraps(command)
    def named(**given: Any) -> None:
        by_name = {kind: given.pop(option) for option, kind in _BY_NAME.items()}
        kind, name = _resource(by_name, given.pop("broker"), given.pop("all_brokers"))
        command(kind=kind, name=name, **given)

    found: Callable[..., None] = named
    for option in (
        _client_metrics_option,
        click.option("--all-brokers", is_flag=True, help="The defaults of all brokers in the cluster."),
        click.option("--broker", type=click.IntRange(0), help="A broker, by id."),
        _group_option,
        click.option("--topic", shell_complete=complete_topics, help="A topic, by name."),
    ):
        found = option(found)
    return found


def _resource(by_name: Mapping[int, str | None], broker: int | None, all_brokers: bool) -> tuple[int, str]:
    named = [(kind, name) for kind, name in by_name.items() if name is not None]
    if len(named) + (broker is not None) + all_brokers != 1:
        raise click.UsageError(
            "give one of --topic NAME, --group NAME, --broker ID, --all-brokers and --client-metrics NAME"
        )
    return named[0] if named else (BROKER, "" if broker is None else str(broker))


@config.command()
@_resource_options
@click.argument("patterns", nargs=-1, shell_complete=complete_keys, metavar="[KEY]...")
@click.option("--changed", is_flag=True, help="Only values that differ from the defaults.")
@json_option
@cluster_options
def describe(
    kind: int,
    name: str,
    patterns: tuple[str, ...],
    changed: bool,
    as_json: bool,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Show settings; those that are no defaults come first.

    KEY is a part of a key, or a pattern with *.

    \b
    Examples:
      ottla config describe --topic orders
      ottla config describe --broker 1001 --changed
      ottla config describe --topic orders retention 'segment.*'
      ottla config describe --client-metrics latencies
    """

    async def use(admin: Admin) -> list[ConfigEntry]:
        if kind == CLIENT_METRICS:
            await _check_subscription(admin, name)
        return await admin.configs.describe(kind, name)

    entries = with_admin(bootstrap_server, properties, use)
    rows = [
        (
            entry.name, "(hidden)" if entry.sensitive else entry.value, entry.source,
            None if entry.is_default else entry.default, entry.read_only,
        )
        for entry in sorted(entries, key=lambda entry: entry.is_default)
        if not (changed and entry.is_default) and _is_wanted(entry.name, patterns)
    ]  # fmt: skip
    show(("key", "value", "source", "default", "read only"), rows, as_json=as_json)
    if not rows and not as_json:
        click.echo(
            "No key differs from its default." if changed and not patterns else "No such key.", err=True
        )


def _is_wanted(key: str, patterns: Sequence[str]) -> bool:
    """Whether a key has one of the texts, or is matched by one of the patterns, that a user gave."""
    return not patterns or any(
        fnmatchcase(key, pattern) if "*" in pattern else pattern in key for pattern in patterns
    )


def _refuse_delete(_: click.Context, __: click.Parameter, keys: tuple[str, ...]) -> None:
    if keys:
        raise click.UsageError(f"there is no --delete: reset a key to its default with --unset {keys[0]}")


@config.command()
@_resource_options
@click.option("--set", "values", metavar="KEY=VALUE", multiple=True, help="Set a key.")
@click.option("--unset", metavar="KEY", multiple=True, help="Reset a key to its default.")
@click.option("--delete", multiple=True, hidden=True, expose_value=False, callback=_refuse_delete)
@cluster_options
def alter(
    kind: int,
    name: str,
    values: tuple[str, ...],
    unset: tuple[str, ...],
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Change settings, of brokers while they run.

    The keys of client metrics are metrics (prefixes of names, * for all), interval.ms, and match (patterns of
    clients, as client_id=orders-.*).

    \b
    Examples:
      ottla config alter --topic orders --set retention.ms=86400000
      ottla config alter --group workers --set share.auto.offset.reset=earliest
      ottla config alter --all-brokers --unset log.retention.ms
      ottla config alter --client-metrics latencies --set 'metrics=*' --set interval.ms=30000
    """
    changes: dict[str, str | None] = {**key_values(values), **dict.fromkeys(unset)}
    if not changes:
        raise click.UsageError("give --set KEY=VALUE or --unset KEY")

    async def use(admin: Admin) -> str | None:
        await admin.configs.alter(kind, name, changes)
        letters = changes.get(LETTER_TOPIC) if kind == GROUP else None
        return await why_no_letters(admin, letters) if letters else None

    problem = with_admin(bootstrap_server, properties, use)
    click.echo(f"Changed {', '.join(changes)}.")
    if problem is not None:
        click.echo(f"Warning: no dead letters are written yet: {problem}.", err=True)


@config.command(name="list")
@json_option
@cluster_options
def list_configured(as_json: bool, bootstrap_server: str, properties: str | None) -> None:
    """List groups with settings, and subscriptions to client metrics.

    Every topic and every broker has settings: `ottla topic list` and `ottla cluster describe` list them.

    \b
    Examples:
      ottla config list
    """

    async def use(admin: Admin) -> list[tuple[str, str, Mapping[str, str | None]]]:
        return [
            (noun, name, await _own_settings(admin, kind, name))
            for kind, noun in _NOUNS.items()
            for name in await _names(admin, kind)
        ]

    found = with_admin(bootstrap_server, properties, use)
    rows: list[tuple[object, ...]] = [
        (noun, name, settings if as_json else " ".join(f"{key}={value}" for key, value in settings.items()))
        for noun, name, settings in found
    ]
    show(("kind", "name", "settings"), rows, as_json=as_json, max_cell_length=_MAX_CELL_LENGTH)
    if not rows and not as_json:
        click.echo("No group has settings of its own, and there is no subscription.", err=True)


async def _names(admin: Admin, kind: int) -> list[str]:
    """Return the resources of a kind that have a configuration; none where brokers are too old for that."""
    from ottla.client.errors import UnsupportedByBroker

    try:
        return await admin.configs.names(kind)
    except UnsupportedByBroker:
        return []


async def _own_settings(admin: Admin, kind: int, name: str) -> dict[str, str | None]:
    """Return what was set for a group or a subscription itself."""
    entries = await admin.configs.describe(kind, name)
    return {entry.name: entry.value for entry in entries if entry.source == _NOUNS[kind]}


@config.command()
@_client_metrics_option
@_group_option
@cluster_options
def delete(
    group: str | None, client_metrics: str | None, bootstrap_server: str, properties: str | None
) -> None:
    """Delete a subscription to client metrics, or a group's settings.

    \b
    Examples:
      ottla config delete --client-metrics latencies
      ottla config delete --group workers
    """
    if (group is None) is (client_metrics is None):
        raise click.UsageError("give --client-metrics NAME or --group NAME")
    kind, name = (GROUP, group) if group is not None else (CLIENT_METRICS, client_metrics or "")

    async def use(admin: Admin) -> None:
        if kind == CLIENT_METRICS:
            await _check_subscription(admin, name)
        own = await _own_settings(admin, kind, name)
        if not own:
            raise click.ClickException(f"group {name!r} has no settings of its own.")
        await admin.configs.alter(kind, name, dict.fromkeys(own))

    with_admin(bootstrap_server, properties, use)
    click.echo(f"Deleted subscription {name}." if group is None else f"Deleted the settings of group {name}.")


async def _check_subscription(admin: Admin, name: str) -> None:
    """Check that there is a subscription; brokers show the defaults for any other name."""
    names = await admin.configs.names(CLIENT_METRICS)
    if name not in names:
        near = did_you_mean(name, names)
        raise click.ClickException(f"there is no subscription {name!r} to client metrics{near or '.'}")
