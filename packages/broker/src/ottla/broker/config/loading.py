"""Build a `BrokerConfig` from a properties file, the environment and flags.

Later sources win: defaults, properties file, environment (`OTTLA_LOG_RETENTION_HOURS=24`), flags.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NoReturn

from ottla.broker.config.authorization import check_authorization
from ottla.broker.config.broker import BrokerConfig
from ottla.broker.config.environment_keys import from_environment
from ottla.broker.config.keys import find_key, parse_listener_key, values_of
from ottla.broker.config.listeners import Listener
from ottla.broker.config.logins import check_logins, has_logins
from ottla.broker.config.metrics import check_metrics
from ottla.broker.config.unsupported_keys import (
    ADVERTISED_PARTS,
    ALIASES,
    LISTENER_PARTS,
    NO_PROTECTION,
    is_known,
    reason_without_effect,
    unmet_protection,
    why_no_setting,
)
from ottla.broker.config.zookeeper_client import check_zookeeper_client
from ottla.client.config_definition import ConfigError, is_loopback
from ottla.zookeeper.frozen_classes import frozen

KAFKA_LISTENERS: Final = "PLAINTEXT://:9092"
"""The listeners of a properties file without `listeners`: every interface."""


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

    `properties` is None where there is no file: the broker then listens on 127.0.0.1 only. Unknown keys of a
    file, and keys without effect, become warnings, and so do listeners that are open to other machines. An
    unknown key of the environment or the flags, an invalid value, and a key that asks for protection which
    is not there raise `ConfigError`.
    """
    flags = flags or {}
    _refuse_unknown(flags)
    merged = {**(properties or {}), **from_environment(environment or {}), **flags}
    _refuse_unmet_protection(merged)
    warnings: list[str] = []
    settings = _old_listener_names(
        _rename_aliases(merged, warnings), "127.0.0.1" if properties is None else ""
    )
    _refuse_two_of_brokers(settings)
    warnings += _warnings_for(settings)
    explicit = {name: text for name, text in settings.items() if find_key(BrokerConfig, name) is not None}
    implied = {} if properties is None else {"listeners": KAFKA_LISTENERS}
    config = broker_config_from(implied | explicit)
    return Loaded(
        config,
        explicit,
        (
            *warnings,
            *_unused(config),
            *_exposure(config),
            *_rights_by_address(config),
            *_idle_authorization(config, explicit),
        ),
    )


def _refuse_unknown(flags: Mapping[str, str]) -> None:
    for name in flags:
        if not is_known(name):
            raise ConfigError(name, why_no_setting(name))


def _refuse_unmet_protection(settings: Mapping[str, str]) -> None:
    if names := unmet_protection(settings):
        raise ConfigError(
            ", ".join(names),
            f"must not be set: {NO_PROTECTION}, so nothing would be protected",
        )


def _refuse_two_of_brokers(settings: Mapping[str, str]) -> None:
    if settings.get("inter.broker.listener.name") and settings.get("security.inter.broker.protocol"):
        raise ConfigError(
            "security.inter.broker.protocol",
            "must not be set together with inter.broker.listener.name, whose protocol "
            "listener.security.protocol.map has",
        )


def _unused(config: BrokerConfig) -> Iterator[str]:
    """Warn of settings of a listener that there is not."""
    names = {listener.name.lower() for listener in config.parsed_listeners}
    for name, _ in config.listener_overrides:
        parts = parse_listener_key(name)
        if parts is not None and parts.listener not in names:
            yield f"{name} has no effect: `listeners` has no {parts.listener.upper()}"


def _exposure(config: BrokerConfig) -> list[str]:
    """Warn of listeners that other machines reach without a login, where no authorizer decides."""
    if config.authorizer_class_name:
        return []
    reached = [
        str(listener)
        for listener in config.parsed_listeners
        if not is_loopback(listener.host) and not _proves_clients(config, listener)
    ]
    if not reached:
        return []
    return [
        f"{', '.join(reached)} can be reached from other machines without a login: everyone there may read, "
        "write and delete all topics (--listen 127.0.0.1:9092 keeps them out)"
    ]


