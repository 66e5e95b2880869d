"""Requests about share partitions to brokers, this one and others: to the coordinators of their state, and to
the leaders of their partitions.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from ottla.broker.coordinators.coordinator_partitions import partition_for
from ottla.broker.share.coordinator import ShareCoordinator, WrittenState
from ottla.broker.share.state import SharePartitionKey, ShareState, read_batches, stored_batches
from ottla.protocol.errors import (
    BrokerNotAvailable,
    CoordinatorNotAvailable,
    ErrorCode,
    FencedLeaderEpoch,
    FencedStateEpoch,
    GroupIdNotFound,
    KafkaError,
    LeaderNotAvailable,
    NetworkException,
    NotLeaderOrFollower,
    UnknownServerError,
    UnknownTopicOrPartition,
    error_for,
)
from ottla.protocol.messages import share_state as wire
from ottla.protocol.messages.log_offsets import ListOffsetsResponse
from ottla.protocol.topics import SHARE_GROUP_STATE_TOPIC, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.peers.client import Peer
    from ottla.protocol.schema import Message

T = TypeVar("T")

ATTEMPTS: Final = 20
"""Half a minute of pauses, as Kafka has them: the session of a coordinator that died is over by then."""
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
_ATTEMPTS_AT_LEADERS: Final = 2
_ATTEMPTS_OF_READERS: Final = 5
"""A second and a half: a client that asks where a group is waits for the answer, and may ask again."""
_REPEATED: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    }
)


class InternalTopics(Protocol):
    """Creates the topics that hold the broker's own state (`cluster.topics.Topics`)."""

    async def ensure_internal(self, name: str, /) -> object:
        """Create an internal topic unless it exists."""
        ...


