"""The settings of topics in ZooKeeper: Kafka's keys where Kafka has them, keys of our own in a znode of ours.

An Apache broker validates all settings of `/config/topics/<topic>` whenever one is altered, so a key that it
does not know there would block every later change. Our keys in that znode, where earlier versions wrote them,
are read and move with the next change.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

from ottla.broker.cluster.placement import for_bytes
from ottla.broker.config import ConfigError, parse_topic_overrides
from ottla.broker.config.topic import is_own_topic_key
from ottla.protocol.errors import InvalidConfig
from ottla.zookeeper import paths
from ottla.zookeeper.errors import MalformedZnode
from ottla.zookeeper.frozen_classes import frozen
from ottla.zookeeper.session import Create, NodeExists, NoNode, SetData
from ottla.zookeeper.znodes import ConfigChange, ConfigEntity, OttlaTopicSettings, TopicAssignment

if TYPE_CHECKING:
    from ottla.zookeeper.session import Operation, Session


_log = logging.getLogger(__name__)

TOPICS: Final = "topics"
MISSING: Final = -1
"""The version of a znode that does not exist."""


def checked_overrides(configs: Mapping[str, str | None]) -> dict[str, str]:
    """Check the settings of a topic; raises InvalidConfig for the first invalid one."""
    if missing := [name for name, value in configs.items() if value is None]:
        raise InvalidConfig(f"Null value not supported for topic configs: {', '.join(missing)}")
    overrides = {name: value for name, value in configs.items() if value is not None}
    try:
        parse_topic_overrides(overrides)
    except ConfigError as error:
        raise InvalidConfig(str(error)) from None
    return overrides


@frozen
class StoredSettings:
    """The settings of a topic as they are in ZooKeeper, and the versions of the two znodes that hold them."""

    settings: Mapping[str, str]
    version: int = MISSING
    own_version: int = MISSING


async def read_settings(session: Session, topic: str) -> StoredSettings:
    """Read a topic's settings from both znodes; a malformed znode has none, and is named in the log."""
    of_kafka, version = await read_entity(session, TOPICS, topic)
    own, own_version = await _read_own(session, topic)
    return StoredSettings({**of_kafka, **own}, version, own_version)


async def read_entity(session: Session, kind: str, name: str) -> tuple[dict[str, str], int]:
    """Read Kafka's znode of an entity, and its version: `MISSING` without one.

    A malformed znode has no settings, and is named in the log.
    """
    try:
        data, stat = await session.get(paths.config_entity(kind, name))
    except NoNode:
        return {}, MISSING
    try:
        return dict(ConfigEntity.decode(f"{kind}/{name}", data).config), stat.version
    except MalformedZnode as error:
        _log.error("settings ignored", extra={"entity": f"{kind}/{name}", "reason": str(error)})
        return {}, stat.version


async def write_entity(session: Session, node: ConfigEntity, version: int) -> None:
    """Write Kafka's znode of an entity that had this version, and announce it to all brokers.

    Raises BadVersion or NodeExists if it has changed since.
    """
    if version == MISSING:
        await session.create(node.path, node.encode(), make_parents=True)
    else:
        await session.set(node.path, node.encode(), version=version)
    change = ConfigChange(node.entity_path)
    await session.create(change.path, change.encode(), sequential=True, make_parents=True)


async def _read_own(session: Session, topic: str) -> tuple[Mapping[str, str], int]:
    path = paths.ottla_topic_settings(topic)
    try:
        data, stat = await session.get(path)
    except NoNode:
        return {}, MISSING
    try:
        node = OttlaTopicSettings.decode(topic, data)
    except MalformedZnode as error:
        _log.error("settings ignored", extra={"entity": path, "reason": str(error)})
        return {}, stat.version
    # Left by an earlier topic of this name, which an Apache controller deleted?
    is_of_topic = not node.config or node.topic_id == await _topic_id(session, topic)
    return node.config if is_of_topic else {}, stat.version


async def _topic_id(session: Session, topic: str) -> UUID | None:
    try:
        data, _ = await session.get(paths.topic(topic))
        return (await for_bytes(len(data), partial(TopicAssignment.decode, topic, data))).topic_id
    except (NoNode, MalformedZnode):  # the controller names the malformed one
        return None


async def alter_settings(
    session: Session, topic: str, settings: Mapping[str, str], stored: StoredSettings
) -> None:
    """Replace a topic's settings in one step.

    Raises BadVersion or NodeExists if they have changed since `stored`.
    """
    own = _own(settings)
    operations = [_write(ConfigEntity(f"{TOPICS}/{topic}", _of_kafka(settings)), stored.version)]
    if own or stored.own_version != MISSING:
        node = OttlaTopicSettings(topic, await _topic_id(session, topic), own)
        await _make_parents(session)
        operations.append(_write(node, stored.own_version))
    await session.multi(operations)
    change = ConfigChange(f"{TOPICS}/{topic}")
    await session.create(change.path, change.encode(), sequential=True, make_parents=True)


async def put_new_settings(session: Session, topic: str, settings: Mapping[str, str]) -> None:
    """Write Kafka's settings of a topic that is about to be created, in place of what an earlier one left."""
    node = ConfigEntity(f"{TOPICS}/{topic}", _of_kafka(settings))
    try:
        await session.create(node.path, node.encode(), make_parents=True)
    except NodeExists:
        await session.set(node.path, node.encode())


async def create_topic(
    session: Session, topic: str, topic_id: UUID | None, data: bytes, settings: Mapping[str, str]
) -> None:
    """Create the znode of a topic, and the settings of ours together with it.

    Apart, two creations at once would leave the settings of the one that failed, with another topic id.
    Raises NodeExists when the topic exists, or BadVersion when another creation was faster.
    """
    if not (own := _own(settings)):
        await session.create(paths.topic(topic), data, make_parents=True)
        return
    await _make_parents(session)
    node = OttlaTopicSettings(topic, topic_id, own)
    _, version = await _read_own(session, topic)
    await session.multi([_write(node, version), Create(paths.topic(topic), data)])


async def _make_parents(session: Session) -> None:
    """Make the parent of our znodes: a multi makes none."""
    try:
        await session.create(paths.OTTLA_TOPIC_SETTINGS, make_parents=True)
    except NodeExists:
        return


def _write(node: ConfigEntity | OttlaTopicSettings, version: int) -> Operation:
    if version == MISSING:
        return Create(node.path, node.encode())
    return SetData(node.path, node.encode(), version)


def _own(settings: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in settings.items() if is_own_topic_key(key)}


def _of_kafka(settings: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in settings.items() if not is_own_topic_key(key)}
