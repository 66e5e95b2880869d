"""Create, delete and enlarge topics: the broker that is asked writes ZooKeeper, the controller reacts.

The module has over 500 lines because the checks of all three stand together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from ottla.broker.cluster.placement import (
    BYTES_PER_PARTITION,
    Assignments,
    Charge,
    assign_replicas,
    encoded,
    for_bytes,
    for_partitions,
    new_id,
    uncounted,
)
from ottla.broker.cluster.topic_settings import checked_overrides, create_topic, put_new_settings
from ottla.broker.cluster.zookeeper_session import retrying, zookeeper_errors
from ottla.protocol.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidRequest,
    InvalidTopicException,
    KafkaError,
    ReassignmentInProgress,
    RequestTimedOut,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownTopicOrPartition,
)
from ottla.protocol.topics import (
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    collides,
    why_illegal_topic_name,
)
from ottla.zookeeper import paths
from ottla.zookeeper.errors import IllegalName
from ottla.zookeeper.frozen_classes import frozen, replace
from ottla.zookeeper.session import (
    BadVersion,
    ConnectionLoss,
    NodeExists,
    NoNode,
    OperationTimeout,
    ZooKeeperError,
)
from ottla.zookeeper.znodes import TopicAssignment

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.config import BrokerConfig
    from ottla.broker.runtime.environment import Environment
    from ottla.zookeeper.session import Session

_log = logging.getLogger(__name__)

DEFAULT = -1
AUTO_CREATION_WAIT_MS = 2_000
INTERNAL_CREATION_WAIT_MS = 5_000


@frozen
class NewTopic:
    """A topic to be created; -1 takes the broker's default. Assignments replace both counts."""

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)


@frozen
class CreatedTopic:
    """A topic that was created, or would be with `validate_only`."""

    name: str
    id: uuid.UUID
    partitions: int
    replication_factor: int


class Room(Protocol):
    """Whether this broker can open so many more partitions."""

    def check(self, partitions: int) -> None:
        """Raise PolicyViolation if it cannot."""
        ...

    def promise(self, partitions: int) -> None:
        """Count partitions as open that are about to be opened."""
        ...


