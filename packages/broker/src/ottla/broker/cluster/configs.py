"""Dynamic configuration of topics and of this broker: stored in ZooKeeper, followed, and changed there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.cluster.broker_settings import (
    BROKERS,
    CLUSTER_DEFAULT,
    DEFAULT,
    DYNAMIC_TOPIC,
    BrokerSettings,
    Change,
    Entry,
    Permit,
    Synonym,
    checked,
    entry_of,
)
from ottla.broker.cluster.client_entities import ClientEntities
from ottla.broker.cluster.notifications import Notifications
from ottla.broker.cluster.topic_settings import TOPICS, alter_settings, read_entity, read_settings
from ottla.broker.cluster.zookeeper_session import retrying
from ottla.broker.config import BrokerConfig, ConfigError, LogConfig, Setting, synonyms_of, topic_keys
from ottla.broker.runtime.loop_budget import slices
from ottla.protocol.errors import UnknownTopicOrPartition
from ottla.protocol.topics import why_illegal_topic_name
from ottla.zookeeper import paths
from ottla.zookeeper.errors import MalformedZnode
from ottla.zookeeper.session import BadVersion, NodeExists, NoNode, ZooKeeperError
from ottla.zookeeper.znodes import ConfigChange

if TYPE_CHECKING:
    from uuid import UUID

    from ottla.broker.runtime.environment import Environment
    from ottla.zookeeper.session import Session

_log = logging.getLogger(__name__)


class Configs:
    """The present configuration of topics and of this broker."""

    def __init__(
        self, session: Session, static: BrokerConfig, environment: Environment, broker_id: int
    ) -> None:
        self.brokers = BrokerSettings(session, static, environment.random, broker_id)
        self.client_entities = ClientEntities(session)
        """The settings of users, client ids and addresses."""
        self._session = session
        self._topics: dict[str, dict[str, str]] = {}
        self._read_for: dict[str, UUID | None] = {}
        """The topics whose settings were read, by name; None: at the start, before their ids were known."""
        self._log_configs: dict[str, LogConfig] = {}
        self._groups: dict[str, Mapping[str, str]] = {}
        self.on_topic_change: list[Callable[[str, LogConfig], None]] = []
        self.checks = self.brokers.checks
        self.on_broker_change: list[Callable[[BrokerConfig], None]] = []
        self._notifications = Notifications(
            session,
            environment.clock,
            (paths.CONFIG_CHANGES, paths.OTTLA_CONFIG_CHANGES),
            read_all=self._read_all,
            read_named=self._read_named,
            about="dynamic configuration",
        )
        self.load = self._notifications.load
        """Reads every entity. Raises ZooKeeperError."""
        self.follow = self._notifications.follow
        """Applies changes until cancelled."""

    @property
    def broker(self) -> BrokerConfig:
        """This broker's present settings."""
        return self.brokers.present

    def subscribe(self, changed: Callable[[BrokerConfig], None]) -> None:
        """Call `changed` with the broker's settings: now, and whenever one of them has changed."""
        changed(self.broker)
        self.on_broker_change.append(changed)

    # ---- reading

    def overrides(self, topic: str) -> Mapping[str, str]:
        """The settings of a topic itself."""
        return self._topics.get(topic, {})

    def group_settings(self, group: str) -> Mapping[str, str]:
        """The settings of a group itself."""
        return self._groups.get(group, {})

    @property
    def groups_with_settings(self) -> list[str]:
        """The ids of the groups that have settings."""
        return sorted(self._groups)

    def log_config(self, topic: str) -> LogConfig:
        """The configuration of a topic's logs: the broker's defaults with the topic's settings on top."""
        config = self._log_configs.get(topic)
        if config is None:
            config = self._log_configs[topic] = self._build_log_config(topic, self.overrides(topic))
        return config

    def _build_log_config(self, topic: str, overrides: Mapping[str, str]) -> LogConfig:
        config = LogConfig.from_broker(self.broker)
        for name, value in overrides.items():
            try:
                config = config.with_overrides({name: value})
            except ConfigError as error:
                # Another tool wrote it without our checks: the other settings still apply.
                _log.error("topic setting ignored", extra={"topic": topic, "reason": str(error)})
        return config

    # ---- following ZooKeeper

    async def _read_all(self) -> None:
        for kind, known in ((TOPICS, self._topics), (BROKERS, ())):
            found = sorted({*await self._children(f"{paths.CONFIG}/{kind}"), *known})
            await asyncio.gather(*(self._read(kind, name) for name in found))
            if kind == TOPICS and not self._read_for:
                self._read_for = dict.fromkeys(found)
        await self.client_entities.load()
        if self._groups or await self._children(paths.OTTLA_GROUP_SETTINGS):
            from ottla.broker.cluster import group_settings

            names = await group_settings.names_of(self._session)
            await asyncio.gather(*(self._read_group(name) for name in sorted({*names, *self._groups})))

    async def _read_group(self, group: str) -> None:
        from ottla.broker.cluster import group_settings

        settings, _ = await group_settings.read(self._session, group)
        if settings:
            self._groups[group] = settings
        else:
            self._groups.pop(group, None)

    async def _read_named(self, notifications: Iterable[tuple[str, bytes]]) -> None:
        entities: dict[str, None] = {}
        for path, data in notifications:
            if path.startswith(paths.OTTLA_CONFIG_CHANGES):
                from ottla.broker.cluster.group_settings import announced

                await self._read_group(announced(data))
                continue
            try:
                entities[ConfigChange.decode(data).entity_path] = None
            except MalformedZnode as error:
                _log.error("configuration notification ignored", extra={"path": path, "reason": str(error)})
        for some in slices(entities):
            await asyncio.gather(*map(self._refresh, some))

    async def _refresh(self, entity_path: str) -> None:
        kind, _, name = entity_path.partition("/")
        if kind in (TOPICS, BROKERS):
            await self._read(kind, name)
        else:
            await self.client_entities.refresh(entity_path)

    async def _children(self, path: str) -> list[str]:
        try:
            return await self._session.children(path)
        except NoNode:
            return []

    async def ensure_topics(self, topics: Mapping[str, UUID]) -> None:
        """Load the settings of topics, given with their ids, that are new to this broker.

        They are written before the topic itself, without a notification. What ZooKeeper does not tell now is
        read once it is back.
        """
        fresh = {name: topic_id for name, topic_id in topics.items() if not self._is_read(name, topic_id)}
        try:
            await asyncio.gather(*(self._read(TOPICS, name) for name in fresh))
        except ZooKeeperError as error:
            _log.warning("settings of new topics not read yet", extra={"reason": str(error)})
            self._notifications.reload_soon()
        else:
            self._read_for |= fresh

    def _is_read(self, topic: str, topic_id: UUID) -> bool:
        if topic not in self._read_for:
            return False
        known = self._read_for[topic]
        if known is None:
            self._read_for[topic] = known = topic_id
        return known == topic_id

    async def read_unclean_topics(self, topics: Iterable[str]) -> frozenset[str]:
        """Read which of these topics allow unclean elections, from ZooKeeper as it is now.

        A controller that decided with older settings could lose acknowledged records.
        """
        await retrying(partial(self._session.sync, paths.CONFIG))
        names = sorted(topics)
        stored = await asyncio.gather(
            *(retrying(partial(read_entity, self._session, TOPICS, name)) for name in names)
        )
        return frozenset(
            name
            for name, (settings, _) in zip(names, stored, strict=True)
            if self._build_log_config(name, settings).unclean_leader_election_enable
        )

    async def _read(self, kind: str, name: str) -> None:
        if kind == TOPICS:
            self._apply_topic(name, dict((await read_settings(self._session, name)).settings))
        elif await self.brokers.refresh(name):
            self._apply_broker()

    def _apply_topic(self, topic: str, settings: dict[str, str]) -> None:
        if settings == self._topics.get(topic, {}):
            return
        if settings:
            self._topics[topic] = settings
        else:
            self._topics.pop(topic, None)
        self._log_configs.pop(topic, None)
        for listener in self.on_topic_change:
            listener(topic, self.log_config(topic))

    def forget_topic(self, topic: str) -> None:
        """Forget the settings of a deleted topic."""
        self._topics.pop(topic, None)
        self._log_configs.pop(topic, None)
        self._read_for.pop(topic, None)

    def _apply_broker(self) -> None:
        topics, self._log_configs = list(self._log_configs), {}
        for changed in self.on_broker_change:
            changed(self.broker)
        for topic in topics:
            for listener in self.on_topic_change:
                listener(topic, self.log_config(topic))

    # ---- describing

    def describe_topic(self, topic: str) -> list[Entry]:
        """Every topic-level key of a topic, with its value and the sources of it."""
        return self.describe_topic_with(self.overrides(topic))

    def describe_topic_with(self, overrides: Mapping[str, str | None]) -> list[Entry]:
        """Every topic-level key, as `overrides` would make it."""
        return [self._topic_entry(key, overrides) for key in topic_keys().values()]

    def _topic_entry(self, key: Setting, overrides: Mapping[str, str | None]) -> Entry:
        synonyms: list[Synonym] = []
        if key.name in overrides:
            synonyms.append(Synonym(key.name, overrides[key.name], DYNAMIC_TOPIC))
        broker_synonyms = synonyms_of(key.name)
        for name in broker_synonyms:
            synonyms += self.brokers.synonyms_of(name, with_default=name == broker_synonyms[0])
        if not synonyms or synonyms[-1].source != DEFAULT:
            synonyms.append(Synonym(key.name, key.show(key.default), DEFAULT))
        # Computed, not copied from a synonym: `log.retention.hours` is in another unit than `retention.ms`.
        value = synonyms[0].value if synonyms[0].source == DYNAMIC_TOPIC else self._effective(key)
        return entry_of(key, value, synonyms, read_only=False)

    def _effective(self, key: Setting) -> str | None:
        return key.show(getattr(LogConfig.from_broker(self.broker), key.field))

    def describe_group(self, group: str) -> list[Entry]:
        """Every key that a group may have, with its value and the sources of it."""
        from ottla.broker.cluster.group_settings import describe

        return describe(self.group_settings(group), self.broker, self.brokers.synonyms_of)

    def describe_broker(self, name: str) -> list[Entry]:
        """Every key of this broker; for an empty name the cluster-wide dynamic settings only."""
        return self.brokers.describe(name)

    # ---- changing

    async def alter_topic(self, topic: str, change: Change, *, validate_only: bool = False) -> None:
        """Replace a topic's settings by the result of `change`.

        Raises UnknownTopicOrPartition, or InvalidConfig that names the invalid setting.
        """
        if why_illegal_topic_name(topic) or not await self._session.exists(paths.topic(topic)):
            raise UnknownTopicOrPartition(f"The topic '{topic}' does not exist.")

        def check(settings: Mapping[str, str]) -> None:
            LogConfig.from_broker(self.broker).with_overrides(settings)

        resource = f"ConfigResource(type=TOPIC, name='{topic}')"
        while True:
            stored = await read_settings(self._session, topic)
            settings = checked(resource, change(dict(stored.settings)), check)
            if validate_only:
                return
            try:
                await alter_settings(self._session, topic, settings, stored)
            except (BadVersion, NodeExists):
                continue
            await self._read(TOPICS, topic)
            return

    async def alter_group(self, group: str, change: Change, *, validate_only: bool = False) -> None:
        """Replace the settings of a group by the result of `change`. Raises InvalidConfig."""
        from ottla.broker.cluster import group_settings

        await group_settings.alter(self._session, group, change, self.broker, validate_only=validate_only)
        await self._read_group(group)

    async def alter_broker(
        self, name: str, change: Change, *, permit: Permit, validate_only: bool = False
    ) -> None:
        """Replace the dynamic settings of this broker, or of all brokers for an empty name.

        `permit` raises for a configuration that the sender may not bring about.
        """
        await self.brokers.alter(name, change, permit=permit, validate_only=validate_only)
        await self._read(BROKERS, name or CLUSTER_DEFAULT)
