"""`ottla config`."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import click

from ottla.admin.commands import complete_groups, complete_keys, with_admin
from ottla.client.commands import cluster_options, json_option, key_values, show
from ottla.client.commands.completion import complete_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ottla.admin import Admin

TOPIC, BROKER, GROUP = 2, 4, 32


@click.group()
def config() -> None:
    """Show and change the configuration of topics, groups and brokers."""


def _resource_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--all-brokers", is_flag=True, help="The defaults of all brokers in the cluster."),
        click.option("--broker", type=click.IntRange(0), help="A broker, by id."),
        click.option(
            "--group", shell_complete=complete_groups, help="A consumer, share or streams group, by name."
        ),
        click.option("--topic", shell_complete=complete_topics, help="A topic, by name."),
    ):
        command = option(command)
    return command


def _resource(topic: str | None, group: str | None, broker: int | None, all_brokers: bool) -> tuple[int, str]:
    if (topic is not None) + (group is not None) + (broker is not None) + all_brokers != 1:
        raise click.UsageError("give one of --topic NAME, --group NAME, --broker ID and --all-brokers")
    if topic is not None or group is not None:
        return (TOPIC, topic) if topic is not None else (GROUP, group or "")
    return BROKER, "" if broker is None else str(broker)


@config.command()
@_resource_options
@click.argument("patterns", nargs=-1, shell_complete=complete_keys, metavar="[KEY]...")
@click.option("--changed", is_flag=True, help="Only values that differ from the defaults.")
@json_option
@cluster_options
def describe(
    topic: str | None,
    group: str | None,
    broker: int | None,
    all_brokers: bool,
    patterns: tuple[str, ...],
    changed: bool,
    as_json: bool,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Show the configuration of a topic, a group or a broker; values that are no defaults come first.

    KEY is a part of a key, or a pattern with *.

    \b
    Examples:
      ottla config describe --topic orders
      ottla config describe --broker 1001 --changed
      ottla config describe --topic orders retention 'segment.*'
    """
    kind, name = _resource(topic, group, broker, all_brokers)
    entries = with_admin(bootstrap_server, properties, lambda admin: admin.configs.describe(kind, name))
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


@config.command()
@_resource_options
@click.option("--set", "values", metavar="KEY=VALUE", multiple=True, help="Set a key.")
@click.option("--unset", metavar="KEY", multiple=True, help="Reset a key to its default.")
@cluster_options
def alter(
    topic: str | None,
    group: str | None,
    broker: int | None,
    all_brokers: bool,
    values: tuple[str, ...],
    unset: tuple[str, ...],
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Change the configuration of a topic, a group or of brokers while they run.

    \b
    Examples:
      ottla config alter --topic orders --set retention.ms=86400000
      ottla config alter --group workers --set share.auto.offset.reset=earliest
      ottla config alter --all-brokers --unset log.retention.ms
    """
    kind, name = _resource(topic, group, broker, all_brokers)
    changes: dict[str, str | None] = {**key_values(values), **dict.fromkeys(unset)}
    if not changes:
        raise click.UsageError("give --set KEY=VALUE or --unset KEY")

    async def use(admin: Admin) -> None:
        await admin.configs.alter(kind, name, changes)

    with_admin(bootstrap_server, properties, use)
    click.echo(f"Changed {', '.join(changes)}.")
