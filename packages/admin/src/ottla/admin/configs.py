"""Describe and alter the configuration of topics and brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from ottla.client.cluster import Cluster, NoSuchTopic, raise_for
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.schema import Message

R = TypeVar("R", bound=Message)

TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8

SOURCES: Final = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "server.properties",
    5: "default",
    6: "logger",
}
_SET, _UNSET = 0, 1


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One key of a topic or broker; `source` says where its value comes from."""

    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        """Whether the value is the default."""
        return self.source == "default"


class Configs:
    """Configuration by resource: TOPIC and its name, or BROKER and its id ("" for all brokers)."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def describe(self, kind: int, name: str, *, documentation: bool = False) -> list[ConfigEntry]:
        """Return all keys with their values, sorted by name. Raises NoSuchTopic."""
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
            ],
            include_documentation=documentation,
        )

        async def ask() -> list[ConfigEntry]:
            response = await self._send(kind, name, request, DescribeConfigsResponse)
            (result,) = response.results
            _raise(kind, name, result.error_code, result.error_message)
            return sorted((_entry(entry) for entry in result.configs), key=lambda entry: entry.name)

        return await self._cluster.retry(f"reading the configuration of {name!r}", ask)

    async def alter(self, kind: int, name: str, values: Mapping[str, str | None]) -> None:
        """Set keys; None resets a key to its default (KIP-339). Other keys stay as they are."""
        changes = [
            AlterableConfig(name=key, config_operation=_UNSET if value is None else _SET, value=value)
            for key, value in values.items()
        ]
        request = IncrementalAlterConfigsRequest(
            resources=[AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)]
        )

        async def ask() -> None:
            response = await self._send(kind, name, request, IncrementalAlterConfigsResponse)
            for result in response.responses:
                _raise(kind, name, result.error_code, result.error_message)

        await self._cluster.retry(f"changing the configuration of {name!r}", ask)

    async def _send(self, kind: int, name: str, request: Message, response_type: type[R]) -> R:
        # Only a broker itself knows its own values; any broker serves the others.
        if kind in (BROKER, BROKER_LOGGER) and name.isdigit():
            return await self._cluster.send(int(name), request, response_type)
        return await self._cluster.send_to_any(request, response_type)


def _entry(given: DescribeConfigsResourceResult) -> ConfigEntry:
    source = SOURCES.get(given.config_source, "default" if given.is_default else "unknown")
    return ConfigEntry(
        given.name, given.value, source, given.read_only, given.is_sensitive, given.documentation
    )


def _raise(kind: int, name: str, code: int, message: str | None) -> None:
    if kind == TOPIC and code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise NoSuchTopic(name)
    raise_for(code, message)
