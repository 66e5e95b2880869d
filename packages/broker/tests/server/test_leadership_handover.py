"""Controlled shutdown, as the broker that leaves sees it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.broker.cluster.metadata import MetadataCache
from ottla.broker.config import BrokerConfig
from ottla.broker.peers.controller_requests import Answers
from ottla.broker.server.leadership_handover import LeadershipHandover
from ottla.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

LEAVING, OTHER = 1, 2


class Controller:
    """Moves all leaderships at once; its requests to brokers come later."""

    broker_epoch = 7

    def __init__(self) -> None:
        self.asked = 0

    async def ask(self, _: object) -> Answers:
        self.asked += 1
        return Answers()


def tell(metadata: MetadataCache, leader: int, replicas: list[int], alive: list[int]) -> None:
    state = UpdateMetadataPartitionState(partition_index=0, leader=leader, replicas=replicas, isr=replicas)
    metadata.update(
        UpdateMetadataRequest(
            live_brokers=[UpdateMetadataBroker(id=node) for node in alive],
            topic_states=[UpdateMetadataTopicState(topic_name="t", partition_states=[state])],
        )
    )


def leaving(metadata: MetadataCache) -> tuple[LeadershipHandover, Controller]:
    controller: Any = Controller()
    session: Any = None  # asked for only before a repetition
    config = BrokerConfig(log_dir="/nowhere")
    return LeadershipHandover(config, metadata, controller, controller, session, LEAVING), controller


async def test_a_broker_that_leaves_waits_until_it_is_told_that_others_lead() -> None:
    metadata = MetadataCache(LEAVING)
    tell(metadata, LEAVING, [LEAVING, OTHER], [LEAVING, OTHER])
    handover, controller = leaving(metadata)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        leaves = tasks.create_task(handover.run())
        for _ in range(10):
            await asyncio.sleep(0)
        assert controller.asked == 1
        assert not leaves.done()

        tell(metadata, OTHER, [LEAVING, OTHER], [LEAVING, OTHER])


@pytest.mark.parametrize(
    ("replicas", "alive"),
    [([LEAVING], [LEAVING, OTHER]), ([LEAVING, OTHER], [LEAVING]), ([LEAVING, 3], [1, 2])],
)
async def test_partitions_that_nobody_else_can_lead_are_not_waited_for(
    replicas: list[int], alive: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.broker.server.leadership_handover.TOLD_WITHIN_MS", 3_600_000.0)
    metadata = MetadataCache(LEAVING)
    tell(metadata, LEAVING, replicas, alive)
    handover, _ = leaving(metadata)

    async with asyncio.timeout(60):
        await handover.run()
