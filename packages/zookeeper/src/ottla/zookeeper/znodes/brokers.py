"""Znodes of brokers and of the cluster as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from urllib.parse import urlsplit

from ottla.zookeeper import paths
from ottla.zookeeper._json import Fields, array, by_text, encode, integer, integer32, text
from ottla.zookeeper.errors import MalformedZnode
from ottla.zookeeper.frozen_classes import frozen


@frozen
class Endpoint:
    """The address of a broker's listener. An IPv6 `host` has no brackets."""

    listener_name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener_name}://{host}:{self.port}"

    @classmethod
    def parse(cls, value: object) -> Endpoint:
        """Read `LISTENER://host:port`; raises ValueError."""
        listener_name, separator, address = text(value).partition("://")
        if not separator or not listener_name:
            raise ValueError(f"{value!r} is not an endpoint")
        where = urlsplit(f"//{address}")
        if where.port is None:
            raise ValueError(f"{value!r} has no port")
        host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
        return cls(listener_name.upper(), host, where.port)


@frozen
class BrokerFeature:
    """The range of versions of one feature that a broker supports."""

    min_version: int
    max_version: int


@frozen
class BrokerRegistration:
    """`/brokers/ids/[id]`, ephemeral: a live broker. Its czxid is the broker epoch.

    Written as version 5, or 4 when `features` is None; versions 1 to 5 are read.
    """

    broker_id: int
    endpoints: tuple[Endpoint, ...]
    listener_security_protocol_map: Mapping[str, str]
    timestamp_ms: int
    jmx_port: int = -1
    rack: str | None = None
    features: Mapping[str, BrokerFeature] | None = field(default_factory=dict)
    ottla_features: Mapping[str, BrokerFeature] = field(default_factory=dict)
    """The features of `/ottla/features` that the broker supports: none for a broker of Apache Kafka, which
    ignores this field of others."""

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.broker(self.broker_id)

    @property
    def host(self) -> str | None:
        """The host of the plaintext endpoint, for readers before version 2; None without one."""
        plaintext = self._plaintext()
        return plaintext.host if plaintext else None

    @property
    def port(self) -> int:
        """The port of the plaintext endpoint, -1 without one."""
        plaintext = self._plaintext()
        return plaintext.port if plaintext else -1

    def _plaintext(self) -> Endpoint | None:
        for endpoint in self.endpoints:
            if self.security_protocol(endpoint.listener_name) == "PLAINTEXT":
                return endpoint
        return None

    def security_protocol(self, listener_name: str) -> str:
        """Return the security protocol of a listener; unnamed ones are called after their protocol."""
        return self.listener_security_protocol_map.get(listener_name, listener_name)

    def endpoint(self, listener_name: str) -> Endpoint | None:
        """Return the endpoint of a listener, None when the broker has no such listener."""
        return next((e for e in self.endpoints if e.listener_name == listener_name), None)

    def encode(self) -> bytes:
        """Return the JSON of version 5 or 4."""
        value: dict[str, object] = {}
        if self.features is not None:
            value["features"] = _features(self.features)
        value["listener_security_protocol_map"] = dict(self.listener_security_protocol_map)
        value["endpoints"] = [str(endpoint) for endpoint in self.endpoints]
        if self.rack is not None:
            value["rack"] = self.rack
        value["jmx_port"] = self.jmx_port
        value["port"] = self.port
        value["host"] = self.host
        value["version"] = 4 if self.features is None else 5
        value["timestamp"] = str(self.timestamp_ms)
        if self.ottla_features:
            value["ottla_features"] = _features(self.ottla_features)
        return encode(value)

    @classmethod
    def decode(cls, broker_id: int, data: bytes) -> BrokerRegistration:
        """Read any version from 1 to 5."""
        fields = Fields.of(paths.broker(broker_id), data)
        try:
            integer32(broker_id)
        except ValueError as error:
            raise MalformedZnode(paths.broker(broker_id), str(error)) from error
        version = fields.version()
        if version < 1:
            raise MalformedZnode(paths.broker(broker_id), f"version {version} is below 1")
        if version == 1:
            host, port = fields.required("host", text), fields.required("port", integer32)
            endpoints: tuple[Endpoint, ...] = (Endpoint("PLAINTEXT", host, port),)
        else:
            endpoints = fields.required("endpoints", array(Endpoint.parse))
        no_features: dict[str, BrokerFeature] = {}
        default = {endpoint.listener_name: endpoint.listener_name for endpoint in endpoints}
        return cls(
            broker_id,
            endpoints,
            fields.optional("listener_security_protocol_map", by_text(text), default),
            fields.optional("timestamp", integer, -1),
            fields.optional("jmx_port", integer, -1),
            fields.optional("rack", text, "") or None,
            fields.optional("features", by_text(_feature), no_features) if version >= 5 else None,
            fields.optional("ottla_features", by_text(_feature), no_features),
        )


