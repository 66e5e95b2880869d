"""Follow the leadership of a coordinator topic: load the states of partitions led here, unload the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from ottla.broker.coordinators.coordinator_partitions import (
    CoordinatorPartition,
    CoordinatorPartitions,
    RecordCodec,
    S,
    partition_for,
)
from ottla.broker.coordinators.loading import StateLoader
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.zookeeper.frozen_classes import frozen

if TYPE_CHECKING:
    from ottla.broker.coordinators.internal_topic_log import CoordinatorStore
    from ottla.broker.runtime.background_tasks import BackgroundTasks
    from ottla.broker.runtime.environment import Environment
    from ottla.protocol.topics import TopicPartition

R = TypeVar("R")


@frozen
class LoadFacts:
    """How long a load took, and how many records it replayed."""

    took_ms: float
    records: int


class CoordinatorRuntime(Generic[S, R]):
    """Hosts one state for each partition that this broker leads, between `start` and `stop`.

    A state belongs to one leadership. Leading on in a newer epoch keeps the state: it is what the log holds.
    Leadership that moves away and comes back makes a new state, and a load that still runs for the old one
    finds that it is no longer wanted and ends.
    """

    def __init__(
        self,
        store: CoordinatorStore,
        codec: RecordCodec[R],
        *,
        new_state: Callable[[int], S],
        loaded: Callable[[CoordinatorPartition[S], LoadFacts], None],
        unloaded: Callable[[CoordinatorPartition[S]], None],
        ready: Callable[[], Awaitable[None]] | None = None,
        environment: Environment,
        tasks: BackgroundTasks,
    ) -> None:
        """`new_state` makes the empty state of a partition by number.

        `loaded` is called when a state has been read from the log, `unloaded` when another broker takes over
        or this one stops: the coordinator then answers whoever still waits. A load that has read the log
        waits for `ready` before it is complete.
        """
        self.partitions: CoordinatorPartitions[S] = CoordinatorPartitions()
        self.is_active = False
        self._store = store
        self._new_state = new_state
        self._loaded = loaded
        self._unloaded = unloaded
        self._ready = ready
        self._clock = environment.clock
        self._tasks = tasks
        self._loader = StateLoader(store, codec, new_state, environment)

    def start(self) -> None:
        """Answer requests from now on, and load what was elected before. `tasks` must be entered."""
        self.is_active = True
        for partition in self.partitions:
            if not partition.loaded:
                self._spawn_load(partition)

    def stop(self) -> None:
        """Unload every state."""
        self.is_active = False
        for partition in self.partitions:
            self._unloaded(partition)

    # ---- leadership

    def leadership_changed(
        self, elected: Sequence[tuple[TopicPartition, int]], resigned: Sequence[tuple[TopicPartition, int]]
    ) -> None:
        """Give up partitions and take others over; both hold (partition, leader epoch) of any topic."""
        topic = self._store.topic
        for topic_partition, epoch in resigned:
            if topic_partition.topic == topic:
                self._resign(topic_partition.partition, epoch)
        for topic_partition, epoch in elected:
            if topic_partition.topic == topic:
                self._elect(topic_partition.partition, epoch)

    def _elect(self, number: int, leader_epoch: int) -> None:
        present = self.partitions.get(number)
        if present is not None:
            present.leader_epoch = max(present.leader_epoch, leader_epoch)
            return
        partition = CoordinatorPartition(number, leader_epoch, self._new_state(number))
        self.partitions.add(partition)
        if self._is_blank(number):
            partition.state.complete_load()
            partition.loaded = True
        elif self.is_active:
            self._spawn_load(partition)

    def _resign(self, number: int, leader_epoch: int) -> None:
        present = self.partitions.get(number)
        if present is None or leader_epoch < present.leader_epoch:
            return
        self.partitions.remove(number)
        self._unloaded(present)

    def _is_blank(self, number: int) -> bool:
        try:
            return self._store.is_blank(number)
        except KafkaError:
            return False

    def _spawn_load(self, partition: CoordinatorPartition[S]) -> None:
        self._tasks.spawn(self._load(partition), f"{self._store.topic}-load-{partition.number}")

    async def _load(self, partition: CoordinatorPartition[S]) -> None:
        started_ms = self._clock.monotonic_ms()

        def is_wanted() -> bool:
            return self.partitions.get(partition.number) is partition

        result = await self._loader.load_until_complete(partition, is_wanted)
        if result is not None and self._ready is not None:
            await self._ready()
        if result is None or not is_wanted():
            return
        partition.state = result.state
        partition.loaded = True
        self._loaded(partition, LoadFacts(self._clock.monotonic_ms() - started_ms, result.records))

    # ---- the partition of a key

    def find(self, key: str) -> CoordinatorPartition[S] | ErrorCode:
        """Return the loaded partition that keeps `key`, or why this broker cannot answer for it."""
        if not self.is_active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        partition = self.partitions.get(partition_for(key, self._store.partition_count()))
        if partition is None:
            return ErrorCode.NOT_COORDINATOR
        return partition if partition.loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
