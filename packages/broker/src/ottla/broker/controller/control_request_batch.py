"""The control requests of one controller step: partitions are collected, one request per broker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from ottla.broker.cluster.partition_znodes import Leadership
from ottla.broker.controller.controller_context import (
    EPOCH_DURING_DELETION,
    LEADER_DURING_DELETION,
    NO_LEADER,
    ControllerContext,
    Endpoint,
    LiveBroker,
)
from ottla.broker.runtime.loop_budget import EndOfSlice, slices
from ottla.protocol.messages.control_requests import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.frozen_classes import frozen

ControlRequest = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest

_Wanted = TypeVar("_Wanted")
_State = TypeVar("_State")
States: TypeAlias = dict[str, list[_State]]
"""The states of partitions in a request, by topic. Requests share them: they never change."""
Building: TypeAlias = Generator[EndOfSlice, Any, States[_State]]

SECURITY_PROTOCOLS: Mapping[str, int] = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
INCREMENTAL = 0


@frozen
class Publish:
    """Send a request to a broker, after everything sent to it before."""

    broker: LiveBroker
    request: ControlRequest


@dataclass(slots=True)
class ControlRequestBatch:
    """Collects partitions for each broker; `requests()` drains it in the order that brokers need."""

    context: ControllerContext
    inter_broker_listener: str = "PLAINTEXT"
    _leaders: dict[int, dict[TopicPartition, bool]] = field(default_factory=lambda: defaultdict(dict))
    _metadata: dict[int, set[TopicPartition]] = field(default_factory=lambda: defaultdict(set))
    _stops: dict[int, dict[TopicPartition, bool]] = field(default_factory=lambda: defaultdict(dict))

    def lead_or_follow(
        self, partition: TopicPartition, brokers: Iterable[int], *, is_new: bool = False
    ) -> None:
        """Send LeaderAndIsr to these replicas, and UpdateMetadata to every live broker."""
        for broker in brokers:
            self._leaders[broker][partition] = is_new or self._leaders[broker].get(partition, False)
        self.metadata(self.context.live, [partition])

    def metadata(self, brokers: Iterable[int], partitions: Iterable[TopicPartition]) -> None:
        """Send UpdateMetadata with all live brokers and these partitions."""
        partitions = tuple(partitions)
        for broker in brokers:
            self._metadata[broker].update(partitions)

    def stop(self, partition: TopicPartition, broker: int, *, delete: bool) -> None:
        """Send StopReplica, which may also delete the replica's log."""
        self._stops[broker][partition] = delete or self._stops[broker].get(partition, False)

    def requests(self) -> Iterator[Publish | EndOfSlice]:
        """Drain the batch: every LeaderAndIsr, then every UpdateMetadata, then every StopReplica."""
        yield from self._publish(self._leaders, self._leader_states, self._leader_and_isr)
        yield from self._publish(self._metadata, self._metadata_states, self._update_metadata)
        yield from self._publish(self._stops, self._stop_states, self._stop_replica)

    def _publish(
        self,
        collected: dict[int, _Wanted],
        states_of: Callable[[_Wanted], Building[_State]],
        build: Callable[[LiveBroker, States[_State]], ControlRequest],
    ) -> Iterator[Publish | EndOfSlice]:
        """Build the requests; brokers that get the same partitions share the states of these."""
        last: tuple[_Wanted, States[_State]] | None = None
        for broker_id, wanted in collected.items():
            if broker := self.context.live.get(broker_id):
                if last is None or last[0] != wanted:
                    last = wanted, (yield from states_of(wanted))
                yield Publish(broker, build(broker, last[1]))
        collected.clear()

    def _leader_states(self, wanted: Mapping[TopicPartition, bool]) -> Building[LeaderAndIsrPartitionState]:
        states: States[LeaderAndIsrPartitionState] = defaultdict(list)
        for some in slices(wanted.items()):
            for partition, is_new in some:
                leadership = self.context.leaderships.get(partition)
                if leadership is not None:
                    states[partition.topic].append(self._leader_state(partition, leadership, is_new))
            yield EndOfSlice()
        return states

    def _leader_and_isr(
        self, broker: LiveBroker, states: States[LeaderAndIsrPartitionState]
    ) -> LeaderAndIsrRequest:
        leaders = {state.leader for those in states.values() for state in those}
        return LeaderAndIsrRequest(
            controller_id=self.context.controller_id,
            controller_epoch=self.context.epoch,
            broker_epoch=broker.epoch,
            type=INCREMENTAL,
            topic_states=[
                LeaderAndIsrTopicState(topic_name=t, topic_id=self.context.topics[t].id, partition_states=s)
                for t, s in states.items()
            ],
            live_leaders=[self._live_leader(self.context.live[b]) for b in leaders if b in self.context.live],
        )

    def _leader_state(
        self, partition: TopicPartition, leadership: Leadership, is_new: bool
    ) -> LeaderAndIsrPartitionState:
        assignment = self.context.assignment(partition)
        return LeaderAndIsrPartitionState(
            topic_name=partition.topic,
            partition_index=partition.partition,
            controller_epoch=leadership.controller_epoch,
            leader=leadership.leader,
            leader_epoch=leadership.leader_epoch,
            isr=list(leadership.isr),
            partition_epoch=leadership.partition_epoch,
            replicas=list(assignment.replicas),
            adding_replicas=list(assignment.adding),
            removing_replicas=list(assignment.removing),
            is_new=is_new,
        )

    def _live_leader(self, broker: LiveBroker) -> LeaderAndIsrLiveLeader:
        endpoint = endpoint_of(broker, self.inter_broker_listener)
        return LeaderAndIsrLiveLeader(broker_id=broker.id, host_name=endpoint.host, port=endpoint.port)

    def _metadata_states(self, wanted: Iterable[TopicPartition]) -> Building[UpdateMetadataPartitionState]:
        states: States[UpdateMetadataPartitionState] = defaultdict(list)
        for some in slices(sorted(wanted)):
            for partition in some:
                leadership = self.context.leaderships.get(partition)
                known = leadership is not None or partition in self.context.unreadable
                if known or self.context.is_deleting(partition):
                    states[partition.topic].append(self._metadata_state(partition, leadership))
            yield EndOfSlice()
        return states

    def _update_metadata(
        self, broker: LiveBroker, states: States[UpdateMetadataPartitionState]
    ) -> UpdateMetadataRequest:
        return UpdateMetadataRequest(
            controller_id=self.context.controller_id,
            controller_epoch=self.context.epoch,
            broker_epoch=broker.epoch,
            topic_states=[
                UpdateMetadataTopicState(topic_name=t, topic_id=self.context.topics[t].id, partition_states=s)
                for t, s in states.items()
            ],
            live_brokers=[_broker_entry(live) for live in self.context.live.values()],
        )

    def _metadata_state(
        self, partition: TopicPartition, leadership: Leadership | None
    ) -> UpdateMetadataPartitionState:
        deleting = self.context.is_deleting(partition)
        leader = leadership.leader if leadership else NO_LEADER
        replicas = self.context.assignment(partition).replicas
        return UpdateMetadataPartitionState(
            topic_name=partition.topic,
            partition_index=partition.partition,
            controller_epoch=leadership.controller_epoch if leadership else self.context.epoch,
            leader=LEADER_DURING_DELETION if deleting else leader,
            leader_epoch=leadership.leader_epoch if leadership else 0,
            isr=list(leadership.isr) if leadership else [],
            zk_version=leadership.partition_epoch if leadership else 0,
            replicas=list(replicas),
            offline_replicas=[r for r in replicas if not self.context.is_alive(partition, r)],
        )

    def _stop_states(self, wanted: Mapping[TopicPartition, bool]) -> Building[StopReplicaPartitionState]:
        states: States[StopReplicaPartitionState] = defaultdict(list)
        for some in slices(wanted.items()):
            for partition, delete in some:
                states[partition.topic].append(self._stop_state(partition, delete))
            yield EndOfSlice()
        return states

    def _stop_state(self, partition: TopicPartition, delete: bool) -> StopReplicaPartitionState:
        leadership = self.context.leaderships.get(partition)
        epoch = leadership.leader_epoch if leadership else -1
        return StopReplicaPartitionState(
            partition_index=partition.partition,
            leader_epoch=EPOCH_DURING_DELETION if self.context.is_deleting(partition) else epoch,
            delete_partition=delete,
        )

    def _stop_replica(
        self, broker: LiveBroker, states: States[StopReplicaPartitionState]
    ) -> StopReplicaRequest:
        return StopReplicaRequest(
            controller_id=self.context.controller_id,
            controller_epoch=self.context.epoch,
            broker_epoch=broker.epoch,
            topic_states=[StopReplicaTopicState(topic_name=t, partition_states=s) for t, s in states.items()],
        )


def endpoint_of(broker: LiveBroker, listener: str) -> Endpoint:
    """The endpoint of that listener, or the first one the broker has."""
    for endpoint in broker.endpoints:
        if endpoint.listener == listener:
            return endpoint
    return broker.endpoints[0] if broker.endpoints else Endpoint(listener, "", -1)


def _broker_entry(broker: LiveBroker) -> UpdateMetadataBroker:
    return UpdateMetadataBroker(
        id=broker.id,
        rack=broker.rack,
        endpoints=[
            UpdateMetadataEndpoint(
                port=endpoint.port,
                host=endpoint.host,
                listener=endpoint.listener,
                security_protocol=SECURITY_PROTOCOLS.get(endpoint.security_protocol, 0),
            )
            for endpoint in broker.endpoints
        ],
    )
