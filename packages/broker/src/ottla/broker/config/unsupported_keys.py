"""Keys of a `server.properties` that no setting of Ottla has: what becomes of each, and why.

A key of Kafka without effect is named in a warning, an unknown one with the nearest setting. A key that asks
for protection which is not there refuses the start: a broker that ignores it would be open without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.broker.config.broker import BrokerConfig
from ottla.broker.config.keys import find_key, keys_of, parse_listener_key

ALIASES: Mapping[str, str] = {
    "log.delete.delay.ms": "log.segment.delete.delay.ms",
    "zookeeper.client.secure": "zookeeper.ssl.client.enable",
}
"""Older names of keys that kept their meaning."""

LISTENER_PARTS = ("host.name", "port")
ADVERTISED_PARTS = ("advertised.host.name", "advertised.port")
"""The keys of an address before `listeners` and `advertised.listeners`."""

NO_PROTECTION: Final = "this protection is not there yet"
NOT_SUPPORTED: Final = "Not supported"
"""The documentation of a setting that is here to be refused begins with it."""
_DEFAULT_QUOTA: Final = "default quotas are dynamic: kafka-configs --entity-type clients --entity-default"
_QUORUM: Final = "it applies to Kafka's own quorum; this broker uses ZooKeeper or its embedded coordinator"
_NEW_GROUPS: Final = "it applies to the group protocols of Kafka 4; groups here use the classic one"
_REMOTE: Final = "logs are not kept in remote storage"
_METRICS: Final = "metrics are served by the Prometheus endpoint (metrics.port)"

IGNORED: Mapping[str, str] = {
    "replica.lag.max.messages": "followers leave the in-sync replicas by time only (replica.lag.time.max.ms)",
    "controller.message.queue.size": "the controller's queues are unbounded: one broker cannot block it",
    "zookeeper.sync.time.ms": "it applied to consumers that kept offsets in ZooKeeper",
    "zookeeper.clientCnxnSocket": "the ZooKeeper client is not Java's",
    "java.security.auth.login.config": "logins are not read from a JAAS file: each module of its section "
    "KafkaServer, or <listener>.KafkaServer, goes into listener.name.<listener>.<mechanism>.sasl.jaas.config",
    "kafka.metrics.reporters": _METRICS,
    "kafka.metrics.polling.interval.secs": _METRICS,
    "metric.reporters": _METRICS,
    "metrics.num.samples": _METRICS,
    "metrics.recording.level": _METRICS,
    "metrics.sample.window.ms": _METRICS,
    "auto.include.jmx.reporter": "there is no JVM",
    "confluent.support.metrics.enable": "the broker sends no reports",
    "broker.heartbeat.interval.ms": _QUORUM,
    "broker.session.timeout.ms": _QUORUM,
    "early.start.listeners": _QUORUM,
    "eligible.leader.replicas.enable": _QUORUM,
    "initial.broker.registration.timeout.ms": _QUORUM,
    "log.dir.failure.timeout.ms": _QUORUM,
    "node.id": f"{_QUORUM}, where its id is broker.id",
    "process.roles": _QUORUM,
    "server.max.startup.time.ms": _QUORUM,
    "unclean.leader.election.interval.ms": _QUORUM,
    "quota.consumer.default": _DEFAULT_QUOTA,
    "quota.producer.default": _DEFAULT_QUOTA,
    "client.quota.callback.class": "quota callbacks are Java classes",
    "max.request.partition.size.limit": "lists of requests are limited by request.max.elements",
    "num.replica.alter.log.dirs.threads": "one task moves all replicas between directories",
    "log.initial.task.delay.ms": "the first cleaning of the logs is not delayed",
    "socket.connection.setup.timeout.ms": "brokers connect to each other with a time limit of their own",
    "socket.connection.setup.timeout.max.ms": "brokers connect to each other with a time limit of their own",
    "group.share.assignor.offload.enable": "assignments of share groups are made on the event loop",
    "group.share.assignors": "share groups have one assignor, simple",
    "group.share.dlq.manager.class.name": "managers of dead letters are Java classes",
    "group.share.persister.class.name": "persisters are Java classes",
    "share.fetch.purgatory.purge.interval.requests": "a request that waits leaves its queue as it ends",
    "share.coordinator.append.linger.ms": "writes of share groups are appended at once",
    "share.coordinator.cached.buffer.max.bytes": "no buffers of writes are kept",
    "share.coordinator.threads": "share coordinators run on the event loop",
    "unstable.api.versions.enable": "there are no unstable versions of requests",
    "unstable.feature.versions.enable": "there are no unstable features",
}
"""Keys of Kafka that have no effect here, and why."""

IGNORED_PREFIXES: Mapping[str, str] = {
    "controller.listener.": _QUORUM,
    "controller.quorum.": _QUORUM,
    "metadata.": _QUORUM,
    "zookeeper.metadata.migration.": _QUORUM,
    "group.coordinator.": _NEW_GROUPS,
    "log.local.retention.": _REMOTE,
    "remote.": _REMOTE,
    "rlmm.config.": _REMOTE,
    "rsm.config.": _REMOTE,
    "listener.name.": "only TLS, logins and connection limits differ by listener (in lower case)",
}
"""Beginnings of keys of Kafka that have no effect here, and why."""

SECURITY_PREFIXES: tuple[str, ...] = (
    "sasl.",
    "delegation.token.",
    "password.encoder.",
)
"""Beginnings of keys of Kafka for TLS, logins and their secrets."""

SECURITY_KEYS: Mapping[str, str] = {
    "principal.builder.class": "",
    "security.providers": "",
    "connections.max.reauth.ms": "0",
    "alter.config.policy.class.name": "",
}
"""Other keys of Kafka that protect a cluster, each with the value that asks for no protection."""


def unmet_protection(settings: Mapping[str, str]) -> list[str]:
    """Return the keys that ask for protection which is not there."""
    return [name for name, text in settings.items() if _protects(name, text.strip().lower())]


def _protects(name: str, text: str) -> bool:
    """Whether a key asks for protection that no setting gives."""
    setting = find_key(BrokerConfig, name)
    if setting is not None and not setting.doc.startswith(NOT_SUPPORTED):
        return False
    parts = parse_listener_key(name)
    plain = name if parts is None else parts.key
    is_security = plain in SECURITY_KEYS or plain.startswith(SECURITY_PREFIXES)
    return is_security and text not in ("", SECURITY_KEYS.get(plain, ""))


def reason_without_effect(name: str) -> str | None:
    """Return why a key of Kafka has no effect here; None for one that works, or that Kafka does not have."""
    if (setting := find_key(BrokerConfig, name)) is not None:
        return _reason_in(setting.doc)
    if name in IGNORED:
        return IGNORED[name]
    if name in SECURITY_KEYS or name.startswith(SECURITY_PREFIXES):
        return NO_PROTECTION
    return next((why for prefix, why in IGNORED_PREFIXES.items() if name.startswith(prefix)), None)


def _reason_in(doc: str) -> str | None:
    """Take the reason from the documentation of a setting that says it has no effect."""
    if doc.startswith("No effect yet: "):
        return "it has no effect"
    if doc.startswith("Accepted for compatibility"):
        return doc.partition("compatibility")[2].lstrip(":; ").rstrip(".")
    return None


def is_known(name: str) -> bool:
    """Return whether the broker or Kafka has a key."""
    return (
        name in _with_effect()
        or find_key(BrokerConfig, name) is not None
        or reason_without_effect(name) is not None
    )


def why_no_setting(name: str) -> str:
    """Describe Kafka's key of a name that is no setting here, or suggest the key that is spelled like it."""
    if (reason := reason_without_effect(name)) is not None:
        return f"has no effect: {reason}"
    near = nearest_key(name)
    return f"is not a broker configuration{f'; did you mean {near}?' if near else ''}"


def nearest_key(name: str) -> str | None:
    """Return the key that is spelled most like an unknown one, unless none is near."""
    import difflib

    return next(iter(difflib.get_close_matches(name.strip().lower(), _with_effect(), 1, 0.7)), None)


def _with_effect() -> tuple[str, ...]:
    return (*keys_of(BrokerConfig), *ALIASES, *LISTENER_PARTS, *ADVERTISED_PARTS)