def _rights_by_address(config: BrokerConfig) -> list[str]:
    """Warn of networks whose clients may act as brokers: also on listeners for clients, while brokers move.

    Which brokers have not moved yet cannot be known: they have both listeners, and connect to either.
    """
    networks, is_alone = config.inter_broker_networks, config.zookeeper_connect is None
    if not networks:
        return []
    if config.authorizer_class_name or is_alone:
        why = "without zookeeper.connect" if is_alone else "with authorizer.class.name, which decides"
        return [f"inter.broker.networks has no effect {why}"]
    of_brokers = {config.interbroker_listener, config.controller_listener}
    others = [str(listener) for listener in config.parsed_listeners if listener.name not in of_brokers]
    if config.has_listener_of_brokers and others:
        return [
            f"inter.broker.networks lets every client in {networks} act as a broker on {', '.join(others)}, "
            f"too: take it out once all brokers use the listener {config.interbroker_listener}"
        ]
    return [
        f"inter.broker.networks lets every client in {networks} act as a broker: a listener for brokers "
        "alone (inter.broker.listener.name) or authorizer.class.name keeps clients out"
    ]


def _proves_clients(config: BrokerConfig, listener: Listener) -> bool:
    """Whether a listener admits only clients with a login or a certificate."""
    if has_logins(listener):
        return True
    required = config.of_listener(listener.name).ssl_client_auth == "required"
    return listener.security_protocol == "SSL" and required


def _idle_authorization(config: BrokerConfig, explicit: Iterable[str]) -> list[str]:
    """Warn of keys about an authorizer that is not configured: Kafka ignores them."""
    keys = {"super.users", "allow.everyone.if.no.acl.found"}
    if config.authorizer_class_name:
        return []
    return [f"{key} has no effect without authorizer.class.name" for key in sorted(keys & set(explicit))]


def broker_config_from(settings: Mapping[str, str]) -> BrokerConfig:
    """Build a checked configuration from dotted keys, all of which must be known."""
    for name in settings:
        if find_key(BrokerConfig, name) is None:
            raise ConfigError(name, why_no_setting(name))
    config = BrokerConfig(**values_of(BrokerConfig, settings))
    check_broker_config(config)
    return config


REPLICA_SELECTORS: Final = ("", "RackAwareReplicaSelector", "LeaderSelector")


_LEAST_DEDUPE_BYTES: Final = 1 << 20


def check_broker_config(config: BrokerConfig) -> None:
    """Check the rules between keys; raise `ConfigError` for the first that is broken."""
    # One branch for each rule: the error names the key to change, and why.
    listeners = {listener.name for listener in config.parsed_listeners}
    _check_advertised(config)
    check_zookeeper_client(config, config.zookeeper_connect)
    check_metrics(config)
    if config.interbroker_listener not in listeners:
        _refuse_interbroker_listener(config, listeners)
    _check_control_plane(config, listeners)
    check_logins(config)
    if config.replica_fetch_wait_max_ms > config.replica_lag_time_max_ms:
        raise ConfigError("replica.fetch.wait.max.ms", "must be at most replica.lag.time.max.ms")
    if (config.replica_selector_class or "").rpartition(".")[2] not in REPLICA_SELECTORS:
        raise ConfigError(
            "replica.selector.class",
            "must be org.apache.kafka.common.replica.RackAwareReplicaSelector or LeaderSelector: "
            "Java classes cannot run here",
        )
    if config.group_min_session_timeout_ms > config.group_max_session_timeout_ms:
        raise ConfigError("group.min.session.timeout.ms", "must be at most group.max.session.timeout.ms")
    _check_consumer_groups(config)
    if config.broker_id > config.reserved_broker_max_id and config.broker_id_generation_enable:
        raise ConfigError(
            "broker.id", f"must be at most reserved.broker.max.id ({config.reserved_broker_max_id})"
        )
    if config.max_connections_per_ip == 0 and not config.max_connections_per_ip_overrides:
        raise ConfigError(
            "max.connections.per.ip",
            "may be 0 only with max.connections.per.ip.overrides: nothing could connect",
        )
    if 0 < config.queued_max_request_bytes < config.socket_request_max_bytes:
        raise ConfigError(
            "queued.max.request.bytes",
            f"must be at least socket.request.max.bytes ({config.socket_request_max_bytes}): a request of "
            "that size would never fit",
        )
    per_thread = config.log_cleaner_dedupe_buffer_size // max(config.log_cleaner_threads, 1)
    if config.log_cleaner_enable and per_thread < _LEAST_DEDUPE_BYTES:
        raise ConfigError(
            "log.cleaner.dedupe.buffer.size", "must be at least 1048576 for each of log.cleaner.threads"
        )
    check_authorization(config)
    if config.ssl_engine_factory_class:
        raise ConfigError("ssl.engine.factory.class", "must be empty: Java classes cannot run here")
    if config.create_topic_policy_class_name:
        raise ConfigError("create.topic.policy.class.name", "must be empty: Java policies cannot run here")


