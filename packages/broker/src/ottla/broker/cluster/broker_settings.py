"""The settings of one broker: those of its file, with the dynamic ones in ZooKeeper on top.

The znode `/config/brokers/<default>` has those of all brokers, and `/config/brokers/<id>` those of one, which
win. Passwords are encrypted there, and decrypted in the memory of their broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ottla.broker.cluster.topic_settings import read_entity, write_entity
from ottla.broker.config import (
    BrokerConfig,
    ConfigError,
    Setting,
    check_broker_config,
    find_key,
    keys_of,
    values_of,
    why_no_setting,
)
from ottla.broker.config.password_encoder import UndecodablePassword
from ottla.protocol.errors import InvalidConfig, InvalidRequest
from ottla.zookeeper.frozen_classes import frozen, replace
from ottla.zookeeper.session import BadVersion, NodeExists
from ottla.zookeeper.znodes import ConfigEntity

if TYPE_CHECKING:
    from random import Random

    from ottla.broker.security.password_encoder import PasswordEncoder
    from ottla.zookeeper.session import Session

_log = logging.getLogger(__name__)

_NO_SECRET: Final = "Password encoder secret not configured: set password.encoder.secret in the broker's file"

DYNAMIC_TOPIC: Final = 1
DYNAMIC_BROKER: Final = 2
DYNAMIC_DEFAULT_BROKER: Final = 3
STATIC_BROKER: Final = 4
DEFAULT: Final = 5

BROKERS: Final = "brokers"
CLUSTER_DEFAULT: Final = "<default>"

Change = Callable[[dict[str, str]], dict[str, str]]
"""Returns the settings of an entity as they become, from those that it has."""
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


class DynamicPasswords:
    """Encrypts and decrypts the passwords among the settings of an entity, on a thread."""

    def __init__(self, config: BrokerConfig, random: Random) -> None:
        def encoder(secret: str | None) -> PasswordEncoder | None:
            if secret is None:
                return None
            from ottla.broker.security.password_encoder import PasswordEncoder  # for such a secret only

            return PasswordEncoder(secret, config, random.randbytes)

        self._encoder = encoder(config.password_encoder_secret)
        self._old_encoder = encoder(config.password_encoder_old_secret)

    @property
    def may_be_old(self) -> bool:
        """Whether the secret was changed."""
        return self._old_encoder is not None and self._encoder is not None

    async def decrypted(self, stored: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
        """Return the settings of a znode without the passwords that cannot be decrypted, which are logged.

        `known` are passwords by their encrypted texts: an encryption takes milliseconds.
        """
        return await _unless_plain(stored, self._decrypt, stored, known)

    def _decrypt(self, stored: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, text in stored.items():
            try:
                found[name] = (known.get(text) or self._decode(text)) if is_password(name) else text
            except UndecodablePassword as error:
                _log.error("dynamic password ignored", extra={"key": name, "reason": f"its znode {error}"})
        return found

    def _decode(self, text: str) -> str:
        if self._encoder is None:
            raise UndecodablePassword("needs password.encoder.secret")
        return self._encoder.decode(text)

    async def encrypted(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Return settings as they stand in a znode. Raises ConfigError without a secret."""
        return await _unless_plain(settings, self._encrypt, settings)

    def _encrypt(self, settings: Mapping[str, str]) -> dict[str, str]:
        if self._encoder is None:
            raise ConfigError("password.encoder.secret", _NO_SECRET)
        return {
            name: self._encoder.encode(text) if is_password(name) else text for name, text in settings.items()
        }

    async def renewed(self, stored: Mapping[str, str]) -> dict[str, str] | None:
        """Encrypt again the passwords that the old secret encrypted; None where there are none."""
        renewed = dict(stored) | await _unless_plain(stored, self._renew, stored)
        return renewed if renewed != stored else None

    def _renew(self, stored: Mapping[str, str]) -> dict[str, str]:
        assert self._old_encoder is not None
        assert self._encoder is not None
        found: dict[str, str] = {}
        for name, text in stored.items():
            if is_password(name):
                with suppress(UndecodablePassword):  # encrypted with the present secret
                    found[name] = self._encoder.encode(self._old_encoder.decode(text))
        return found


async def _unless_plain(
    settings: Mapping[str, str], work: Callable[..., dict[str, str]], *arguments: Mapping[str, str]
) -> dict[str, str]:
    """Run work on a thread, unless no setting is a password."""
    if any(map(is_password, settings)):
        return await asyncio.to_thread(work, *arguments)
    return dict(settings)


