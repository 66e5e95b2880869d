"""Build a `BrokerConfig` from a properties file, the environment and flags.

Later sources win: defaults, properties file, environment (`OTTLA_LOG_RETENTION_HOURS=24`), flags.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ottla.broker.config.broker import BrokerConfig
from ottla.broker.config.keys import keys_of
from ottla.broker.config.listeners import is_loopback
from ottla.broker.frozen_classes import frozen
from ottla.client.config_definition import ConfigError

ENVIRONMENT_PREFIX = "OTTLA_"

ALIASES: Mapping[str, str] = {
    "log.delete.delay.ms": "log.segment.delete.delay.ms",
}
"""Older names of keys that kept their meaning."""

IGNORED: Mapping[str, str] = {
    "replica.lag.max.messages": "followers leave the in-sync replicas by time only (replica.lag.time.max.ms)",
    "controller.message.queue.size": "the controller's queues are unbounded: one broker cannot block it",
    "zookeeper.sync.time.ms": "it applied to consumers that kept offsets in ZooKeeper",
    "kafka.metrics.reporters": "metrics are served by the Prometheus endpoint (metrics.port)",
    "kafka.metrics.polling.interval.secs": "metrics are served by the Prometheus endpoint (metrics.port)",
    "metric.reporters": "metrics are served by the Prometheus endpoint (metrics.port)",
    "auto.include.jmx.reporter": "there is no JVM",
    "log.dir.failure.timeout.ms": "it applies to Kafka's own quorum",
    "confluent.support.metrics.enable": "the broker sends no reports",
    "zookeeper.clientCnxnSocket": "the ZooKeeper client is not Java's",
    "authorizer.class.name": "access control is not implemented yet: every client may do everything",
    "super.users": "access control is not implemented yet: every client may do everything",
    "allow.everyone.if.no.acl.found": "access control is not implemented yet: every client may do everything",
}
"""Keys of Kafka that have no effect here, and why."""

KAFKA_LISTENERS: Final = "PLAINTEXT://:9092"
"""What a properties file without `listeners` means: every interface."""

_LISTENER_PARTS = ("host.name", "port")
_ADVERTISED_PARTS = ("advertised.host.name", "advertised.port")


@frozen
class Loaded:
    """A configuration, the keys that were set explicitly with their texts, and warnings for the user."""

    config: BrokerConfig
    explicit: Mapping[str, str]
    warnings: tuple[str, ...]


def load_broker_config(
    properties: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> Loaded:
    """Merge the sources and check every key.

    `properties` is None where there is no file: the broker then listens on 127.0.0.1 only. Unknown and
    ignored keys become warnings, and so do listeners that are open to other machines; an invalid value
    raises `ConfigError`.
    """
    merged = {**(properties or {}), **_from_environment(environment or {}), **(flags or {})}
    warnings: list[str] = []
    settings = _old_listener_names(
        _rename_aliases(merged, warnings), "127.0.0.1" if properties is None else ""
    )
    known = keys_of(BrokerConfig)
    warnings += _warnings_for(name for name in settings if name not in known)
    explicit = {name: text for name, text in settings.items() if name in known}
    implied = {} if properties is None else {"listeners": KAFKA_LISTENERS}
    config = broker_config_from(implied | explicit)
    return Loaded(config, explicit, (*warnings, *_exposure(config)))


def _exposure(config: BrokerConfig) -> list[str]:
    """Warn of listeners that other machines reach: nobody has to log in there."""
    reached = [str(one) for one in config.parsed_listeners if not is_loopback(one.host)]
    if not reached:
        return []
    return [
        f"{', '.join(reached)} can be reached from other machines without a login: everyone there may read, "
        "write and delete all topics (--listen 127.0.0.1:9092 keeps them out)"
    ]


def broker_config_from(settings: Mapping[str, str]) -> BrokerConfig:
    """Build a checked configuration from dotted keys, all of which must be known."""
    known = keys_of(BrokerConfig)
    values: dict[str, Any] = {}
    for name, text in settings.items():
        if name not in known:
            raise ConfigError(name, "is not a broker configuration")
        values[known[name].field] = known[name].parse(text)
    config = BrokerConfig(**values)
    check_broker_config(config)
    return config


def check_broker_config(config: BrokerConfig) -> None:
    """Check the rules between keys; raise `ConfigError` for the first that is broken."""
    for listener in config.parsed_listeners:
        # Served in plain text, such a listener would expose data that it is meant to protect.
        if listener.security_protocol != "PLAINTEXT":
            raise ConfigError(
                "listeners", f"must be PLAINTEXT: there is no TLS or login here yet, for {listener}"
            )
    listeners = {listener.name for listener in config.parsed_listeners}
    for listener in config.parsed_advertised_listeners:
        if listener.name not in listeners:
            raise ConfigError(
                "advertised.listeners", f"must name listeners of `listeners`, not {listener.name}"
            )
    if config.interbroker_listener not in listeners:
        raise ConfigError("inter.broker.listener.name", f"must be one of {', '.join(sorted(listeners))}")
    if config.replica_fetch_wait_max_ms > config.replica_lag_time_max_ms:
        raise ConfigError("replica.fetch.wait.max.ms", "must be at most replica.lag.time.max.ms")
    if config.group_min_session_timeout_ms > config.group_max_session_timeout_ms:
        raise ConfigError("group.min.session.timeout.ms", "must be at most group.max.session.timeout.ms")
    if config.broker_id > config.reserved_broker_max_id and config.broker_id_generation_enable:
        raise ConfigError(
            "broker.id", f"must be at most reserved.broker.max.id ({config.reserved_broker_max_id})"
        )
    if config.create_topic_policy_class_name:
        raise ConfigError("create.topic.policy.class.name", "must be empty: Java policies cannot run here")


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    dotted = {
        name[len(ENVIRONMENT_PREFIX) :].lower().replace("_", "."): value
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX)
    }
    # Ottla's other programs read variables with the same prefix: take only those of broker keys.
    known = keys_of(BrokerConfig)
    return {name: value for name, value in dotted.items() if name in known or name in ALIASES}


def _rename_aliases(settings: Mapping[str, str], warnings: list[str]) -> dict[str, str]:
    renamed: dict[str, str] = {}
    for name, value in settings.items():
        if name in ALIASES:
            warnings.append(f"{name} is the old name of {ALIASES[name]}")
        renamed.setdefault(ALIASES.get(name, name), value)
    return renamed


def _old_listener_names(settings: dict[str, str], default_host: str) -> dict[str, str]:
    """Turn `host.name`, `port` and their advertised forms into listeners, unless those are set.

    `default_host` is where to listen when only a port is given.
    """
    for new, (host, port), default in (
        ("listeners", _LISTENER_PARTS, default_host),
        ("advertised.listeners", _ADVERTISED_PARTS, ""),
    ):
        parts = settings.pop(host, None), settings.pop(port, None)
        if new not in settings and any(part is not None for part in parts):
            settings[new] = f"PLAINTEXT://{parts[0] or default}:{parts[1] or '9092'}"
    return settings


def _warnings_for(names: Iterable[str]) -> list[str]:
    return [
        f"{name} is ignored: {IGNORED[name]}"
        if name in IGNORED
        else f"{name} is not a known broker configuration"
        for name in names
    ]