class Topics:
    """Changes the topics of the cluster. Every error is Kafka's."""

    def __init__(
        self,
        session: Session,
        config: BrokerConfig,
        environment: Environment,
        metadata: MetadataCache,
        room: Room | None = None,
    ) -> None:
        self._session = session
        self.config = config
        self._environment = environment
        self._metadata = metadata
        self._room = room
        """Tells whether this broker can open its part of new partitions."""

    # ---- creating

    async def create(
        self, topic: NewTopic, *, validate_only: bool = False, charge: Charge = uncounted
    ) -> CreatedTopic:
        """Write the topic's configuration and assignment, after checking both.

        Raises InvalidTopicException, TopicAlreadyExists, InvalidPartitions, InvalidReplicationFactor,
        InvalidReplicaAssignment, InvalidConfig, InvalidRequest, PolicyViolation when this broker cannot open
        its part of the partitions; RequestTimedOut if ZooKeeper is silent.
        """
        overrides = self._check(topic)
        with zookeeper_errors(InvalidPartitions):
            await self._check_name_is_free(topic.name)
            count = max(self._partitions(topic), len(topic.assignments))
            created, data, mine = await for_partitions(count, partial(self._plan, topic))
            if not validate_only:
                charge(created.partitions)
            self._make_room(mine, validate_only=validate_only)
            if not validate_only:
                await self._write(created, data, overrides)
        return created

    def _plan(self, topic: NewTopic) -> tuple[CreatedTopic, bytes, int]:
        """Return the topic, its znode's data, and how many of its partitions are this broker's."""
        replicas = {partition: tuple(brokers) for partition, brokers in self._place(topic).items()}
        created = CreatedTopic(topic.name, new_id(self._environment.random), len(replicas), len(replicas[0]))
        data = encoded(TopicAssignment(created.name, replicas, created.id))
        return created, data, self._count_mine(replicas.values())

    def _partitions(self, topic: NewTopic) -> int:
        return self.config.num_partitions if topic.partitions == DEFAULT else topic.partitions

    def _count_mine(self, replicas: Iterable[Sequence[int]]) -> int:
        return sum(self._metadata.broker_id in brokers for brokers in replicas)

    def _make_room(self, mine: int, *, validate_only: bool) -> None:
        if self._room is not None and mine:
            self._room.check(mine)
            if not validate_only:
                self._room.promise(mine)

    def _check(self, topic: NewTopic) -> dict[str, str]:
        if why := why_illegal_topic_name(topic.name):
            raise InvalidTopicException(f"Topic name is illegal: {why}.")
        counted = topic.partitions != DEFAULT or topic.replication_factor != DEFAULT
        if topic.assignments and counted:
            raise InvalidRequest(
                "Both numPartitions or replicationFactor and replicasAssignments were set. "
                "Both cannot be used at the same time."
            )
        most = self.config.max_partitions_per_topic
        if max(topic.partitions, len(topic.assignments)) > most:
            raise InvalidPartitions(f"At most {most} partitions are allowed (max.partitions.per.topic).")
        return checked_overrides(topic.configs)

    async def _check_name_is_free(self, name: str) -> None:
        if name in self._metadata or await self._session.exists(paths.topic(name)):
            raise TopicAlreadyExists(f"Topic '{name}' already exists.")
        if await self._session.exists(paths.deleted_topic(name)):
            raise TopicAlreadyExists(f"Topic '{name}' is marked for deletion.")
        if "." in name or "_" in name:
            others = await self._session.children(paths.BROKER_TOPICS)
            if name in others:  # another broker or request created it since we looked
                raise TopicAlreadyExists(f"Topic '{name}' already exists.")
            if clashes := sorted(other for other in others if collides(name, other)):
                raise InvalidTopicException(
                    f"Topic '{name}' collides with existing topics: {', '.join(clashes)}"
                )

    def _place(self, topic: NewTopic) -> Assignments:
        if topic.assignments:
            self._check_assignments(topic.assignments)
            return {partition: list(brokers) for partition, brokers in sorted(topic.assignments.items())}
        factor = topic.replication_factor
        if factor == DEFAULT:
            factor = self.config.default_replication_factor
        return self._assign(self._partitions(topic), factor)

    def _assign(self, partitions: int, factor: int, **more: int) -> Assignments:
        brokers = self._metadata.brokers
        return assign_replicas(
            [broker.id for broker in brokers],
            partitions,
            factor,
            random=self._environment.random,
            racks={broker.id: broker.rack for broker in brokers},
            **more,
        )

    def _check_assignments(self, assignments: Mapping[int, Sequence[int]]) -> None:
        if sorted(assignments) != list(range(len(assignments))):
            raise InvalidReplicaAssignment("Partitions should be a consecutive 0-based integer sequence.")
        self._check_replicas(list(assignments.values()))

    def _check_replicas(self, replicas: Sequence[Sequence[int]], factor: int | None = None) -> None:
        sizes = {len(brokers) for brokers in replicas}
        if len(sizes) != 1 or 0 in sizes or (factor is not None and sizes != {factor}):
            raise InvalidReplicaAssignment("All partitions should have the same number of replicas.")
        if any(len(set(brokers)) != len(brokers) for brokers in replicas):
            raise InvalidReplicaAssignment("Duplicate replica assignment found.")
        if unknown := {b for brokers in replicas for b in brokers if not self._metadata.is_alive(b)}:
            raise InvalidReplicaAssignment(
                f"Unknown broker(s) in replica assignment: {', '.join(map(str, sorted(unknown)))}."
            )

    async def _write(self, created: CreatedTopic, data: bytes, overrides: Mapping[str, str]) -> None:
        # The configuration first: once the assignment exists, brokers create logs with it.
        with zookeeper_errors(InvalidConfig):
            await put_new_settings(self._session, created.name, overrides)
        path = paths.topic(created.name)
        try:
            await create_topic(self._session, created.name, created.id, data, overrides)
        except (NodeExists, BadVersion):
            raise TopicAlreadyExists(f"Topic '{created.name}' already exists.") from None
        except (ConnectionLoss, OperationTimeout):
            # The write may have arrived: the topic id tells whether the present znode is ours.
            async with asyncio.timeout(self._session.timeout_ms / 1000):
                try:
                    present, _ = await retrying(lambda: self._session.get(path))
                except NoNode:
                    raise RequestTimedOut("ZooKeeper did not store the topic.") from None
            node = await for_bytes(len(present), partial(TopicAssignment.decode, created.name, present))
            if node.topic_id != created.id:
                raise TopicAlreadyExists(f"Topic '{created.name}' already exists.") from None

    # ---- automatic creation

    async def auto_create(self, names: Sequence[str], charge: Charge = uncounted) -> dict[str, KafkaError]:
        """Create missing topics of a Metadata request, and wait a moment for the leaders of all together.

        Returns the errors of those that were not created. A topic without a leader is no error here: the
        response says LEADER_NOT_AVAILABLE. Once ZooKeeper is silent, the other names are not tried.
        """
        errors: dict[str, KafkaError] = {}
        silent: RequestTimedOut | None = None
        for name in dict.fromkeys(names):
            if silent is not None:
                errors[name] = silent
                continue
            try:
                await self._create_quietly(name, charge)
            except KafkaError as error:
                errors[name] = error
                silent = error if isinstance(error, RequestTimedOut) else None
        deadline_ms = self._environment.clock.monotonic_ms() + AUTO_CREATION_WAIT_MS
        for name in dict.fromkeys(names):
            if name not in errors:
                left_ms = deadline_ms - self._environment.clock.monotonic_ms()
                await self.wait_until_led(name, 1, left_ms)
        return errors

    async def ensure_internal(self, name: str) -> None:
        """Create an internal topic if it is missing, and wait a moment for its leaders."""
        if name not in self._metadata:
            await self._create_quietly(name)
        partitions = internal_topic(name, self.config, self._most_replicas).partitions
        await self.wait_until_led(name, partitions, INTERNAL_CREATION_WAIT_MS)

    async def _create_quietly(self, name: str, charge: Charge = uncounted) -> None:
        is_internal = name in INTERNAL_TOPICS
        topic = internal_topic(name, self.config, self._most_replicas) if is_internal else NewTopic(name)
        with contextlib.suppress(TopicAlreadyExists):
            await self.create(topic, charge=charge)

    @property
    def _most_replicas(self) -> int | None:
        """The bound of an internal topic's replicas."""
        return 1 if self.config.zookeeper_connect is None else None

    # ---- deleting and enlarging

    async def delete(self, name: str, *, charge: Charge = uncounted) -> None:
        """Mark a topic for deletion; the controller deletes it.

        Raises TopicDeletionDisabled, UnknownTopicOrPartition, or RequestTimedOut.
        """
        if not self.config.delete_topic_enable:
            raise TopicDeletionDisabled("Topic deletion is disabled (delete.topic.enable).")
        with zookeeper_errors():
            if not await self._session.exists(_path_of(name)):
                raise UnknownTopicOrPartition(f"Topic '{name}' does not exist.")
            charge(self._metadata.partition_count(name))
            with contextlib.suppress(NodeExists):
                await self._session.create(paths.deleted_topic(name), b"", make_parents=True)

    async def add_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None,
        *,
        validate_only: bool = False,
        charge: Charge = uncounted,
    ) -> None:
        """Enlarge a topic to `count` partitions; `assignments` are the replicas of the new ones.

        Raises UnknownTopicOrPartition, InvalidPartitions, InvalidReplicaAssignment, ReassignmentInProgress,
        or RequestTimedOut.
        """
        with zookeeper_errors():
            while True:
                try:
                    data, stat = await self._session.get(_path_of(name))
                except NoNode:
                    raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.") from None
                grow = partial(self._enlarge, name, data, count, assignments)
                enlarged, mine, new = await for_partitions(max(count, len(data) // BYTES_PER_PARTITION), grow)
                if not validate_only:
                    charge(new)
                    charge = uncounted  # not again after another writer was faster
                self._make_room(mine, validate_only=validate_only)
                if validate_only:
                    return
                try:
                    await self._session.set(_path_of(name), enlarged, version=stat.version)
                except BadVersion:
                    continue
                return

    def _enlarge(
        self, name: str, data: bytes, count: int, assignments: Sequence[Sequence[int]] | None
    ) -> tuple[bytes, int, int]:
        """Return the znode's data with `count` partitions, how many of the new are this broker's, and all."""
        present = TopicAssignment.decode(name, data)
        enlarged = self._enlarged(present, count, assignments)
        added = [brokers for p, brokers in enlarged.partitions.items() if p not in present.partitions]
        return encoded(enlarged), self._count_mine(added), len(added)

    def _enlarged(
        self, present: TopicAssignment, count: int, assignments: Sequence[Sequence[int]] | None
    ) -> TopicAssignment:
        if present.adding_replicas or present.removing_replicas:
            raise ReassignmentInProgress(
                f"A partition reassignment is in progress for the topic '{present.topic}'."
            )
        old = dict(present.partitions)
        if count <= len(old):
            reason = "already has" if count == len(old) else "currently has"
            raise InvalidPartitions(
                f"Topic {present.topic} {reason} {len(old)} partitions; "
                f"only a larger number can be asked for, not {count}."
            )
        if count > self.config.max_partitions_per_topic:
            most = self.config.max_partitions_per_topic
            raise InvalidPartitions(f"At most {most} partitions are allowed (max.partitions.per.topic).")
        factor = len(old[0])
        if assignments is None:
            added = self._continue_pattern(old, count - len(old), factor)
        else:
            if len(assignments) != count - len(old):
                raise InvalidReplicaAssignment(
                    f"Increasing the number of partitions by {count - len(old)} "
                    f"but {len(assignments)} assignments provided."
                )
            self._check_replicas(assignments, factor)
            added = {len(old) + index: list(brokers) for index, brokers in enumerate(assignments)}
        return replace(present, partitions=old | {p: tuple(brokers) for p, brokers in added.items()})

    def _continue_pattern(self, old: Mapping[int, Sequence[int]], count: int, factor: int) -> Assignments:
        ids = sorted(broker.id for broker in self._metadata.brokers)
        first = old[0][0]
        start = ids.index(first) if first in ids else 0
        return self._assign(count, factor, start_index=start, first_partition=len(old))

    async def existing(self) -> frozenset[str] | None:
        """The names of all topics in ZooKeeper, None while it does not answer."""
        try:
            # This broker's server may not know the newest topics without it.
            await self._session.sync(paths.BROKER_TOPICS)
            return frozenset(await self._session.children(paths.BROKER_TOPICS))
        except ZooKeeperError:
            return None

    async def published(self) -> dict[str, int] | None:
        """How many partitions of each topic a controller publishes, None while ZooKeeper does not answer.

        These are the ones with an elected leader. Topics that are being deleted are left out.
        """
        existing = await self.existing()
        if existing is None:
            return None
        try:
            deleted = await self._session.children(paths.DELETE_TOPICS)
            return {name: await self._elected(name) for name in existing.difference(deleted)}
        except ZooKeeperError:
            return None

    async def _elected(self, name: str) -> int:
        try:
            return len(await self._session.children(paths.partitions(name)))
        except (NoNode, IllegalName):
            return 0

    # ---- waiting

    async def wait_until_led(self, name: str, partitions: int, timeout_ms: float) -> bool:
        """Wait until that many partitions of a topic have a live leader; return whether they have."""

        def led() -> bool:
            known = self._metadata.topic(name)
            return (
                known is not None
                and len(known.partitions) >= partitions
                and all(self._metadata.is_alive(partition.leader) for partition in known.partitions.values())
            )

        return await self._metadata.within(timeout_ms, led)

    async def wait_until_gone(self, name: str, timeout_ms: float) -> bool:
        """Wait until a topic and its deletion marker are gone; return whether they are."""
        deadline_ms = self._environment.clock.monotonic_ms() + timeout_ms
        if not await self._metadata.within(timeout_ms, lambda: name not in self._metadata):
            return False
        return await self._marker_gone(name, deadline_ms)

    async def _marker_gone(self, name: str, deadline_ms: float) -> bool:
        while True:
            changed = asyncio.Event()
            try:
                with zookeeper_errors():
                    # Not `exists`: on a marker that is gone its watch would wait for ever.
                    await self._session.get(paths.deleted_topic(name), partial(_set, changed))
            except NoNode:
                return True
            left_ms = deadline_ms - self._environment.clock.monotonic_ms()
            try:
                async with asyncio.timeout(max(0.0, left_ms) / 1000):
                    await changed.wait()
            except TimeoutError:
                return False


def internal_topic(name: str, config: BrokerConfig, most_replicas: int | None = None) -> NewTopic:
    """Return what an internal topic is created with, with no more than `most_replicas` replicas.

    A broker that is a cluster gives it one. In a cluster it waits for its replicas, as with Kafka.
    """
    partitions, factor, segment_bytes = {
        GROUP_METADATA_TOPIC: (
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            config.offsets_topic_segment_bytes,
        ),
        TRANSACTION_STATE_TOPIC: (
            config.transaction_state_log_num_partitions,
            config.transaction_state_log_replication_factor,
            config.transaction_state_log_segment_bytes,
        ),
        SHARE_GROUP_STATE_TOPIC: (
            config.share_coordinator_state_topic_num_partitions,
            config.share_coordinator_state_topic_replication_factor,
            config.share_coordinator_state_topic_segment_bytes,
        ),
    }[name]
    if most_replicas is not None:
        factor = max(1, min(factor, most_replicas))
    configs: dict[str, str | None] = {
        "cleanup.policy": "compact",
        "segment.bytes": str(segment_bytes),
        "compression.type": "producer",
    }
    if name == TRANSACTION_STATE_TOPIC:
        configs["compression.type"] = "uncompressed"
        configs["min.insync.replicas"] = str(min(factor, config.transaction_state_log_min_isr))
    if name == SHARE_GROUP_STATE_TOPIC:  # its coordinator deletes what snapshots replace
        configs |= {"cleanup.policy": "delete", "retention.ms": "-1"}
        configs["min.insync.replicas"] = str(min(factor, config.share_coordinator_state_topic_min_isr))
    return NewTopic(name, partitions, factor, configs=configs)


def _set(changed: asyncio.Event, _: object) -> None:
    changed.set()


def _path_of(name: str) -> str:
    """Return the znode of a topic that a client names; an illegal name is an unknown topic."""
    try:
        return paths.topic(name)
    except IllegalName:
        raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.") from None
