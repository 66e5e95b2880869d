"""The settings of groups in ZooKeeper: in znodes of ours, and announced apart from Kafka's.

A broker of Apache Kafka 3.9 with ZooKeeper knows no such entities, and would stop to follow all
announcements.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from ottla.broker.cluster.broker_settings import DEFAULT, Change, Entry, Synonym, checked, entry_of
from ottla.broker.cluster.topic_settings import MISSING
from ottla.broker.config.group import check_group_settings, group_keys, synonym_of
from ottla.broker.config.keys import keys_of
from ottla.zookeeper import paths
from ottla.zookeeper.errors import MalformedZnode
from ottla.zookeeper.session import BadVersion, NodeExists, NoNode
from ottla.zookeeper.znodes import OttlaGroupSettings

if TYPE_CHECKING:
    from ottla.broker.config import BrokerConfig, Setting
    from ottla.zookeeper.session import Session

_log = logging.getLogger(__name__)

DYNAMIC_GROUP: Final = 8
"""The source of a group's own setting in DescribeConfigs."""

SynonymsOf = Callable[..., list[Synonym]]


async def names_of(session: Session) -> list[str]:
    """Return the ids of the groups that have settings."""
    try:
        return [unquote(name) for name in await session.children(paths.OTTLA_GROUP_SETTINGS)]
    except NoNode:
        return []


async def read(session: Session, group: str) -> tuple[Mapping[str, str], int]:
    """Read the settings of a group, and the version of its znode; a malformed one has none."""
    path = OttlaGroupSettings(group).path
    try:
        data, stat = await session.get(path)
    except NoNode:
        return {}, MISSING
    try:
        return OttlaGroupSettings.decode(group, data).config, stat.version
    except MalformedZnode as error:
        _log.error("settings ignored", extra={"entity": path, "reason": str(error)})
        return {}, stat.version


async def alter(
    session: Session, group: str, change: Change, broker: BrokerConfig, *, validate_only: bool
) -> None:
    """Replace the settings of a group by the result of `change`, and announce it. Raises InvalidConfig."""
    while True:
        present, version = await read(session, group)
        settings = checked(
            f"ConfigResource(type=GROUP, name='{group}')",
            change(dict(present)),
            lambda changed: check_group_settings(changed, broker),
        )
        if validate_only:
            return
        node = OttlaGroupSettings(group, settings)
        try:
            if version == MISSING:
                await session.create(node.path, node.encode(), make_parents=True)
            else:
                await session.set(node.path, node.encode(), version=version)
        except (BadVersion, NodeExists):
            continue
        data = quote(group, safe="").encode()
        await session.create(paths.OTTLA_CONFIG_CHANGE_PREFIX, data, sequential=True, make_parents=True)
        return


def announced(data: bytes) -> str:
    """Return the id of the group that an announcement names."""
    return unquote(data.decode("ascii", "replace"))


def describe(settings: Mapping[str, str], broker: BrokerConfig, synonyms_of: SynonymsOf) -> list[Entry]:
    """Return every key that a group may have, with its value and the sources of it."""
    return [_entry(key, settings, broker, synonyms_of) for key in group_keys().values()]


def _entry(key: Setting, settings: Mapping[str, str], broker: BrokerConfig, synonyms_of: SynonymsOf) -> Entry:
    synonyms = [Synonym(key.name, settings[key.name], DYNAMIC_GROUP)] if key.name in settings else []
    value = key.show(key.default)
    if (of_broker := synonym_of(key.name)) is not None:
        synonyms += synonyms_of(of_broker, with_default=True)
        found = keys_of(type(broker))[of_broker]
        value = found.show(getattr(broker, found.field))
    if not synonyms or synonyms[-1].source != DEFAULT:
        synonyms.append(Synonym(key.name, key.show(key.default), DEFAULT))
    return entry_of(key, settings.get(key.name, value), synonyms, read_only=False)
