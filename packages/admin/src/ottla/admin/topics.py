"""Create, list, describe and delete topics; add partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ottla.admin.configs import TOPIC, Configs
from ottla.client.cluster import Cluster, NoSuchTopic, Topic, raise_for
from ottla.client.errors import ConnectionClosed, Need, RequestTimeout
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.errors import (
    ErrorCode,
    InvalidPartitions,
    KafkaError,
    LeaderNotAvailable,
    RequestTimedOut,
    TopicAlreadyExists,
)
from ottla.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

T = TypeVar("T")

BROKERS_DEFAULT = -1


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A created topic; counts are -1 when the broker is too old to return them.

    `existed` is true where `if_not_exists` found the topic: the counts are those that it has.
    """

    name: str
    partitions: int
    replication_factor: int
    existed: bool = False


class Topics:
    """Topics of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def create(
        self,
        name: str,
        *,
        partitions: int = BROKERS_DEFAULT,
        replication_factor: int = BROKERS_DEFAULT,
        configs: Mapping[str, str] | None = None,
        assignments: Mapping[int, Sequence[int]] | None = None,
        validate_only: bool = False,
        if_not_exists: bool = False,
    ) -> CreatedTopic:
        """Create a topic and return once it can be used.

        Without counts the broker's defaults apply (KIP-464, brokers since 2.4). `assignments` places replicas
        by hand: partition to broker ids, the preferred leader first. After an attempt without an answer a
        topic that is there as asked for counts as created by it. With `if_not_exists` a topic of that name
        is returned as it is, however many partitions it has. Raises TopicAlreadyExists,
        InvalidTopicException, InvalidPartitions, InvalidReplicationFactor, InvalidConfig, ...
        """
        topic = CreatableTopic(
            name=name,
            num_partitions=BROKERS_DEFAULT if assignments else partitions,
            replication_factor=BROKERS_DEFAULT if assignments else replication_factor,
            assignments=[
                CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
                for index, brokers in (assignments or {}).items()
            ],
            configs=[CreatableTopicConfig(name=k, value=v) for k, v in (configs or {}).items()],
        )
        timeout_ms = self._cluster.config.request_timeout_ms
        request = CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms, validate_only=validate_only)

        async def ask() -> CreatedTopic:
            response = await self._cluster.send_to_controller(request, CreateTopicsResponse)
            (result,) = response.topics
            if if_not_exists and result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
                return await self._found(name)
            await self._raise(result.error_code, result.error_message, _on_topic(Operation.CREATE, name))
            return CreatedTopic(name, result.num_partitions, result.replication_factor)

        async def found(error: KafkaError) -> CreatedTopic:
            if not isinstance(error, TopicAlreadyExists) or validate_only:
                raise error
            return await self._found_as_asked(topic, error)

        created = await self._repeat(f"creating topic {name!r}", ask, found)
        self._cluster.forget(name)
        return created

    async def _found(self, name: str) -> CreatedTopic:
        """Return the topic that there is, once all of its partitions have leaders."""
        known = await self._known(name)
        return CreatedTopic(name, len(known), len(next(iter(known.values()), ())), existed=True)

    async def _known(self, name: str) -> dict[int, tuple[int, ...]]:
        """Return the replicas of the partitions of a topic that can be used."""
        await self._cluster.refresh([name])
        known = self._cluster.known_topic(name)
        if known is None or any(partition.leader < 0 for partition in known.partitions.values()):
            raise LeaderNotAvailable(f"topic {name!r} is being created")
        return {index: tuple(partition.replicas) for index, partition in known.partitions.items()}

    async def _found_as_asked(self, topic: CreatableTopic, error: KafkaError) -> CreatedTopic:
        """Return the topic that there is; raise `error` if it differs from the one asked for."""
        replicas = await self._known(topic.name)
        count, factor = len(replicas), len(next(iter(replicas.values()), ()))
        placed = {
            assignment.partition_index: tuple(assignment.broker_ids) for assignment in topic.assignments
        }
        if (
            topic.num_partitions not in (BROKERS_DEFAULT, count)
            or topic.replication_factor not in (BROKERS_DEFAULT, factor)
            or (placed and placed != replicas)
        ):
            raise error
        if topic.configs:
            entries = await Configs(self._cluster).describe(TOPIC, topic.name)
            values = {entry.name: entry.value for entry in entries}
            if any(values.get(config.name) != config.value for config in topic.configs):
                raise error
        return CreatedTopic(topic.name, count, factor)

    async def list(self, *, internal: bool = False) -> list[Topic]:
        """Return all topics, sorted by name; internal topics only with `internal`."""
        found = await self._cluster.retry("listing topics", self._cluster.all_topics)
        return found if internal else [topic for topic in found if not topic.is_internal]

    async def describe(self, name: str) -> Topic:
        """Return the current metadata of a topic. Raises NoSuchTopic."""
        self._cluster.forget(name)
        return await self._cluster.topic(name)

    async def add_partitions(self, name: str, total: int) -> None:
        """Raise the number of partitions to `total`. Keys map to other partitions from then on.

        Raises InvalidPartitions when the topic has as many or more.
        """

        timeout_ms = self._cluster.config.request_timeout_ms
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=total, assignments=None)], timeout_ms=timeout_ms
        )

        async def ask() -> None:
            response = await self._cluster.send_to_controller(request, CreatePartitionsResponse)
            for result in response.results:
                need = _on_topic(Operation.ALTER, name)
                await self._raise(result.error_code, result.error_message, need, name)

        async def found(error: KafkaError) -> None:
            known = await self.describe(name) if isinstance(error, InvalidPartitions) else None
            if known is None or len(known.partitions) != total:
                raise error

        await self._repeat(f"adding partitions to {name!r}", ask, found)
        self._cluster.forget(name)

    async def delete(self, name: str) -> None:
        """Delete a topic with all its records. Raises NoSuchTopic."""
        timeout_ms = self._cluster.config.request_timeout_ms
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=timeout_ms)

        async def ask() -> None:
            response = await self._cluster.send_to_controller(request, DeleteTopicsResponse)
            for result in response.responses:
                need = _on_topic(Operation.DELETE, name)
                await self._raise(result.error_code, result.error_message, need, name)

        async def found(error: KafkaError) -> None:
            if not isinstance(error, NoSuchTopic):
                raise error

        await self._repeat(f"deleting topic {name!r}", ask, found)
        self._cluster.forget(name)

    async def _repeat(
        self, what: str, ask: Callable[[], Awaitable[T]], found: Callable[[KafkaError], Awaitable[T]]
    ) -> T:
        """Await `ask()` again while it fails with a retriable error.

        After an attempt without an answer, which may have been carried out, `found` gets the error of the
        next one: it returns the outcome if that attempt was, and raises the error otherwise.
        """
        unanswered = False

        async def attempt() -> T:
            nonlocal unanswered
            try:
                return await ask()
            except (ConnectionClosed, RequestTimeout, RequestTimedOut):
                unanswered = True
                raise
            except KafkaError as error:
                if not unanswered:
                    raise
                return await found(error)

        return await self._cluster.retry(what, attempt)

    async def _raise(self, code: int, message: str | None, need: Need, topic: str | None = None) -> None:
        if code == ErrorCode.NOT_CONTROLLER:
            await self._cluster.refresh([])
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and topic is not None:
            raise NoSuchTopic(topic)
        raise_for(code, message, need)


def _on_topic(operation: Operation, name: str) -> Need:
    return Need(operation, ResourceType.TOPIC, name)
