"""Dynamic configuration of topics and brokers: stored in ZooKeeper, announced by notifications, applied here.

A writer changes an entity and then adds a numbered notification. Every broker first watches the
notifications, then loads all entities, then reads again each entity that a notification names: a notification
is a hint, the entity is the truth.

The module has over 500 lines because reading, describing and changing work on one state: what is stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.broker.cluster.client_entities import ClientEntities
from ottla.broker.cluster.topic_settings import TOPICS, alter_settings, read_entity, read_settings
from ottla.broker.cluster.zookeeper_session import retrying
from ottla.broker.config import (
    BrokerConfig,
    ConfigError,
    LogConfig,
    Setting,
    check_broker_config,
    find_key,
    keys_of,
    synonyms_of,
    topic_keys,
    values_of,
    why_no_setting,
)
from ottla.broker.runtime.frozen_classes import frozen, replace
from ottla.protocol.errors import InvalidConfig, InvalidRequest, UnknownTopicOrPartition
from ottla.protocol.topics import why_illegal_topic_name
from ottla.zookeeper import paths
from ottla.zookeeper.errors import IllegalName, MalformedZnode
from ottla.zookeeper.session import BadVersion, EventType, NodeExists, NoNode, WatchEvent, ZooKeeperError
from ottla.zookeeper.znodes import ConfigChange, ConfigEntity

if TYPE_CHECKING:
    from uuid import UUID

    from ottla.broker.runtime.environment import Environment
    from ottla.zookeeper.session import Session

_log = logging.getLogger(__name__)

DYNAMIC_TOPIC: Final = 1
DYNAMIC_BROKER: Final = 2
DYNAMIC_DEFAULT_BROKER: Final = 3
STATIC_BROKER: Final = 4
DEFAULT: Final = 5

BROKERS: Final = "brokers"
CLUSTER_DEFAULT: Final = "<default>"
NOTIFICATION_LIFE_MS: Final = 15 * 60_000
RETRY_BACKOFF_S: Final = 0.5

Permit = Callable[[BrokerConfig, BrokerConfig], Awaitable[None]]
"""Raises for a change of this broker's configuration that its sender may not make."""

_TYPES: Final[Mapping[str, int]] = {
    "boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7, "password": 9,
}  # fmt: skip


@frozen
class Synonym:
    """One source of a value, as DescribeConfigs lists it."""

    name: str
    value: str | None
    source: int


@frozen
class Entry:
    """One key as DescribeConfigs returns it; the first synonym is the effective one."""

    name: str
    value: str | None
    source: int
    read_only: bool
    sensitive: bool
    type: int
    documentation: str
    synonyms: tuple[Synonym, ...]


