"""Requests between a controller and the brokers that run elsewhere, in both directions."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ottla.broker.controller.channels import IncompatibleBroker
from ottla.broker.controller.control_request_batch import ControlRequest, endpoint_of
from ottla.broker.controller.controller_context import Leadership
from ottla.broker.controller.events import AlterPartition, Answers, ControlledShutdown, ControlResponse
from ottla.broker.peers.inter_broker_versions import ADVICE, MOST
from ottla.broker.peers.peer_connection import PeerConnection
from ottla.client.config import Address
from ottla.client.errors import ClientError, UnsupportedByBroker
from ottla.protocol.errors import BrokerNotAvailable
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionData,
    TopicData,
)
from ottla.protocol.messages.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse
from ottla.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from ottla.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from ottla.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.controller.controller_context import LiveBroker


class RemoteSender:
    """Sends the controller's requests to another broker."""

    def __init__(self, broker: LiveBroker, listener: str, controller_id: int, timeout_ms: int) -> None:
        endpoint = endpoint_of(broker, listener)
        self._peer = PeerConnection(
            Address(endpoint.host, endpoint.port), f"controller-{controller_id}", timeout_ms
        )

    async def send(self, request: ControlRequest) -> ControlResponse:
        """Send the request and return the response; raises ConnectionError when there is none."""
        try:
            return await self._send(request)
        except UnsupportedByBroker as error:
            raise IncompatibleBroker(f"{error}: {ADVICE}, or run a release that has this level") from error
        except ClientError as error:
            raise ConnectionError(str(error)) from error

    async def _send(self, request: ControlRequest) -> ControlResponse:
        most = MOST[request.API_KEY]
        match request:
            case LeaderAndIsrRequest():
                return await self._peer.send(request, LeaderAndIsrResponse, max_version=most)
            case UpdateMetadataRequest():
                return await self._peer.send(request, UpdateMetadataResponse, max_version=most)
            case StopReplicaRequest():
                return await self._peer.send(request, StopReplicaResponse, max_version=most)

    async def close(self) -> None:
        """Close the connection."""
        await self._peer.close()


class RemoteController:
    """Sends a broker's requests to the controller on another broker."""

    def __init__(self, metadata: MetadataCache, listener: str, timeout_ms: int) -> None:
        self._metadata = metadata
        self._listener = listener
        self._timeout_ms = timeout_ms
        self._peer: PeerConnection | None = None

    async def ask(self, event: AlterPartition | ControlledShutdown) -> Answers:
        """Send the request that the event stands for, and return its answers.

        Raises BrokerNotAvailable when no controller is known, and the errors of `ottla.client`.
        """
        peer = await self._connected()
        if isinstance(event, ControlledShutdown):
            request = ControlledShutdownRequest(broker_id=event.broker_id, broker_epoch=event.broker_epoch)
            most = MOST[request.API_KEY]
            return _shutdown_answers(await peer.send(request, ControlledShutdownResponse, max_version=most))
        asked = _alter_request(event)
        most = MOST[asked.API_KEY]
        return _alter_answers(await peer.send(asked, AlterPartitionResponse, max_version=most))

    async def _connected(self) -> PeerConnection:
        broker = self._metadata.broker(self._metadata.controller_id)
        endpoint = broker.endpoint(self._listener) if broker else None
        if endpoint is None:
            raise BrokerNotAvailable("No controller is known.")
        address = Address(endpoint.host, endpoint.port)
        if self._peer is None or self._peer.address != address:
            await self.close()
            self._peer = PeerConnection(address, f"broker-{self._metadata.broker_id}", self._timeout_ms)
        return self._peer

    async def close(self) -> None:
        """Close the connection, if there is one."""
        peer, self._peer = self._peer, None
        if peer is not None:
            await peer.close()


def _alter_request(event: AlterPartition) -> AlterPartitionRequest:
    topics: dict[str, list[PartitionData]] = defaultdict(list)
    for partition, proposal in event.proposals.items():
        topics[partition.topic].append(
            PartitionData(
                partition_index=partition.partition,
                leader_epoch=proposal.leader_epoch,
                new_isr=list(proposal.isr),
                partition_epoch=proposal.partition_epoch,
            )
        )
    return AlterPartitionRequest(
        broker_id=event.broker_id,
        broker_epoch=event.broker_epoch,
        topics=[TopicData(topic_name=topic, partitions=partitions) for topic, partitions in topics.items()],
    )


def _alter_answers(response: AlterPartitionResponse) -> Answers:
    answers = Answers(top=response.error_code)
    for topic in response.topics:
        for one in topic.partitions:
            partition = TopicPartition(topic.topic_name, one.partition_index)
            if one.error_code:
                answers.partitions[partition] = one.error_code
            else:
                # AlterPartition does not return the controller epoch, and no caller needs it.
                answers.leaderships[partition] = Leadership(
                    one.leader_id, one.leader_epoch, tuple(one.isr), -1, one.partition_epoch
                )
    return answers


def _shutdown_answers(response: ControlledShutdownResponse) -> Answers:
    remaining = [TopicPartition(one.topic_name, one.partition_index) for one in response.remaining_partitions]
    return Answers(top=response.error_code, remaining=remaining)
