"""Topic deletion: replicas stop, delete and report; then the znodes are removed, the marker last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from ottla.broker.controller.control_request_batch import ControlRequestBatch
from ottla.broker.controller.controller_context import (
    ControllerContext,
    PartitionState,
    Replica,
    ReplicaState,
)
from ottla.broker.controller.events import DeleteTopics, DeletionsGoOn, Later, Steps
from ottla.broker.runtime.loop_budget import EndOfSlice
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.control_requests import StopReplicaRequest, StopReplicaResponse
from ottla.protocol.topics import TopicPartition

TOPICS_AT_ONCE: Final = 128
"""Topics whose znodes go in one event: it takes a second, and leaders of a lost broker wait for its end."""
_UNDER_WAY = (ReplicaState.DELETION_STARTED, ReplicaState.DELETION_SUCCESSFUL)


class Deletion:
    """Deletes the topics that are marked for deletion."""

    def __init__(self, context: ControllerContext, batch: ControlRequestBatch) -> None:
        self._context = context
        self._batch = batch
        self._ended: dict[str, None] = {}
        """Topics whose replicas are all deleted, and whose znodes are not, in their order."""
        self._goes_on = False
        """Whether an event is queued that removes more of them."""

    def resume(self) -> Steps[None]:
        """Start the deletion of live replicas, and finish topics whose replicas are all deleted."""
        topics = sorted(self._context.deleting)
        waiting: dict[str, list[Replica]] = {}
        for topic in topics:
            if replicas := [r for r in self._context.replicas_of(topic) if self._can_start(r)]:
                waiting[topic] = replicas
            yield EndOfSlice()
        yield from self._start(waiting)
        yield from self._finish(topics)

    def answered(
        self, broker: int, request: StopReplicaRequest, response: StopReplicaResponse
    ) -> Steps[None]:
        """Apply a broker's StopReplica response, and finish topics whose replicas are all deleted."""
        errors = {
            TopicPartition(e.topic_name, e.partition_index): e.error_code for e in response.partition_errors
        }
        for topic in request.topic_states:
            for state in topic.partition_states:
                partition = TopicPartition(topic.topic_name, state.partition_index)
                if state.delete_partition:
                    error = response.error_code or errors.get(partition, ErrorCode.NONE)
                    self._reported((partition, broker), failed=error != ErrorCode.NONE)
            yield EndOfSlice()
        names = self._context.deleting.intersection(topic.topic_name for topic in request.topic_states)
        yield from self._finish(sorted(names))

    def go_on(self) -> Steps[None]:
        """Remove more topics whose replicas are all deleted."""
        self._goes_on = False
        yield from self._remove_some()

    def _can_start(self, replica: Replica) -> bool:
        """Return whether a broker can be asked to delete its replica.

        One without room deletes it, and gets room so. One whose log directory has failed refuses.
        """
        return replica[1] in self._context.live and self._context.replica_state(*replica) not in _UNDER_WAY

    def _start(self, waiting: Mapping[str, list[Replica]]) -> Steps[None]:
        """Stop and delete replicas of topics: each broker gets one request of a kind for all of them."""
        for topic, replicas in waiting.items():
            self._stop(topic, replicas)
            yield EndOfSlice()
        yield from self._batch.requests()
        for topic, replicas in waiting.items():
            for partition, broker in replicas:
                self._context.move_replica(partition, broker, ReplicaState.DELETION_STARTED)
                self._batch.stop(partition, broker, delete=True)
            self._rest_is_ineligible(topic)
            yield EndOfSlice()
        yield from self._batch.requests()

    def _stop(self, topic: str, replicas: Iterable[Replica]) -> None:
        context = self._context
        partitions = context.partitions_of(topic)
        for partition in partitions:
            if context.state(partition) is PartitionState.NON_EXISTENT:
                context.move_partition(partition, PartitionState.NEW)
            context.move_partition(partition, PartitionState.OFFLINE)
        self._batch.metadata(context.live, partitions)
        for partition, broker in replicas:
            self._to_offline(partition, broker)
            self._batch.stop(partition, broker, delete=False)

    def _to_offline(self, partition: TopicPartition, broker: int) -> None:
        if self._context.replica_state(partition, broker) is ReplicaState.NON_EXISTENT:
            self._context.move_replica(partition, broker, ReplicaState.NEW)
        self._context.move_replica(partition, broker, ReplicaState.OFFLINE)

    def _rest_is_ineligible(self, topic: str) -> None:
        """Mark replicas on dead brokers ineligible: the topic stays until those brokers return."""
        for partition, broker in self._context.replicas_of(topic):
            if self._context.replica_state(partition, broker) not in _UNDER_WAY:
                self._to_offline(partition, broker)
                self._context.move_replica(partition, broker, ReplicaState.DELETION_INELIGIBLE)

    def _reported(self, replica: Replica, *, failed: bool) -> None:
        if self._context.replica_state(*replica) is ReplicaState.DELETION_STARTED:
            outcome = ReplicaState.DELETION_INELIGIBLE if failed else ReplicaState.DELETION_SUCCESSFUL
            self._context.move_replica(*replica, outcome)

    def _finish(self, topics: Iterable[str]) -> Steps[None]:
        for topic in topics:
            if self._is_deleted(topic):
                self._ended[topic] = None
            yield EndOfSlice()
        yield from self._remove_some()

    def _remove_some(self) -> Steps[None]:
        some = list(islice(self._ended, TOPICS_AT_ONCE))
        for topic in some:
            del self._ended[topic]
        done = tuple(topic for topic in some if topic in self._context.deleting and self._is_deleted(topic))
        if done:
            yield DeleteTopics(done)
        for topic in done:
            self._forget(topic)
            yield EndOfSlice()
        if self._ended and not self._goes_on:
            self._goes_on = True
            yield Later(DeletionsGoOn())

    def _is_deleted(self, topic: str) -> bool:
        """Return whether every replica of a topic is."""
        context = self._context
        return all(
            context.replica_state(*r) is ReplicaState.DELETION_SUCCESSFUL for r in context.replicas_of(topic)
        )

    def _forget(self, topic: str) -> None:
        context = self._context
        for replica in context.replicas_of(topic):
            context.move_replica(*replica, ReplicaState.NON_EXISTENT)
        for partition in context.partitions_of(topic):
            context.move_partition(partition, PartitionState.NON_EXISTENT)
        context.forget_topic(topic)