class Configs:
    """The present configuration of topics and of this broker."""

    def __init__(
        self, session: Session, static: BrokerConfig, environment: Environment, broker_id: int
    ) -> None:
        self.static = static
        self.broker = static
        """The static configuration with the dynamic settings on top."""
        self.client_entities = ClientEntities(session)
        """The settings of users, client ids and addresses."""
        self._session = session
        self._environment = environment
        self._broker_id = broker_id
        self._topics: dict[str, dict[str, str]] = {}
        self._read_for: dict[str, UUID | None] = {}
        """The topics whose settings were read, by name; None: at the start, before their ids were known."""
        self._brokers: dict[str, dict[str, str]] = {}
        self._ignored: dict[str, list[str]] = {}
        self._seen = -1
        self._reload = False
        self._moved = asyncio.Event()
        self._log_configs: dict[str, LogConfig] = {}
        self.on_topic_change: list[Callable[[str, LogConfig], None]] = []
        self.checks: list[Callable[[BrokerConfig], None]] = []
        """Raise ConfigError for settings of this broker that its parts cannot use."""
        self.on_broker_change: list[Callable[[BrokerConfig], None]] = []

    def subscribe(self, changed: Callable[[BrokerConfig], None]) -> None:
        """Call `changed` with the broker's settings: now, and whenever one of them has changed."""
        changed(self.broker)
        self.on_broker_change.append(changed)

    # ---- reading

    def overrides(self, topic: str) -> Mapping[str, str]:
        """The settings of a topic itself."""
        return self._topics.get(topic, {})

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

    async def load(self) -> None:
        """Watch for notifications, then read every entity."""
        self._reload = False
        names = await self._notifications()
        for kind, store in ((TOPICS, self._topics), (BROKERS, self._brokers)):
            found = sorted({*await self._children(f"{paths.CONFIG}/{kind}"), *store})
            await asyncio.gather(*(self._read(kind, name) for name in found))
            if kind == TOPICS and not self._read_for:
                self._read_for = dict.fromkeys(found)
        await self.client_entities.load()
        self._seen = max((_number(name) for name in names), default=self._seen)

    async def follow(self) -> None:
        """Apply changes until cancelled. After a lost connection every entity is read again."""
        while True:
            await self._moved.wait()
            self._moved.clear()
            try:
                await (self.load() if self._reload else self._process_notifications())
            except ZooKeeperError as error:
                _log.warning("configuration changes not read", extra={"reason": str(error)})
                await asyncio.sleep(RETRY_BACKOFF_S)
                self._moved.set()

    def _notified(self, event: WatchEvent) -> None:
        self._reload |= event.type is EventType.NONE
        self._moved.set()

    async def _process_notifications(self) -> None:
        """Read the entities that new notifications name; remove notifications past their life."""
        for name in sorted(await self._notifications(), key=_number):
            path = f"{paths.CONFIG_CHANGES}/{name}"
            try:
                data, stat = await self._session.get(path)
            except NoNode:
                continue
            if _number(name) > self._seen:
                self._seen = _number(name)
                await self._apply_notification(path, data)
            if self._environment.clock.now_ms() - stat.ctime_ms > NOTIFICATION_LIFE_MS:
                await self._remove(path)

    async def _apply_notification(self, path: str, data: bytes) -> None:
        try:
            change = ConfigChange.decode(data)
        except MalformedZnode as error:
            _log.error("configuration notification ignored", extra={"path": path, "reason": str(error)})
            return
        kind, _, name = change.entity_path.partition("/")
        if kind in (TOPICS, BROKERS):
            await self._read(kind, name)
        else:
            await self.client_entities.refresh(change.entity_path)

    async def _notifications(self) -> list[str]:
        return await self._session.children(paths.CONFIG_CHANGES, self._notified)

    async def _children(self, path: str) -> list[str]:
        try:
            return await self._session.children(path)
        except NoNode:
            return []

    async def _remove(self, path: str) -> None:
        try:
            await self._session.delete(path)
        except NoNode:
            return

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
            self._reload = True
            self._moved.set()
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
        elif name in (CLUSTER_DEFAULT, str(self._broker_id)):
            self._apply_broker(name, (await read_entity(self._session, kind, name))[0])

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

    def _apply_broker(self, name: str, stored: dict[str, str]) -> None:
        settings = self._without_fixed(name, stored)
        if settings == self._brokers.get(name, {}):
            return
        self._brokers[name] = settings
        try:
            self.broker = self._with_dynamic(self._brokers)
        except ConfigError as error:
            _log.error("broker settings ignored", extra={"entity": name, "reason": str(error)})
            return
        topics, self._log_configs = list(self._log_configs), {}
        for changed in self.on_broker_change:
            changed(self.broker)
        for topic in topics:
            for listener in self.on_topic_change:
                listener(topic, self.log_config(topic))

    def _without_fixed(self, entity: str, stored: Mapping[str, str]) -> dict[str, str]:
        """The settings that may change while a broker runs; the others are named in the log, once."""
        settings = changeable(stored, per_broker=entity != CLUSTER_DEFAULT)
        ignored = sorted(stored.keys() - settings.keys())
        if ignored and self._ignored.get(entity) != ignored:
            _log.error(
                "settings ignored: they cannot change there",
                extra={"entity": f"{BROKERS}/{entity}", "keys": ", ".join(ignored)},
            )
        self._ignored[entity] = ignored
        return settings

    def _with_dynamic(self, stored: Mapping[str, Mapping[str, str]]) -> BrokerConfig:
        settings = {
            **dict(self.static.listener_overrides),
            **stored.get(CLUSTER_DEFAULT, {}),
            **stored.get(str(self._broker_id), {}),
        }
        known = {name: text for name, text in settings.items() if find_key(BrokerConfig, name) is not None}
        config = replace(self.static, **values_of(BrokerConfig, known))
        check_broker_config(config)
        for check in self.checks:
            check(config)
        return config

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
            synonyms += self._broker_synonyms(name, with_default=name == broker_synonyms[0])
        if not synonyms or synonyms[-1].source != DEFAULT:
            synonyms.append(Synonym(key.name, key.show(key.default), DEFAULT))
        # Computed, not copied from a synonym: `log.retention.hours` is in another unit than `retention.ms`.
        value = synonyms[0].value if synonyms[0].source == DYNAMIC_TOPIC else self._effective(key)
        return _entry(key, value, synonyms, read_only=False)

    def _effective(self, key: Setting) -> str | None:
        return key.show(getattr(LogConfig.from_broker(self.broker), key.field))

    def describe_broker(self, name: str) -> list[Entry]:
        """Every key of this broker; for an empty name the cluster-wide dynamic settings only."""
        if not name:
            return [
                _entry(
                    key,
                    value,
                    [Synonym(set_name, value, DYNAMIC_DEFAULT_BROKER)],
                    read_only=key.update == "read-only",
                    name=set_name,
                )
                for set_name, value in self._brokers.get(CLUSTER_DEFAULT, {}).items()
                if (key := find_key(BrokerConfig, set_name)) is not None
            ]
        own = [self._listener_entry(*override) for override in self.broker.listener_overrides]
        return [*map(self._broker_entry, keys_of(BrokerConfig).values()), *own]

    def _broker_entry(self, key: Setting) -> Entry:
        synonyms = self._broker_synonyms(key.name, with_default=True)
        value = key.show(getattr(self.broker, key.field))
        return _entry(key, value, synonyms, read_only=key.update == "read-only")

    def _listener_entry(self, name: str, text: str) -> Entry:
        """Describe a key of one listener; the broker's own key stands behind it, as in Kafka."""
        key = find_key(BrokerConfig, name)
        assert key is not None, name
        synonyms = self._dynamic_synonyms(name)
        if name in dict(self.static.listener_overrides):
            synonyms.append(Synonym(name, dict(self.static.listener_overrides)[name], STATIC_BROKER))
        synonyms += self._broker_synonyms(key.name, with_default=True)
        return _entry(key, text, synonyms, read_only=key.update == "read-only", name=name)

    def _broker_synonyms(self, name: str, *, with_default: bool) -> list[Synonym]:
        key = keys_of(BrokerConfig)[name]
        synonyms = self._dynamic_synonyms(name)
        static = getattr(self.static, key.field)
        if static != key.default:
            synonyms.append(Synonym(name, key.show(static), STATIC_BROKER))
        if with_default:
            synonyms.append(Synonym(name, key.show(key.default), DEFAULT))
        return synonyms

    def _dynamic_synonyms(self, name: str) -> list[Synonym]:
        synonyms: list[Synonym] = []
        for entity, source in (
            (str(self._broker_id), DYNAMIC_BROKER),
            (CLUSTER_DEFAULT, DYNAMIC_DEFAULT_BROKER),
        ):
            if name in self._brokers.get(entity, {}):
                synonyms.append(Synonym(name, self._brokers[entity][name], source))
        return synonyms

    # ---- changing

    async def alter_topic(
        self, topic: str, change: Callable[[dict[str, str]], dict[str, str]], *, validate_only: bool = False
    ) -> None:
        """Replace a topic's settings by the result of `change`.

        Raises UnknownTopicOrPartition, or InvalidConfig that names the invalid setting.
        """
        if why_illegal_topic_name(topic) or not await self._session.exists(paths.topic(topic)):
            raise UnknownTopicOrPartition(f"The topic '{topic}' does not exist.")

        def check(settings: Mapping[str, str]) -> None:
            LogConfig.from_broker(self.broker).with_overrides(settings)

        while True:
            stored = await read_settings(self._session, topic)
            settings = _checked(change(dict(stored.settings)), check)
            if validate_only:
                return
            try:
                await alter_settings(self._session, topic, settings, stored)
            except (BadVersion, NodeExists):
                continue
            await self._read(TOPICS, topic)
            return

    async def alter_broker(
        self,
        name: str,
        change: Callable[[dict[str, str]], dict[str, str]],
        *,
        permit: Permit,
        validate_only: bool = False,
    ) -> None:
        """Replace the dynamic settings of this broker, or of all brokers for an empty name.

        `permit` raises for a configuration that the sender may not bring about.
        """
        if name and name != str(self._broker_id):
            raise InvalidRequest(f"Unexpected broker id, expected {self._broker_id}, but received {name}")
        entity = name or CLUSTER_DEFAULT

        def check(settings: Mapping[str, str]) -> None:
            _check_dynamic(settings, per_broker=bool(name))
            self._with_dynamic({**self._brokers, entity: settings})

        while True:
            present, version = await read_entity(self._session, BROKERS, entity)
            settings = _checked(change(changeable(present, per_broker=bool(name))), check)
            await permit(self.broker, self._with_dynamic({**self._brokers, entity: settings}))
            if validate_only:
                return
            try:
                await self._write(ConfigEntity(f"{BROKERS}/{entity}", settings), version)
            except (BadVersion, NodeExists):
                continue
            await self._read(BROKERS, entity)
            return

    async def _write(self, node: ConfigEntity, version: int) -> None:
        change = ConfigChange(node.entity_path)
        if version < 0:
            await self._session.create(node.path, node.encode(), make_parents=True)
        else:
            await self._session.set(node.path, node.encode(), version=version)
        await self._session.create(change.path, change.encode(), sequential=True, make_parents=True)


