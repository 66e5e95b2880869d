"""`ottla share-group describe --metrics`: the records that members hold, from the brokers' metrics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ottla.admin import GROUP, Admin
from ottla.admin.commands.share_group import share_group
from ottla.broker.testing import BrokerThread
from ottla.consumer import ShareConsumer
from ottla.producer import Producer

BOUND_S = 60.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    settings = {"metrics.port": "0", "group.share.heartbeat.interval.ms": "100"}
    with BrokerThread(tmp_path / "data", settings) as running:
        yield running


def describe(broker: BrokerThread, *arguments: str) -> Result:
    command = ["describe", "workers", "-b", broker.bootstrap_servers, *arguments]
    return CliRunner().invoke(share_group, command)


async def test_records_in_the_hands_of_a_member_are_counted_until_it_has_accepted_them(
    broker: BrokerThread,
) -> None:
    servers = broker.bootstrap_servers
    async with Admin(servers) as admin, Producer(servers) as producer:
        await admin.topics.create("jobs", partitions=1)
        await admin.configs.alter(GROUP, "workers", {"share.auto.offset.reset": "earliest"})
        await producer.send_many("jobs", [b"%d" % number for number in range(3)])
        await producer.flush()
    async with (
        asyncio.timeout(BOUND_S),
        ShareConsumer("jobs", bootstrap_servers=servers, group_id="workers") as consumer,
    ):
        await consumer.getone()  # a fetch acquires the batch that was sent

        held = await asyncio.to_thread(describe, broker, "--metrics", broker.metrics_url, "--json")
        assert [row["acquired"] for row in json.loads(held.output)] == [3]
        await consumer.getone()
        await consumer.getone()
        await consumer.commit()

        left = await asyncio.to_thread(describe, broker, "--metrics", broker.metrics_url)
        assert left.output.splitlines()[1].split()[-1] == "ACQUIRED"
        assert left.output.splitlines()[2].split()[-1] == "0"
