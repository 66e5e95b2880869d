"""Topics and groups of a mirror's clusters: copies, offsets of groups, and cycles of mirrors."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from ottla.admin import LATEST, TOPIC, Admin
from ottla.client.cluster import NoSuchTopic, Topic
from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.mirroring.offset_mapping import Origin
from ottla.pipeline.jobs.mirroring.offset_spans import Spans
from ottla.protocol.errors import GroupIdNotFound, NonEmptyGroup, TopicAlreadyExists
from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)


class ReplicationCycle(PipelineError):
    """Records would be copied between clusters without end."""

    def __init__(self, topic: str, mirror: str) -> None:
        super().__init__(
            f"topic {topic!r} is itself a copy that mirror {mirror!r} makes, of records that come "
            "from the target: they would be copied without end. If clusters are mirrored in both "
            'directions, rename the copies (rename = "north.{topic}")'
        )


def circular_topics(topics: Iterable[str], known: Mapping[str, Origin], target: str) -> dict[str, Origin]:
    """Return the topics whose records came from the target cluster, directly or through others.

    `known` are the origins of the copies in the source cluster.
    """
    return {topic: known[topic] for topic in topics if topic in known and target in known[topic].clusters}


def origins_of(
    copies: Mapping[str, str], known: Mapping[str, Origin], mirror: str, source: str
) -> dict[str, Origin]:
    """Return the origins of copies by name; `copies` has their names by those of the originals."""
    return {
        copy: Origin(mirror, (*(known[topic].clusters if topic in known else ()), source))
        for topic, copy in copies.items()
    }


_OWN = (
    "message.timestamp.type", "min.insync.replicas", "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas", "remote.storage.enable",
)  # fmt: skip
"""Settings that are not copied: timestamps stay unchanged, and the others belong to one cluster."""
_LARGEST = "max.message.bytes"
_LOOKS = 100
_LOOK_EVERY_S = 0.1


async def wanted_topics(source: Admin, names: Iterable[str], wants: Callable[[str], bool]) -> list[Topic]:
    """Return the topics of these names; without names, all selected topics except internal ones.

    Raises NoSuchTopic for a missing one.
    """
    if names := list(names):
        return [await source.topics.describe(name) for name in names]
    return [topic for topic in await source.topics.list() if wants(topic.name)]


async def cluster_id(admin: Admin) -> str:
    """Return the identity of a cluster: its id, or the addresses of its brokers if it has none."""
    found = await admin.brokers.describe()
    return found.cluster_id or ",".join(sorted(f"{broker.host}:{broker.port}" for broker in found.brokers))


async def make_copy(source: Admin, target: Admin, name: str, original: Topic, known_by: str) -> None:
    """Create the topic of a copy, or add the partitions that its original has.

    A new one gets the settings of the original that the target supports, which are those that the topic
    `known_by` has there. Raises PipelineError for a topic that would not keep the timestamps of records.
    """
    partitions = len(original.partitions)
    for _ in range(_LOOKS):
        try:
            there = await target.topics.describe(name)
            if len(there.partitions) < partitions:
                await target.topics.add_partitions(name, partitions)
            return await _refuse_other_times(target, name)
        except NoSuchTopic:
            configs = await _settings(source, target, original.name, known_by)
        with suppress(TopicAlreadyExists):
            await target.topics.create(name, partitions=partitions, configs=configs)
            return None
        # Another client was faster: brokers create a topic that a client asks for, with their default
        # partitions. They may report that it exists a moment before they can describe it.
        await asyncio.sleep(_LOOK_EVERY_S)
    raise NoSuchTopic(name)


async def _settings(source: Admin, target: Admin, topic: str, known_by: str) -> dict[str, str]:
    """Return the settings of a new copy: those set on the original that the target supports.

    The maximum record size is included even if it is a default of the source.
    """
    known = {entry.name for entry in await target.configs.describe(TOPIC, known_by)}
    entries = [entry for entry in await source.configs.describe(TOPIC, topic) if entry.value is not None]
    given = {
        entry.name: str(entry.value)
        for entry in entries
        if (entry.source == "topic" or entry.name == _LARGEST) and entry.name not in _OWN
    }
    unknown = given.keys() - known
    if unknown:
        log.warning(
            "settings left out that the target does not support",
            extra={"topic": topic, "settings": ", ".join(sorted(unknown))},
        )
    return {name: value for name, value in given.items() if name not in unknown} | {
        "message.timestamp.type": "CreateTime"
    }


async def _refuse_other_times(target: Admin, topic: str) -> None:
    entries = {entry.name: entry.value for entry in await target.configs.describe(TOPIC, topic)}
    if entries.get("message.timestamp.type") == "LogAppendTime":
        raise PipelineError(
            f"topic {topic!r} of the target has message.timestamp.type=LogAppendTime, so the "
            "timestamps of records would be lost; set it to CreateTime, or copy to another topic "
            "(rename)"
        )


async def move_groups(
    source: Admin,
    target: Admin,
    pattern: str,
    mapping: Mapping[TopicPartition, Spans],
    copy_of: Callable[[TopicPartition], TopicPartition],
) -> int:
    """Commit the translated offsets of groups in the target; return the number of groups.

    A group with members in the target is skipped, and no offset is moved backwards, because the group has
    moved there. No offset exceeds the end of a copy: planned spans may not be written yet.
    """
    moved = 0
    for group in await source.groups.list():
        if group.protocol_type in ("consumer", "") and re.fullmatch(pattern, group.name):
            places = {
                committed.partition: committed.offset for committed in await source.groups.offsets(group.name)
            }
            moved += await _move_group(target, group.name, translated(places, mapping, copy_of))
    return moved


def translated(
    places: Mapping[TopicPartition, int],
    mapping: Mapping[TopicPartition, Spans],
    copy_of: Callable[[TopicPartition], TopicPartition],
) -> dict[TopicPartition, int]:
    """Translate offsets of originals to offsets of copies."""
    found = {
        partition: spans.translate(places[partition])
        for partition, spans in mapping.items()
        if partition in places
    }
    return {copy_of(partition): offset for partition, offset in found.items() if offset is not None}


def limited_to_ends(
    places: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return offsets limited to the ends of their partitions."""
    return {partition: min(offset, ends[partition]) for partition, offset in places.items()}


async def _move_group(target: Admin, group: str, wanted: Mapping[TopicPartition, int]) -> bool:
    try:
        wanted = limited_to_ends(wanted, await target.offsets.find(dict.fromkeys(wanted, LATEST)))
        known = await target.groups.offsets(group, wanted) if wanted else []
        there = {committed.partition: committed.offset for committed in known}
        ahead = {
            partition: offset for partition, offset in wanted.items() if there.get(partition, -1) < offset
        }
        if ahead:
            await target.groups.commit(group, ahead)
    except (NonEmptyGroup, GroupIdNotFound) as error:
        log.debug("group is left unchanged in the target", extra={"group": group, "reason": str(error)})
        return False
    return bool(ahead)
