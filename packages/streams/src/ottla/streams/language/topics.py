"""Check at the start that topics fit together, and create those that belong to the program."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from ottla.admin import Admin
from ottla.client.cluster import NoSuchTopic
from ottla.protocol import errors
from ottla.streams.errors import TopologyError
from ottla.streams.language.declarations import StoreSpec
from ottla.streams.language.topology import Plan, SubTopology

CREATION_S: Final = 30.0
CREATION_POLL_S: Final = 0.1
COMPACTED: Final = {"cleanup.policy": "compact"}


def changelog_topic(app_id: str, store: StoreSpec) -> str:
    """Return the changelog topic of a store."""
    return f"{app_id}-{store.name}-changelog"


async def prepare_topics(admin: Admin, plan: Plan, app_id: str) -> dict[str, int]:
    """Return the partition counts of all topics, after those that were missing are created.

    Topics of `through` and changelogs are created; streams and tables must exist. Raises TopologyError with
    the topic that does not fit.
    """
    counts: dict[str, int] = {}
    for part in plan.parts.values():
        counts[part.topic] = await _source_count(admin, part, counts)
    for part in plan.parts.values():
        for table in part.tables:
            counts[table.topic] = await _count(admin, table.topic, "table")
        check_tables(part, counts)
        for store in part.stores:
            await _prepare_changelog(admin, changelog_topic(app_id, store), counts[part.topic], part.topic)
    return counts


def check_tables(part: SubTopology, counts: Mapping[str, int]) -> None:
    """Raise TopologyError for a table that has not as many partitions as the stream."""
    for table in part.tables:
        if not table.is_global and counts[table.topic] != counts[part.topic]:
            raise TopologyError(
                f"stream {part.topic!r} has {counts[part.topic]} partitions and table {table.topic!r} has "
                f"{counts[table.topic]}: keys are not in the same ones; use a global_table, or give both "
                "topics as many"
            )


async def _source_count(admin: Admin, part: SubTopology, counts: Mapping[str, int]) -> int:
    if part.fed_by is None:
        return await _count(admin, part.topic, "stream")
    return await _created_count(admin, part.topic, counts[part.fed_by])


async def _created_count(
    admin: Admin, topic: str, partitions: int, configs: Mapping[str, str] | None = None
) -> int:
    """Return the partition count of a topic, created with `partitions` if it is missing."""
    try:
        return len((await admin.topics.describe(topic)).partitions)
    except NoSuchTopic:
        pass
    with suppress(errors.TopicAlreadyExists):  # another member was faster
        await admin.topics.create(topic, partitions=partitions, configs=configs)
    return await _count_soon(admin, topic)


async def _count_soon(admin: Admin, topic: str) -> int:
    """Return the partition count of a topic that was just created: metadata may not have it yet."""
    async with asyncio.timeout(CREATION_S):
        while True:
            try:
                return len((await admin.topics.describe(topic)).partitions)
            except NoSuchTopic:
                await asyncio.sleep(CREATION_POLL_S)


async def _count(admin: Admin, topic: str, kind: str) -> int:
    try:
        return len((await admin.topics.describe(topic)).partitions)
    except NoSuchTopic:
        raise TopologyError(
            f"the topic {topic!r} of a {kind} does not exist; create it: ottla topic create {topic}"
        ) from None


async def _prepare_changelog(admin: Admin, changelog: str, partitions: int, topic: str) -> None:
    found = await _created_count(admin, changelog, partitions, COMPACTED)
    if found != partitions:
        raise TopologyError(
            f"stream {topic!r} has {partitions} partitions and its changelog {changelog!r} has {found}: keys "
            "are in other partitions than their state; give the store another name=, or delete the changelog "
            "and read the topic again: ottla group reset-offsets"
        )