def _features(features: Mapping[str, BrokerFeature]) -> dict[str, object]:
    return {
        name: {"min_version": feature.min_version, "max_version": feature.max_version}
        for name, feature in features.items()
    }


def _feature(value: object) -> BrokerFeature:
    fields = Fields("", value)
    return BrokerFeature(fields.required("min_version", integer), fields.required("max_version", integer))


@frozen
class ClusterId:
    """`/cluster/id`: the name of the cluster, 22 characters of URL-safe base64."""

    id: str

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.CLUSTER_ID

    def encode(self) -> bytes:
        """Return the JSON."""
        return encode({"version": "1", "id": self.id})

    @classmethod
    def decode(cls, data: bytes) -> ClusterId:
        """Read the id."""
        return cls(Fields.of(paths.CLUSTER_ID, data).required("id", text))


@frozen
class FeatureNode:
    """`/feature`: the feature versions the cluster has finalized (KIP-584); `status` 1 means enabled.

    Kafka writes version 1 up to level 3.2, and version 2 from then on.
    """

    features: Mapping[str, int] = field(default_factory=dict)
    status: int = 1
    version: int = 1

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.FEATURE

    def encode(self) -> bytes:
        """Return the JSON of its version."""
        features: dict[str, object] = dict(self.features)
        if self.version == 1:
            features = {
                name: {"max_version_level": level, "min_version_level": level}
                for name, level in self.features.items()
            }
        return encode({"features": features, "version": self.version, "status": self.status})

    @classmethod
    def decode(cls, data: bytes) -> FeatureNode:
        """Read versions 1 (minimum and maximum per feature) and 2 (one level per feature)."""
        fields = Fields.of(paths.FEATURE, data)
        version = fields.version(1, 2)
        features = fields.required("features", by_text(_finalized_level))
        return cls(features, fields.required("status", integer), version)


@frozen
class FeatureLevels:
    """`/ottla/features`: the finalized level of each feature; the version of the znode is their epoch.

    A feature is off while it is in `suspended`, which names the live brokers that do not support its level.
    """

    levels: Mapping[str, int] = field(default_factory=dict)
    suspended: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.OTTLA_FEATURES

    def encode(self) -> bytes:
        """Return the JSON."""
        suspended = {name: list(brokers) for name, brokers in self.suspended.items()}
        return encode({"version": 1, "levels": dict(self.levels), "suspended": suspended})

    @classmethod
    def decode(cls, data: bytes) -> FeatureLevels:
        """Read the levels."""
        fields = Fields.of(paths.OTTLA_FEATURES, data)
        fields.version(1)
        return cls(
            fields.required("levels", by_text(integer)),
            fields.required("suspended", by_text(array(integer))),
        )


@frozen
class ClientMetricsSubscriptions:
    """`/ottla/client_metrics`: the configurations of subscriptions of client metrics, by name (KIP-714)."""

    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.OTTLA_CLIENT_METRICS

    def encode(self) -> bytes:
        """Return the JSON."""
        return encode(
            {"version": 1, "configs": {name: dict(config) for name, config in self.configs.items()}}
        )

    @classmethod
    def decode(cls, data: bytes) -> ClientMetricsSubscriptions:
        """Read the configurations."""
        fields = Fields.of(paths.OTTLA_CLIENT_METRICS, data)
        fields.version(1)
        return cls(fields.required("configs", by_text(by_text(text))))


def _finalized_level(value: object) -> int:
    if isinstance(value, dict):
        return Fields("", value).required("max_version_level", integer)
    return integer(value)


@frozen
class ProducerIdBlock:
    """`/latest_producer_id_block`: the last allocated range of producer ids, both ends included."""

    broker_id: int
    first: int
    last: int

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.LATEST_PRODUCER_ID_BLOCK

    def encode(self) -> bytes:
        """Return the JSON; the ends are strings because they may pass 2^53."""
        return encode(
            {
                "version": 1,
                "broker": self.broker_id,
                "block_start": str(self.first),
                "block_end": str(self.last),
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> ProducerIdBlock:
        """Read the block."""
        fields = Fields.of(paths.LATEST_PRODUCER_ID_BLOCK, data)
        return cls(
            fields.required("broker", integer),
            fields.required("block_start", integer),
            fields.required("block_end", integer),
        )
