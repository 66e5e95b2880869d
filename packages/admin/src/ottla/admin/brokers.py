"""Brokers of a cluster and their log directories."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ottla.client.cluster import Cluster, raise_for
from ottla.client.errors import ALTER_CLUSTER, DESCRIBE_CLUSTER, error_about
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode, KafkaError, error_for
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from ottla.protocol.topics import TopicPartition, by_topic


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker of the cluster."""

    id: int
    host: str
    port: int
    rack: str | None
    is_controller: bool


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster's id and its brokers."""

    cluster_id: str | None
    brokers: tuple[Broker, ...]


@dataclass(frozen=True, slots=True)
class ReplicaOnDisk:
    """A replica in a log directory; `offset_lag` counts the records it is behind its leader.

    One with `is_future` is the copy of a replica that moves to this directory; its lag is to that replica.
    """

    partition: TopicPartition
    size_bytes: int
    offset_lag: int
    is_future: bool = False


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log directory of a broker; with an `error` it is offline, and its replicas are not known.

    `total_bytes` and `usable_bytes` are those of its volume; -1 where the broker does not say (KIP-827).
    """

    broker: int
    path: str
    replicas: tuple[ReplicaOnDisk, ...]
    error: KafkaError | None = None
    total_bytes: int = -1
    usable_bytes: int = -1

    @property
    def size_bytes(self) -> int:
        """Bytes of all replicas in it."""
        return sum(replica.size_bytes for replica in self.replicas)


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature: its finalized level in the cluster, None where it is not in use, and the supported ones."""

    name: str
    level: int | None
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class BrokerVersions:
    """The versions of each API that a broker serves, and the features of the cluster (KIP-584)."""

    broker: int
    apis: Mapping[str, tuple[int, int]]
    features: tuple[Feature, ...]
    features_epoch: int = -1
    """How often the finalized levels have changed; -1 where there are none."""


class Brokers:
    """Brokers of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def describe(self) -> ClusterDescription:
        """Return the cluster's id, and its brokers sorted by id."""
        await self._cluster.retry("describing the cluster", lambda: self._cluster.refresh([]))
        brokers = tuple(
            Broker(node.id, *node.address, node.rack, node.id == self._cluster.controller_id)
            for node in sorted(self._cluster.nodes.values(), key=lambda node: node.id)
        )
        return ClusterDescription(self._cluster.cluster_id, brokers)

    async def versions(self, broker: int) -> BrokerVersions:
        """Return the APIs of a broker with their versions, and its features; unknown APIs have a number."""

        async def ask() -> BrokerVersions:
            request = ApiVersionsRequest(client_software_name="ottla", client_software_version="0")
            response = await self._cluster.send(broker, request, ApiVersionsResponse)
            raise_for(response.error_code)
            levels = {feature.name: feature.max_version_level for feature in response.finalized_features}
            features = tuple(
                Feature(feature.name, levels.get(feature.name), feature.min_version, feature.max_version)
                for feature in sorted(response.supported_features, key=lambda feature: feature.name)
            )
            apis = {_api_name(api.api_key): (api.min_version, api.max_version) for api in response.api_keys}
            return BrokerVersions(broker, apis, features, response.finalized_features_epoch)

        return await self._cluster.retry(f"asking broker {broker} for its versions", ask)

    async def log_dirs(self, broker: int) -> list[LogDir]:
        """Return a broker's log directories and the replicas in them (KIP-113)."""

        async def ask() -> list[LogDir]:
            request = DescribeLogDirsRequest(topics=None)
            response = await self._cluster.send(broker, request, DescribeLogDirsResponse, in_thread=True)
            raise_for(response.error_code, None, DESCRIBE_CLUSTER)
            return await asyncio.to_thread(_log_dirs, broker, response)

        return await self._cluster.retry(f"describing the log directories of broker {broker}", ask)

    async def alter_replica_log_dirs(
        self, broker: int, targets: Mapping[TopicPartition, str]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Move replicas of a broker to other log directories of it (KIP-113); return the outcomes.

        The broker copies them in the background: `log_dirs` shows the copies as `is_future`. For a replica
        that the broker does not have yet it remembers the directory and has ReplicaNotAvailable.
        """
        by_dir: dict[str, list[TopicPartition]] = defaultdict(list)
        for partition, path in targets.items():
            by_dir[path].append(partition)
        request = AlterReplicaLogDirsRequest(
            dirs=[AlterReplicaLogDir(path=path, topics=_topics(some)) for path, some in by_dir.items()]
        )

        async def ask() -> dict[TopicPartition, KafkaError | None]:
            response = await self._cluster.send(broker, request, AlterReplicaLogDirsResponse)
            return {
                TopicPartition(topic.topic_name, partition.partition_index): None
                if partition.error_code == ErrorCode.NONE
                else error_about(partition.error_code, None, ALTER_CLUSTER)
                for topic in response.results
                for partition in topic.partitions
            }

        return await self._cluster.retry(f"moving log directories of broker {broker}", ask)


def _api_name(key: int) -> str:
    try:
        return "".join(part.capitalize() for part in ApiKey(key).name.split("_"))
    except ValueError:
        return str(key)


def _log_dirs(broker: int, response: DescribeLogDirsResponse) -> list[LogDir]:
    found: list[LogDir] = []
    for result in response.results:
        replicas = tuple(
            ReplicaOnDisk(
                TopicPartition(topic.name, replica.partition_index),
                replica.partition_size,
                replica.offset_lag,
                replica.is_future_key,
            )
            for topic in result.topics
            for replica in topic.partitions
        )
        error = None
        if result.error_code != ErrorCode.NONE:
            error = error_for(result.error_code, f"{result.log_dir} is offline")
        found.append(LogDir(broker, result.log_dir, replicas, error, result.total_bytes, result.usable_bytes))
    return found


def _topics(partitions: list[TopicPartition]) -> list[AlterReplicaLogDirTopic]:
    return [
        AlterReplicaLogDirTopic(name=name, partitions=[partition.partition for partition in some])
        for name, some in by_topic(partitions).items()
    ]
