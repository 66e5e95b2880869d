"""Current leaders of partitions in the answer of a broker that does not lead them (KIP-951)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ottla.broker.replication.partition import Role
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import LeaderIdAndEpoch, NodeEndpoint
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.replication.replicas import Replicas
    from ottla.protocol.messages.produce import ProduceResponse

FIRST_PRODUCE: Final = 10
FIRST_FETCH: Final = 16
"""The first versions of Produce and Fetch that name leaders."""
NO_LEADER: Final = -1

IS_ELSEWHERE: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""Errors of a partition that another broker leads, or this one in a later epoch."""


class Needs(Protocol):
    """The parts of the broker that know leaders."""

    @property
    def metadata(self) -> MetadataCache: ...

    @property
    def replicas(self) -> Replicas: ...


@dataclass(frozen=True, slots=True)
class LeaderSources:
    """A `LeaderServices` with these two parts alone, for the fast path of Produce."""

    metadata: MetadataCache
    replicas: Replicas


class Leadership(NamedTuple):
    """A partition's leader and its epoch; -1 for both where they are not known."""

    leader_id: int
    epoch: int


class Node(NamedTuple):
    """A leader's address on the listener that the client uses."""

    node_id: int
    host: str
    port: int
    rack: str | None


class CurrentLeaders:
    """Looks up leaders for one answer, and gathers their addresses in `nodes`."""

    def __init__(self, services: Needs, listener_name: str) -> None:
        self.nodes: dict[int, Node] = {}
        self._services = services
        self._listener_name = listener_name

    def of(self, topic_partition: TopicPartition) -> Leadership:
        """Return the leader as this broker knows it: as its follower, or else from the metadata."""
        found = self._lookup(topic_partition)
        broker = self._services.metadata.broker(found.leader_id)
        endpoint = broker.endpoint(self._listener_name) if broker else None
        if broker is not None and endpoint is not None:
            self.nodes[broker.id] = Node(broker.id, endpoint.host, endpoint.port, broker.rack)
        return found

    def _lookup(self, topic_partition: TopicPartition) -> Leadership:
        hosted = self._services.replicas.hosted(topic_partition)
        if hosted is not None and hosted.core.role is not Role.NONE:
            return Leadership(hosted.core.leader, hosted.core.leader_epoch)
        known = self._services.metadata.partition(topic_partition)
        if known is None:
            return Leadership(NO_LEADER, -1)
        return Leadership(known.leader, known.leader_epoch)


def tell_producer(
    services: Needs, listener_name: str, version: int, response: ProduceResponse
) -> ProduceResponse:
    """Write the leaders of partitions that other brokers lead into a response to Produce."""
    if version < FIRST_PRODUCE:
        return response
    leaders = None
    for topic in response.responses:
        for asked in topic.partition_responses:
            if asked.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                continue
            leaders = leaders or CurrentLeaders(services, listener_name)
            leader_id, epoch = leaders.of(TopicPartition(topic.name, asked.index))
            asked.current_leader = LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=epoch)
    if leaders is not None:
        response.node_endpoints = [NodeEndpoint(**node._asdict()) for node in leaders.nodes.values()]
    return response
