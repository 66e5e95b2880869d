"""Subscriptions of client metrics: which clients push which metrics, and how often.

They are configurations of the resource type CLIENT_METRICS, and stand in one znode of Ottla's own: a broker
of Apache Kafka 3.9 with ZooKeeper knows none of them. Each broker follows it with a watch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from ottla.broker.cluster.broker_settings import DEFAULT, Entry, Synonym, entry_of
from ottla.broker.config import Setting
from ottla.broker.config.keys import keys_of
from ottla.client.config_definition import setting
from ottla.protocol.errors import InvalidConfig, InvalidRequest
from ottla.zookeeper import paths
from ottla.zookeeper.errors import MalformedZnode
from ottla.zookeeper.frozen_classes import frozen
from ottla.zookeeper.session import BadVersion, NodeExists, NoNode, WatchEvent
from ottla.zookeeper.znodes import ClientMetricsSubscriptions

if TYPE_CHECKING:
    from ottla.zookeeper.session import Session

_log = logging.getLogger(__name__)

METRICS: Final = "metrics"
INTERVAL: Final = "interval.ms"
MATCH: Final = "match"
ALL_METRICS: Final = "*"
DEFAULT_INTERVAL_MS: Final = 300_000
LEAST_INTERVAL_MS: Final = 100
MOST_INTERVAL_MS: Final = 3_600_000
MATCHED: Final = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)
"""The facts of a client that patterns may name."""
DYNAMIC_CLIENT_METRICS: Final = 7
_MISSING: Final = -1
NEEDS: Final = "client metrics need opentelemetry-proto: pip install 'ottla-broker[telemetry]'"

Change = Callable[[dict[str, str]], dict[str, str]]


@frozen(kw_only=True)
class SubscriptionConfig:
    """The keys of a subscription, as Kafka has them."""

    interval_ms: int = setting(DEFAULT_INTERVAL_MS, "How often clients push their metrics.")
    match: tuple[str, ...] = setting(
        (),
        "Patterns of clients, as `client_software_name=Java,client_id=orders-.*`; without one, all clients.",
    )
    metrics: tuple[str, ...] = setting((), "Prefixes of the names of metrics; `*` for all metrics.")


KEYS: Final[Mapping[str, Setting]] = keys_of(SubscriptionConfig)


@frozen
class Subscription:
    """One subscription; `match` returns something true for a value of the fact that it stands under."""

    metrics: frozenset[str]
    interval_ms: int
    match: Mapping[str, Callable[[str], object]]

    def matches(self, facts: Mapping[str, str | None]) -> bool:
        """Return whether a client with these facts is meant."""
        return all(
            (value := facts.get(name)) is not None and match(value) for name, match in self.match.items()
        )


def parsed(name: str, config: Mapping[str, str]) -> Subscription:
    """Read a configuration. Raises InvalidRequest and InvalidConfig, as Kafka does."""
    if not name:
        raise InvalidRequest("the name of a subscription is empty")
    if unknown := [key for key in config if key not in KEYS]:
        raise InvalidRequest(f"Unknown client metrics configuration: {unknown[0]}")
    interval = config.get(INTERVAL, str(DEFAULT_INTERVAL_MS))
    try:
        interval_ms = int(interval)
    except ValueError:
        raise InvalidConfig(f"Invalid value {interval} for configuration {INTERVAL}: not a number") from None
    if not LEAST_INTERVAL_MS <= interval_ms <= MOST_INTERVAL_MS:
        raise InvalidRequest(f"Invalid value {interval} for {INTERVAL}, it must be between 100 and 3600000")
    return Subscription(
        frozenset(_listed(config.get(METRICS, ""))), interval_ms, _patterns(_listed(config.get(MATCH, "")))
    )


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _patterns(listed: list[str]) -> dict[str, Callable[[str], object]]:
    """Read patterns of clients. RE2 matches them in linear time: names of clients are a stranger's text."""
    found: dict[str, Callable[[str], object]] = {}
    for text in listed:
        name, equals, pattern = (part.strip() for part in text.partition("="))
        if not equals or name not in MATCHED or "=" in pattern or not pattern:
            raise InvalidConfig(f"Illegal client matching pattern: {text}")
        found[name] = _compiled(pattern, text)
    return found