def _checked(settings: dict[str, str], check: Callable[[Mapping[str, str]], None]) -> dict[str, str]:
    try:
        check(settings)
    except ConfigError as error:
        raise InvalidConfig(f"Invalid config value for resource: {error}") from None
    return settings


def changeable(settings: Mapping[str, str], *, per_broker: bool) -> dict[str, str]:
    """Leave out read-only keys, and in the cluster's default the keys that each broker has for itself."""
    fixed = {"read-only"} if per_broker else {"read-only", "per-broker"}
    return {
        name: value
        for name, value in settings.items()
        if (key := find_key(BrokerConfig, name)) is None or key.update not in fixed
    }


def _check_dynamic(settings: Mapping[str, str], *, per_broker: bool) -> None:
    updates: dict[str, str] = {}
    for name in settings:
        key = find_key(BrokerConfig, name)
        if key is None:
            raise InvalidConfig(f"{name} {why_no_setting(name)}")
        if name.startswith("ssl.") and key.update != "read-only":
            raise InvalidConfig(
                "These security configs can be dynamically updated only per-listener using the listener "
                f"prefix: {name}"
            )
        if key.is_secret:
            raise InvalidConfig(f"{name} is a secret, which znodes do not hold here: set it in the file")
        updates[name] = key.update
    if fixed := sorted(name for name, update in updates.items() if update == "read-only"):
        raise InvalidRequest(f"Cannot update these configs dynamically: {', '.join(fixed)}")
    own = sorted(name for name, update in updates.items() if update == "per-broker")
    if own and not per_broker:
        raise InvalidRequest(f"Cannot update these configs at default cluster level: {', '.join(own)}")


def _entry(
    key: Setting, value: str | None, synonyms: list[Synonym], *, read_only: bool, name: str | None = None
) -> Entry:
    sensitive = key.type == "password"
    if sensitive:
        value = None
        synonyms = [Synonym(synonym.name, None, synonym.source) for synonym in synonyms]
    source = synonyms[0].source if synonyms else DEFAULT
    return Entry(
        name or key.name, value, source, read_only, sensitive, _TYPES[key.type], key.doc, tuple(synonyms)
    )


def _number(name: str) -> int:
    try:
        return paths.sequence_of(name)
    except IllegalName:
        return -1