class SharePersister:
    """Asks the coordinator of each share partition, again while it moves or is not there."""

    def __init__(
        self,
        *,
        metadata: MetadataCache,
        topics: InternalTopics,
        here: ShareCoordinator,
        connect: Callable[[int], Peer],
    ) -> None:
        """`here` is the coordinator of this broker, `connect` returns another broker by its id."""
        self._metadata = metadata
        self._topics = topics
        self._here = here
        self._connect = connect
        self._peers: dict[int, Peer] = {}

    async def close(self) -> None:
        """Close the connections to other brokers."""
        peers, self._peers = list(self._peers.values()), {}
        for peer in peers:
            await peer.close()

    # ---- requests

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        """Return the state for a leader of this epoch, which fences earlier ones. Raises KafkaError."""

        async def elsewhere(peer: Peer) -> ShareState:
            asked = wire.ReadStatePartition(partition=key.partition, leader_epoch=leader_epoch)
            request = wire.ReadShareGroupStateRequest(
                group_id=key.group_id, topics=[wire.ReadStateData(topic_id=key.topic_id, partitions=[asked])]
            )
            response = await peer.send(request, wire.ReadShareGroupStateResponse)
            found = _only(response)
            return ShareState(
                state_epoch=found.state_epoch,
                leader_epoch=leader_epoch,
                start_offset=found.start_offset,
                batches=read_batches(found.state_batches),
            )

        return await self._ask(key, lambda: self._here.read(key, leader_epoch), elsewhere)

    async def write(self, key: SharePartitionKey, written: WrittenState) -> None:
        """Persist a change of a leader. Raises KafkaError."""

        async def elsewhere(peer: Peer) -> None:
            asked = wire.WriteStatePartition(
                partition=key.partition,
                state_epoch=written.state_epoch,
                leader_epoch=written.leader_epoch,
                start_offset=written.start_offset,
                delivery_complete_count=written.delivery_complete_count,
                state_batches=stored_batches(written.batches),
            )
            request = wire.WriteShareGroupStateRequest(
                group_id=key.group_id, topics=[wire.WriteStateData(topic_id=key.topic_id, partitions=[asked])]
            )
            _only(await peer.send(request, wire.WriteShareGroupStateResponse))

        await self._ask(key, lambda: self._here.write(key, written), elsewhere)

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """Begin the state of a share partition. Raises KafkaError."""

        async def elsewhere(peer: Peer) -> None:
            asked = wire.InitializeStatePartition(
                partition=key.partition, state_epoch=state_epoch, start_offset=start_offset
            )
            request = wire.InitializeShareGroupStateRequest(
                group_id=key.group_id,
                topics=[wire.InitializeStateData(topic_id=key.topic_id, partitions=[asked])],
            )
            _only(await peer.send(request, wire.InitializeShareGroupStateResponse))

        await self._ask(key, lambda: self._here.initialize(key, state_epoch, start_offset), elsewhere)

    async def delete(self, key: SharePartitionKey) -> None:
        """Remove the state of a share partition. Raises KafkaError."""

        async def elsewhere(peer: Peer) -> None:
            asked = wire.DeleteStatePartition(partition=key.partition)
            request = wire.DeleteShareGroupStateRequest(
                group_id=key.group_id,
                topics=[wire.DeleteStateData(topic_id=key.topic_id, partitions=[asked])],
            )
            _only(await peer.send(request, wire.DeleteShareGroupStateResponse))

        await self._ask(key, lambda: self._here.delete(key), elsewhere)

    async def summary(self, key: SharePartitionKey) -> ShareState:
        """Return the state without its batches. Raises KafkaError."""

        async def here() -> ShareState:
            return self._here.summary(key)

        async def elsewhere(peer: Peer) -> ShareState:
            asked = wire.ReadStateSummaryPartition(partition=key.partition, leader_epoch=-1)
            request = wire.ReadShareGroupStateSummaryRequest(
                group_id=key.group_id,
                topics=[wire.ReadStateSummaryData(topic_id=key.topic_id, partitions=[asked])],
            )
            found = _only(await peer.send(request, wire.ReadShareGroupStateSummaryResponse))
            return ShareState(
                state_epoch=found.state_epoch,
                leader_epoch=found.leader_epoch,
                start_offset=found.start_offset,
                delivery_complete_count=found.delivery_complete_count,
            )

        return await self._ask(key, here, elsewhere, _ATTEMPTS_OF_READERS)

    # ---- the leaders of partitions

    async def ends(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int | KafkaError]:
        """Return the high watermarks of partitions that other brokers lead, or why one is not known.

        All leaders are asked at once; a request that has no answer is sent twice.
        """
        found: dict[TopicPartition, int | KafkaError] = {}
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        for partition in partitions:
            leader = self._metadata.leader_of(partition)
            if leader is None:
                found[partition] = LeaderNotAvailable()
            else:
                by_leader[leader].append(partition)
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(self._ends_at(*leader)) for leader in by_leader.items()]
        for task in asked:
            found.update(task.result())
        return found

    async def _ends_at(
        self, leader: int, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, int | KafkaError]:
        from ottla.broker.peers.client import latest_of

        found: dict[TopicPartition, int | KafkaError] = dict.fromkeys(partitions, NetworkException())
        for _ in range(_ATTEMPTS_AT_LEADERS):
            try:
                response = await self._peer(leader).send(latest_of(partitions), ListOffsetsResponse)
            except (KafkaError, OSError):
                await asyncio.sleep(FIRST_PAUSE_S)
                continue
            found = dict.fromkeys(partitions, UnknownTopicOrPartition())
            for topic in response.topics:
                for end in topic.partitions:
                    of = TopicPartition(topic.name, end.partition_index)
                    found[of] = error_for(end.error_code) if end.error_code else end.offset
            break
        return found

    # ---- the coordinator of a key

    async def _ask(
        self,
        key: SharePartitionKey,
        here: Callable[[], Awaitable[T]],
        elsewhere: Callable[[Peer], Awaitable[T]],
        attempts: int = ATTEMPTS,
    ) -> T:
        error: KafkaError = CoordinatorNotAvailable()
        for attempt in range(attempts):
            if attempt:
                await asyncio.sleep(min(FIRST_PAUSE_S * 2 ** (attempt - 1), LONGEST_PAUSE_S))
            try:
                broker_id = await self._find(key)
                if broker_id == self._metadata.broker_id:
                    return await here()
                return await elsewhere(self._peer(broker_id))
            except KafkaError as failure:
                if failure.code not in _REPEATED and not isinstance(failure, BrokerNotAvailable):
                    raise
                error = failure
            except OSError as failure:
                error = CoordinatorNotAvailable(str(failure))
        raise error

    async def _find(self, key: SharePartitionKey) -> int:
        partitions = self._metadata.partition_count(SHARE_GROUP_STATE_TOPIC)
        if not partitions:
            await self._topics.ensure_internal(SHARE_GROUP_STATE_TOPIC)
            raise CoordinatorNotAvailable(f"{SHARE_GROUP_STATE_TOPIC} is being created.")
        leader = self._metadata.leader_of(
            TopicPartition(SHARE_GROUP_STATE_TOPIC, partition_for(key.text, partitions))
        )
        if leader is None:
            raise CoordinatorNotAvailable(f"The partition of {SHARE_GROUP_STATE_TOPIC} has no leader.")
        return leader

    def _peer(self, broker_id: int) -> Peer:
        peer = self._peers.get(broker_id)
        if peer is None:
            peer = self._peers[broker_id] = self._connect(broker_id)
        return peer


def _only(response: Message) -> Any:
    """Return the result of the only partition that was asked for; raise its error."""
    result = response.results[0].partitions[0]  # type: ignore[attr-defined]
    if result.error_code:
        raise error_for(result.error_code, result.error_message)
    return result


def as_leader_error(error: KafkaError) -> KafkaError:
    """Return the error that a member gets from a leader whose share coordinator has refused something."""
    match error:
        case CoordinatorNotAvailable() | GroupIdNotFound() | UnknownTopicOrPartition():
            return error
        case FencedLeaderEpoch() | FencedStateEpoch():
            return NotLeaderOrFollower(str(error))
    if error.code in _REPEATED or isinstance(error, BrokerNotAvailable):
        return CoordinatorNotAvailable(str(error))
    return UnknownServerError(str(error))