def is_password(name: str) -> bool:
    """Return whether a dynamic setting is encrypted in its znode, as in Kafka."""
    key = find_key(BrokerConfig, name)
    return key is not None and key.is_secret and key.update != "read-only"


class BrokerSettings:
    """The present settings of this broker, and the changes of those in ZooKeeper."""

    def __init__(self, session: Session, static: BrokerConfig, random: Random, broker_id: int) -> None:
        self.static = static
        self.present = static
        """The static configuration with the dynamic settings on top."""
        self.checks: list[Callable[[BrokerConfig], None]] = []
        """Raise ConfigError for settings of this broker that its parts cannot use."""
        self._session = session
        self._broker_id = broker_id
        self._stored: dict[str, dict[str, str]] = {}
        """The dynamic settings, by entity."""
        self._ignored: dict[str, list[str]] = {}
        self._passwords = DynamicPasswords(static, random)
        self._known_passwords: dict[str, str] = {}
        """The passwords of this broker by their encrypted texts."""
        self._reading = asyncio.Lock()

    # ---- following

    async def refresh(self, entity: str) -> bool:
        """Read an entity again; return whether the present settings have changed."""
        if entity not in (CLUSTER_DEFAULT, str(self._broker_id)):
            return False
        async with self._reading:  # a thread decrypts: a later reading must not overtake
            stored, _ = await read_entity(self._session, BROKERS, entity)
            settings = await self._decrypted(self._without_fixed(entity, stored))
        if settings == self._stored.get(entity, {}):
            return False
        self._stored[entity] = settings
        try:
            self.present = self._with_dynamic(self._stored)
        except ConfigError as error:
            _log.error("broker settings ignored", extra={"entity": entity, "reason": str(error)})
            return False
        return True

    async def renew_passwords(self) -> None:
        """Encrypt passwords again that were encrypted with `password.encoder.old.secret`."""
        while self._passwords.may_be_old:
            stored, version = await read_entity(self._session, BROKERS, str(self._broker_id))
            renewed = await self._passwords.renewed(stored)
            if renewed is None:
                return
            node = ConfigEntity(f"{BROKERS}/{self._broker_id}", renewed)
            with suppress(BadVersion, NodeExists):
                await write_entity(self._session, node, version)
                _log.info("dynamic passwords encrypted with the present secret")
                return

    async def _decrypted(self, stored: Mapping[str, str]) -> dict[str, str]:
        settings = await self._passwords.decrypted(stored, self._known_passwords)
        known = {stored[name]: text for name, text in settings.items() if is_password(name)}
        self._known_passwords = known or self._known_passwords
        return settings

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

    def describe(self, name: str) -> list[Entry]:
        """Every key of this broker; for an empty name the cluster-wide dynamic settings only."""
        if not name:
            return [
                entry_of(
                    key,
                    value,
                    [Synonym(set_name, value, DYNAMIC_DEFAULT_BROKER)],
                    read_only=key.update == "read-only",
                    name=set_name,
                )
                for set_name, value in self._stored.get(CLUSTER_DEFAULT, {}).items()
                if (key := find_key(BrokerConfig, set_name)) is not None
            ]
        own = [self._listener_entry(*override) for override in self.present.listener_overrides]
        return [*map(self._broker_entry, keys_of(BrokerConfig).values()), *own]

    def _broker_entry(self, key: Setting) -> Entry:
        synonyms = self.synonyms_of(key.name, with_default=True)
        value = key.show(getattr(self.present, key.field))
        return entry_of(key, value, synonyms, read_only=key.update == "read-only")

    def _listener_entry(self, name: str, text: str) -> Entry:
        """Describe a key of one listener; the broker's own key stands behind it, as in Kafka."""
        key = find_key(BrokerConfig, name)
        assert key is not None, name
        synonyms = self._dynamic_synonyms(name)
        if name in dict(self.static.listener_overrides):
            synonyms.append(Synonym(name, dict(self.static.listener_overrides)[name], STATIC_BROKER))
        synonyms += self.synonyms_of(key.name, with_default=True)
        return entry_of(key, text, synonyms, read_only=key.update == "read-only", name=name)

    def synonyms_of(self, name: str, *, with_default: bool) -> list[Synonym]:
        """Return where the value of a key may come from, the effective source first."""
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
            if name in self._stored.get(entity, {}):
                synonyms.append(Synonym(name, self._stored[entity][name], source))
        return synonyms

    # ---- changing

    async def alter(
        self,
        name: str,
        change: Change,
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
        resource = f"ConfigResource(type=BROKER, name='{name}')"

        def check(settings: Mapping[str, str]) -> None:
            _check_dynamic(settings, per_broker=bool(name))
            self._with_dynamic({**self._stored, entity: dict(settings)})

        while True:
            stored, version = await read_entity(self._session, BROKERS, entity)
            present = await self._decrypted(stored)
            sealed = {key: text for key, text in stored.items() if key not in present}
            wanted = change(changeable({**sealed, **present}, per_broker=bool(name)))
            kept = {key: text for key, text in wanted.items() if sealed.get(key) == text}
            settings = checked(
                resource, {key: text for key, text in wanted.items() if key not in kept}, check
            )
            await permit(self.present, self._with_dynamic({**self._stored, entity: settings}))
            if validate_only:
                return
            written = kept | await self._encrypted(resource, settings, stored, present)
            try:
                node = ConfigEntity(f"{BROKERS}/{entity}", written)
                await write_entity(self._session, node, version)
            except (BadVersion, NodeExists):
                continue
            return

    async def _encrypted(
        self, resource: str, settings: dict[str, str], stored: Mapping[str, str], present: Mapping[str, str]
    ) -> dict[str, str]:
        """Return settings as they stand in a znode; a password that stays has the text that it has."""
        unchanged = {
            name: stored[name] for name, text in settings.items() if name in stored and present[name] == text
        }
        changed = {name: text for name, text in settings.items() if name not in unchanged}
        try:
            return unchanged | await self._passwords.encrypted(changed)
        except ConfigError as error:
            raise InvalidConfig(f"Invalid config value for resource {resource}: {error.problem}") from None


def checked(
    resource: str, settings: dict[str, str], check: Callable[[Mapping[str, str]], None]
) -> dict[str, str]:
    """Return settings that `check` raises no ConfigError for. Raises InvalidConfig, with Kafka's words."""
    try:
        check(settings)
    except ConfigError as error:
        raise InvalidConfig(f"Invalid config value for resource {resource}: {error}") from None
    return settings


def changeable(settings: Mapping[str, str], *, per_broker: bool) -> dict[str, str]:
    """Leave out read-only keys, and in the cluster's default the keys that each broker has for itself."""
    fixed = {"read-only"} if per_broker else {"read-only", "per-broker"}
    return {
        name: value
        for name, value in settings.items()
        if (key := find_key(BrokerConfig, name)) is None or key.update not in fixed
    }


_RELOADED: Final = frozenset(
    {
        "ssl.keystore.type", "ssl.keystore.location", "ssl.keystore.password", "ssl.keystore.key",
        "ssl.keystore.certificate.chain", "ssl.key.password", "ssl.truststore.type",
        "ssl.truststore.location", "ssl.truststore.password", "ssl.truststore.certificates",
    }
)  # fmt: skip
"""The keys of certificates, which may change for single listeners only."""


def _check_dynamic(settings: Mapping[str, str], *, per_broker: bool) -> None:
    """Check which keys may change, with Kafka's words and in its order. Raises ConfigError."""
    updates: dict[str, str] = {}
    for name in settings:
        key = find_key(BrokerConfig, name)
        if key is None:
            raise ConfigError(name, why_no_setting(name))
        updates[name] = key.update
    refused = (
        ("Cannot update these configs dynamically", [n for n in updates if updates[n] == "read-only"]),
        (
            "These security configs can be dynamically updated only per-listener using the listener prefix",
            [n for n in updates if n in _RELOADED],
        ),
        (
            "Cannot update these configs at default cluster level, broker id must be specified",
            [n for n in updates if updates[n] == "per-broker" and not per_broker],
        ),
    )
    for problem, names in refused:
        if names:
            raise ConfigError(f"{problem}:", ", ".join(sorted(names)))


def entry_of(
    key: Setting, value: str | None, synonyms: list[Synonym], *, read_only: bool, name: str | None = None
) -> Entry:
    """Return a key as it is described; a secret has no value."""
    sensitive = key.type == "password"
    if sensitive:
        value = None
        synonyms = [Synonym(synonym.name, None, synonym.source) for synonym in synonyms]
    source = synonyms[0].source if synonyms else DEFAULT
    return Entry(
        name or key.name, value, source, read_only, sensitive, _TYPES[key.type], key.doc, tuple(synonyms)
    )