def _check_consumer_groups(config: BrokerConfig) -> None:
    """Check that each setting of consumer groups is within the bounds for single groups."""
    for name in ("session_timeout_ms", "heartbeat_interval_ms", "assignment_interval_ms"):
        low, high = (getattr(config, f"group_consumer_{end}_{name}") for end in ("min", "max"))
        key = f"group.consumer.{name.replace('_', '.')}"
        if not low <= getattr(config, f"group_consumer_{name}") <= high:
            ends = (key.replace("consumer.", f"consumer.{end}.") for end in ("min", "max"))
            raise ConfigError(key, f"must be between {' and '.join(ends)}")
    if config.group_consumer_heartbeat_interval_ms >= config.group_consumer_session_timeout_ms:
        raise ConfigError(
            "group.consumer.heartbeat.interval.ms", "must be less than group.consumer.session.timeout.ms"
        )


def _check_control_plane(config: BrokerConfig, listeners: set[str]) -> None:
    if not config.control_plane_listener_name:
        return
    if config.controller_listener not in listeners:
        raise ConfigError("control.plane.listener.name", f"must be one of {', '.join(sorted(listeners))}")
    if config.controller_listener == config.interbroker_listener:
        raise ConfigError(
            "control.plane.listener.name",
            f"must be another listener than that of brokers, {config.interbroker_listener}",
        )


def _check_advertised(config: BrokerConfig) -> None:
    names = {listener.name for listener in config.parsed_listeners}
    advertised = config.parsed_advertised_listeners
    for listener in advertised:
        if listener.name not in names:
            raise ConfigError(
                "advertised.listeners", f"must name listeners of `listeners`, not {listener.name}"
            )
        if config.advertised_listeners and listener.host in ("0.0.0.0", "::"):
            raise ConfigError(
                "advertised.listeners", f"must have hosts that others can reach, not {listener.host}"
            )
    for own, whose in (
        (config.interbroker_listener, "brokers"),
        (config.controller_listener, "the controller"),
    ):
        if own in names and own not in {listener.name for listener in advertised}:
            raise ConfigError("advertised.listeners", f"must name {own}, the listener of {whose}, too")


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
        ("listeners", LISTENER_PARTS, default_host),
        ("advertised.listeners", ADVERTISED_PARTS, ""),
    ):
        parts = settings.pop(host, None), settings.pop(port, None)
        if new not in settings and any(part is not None for part in parts):
            settings[new] = f"PLAINTEXT://{parts[0] or default}:{parts[1] or '9092'}"
    return settings


def _warnings_for(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if not is_known(name) or reason_without_effect(name) is not None:
            yield f"{name} {why_no_setting(name)}"


def _refuse_interbroker_listener(config: BrokerConfig, listeners: set[str]) -> NoReturn:
    """Name the one of two keys that was set to what no listener is."""
    if config.inter_broker_listener_name:
        raise ConfigError("inter.broker.listener.name", f"must be one of {', '.join(sorted(listeners))}")
    protocols = {listener.security_protocol for listener in config.parsed_listeners}
    raise ConfigError(
        "security.inter.broker.protocol",
        f"must be {' or '.join(sorted(protocols))}, as `listeners` has it,"
        f" not {config.security_inter_broker_protocol}",
    )