def _compiled(pattern: str, text: str) -> Callable[[str], object]:
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        match: Callable[[str], object] = re2.compile(pattern, options=options).fullmatch
    except re2.error:
        raise InvalidConfig(f"Illegal client matching pattern: {text}") from None
    return match


def check_packages() -> None:
    """Raise InvalidConfig where the package that reads pushed metrics is not installed."""
    try:
        import opentelemetry.proto.metrics.v1.metrics_pb2  # noqa: F401
    except ImportError:
        raise InvalidConfig(NEEDS) from None


class Subscriptions:
    """The subscriptions as this broker knows them; the next request after a change reads them again."""

    def __init__(self, session: Session) -> None:
        self.version = 0
        """Rises with each change that this broker has read."""
        self.configs: Mapping[str, Mapping[str, str]] = {}
        self.active: Mapping[str, Subscription] = {}
        self._session = session
        self._is_read = False

    async def refresh(self) -> None:
        """Read what has changed. Raises ZooKeeperError."""
        if self._is_read:
            return
        self._is_read = True  # a watch that fires during the read asks for the next one
        try:
            await self._session.exists(paths.OTTLA_CLIENT_METRICS, self._moved)
            self._take((await self._read())[0])
        except BaseException:
            self._is_read = False
            raise

    def _moved(self, _: WatchEvent) -> None:
        self._is_read = False

    async def _read(self) -> tuple[Mapping[str, Mapping[str, str]], int]:
        try:
            data, stat = await self._session.get(paths.OTTLA_CLIENT_METRICS)
        except NoNode:
            return {}, _MISSING
        try:
            return ClientMetricsSubscriptions.decode(data).configs, stat.version
        except MalformedZnode as error:
            _log.error("subscriptions of client metrics ignored", extra={"reason": str(error)})
            return {}, stat.version

    def _take(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        if configs == self.configs:
            return
        active = {}
        for name, config in configs.items():
            try:
                active[name] = parsed(name, config)
            except (InvalidRequest, InvalidConfig) as error:
                _log.error(
                    "subscription of client metrics ignored",
                    extra={"subscription": name, "reason": str(error)},
                )
        self.configs, self.active = configs, active
        self.version += 1

    def describe(self, name: str) -> list[Entry]:
        """Return every key of a subscription. Raises InvalidRequest for an empty name."""
        if not name:
            raise InvalidRequest("Client metrics subscription name must not be empty")
        config = self.configs.get(name, {})
        return [_entry(key, config.get(key.name)) for key in KEYS.values()]

    async def alter(self, name: str, change: Change, *, validate_only: bool = False) -> None:
        """Replace the configuration of a subscription; one without keys is gone.

        Raises what `parsed` raises, and ZooKeeperError.
        """
        while True:
            configs, version = await self._read()
            config = change(dict(configs.get(name, {})))
            parsed(name, config)
            if config:
                check_packages()
            if validate_only:
                return
            changed = {**configs, name: config} if config else {n: c for n, c in configs.items() if n != name}
            node = ClientMetricsSubscriptions(changed)
            try:
                if version == _MISSING:
                    await self._session.create(node.path, node.encode(), make_parents=True)
                else:
                    await self._session.set(node.path, node.encode(), version=version)
            except (BadVersion, NodeExists):
                continue
            self._take(changed)
            return


def _entry(key: Setting, value: str | None) -> Entry:
    default = key.show(key.default)
    synonyms = [] if value is None else [Synonym(key.name, value, DYNAMIC_CLIENT_METRICS)]
    synonyms.append(Synonym(key.name, default, DEFAULT))
    return entry_of(key, synonyms[0].value, synonyms, read_only=False)
