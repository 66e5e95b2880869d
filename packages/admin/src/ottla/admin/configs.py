"""The configuration of topics and brokers, and the quotas of clients and users: describe and alter them.

Quotas are bytes and request time that brokers allow (KIP-13, KIP-546).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from ottla.client.cluster import Cluster, NoSuchTopic, raise_for
from ottla.client.errors import Need
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredEntryData,
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    OpData,
)
from ottla.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from ottla.protocol.schema import Message

R = TypeVar("R", bound=Message)

TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32

SOURCES: Final = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "server.properties",
    5: "default",
    6: "logger",
    7: "client metrics",
    8: "group",
}
_SET, _UNSET = 0, 1

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

_EXACT, _DEFAULT = 0, 1

Entity = Mapping[str, str | None]
"""The entity of a quota: names by USER, CLIENT_ID or IP; None is the default for those without their own."""


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One key of a topic or broker; `source` says where its value comes from."""

    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    documentation: str | None = None
    default: str | None = None
    """The broker's default, where it names one: before Kafka 1.1 it names none."""

    @property
    def is_default(self) -> bool:
        """Whether the value is the default."""
        return self.source == "default"


class Configs:
    """Configuration by resource: a kind and a name. That of a BROKER is its id, or "" for all brokers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def describe(self, kind: int, name: str, *, documentation: bool = False) -> list[ConfigEntry]:
        """Return all keys with their values, sorted by name. Raises NoSuchTopic."""
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
            ],
            include_synonyms=True,
            include_documentation=documentation,
        )

        async def ask() -> list[ConfigEntry]:
            response = await self._send(kind, name, request, DescribeConfigsResponse)
            (result,) = response.results
            _raise(kind, name, Operation.DESCRIBE_CONFIGS, result.error_code, result.error_message)
            return sorted((_entry(entry) for entry in result.configs), key=lambda entry: entry.name)

        return await self._cluster.retry(f"reading the configuration of {name!r}", ask)

    async def alter(self, kind: int, name: str, values: Mapping[str, str | None]) -> None:
        """Set keys; None resets a key to its default (KIP-339). Other keys stay as they are."""
        changes = [
            IncrementalAlterableConfig(
                name=key, config_operation=_UNSET if value is None else _SET, value=value
            )
            for key, value in values.items()
        ]
        request = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
            ]
        )

        async def ask() -> None:
            response = await self._send(kind, name, request, IncrementalAlterConfigsResponse)
            for result in response.responses:
                _raise(kind, name, Operation.ALTER_CONFIGS, result.error_code, result.error_message)

        await self._cluster.retry(f"changing the configuration of {name!r}", ask)

    async def names(self, kind: int) -> list[str]:
        """Return the names of the resources of a kind that have a configuration, sorted.

        CLIENT_METRICS are the subscriptions of client metrics, GROUP the groups with settings of their own.
        Raises UnsupportedByBroker for brokers before Kafka 3.7, and before 4.1 for all but CLIENT_METRICS.
        """
        request = ListConfigResourcesRequest(resource_types=[] if kind == CLIENT_METRICS else [kind])
        min_version = None if kind == CLIENT_METRICS else 1

        async def ask() -> list[str]:
            response = await self._cluster.send_to_any(
                request, ListConfigResourcesResponse, min_version=min_version
            )
            need = Need(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
            raise_for(response.error_code, None, need)
            found = response.config_resources
            return sorted(each.resource_name for each in found if each.resource_type == kind)

        return await self._cluster.retry("listing what has a configuration", ask)

    async def _send(self, kind: int, name: str, request: Message, response_type: type[R]) -> R:
        # Only a broker itself knows its own values; any broker serves the others.
        if kind in (BROKER, BROKER_LOGGER) and name.isdigit():
            return await self._cluster.send(int(name), request, response_type)
        return await self._cluster.send_to_any(request, response_type)


def _entry(given: DescribeConfigsResourceResult) -> ConfigEntry:
    source = SOURCES.get(given.config_source, "default" if given.is_default else "unknown")
    default = next(
        (synonym.value for synonym in given.synonyms or () if SOURCES.get(synonym.source) == "default"), None
    )
    return ConfigEntry(
        given.name, given.value, source, given.read_only, given.is_sensitive, given.documentation, default
    )


def _raise(kind: int, name: str, operation: Operation, code: int, message: str | None) -> None:
    if kind == TOPIC and code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise NoSuchTopic(name)
    on_topic, on_cluster = Need(operation, ResourceType.TOPIC, name), Need(operation, ResourceType.CLUSTER)
    on_group = Need(operation, ResourceType.GROUP, name)
    raise_for(code, message, {TOPIC: on_topic, GROUP: on_group}.get(kind, on_cluster))


@dataclass(frozen=True, slots=True)
class Quota:
    """The quotas of one entity: limits by key, such as `producer_byte_rate`."""

    entity: Mapping[str, str | None]
    limits: Mapping[str, float]


class Quotas:
    """Quotas of clients; brokers since 2.6 serve these requests."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def describe(self, entity: Entity | None = None, *, strict: bool = False) -> list[Quota]:
        """Return the quotas of the entities that have these names, or of all.

        With `strict` an entity has no further parts: not a client id beside the user.
        """
        components = [
            ComponentData(entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name)
            for kind, name in (entity or {}).items()
        ]
        request = DescribeClientQuotasRequest(components=components, strict=strict)

        async def ask() -> list[Quota]:
            response = await self._cluster.ask_any(request, DescribeClientQuotasResponse)
            need = Need(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
            raise_for(response.error_code, response.error_message, need)
            return [
                Quota(
                    {part.entity_type: part.entity_name for part in entry.entity},
                    {value.key: value.value for value in entry.values},
                )
                for entry in response.entries or ()
            ]

        return await self._cluster.retry("reading quotas", ask)

    async def alter(
        self, entity: Entity, limits: Mapping[str, float | None], *, validate_only: bool = False
    ) -> None:
        """Set limits of an entity; None removes a limit. Other limits stay as they are.

        Raises InvalidRequest for keys and entities that brokers do not know.
        """
        entry = AlteredEntryData(
            entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
            ops=[
                OpData(key=key, value=0.0 if value is None else float(value), remove=value is None)
                for key, value in limits.items()
            ],
        )
        request = AlterClientQuotasRequest(entries=[entry], validate_only=validate_only)

        async def ask() -> None:
            response = await self._cluster.send_to_controller(request, AlterClientQuotasResponse)
            for entry in response.entries:
                need = Need(Operation.ALTER_CONFIGS, ResourceType.CLUSTER)
                raise_for(entry.error_code, entry.error_message, need)

        await self._cluster.retry("changing quotas", ask)
