"""Elect leaders of partitions, and move partitions to other brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ottla.client.cluster import Cluster
from ottla.client.errors import ALTER_CLUSTER, DESCRIBE_CLUSTER, error_about
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from ottla.protocol.messages.partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.topics import TopicPartition, by_topic

_PREFERRED, _UNCLEAN = 0, 1

Outcomes = dict[TopicPartition, KafkaError | None]
"""By partition None, or the error that kept it as it was."""


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition that moves: all its replicas, those that are added, and those that go afterwards."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class Partitions:
    """Leaders and replicas of partitions."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> Outcomes:
        """Make the preferred replicas leaders (KIP-460); None: of all partitions. Returns the outcomes.

        With `unclean` a replica that is not in sync may lead where none is: records are lost (brokers since
        2.4). A partition that has its leader already counts as done. Partitions whose preferred replica is
        not available have PreferredLeaderNotAvailable, those without any EligibleLeadersNotAvailable.
        """
        wanted = None if partitions is None else list(partitions)
        request = ElectLeadersRequest(
            election_type=_UNCLEAN if unclean else _PREFERRED,
            topic_partitions=None
            if wanted is None
            else [
                TopicPartitions(topic=name, partitions=_indexes(found))
                for name, found in by_topic(wanted).items()
            ],
            timeout_ms=self._cluster.config.request_timeout_ms,
        )

        async def ask() -> Outcomes:
            response = await self._cluster.send_to_controller(
                request, ElectLeadersResponse, min_version=1 if unclean else None
            )
            self._cluster.raise_controller_error(response.error_code, None, ALTER_CLUSTER)
            codes = {
                TopicPartition(topic.topic, partition.partition_id): (
                    partition.error_code,
                    partition.error_message,
                )
                for topic in response.replica_election_results
                for partition in topic.partition_result
            }
            self._check_controller(code for code, _ in codes.values())
            return {partition: _error(*code) for partition, code in codes.items()}

        outcomes = await self._cluster.retry("electing leaders", ask)
        self._cluster.forget(*{partition.topic for partition in outcomes})
        return outcomes

    async def reassign(self, targets: Mapping[TopicPartition, Sequence[int] | None]) -> Outcomes:
        """Begin to move partitions to other brokers, the preferred leader first; None cancels (KIP-455).

        Returns the outcomes once the controller accepted; `reassignments` tells what still moves. A partition
        of which nothing moves that could be cancelled has NoReassignmentInProgress, unknown brokers are
        InvalidReplicaAssignment.
        """
        topics = [
            ReassignableTopic(
                name=name,
                partitions=[
                    ReassignablePartition(
                        partition_index=partition.partition, replicas=_replicas(targets[partition])
                    )
                    for partition in partitions
                ],
            )
            for name, partitions in by_topic(targets).items()
        ]
        timeout_ms = self._cluster.config.request_timeout_ms
        request = AlterPartitionReassignmentsRequest(timeout_ms=timeout_ms, topics=topics)

        async def ask() -> Outcomes:
            response = await self._cluster.send_to_controller(request, AlterPartitionReassignmentsResponse)
            message = response.error_message
            self._cluster.raise_controller_error(response.error_code, message, ALTER_CLUSTER)
            return {
                TopicPartition(topic.name, partition.partition_index): _error(
                    partition.error_code, partition.error_message
                )
                for topic in response.responses
                for partition in topic.partitions
            }

        outcomes = await self._cluster.retry("reassigning partitions", ask)
        self._cluster.forget(*{partition.topic for partition in outcomes})
        return outcomes

    async def reassignments(self, partitions: Iterable[TopicPartition] | None = None) -> list[Reassignment]:
        """Return what moves, of some partitions or of all, sorted by partition."""
        topics = None
        if partitions is not None:
            topics = [
                ListPartitionReassignmentsTopics(name=name, partition_indexes=_indexes(found))
                for name, found in by_topic(partitions).items()
            ]
        timeout_ms = self._cluster.config.request_timeout_ms
        request = ListPartitionReassignmentsRequest(timeout_ms=timeout_ms, topics=topics)

        async def ask() -> list[Reassignment]:
            response = await self._cluster.send_to_controller(request, ListPartitionReassignmentsResponse)
            message = response.error_message
            self._cluster.raise_controller_error(response.error_code, message, DESCRIBE_CLUSTER)
            moving = [
                Reassignment(
                    TopicPartition(topic.name, partition.partition_index),
                    tuple(partition.replicas),
                    tuple(partition.adding_replicas),
                    tuple(partition.removing_replicas),
                )
                for topic in response.topics
                for partition in topic.partitions
            ]
            return sorted(moving, key=lambda reassignment: reassignment.partition)

        return await self._cluster.retry("listing reassignments", ask)

    def _check_controller(self, codes: Iterable[int]) -> None:
        """Raise where single partitions say that another broker is the controller."""
        if ErrorCode.NOT_CONTROLLER in set(codes):
            self._cluster.raise_controller_error(ErrorCode.NOT_CONTROLLER)


def _indexes(partitions: Iterable[TopicPartition]) -> list[int]:
    return [partition.partition for partition in partitions]


def _replicas(target: Sequence[int] | None) -> list[int] | None:
    return None if target is None else list(target)


def _error(code: int, message: str | None) -> KafkaError | None:
    done = code in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
    return None if done else error_about(code, message, ALTER_CLUSTER)
