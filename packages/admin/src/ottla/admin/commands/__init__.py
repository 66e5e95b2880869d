"""Shared parts of the admin commands: an admin client for one call, and arguments that name partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from ottla.client.commands import did_you_mean, load_config, one_line, run
from ottla.client.commands.completion import completes

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.client.config import ClientConfig
    from ottla.protocol.topics import TopicPartition

__all__ = [
    "check_partition",
    "complete_groups",
    "complete_keys",
    "counted",
    "delete_each",
    "named_partitions",
    "with_admin",
]

T = TypeVar("T")


def with_admin(bootstrap: str, properties: str | None, use: Callable[[Admin], Awaitable[T]]) -> T:
    """Connect an admin client, call `use` with it, disconnect."""
    config = load_config(properties)

    async def call() -> T:
        from ottla.admin import Admin
        from ottla.admin.group_errors import NoSuchGroup
        from ottla.client.cluster import NoSuchTopic

        async with Admin(bootstrap, config) as admin:
            try:
                return await use(admin)
            except NoSuchTopic as error:
                names = [topic.name for topic in await admin.topics.list(internal=True)]
                raise click.ClickException(f"{error}{did_you_mean(error.name, names)}") from None
            except NoSuchGroup as error:
                names = [listing.name for listing in await admin.groups.list()]
                raise click.ClickException(f"{error}{did_you_mean(error.name, names)}") from None

    return run(call)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 member`, `2 members`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


async def _groups(servers: str, config: ClientConfig) -> list[str]:
    from ottla.admin import Admin

    async with Admin(servers, config) as admin:
        return [listing.name for listing in await admin.groups.list()]


complete_groups = completes(_groups)
"""The names of the groups of a command's cluster."""


async def _topic_keys(servers: str, config: ClientConfig) -> list[str]:
    from ottla.admin import TOPIC, Admin

    async with Admin(servers, config) as admin:
        first = (await admin.topics.list(internal=True))[:1]
        return [entry.name for topic in first for entry in await admin.configs.describe(TOPIC, topic.name)]


complete_keys = completes(_topic_keys)
"""The keys that a topic can have."""


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit()


def check_partition(text: str) -> None:
    """Check that an argument names one partition, TOPIC:PARTITION. Raises click.UsageError."""
    topic, _, index = text.partition(":")
    if not topic or not _is_index(index):
        raise click.UsageError(f"{text!r} must be TOPIC:PARTITION")


async def named_partitions(admin: Admin, topics: Sequence[str]) -> list[TopicPartition]:
    """Return the partitions that TOPIC and TOPIC:PARTITION name. Raises NoSuchTopic or ValueError."""
    from ottla.protocol.topics import TopicPartition

    wanted: list[TopicPartition] = []
    for text in topics:
        topic, colon, index = text.partition(":")
        if not topic or (colon and not _is_index(index)):
            raise ValueError(f"{text!r} must be TOPIC or TOPIC:PARTITION")
        known = (await admin.topics.describe(topic)).partitions
        if index and int(index) not in known:
            raise ValueError(f"topic {topic!r} has no partition {index}, only 0 to {max(known)}")
        wanted += [TopicPartition(topic, number) for number in ([int(index)] if index else sorted(known))]
    return wanted


async def delete_each(
    names: Sequence[str], noun: str, delete: Callable[[str], Awaitable[None]], *, if_exists: bool = False
) -> None:
    """Delete all that are named, report each, and exit with 1 if one could not be deleted."""
    from ottla.client.cluster import NoSuchTopic
    from ottla.client.errors import ClientError
    from ottla.protocol.errors import KafkaError

    failed = False
    for name in names:
        try:
            await delete(name)
        except (ClientError, KafkaError) as error:
            if if_exists and isinstance(error, NoSuchTopic):
                click.echo(f"{noun.capitalize()} {name} does not exist.")
                continue
            failed = True
            click.echo(f"Error: {one_line(error)}", err=True)
        else:
            click.echo(f"Deleted {noun} {name}.")
    if failed:
        raise click.exceptions.Exit(1)
