"""A stop of a whole broker while requests wait for what clients do."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from ottla.broker.config import BrokerConfig
from ottla.broker.network.listener import Server
from ottla.broker.server.broker import Broker
from ottla.client.config import Address
from ottla.client.connection import Connection
from ottla.client.errors import ConnectionClosed
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)

WITHIN_S = 30


async def test_a_stop_does_not_wait_for_a_join_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Server.stop, "__defaults__", (3600.0,))
    config = BrokerConfig(
        log_dir=str(tmp_path),
        listeners="PLAINTEXT://127.0.0.1:0",
        offsets_topic_num_partitions=1,
        group_initial_rebalance_delay_ms=3_600_000,
    )
    broker = await Broker(config).__aenter__()
    async with Connection(Address("127.0.0.1", broker.port)) as connection:
        await until_there_is_a_coordinator(connection)
        joining = asyncio.create_task(connection.send(join(), JoinGroupResponse, max_version=3))
        services = broker.services
        async with asyncio.timeout(WITHIN_S):
            while not services.groups.list_groups()[1]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        async with asyncio.timeout(WITHIN_S):
            await broker.__aexit__(None, None, None)

        with pytest.raises(ConnectionClosed):
            await joining
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []


async def until_there_is_a_coordinator(connection: Connection) -> None:
    async with asyncio.timeout(WITHIN_S):
        request = FindCoordinatorRequest(key="group")
        while (await connection.send(request, FindCoordinatorResponse, max_version=2)).error_code:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def join() -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="group",
        session_timeout_ms=60_000,
        rebalance_timeout_ms=3_600_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
