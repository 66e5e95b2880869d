"""Requests of brokers that speak a later level than this one: AlterPartition 1 to 3, AllocateProducerIds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.api import allocate_producer_ids, alter_partition
from ottla.broker.api.testing import FakeSession
from ottla.broker.cluster.metadata import MetadataCache
from ottla.broker.controller.testing import ControllerCluster, run_in_virtual_time
from ottla.broker.requests.context import RequestContext
from ottla.broker.transactions.producer_ids import ProducerIds
from ottla.protocol.api import ApiKey, RequestHeader
from ottla.protocol.errors import ErrorCode, NotController, StaleBrokerEpoch
from ottla.protocol.messages.control_requests import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from ottla.protocol.messages.controller_requests import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    TopicData,
)
from ottla.protocol.messages.producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)

TOPIC_ID = UUID(int=77)
Story = Callable[[ControllerCluster], Coroutine[Any, Any, None]]


def play(story: Story) -> None:
    """Run a story on two brokers with a topic that both of them host."""

    async def main() -> None:
        async with ControllerCluster() as cluster:
            await cluster.start(1, 2)
            await cluster.until(lambda: cluster.active is not None, "a controller")
            await cluster.until(lambda: all(cluster.brokers[one].epoch >= 0 for one in (1, 2)), "registered")
            await cluster.create_topic("orders", (1, 2))
            await cluster.until(lambda: cluster.settled("orders"), "a leader")
            await story(cluster)

    run_in_virtual_time(main())


def context(key: ApiKey, version: int) -> RequestContext:
    return RequestContext(RequestHeader(key, version, 1, "broker"), FakeSession(), 0)


async def altered(
    cluster: ControllerCluster,
    version: int,
    isr: dict[int, int],
    topic_id: UUID = TOPIC_ID,
    recovery_state: int = 0,
) -> tuple[AlterPartitionResponse, list[tuple[int, list[int]]]]:
    """Have broker 1 propose an ISR, as broker ids with epochs; return the answer and its partitions."""
    metadata = MetadataCache(1)
    partition = UpdateMetadataPartitionState(partition_index=0, leader=1, isr=[1, 2], replicas=[1, 2])
    known = UpdateMetadataTopicState(topic_name="orders", topic_id=TOPIC_ID, partition_states=[partition])
    metadata.update(UpdateMetadataRequest(topic_states=[known]))
    state = cluster.state("orders")
    assert state is not None
    data = PartitionData(
        leader_epoch=state.leader_epoch,
        partition_epoch=cluster.ensemble.tree.node(state.path).version,
        leader_recovery_state=recovery_state,
    )
    if version >= 3:
        data.new_isr_with_epochs = [BrokerState(broker_id=one, broker_epoch=isr[one]) for one in isr]
    else:
        data.new_isr = list(isr)
    topic = TopicData(topic_name="orders", topic_id=topic_id, partitions=[data])
    request = AlterPartitionRequest(broker_id=1, broker_epoch=cluster.brokers[1].epoch, topics=[topic])
    arrived = AlterPartitionRequest.decode(request.encode(version), version)
    services: Any = SimpleNamespace(controller=cluster.active, metadata=metadata)
    answer = await alter_partition.handle(services, arrived, context(ApiKey.ALTER_PARTITION, version))
    decoded = AlterPartitionResponse.decode(answer.encode(version), version)
    return decoded, [(one.error_code, one.isr) for topic in decoded.topics for one in topic.partitions]


@pytest.mark.parametrize("version", range(4))
def test_an_isr_is_proposed_in_every_version(version: int) -> None:
    async def story(cluster: ControllerCluster) -> None:
        epochs = {one: cluster.brokers[one].epoch for one in (1, 2)}

        answer, shrunk = await altered(cluster, version, {1: epochs[1]})
        assert (answer.error_code, shrunk) == (0, [(0, [1])])
        assert answer.topics[0].topic_name == ("orders" if version < 2 else "")
        assert answer.topics[0].topic_id == (TOPIC_ID if version >= 2 else UUID(int=0))

        _, expanded = await altered(cluster, version, epochs)
        assert expanded == [(0, [1, 2])]

    play(story)


@pytest.mark.parametrize("version", [2, 3])
def test_an_unknown_topic_id_is_the_error_of_its_partitions(version: int) -> None:
    async def story(cluster: ControllerCluster) -> None:
        answer, partitions = await altered(cluster, version, {1: -1}, topic_id=UUID(int=78))

        assert partitions == [(ErrorCode.UNKNOWN_TOPIC_ID, [])]
        assert answer.topics[0].topic_id == UUID(int=78)

    play(story)


def test_a_member_of_an_earlier_registration_is_not_eligible() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await altered(cluster, 3, {1: -1})
        stale = {1: cluster.brokers[1].epoch, 2: cluster.brokers[2].epoch - 1}

        assert (await altered(cluster, 3, stale))[1] == [(ErrorCode.INELIGIBLE_REPLICA, [])]
        assert (await altered(cluster, 3, {1: -1, 2: -1}))[1] == [(0, [1, 2])]

    play(story)


def test_a_leader_that_recovers_is_refused_as_no_state_here_is_recovering() -> None:
    async def story(cluster: ControllerCluster) -> None:
        _, partitions = await altered(cluster, 1, {1: -1}, recovery_state=1)

        assert partitions == [(ErrorCode.INVALID_REQUEST, [])]

    play(story)


async def allocated(cluster: ControllerCluster, at: int, epoch: int) -> AllocateProducerIdsResponse:
    broker = cluster.brokers[at]
    services: Any = SimpleNamespace(
        controller=broker.controller,
        transactions=SimpleNamespace(producer_ids=ProducerIds(broker.session, at)),
    )
    request = AllocateProducerIdsRequest(broker_id=2, broker_epoch=epoch)
    return await allocate_producer_ids.handle(services, request, context(ApiKey.ALLOCATE_PRODUCER_IDS, 0))


def test_the_controller_gives_brokers_blocks_of_producer_ids_of_their_own() -> None:
    async def story(cluster: ControllerCluster) -> None:
        assert cluster.active is not None
        active, epoch = cluster.active.broker_id, cluster.brokers[2].epoch
        other = 3 - active

        blocks = await asyncio.gather(*(allocated(cluster, active, epoch) for _ in range(3)))

        assert sorted(one.producer_id_start for one in blocks) == [0, 1000, 2000]
        assert {one.producer_id_len for one in blocks} == {1000}
        with pytest.raises(StaleBrokerEpoch):
            await allocated(cluster, active, epoch - 1)
        with pytest.raises(NotController):
            await allocated(cluster, other, epoch)

    play(story)
