"""The owners of the partitions of a group of each type, and their hosts: `ottla group describe`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ottla.admin.commands.group import group as group_command
from ottla.broker.testing import BrokerThread
from ottla.client.config import Address, ClientConfig
from ottla.client.connection import Connection
from ottla.consumer import Consumer, ShareConsumer
from ottla.producer import Producer
from ottla.protocol.messages.find_coordinator import FindCoordinatorResponse
from ottla.protocol.messages.streams_groups import StreamsGroupHeartbeatResponse
from peers.acl_requests import MEMBER, Facts, find_coordinator, streams_heartbeat

CLIENT = "till-7"
HOST = "127.0.0.1"
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "group.streams.initial.rebalance.delay.ms": "0"}


@asynccontextmanager
async def classic_member(servers: str) -> AsyncIterator[None]:
    async with Consumer(
        "orders", bootstrap_servers=servers, group_id="orders", client_id=CLIENT,
        auto_offset_reset="earliest",
    ) as member:  # fmt: skip
        await member.getone()
        yield


@asynccontextmanager
async def consumer_member(servers: str) -> AsyncIterator[None]:
    async with Consumer(
        "orders", bootstrap_servers=servers, group_id="orders", client_id=CLIENT, group_protocol="consumer",
        auto_offset_reset="earliest",
    ) as member:  # fmt: skip
        await member.getone()
        yield


@asynccontextmanager
async def share_member(servers: str) -> AsyncIterator[None]:
    async with ShareConsumer(
        "orders", bootstrap_servers=servers, group_id="orders", client_id=CLIENT
    ) as member:
        async with asyncio.timeout(60):
            while not member.assignment():
                await member.getmany(timeout_ms=100)
        yield


@asynccontextmanager
async def streams_member(servers: str) -> AsyncIterator[None]:
    """A member that answers no revocation and reads nothing: its tasks are what the coordinator gave it."""
    host, port = servers.split(":")
    connection = Connection(Address(host, int(port)), ClientConfig(client_id=CLIENT))
    await connection.connect()
    try:
        async with asyncio.timeout(60):
            while True:
                found = find_coordinator(Facts("orders"), 0)
                await connection.send(found, FindCoordinatorResponse, min_version=4, max_version=4)
                answer = await connection.send(
                    streams_heartbeat(Facts("orders"), 0), StreamsGroupHeartbeatResponse
                )
                if answer.active_tasks:
                    break
                await asyncio.sleep(0.1)
        yield
    finally:
        await connection.close()


MEMBERS = {
    "classic": classic_member, "consumer": consumer_member, "share": share_member, "streams": streams_member,
}  # fmt: skip


async def described(servers: str) -> dict[str, Any]:
    """Return what the command prints as JSON."""
    arguments = ["describe", "orders", "--json", "--bootstrap-server", servers]
    done = await asyncio.to_thread(CliRunner().invoke, group_command, arguments)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("kind", MEMBERS)
async def test_the_owner_of_a_partition_is_shown_by_member_client_and_host(kind: str, tmp_path: Path) -> None:
    with BrokerThread(tmp_path, SETTINGS) as broker:
        servers = broker.bootstrap_servers
        async with Producer(bootstrap_servers=servers) as producer:
            await producer.send_and_wait("orders", b"coffee")
        async with MEMBERS[kind](servers):
            found = await described(servers)

    assert found["type"] == kind
    (member,) = found["members"]
    (partition,) = found["offsets"]
    assert (partition["client"], partition["host"]) == (CLIENT, HOST)
    assert partition["member"] == member["member_id"]
    assert kind != "streams" or member["member_id"] == MEMBER
