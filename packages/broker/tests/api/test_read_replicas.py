"""Consumers that read from followers (KIP-392): the leader's choice, and what a follower serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.api.fetch import general as fetch
from ottla.broker.api.fetch.response import FetchAnswer, FetchedPartition
from ottla.broker.api.testing import BROKER_ID, DataPlane, batch_of
from ottla.broker.config import BrokerConfig, ConfigError, broker_config_from
from ottla.broker.replication.replicas import HostedPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@pytest.fixture
def plane(tmp_path: Path) -> DataPlane:
    plane = DataPlane(tmp_path, BrokerConfig(replica_selector_class=RACK_AWARE))
    plane.racks.update({BROKER_ID: "a", 2: "b", 3: "b", 4: "c"})
    return plane


async def led(plane: DataPlane, **offsets: int) -> HostedPartition:
    """A partition led here with ten records; followers 2, 3 and 4 have asked for these offsets."""
    partition = await plane.lead(isr=(1, 2, 3, 4), replicas=(1, 2, 3, 4))
    for _ in range(10):
        partition.append(batch_of(b"x"), required_acks=1, now_ms=1)
    for name, offset in offsets.items():
        partition.fetched(int(name[1:]), offset, 0, 1)
    return partition


async def fetched(
    plane: DataPlane, offset: int, *, rack: str = "b", version: int = 11, epoch: int = -1
) -> FetchedPartition:
    wanted = FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=epoch
    )
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=1,
        topics=[FetchTopic(topic="t", partitions=[wanted])],
        rack_id=rack,
    )
    answer = fetch.handle(plane.services, request, plane.context(1, version))
    answer = answer if isinstance(answer, FetchAnswer) else await answer
    answer.encode_parts(version)
    return answer.topics[0][1][0]


async def test_the_leader_names_the_replica_in_the_consumers_rack_that_has_most(plane: DataPlane) -> None:
    await led(plane, b2=10, b3=8, b4=9)

    found = await fetched(plane, 3, rack="b")

    assert (found.preferred_read_replica, found.size, found.error_code) == (2, 0, 0)
    assert (await fetched(plane, 3, rack="c")).preferred_read_replica == 4


@pytest.mark.parametrize("rack", ["a", "d", ""])
async def test_the_leader_serves_its_own_rack_unknown_racks_and_consumers_without_one(
    plane: DataPlane, rack: str
) -> None:
    await led(plane, b2=10, b3=10, b4=10)

    found = await fetched(plane, 3, rack=rack)

    assert found.preferred_read_replica == -1
    assert found.size


async def test_a_replica_without_the_offset_or_outside_the_isr_is_not_named(plane: DataPlane) -> None:
    partition = await led(plane, b2=10, b3=10, b4=10)
    partition.core.isr = frozenset({1, 2, 3})

    assert (await fetched(plane, 3, rack="c")).preferred_read_replica == -1

    partition.core.followers[2].log_end_offset = partition.core.followers[3].log_end_offset = 2
    assert (await fetched(plane, 3, rack="b")).preferred_read_replica == -1


async def test_a_consumer_with_a_rack_asks_the_leader_each_time(plane: DataPlane) -> None:
    await led(plane, b2=10, b3=10, b4=10)

    await fetched(plane, 3, rack="a")
    assert plane.session.targets_of(ApiKey.FETCH) == {}

    await fetched(plane, 3, rack="")
    assert plane.session.targets_of(ApiKey.FETCH)


# ---- at the follower


async def followed(plane: DataPlane, *, end: int, high_watermark: int) -> HostedPartition:
    """A partition followed here, whose leader has committed records up to `high_watermark`."""
    partition = await plane.lead(leader_epoch=1, isr=(1, 2), replicas=(1, 2))
    for _ in range(end):
        partition.append(batch_of(b"x"), required_acks=1, now_ms=1)
    await plane.lead(leader=2, leader_epoch=2, isr=(1, 2), replicas=(1, 2))
    partition.append_from_leader(b"", high_watermark, 0, 1)
    return partition


async def test_a_follower_serves_what_it_knows_to_be_committed(plane: DataPlane) -> None:
    await followed(plane, end=10, high_watermark=6)

    first, last, behind = [await fetched(plane, offset) for offset in (0, 6, 7)]

    assert (first.error_code, first.high_watermark) == (0, 6)
    assert first.size == 6 * len(batch_of(b"x"))
    assert (last.error_code, last.size) == (0, 0)
    assert behind.error_code == ErrorCode.OFFSET_NOT_AVAILABLE


async def test_an_offset_that_the_leader_has_committed_is_not_available_here_yet(plane: DataPlane) -> None:
    await followed(plane, end=10, high_watermark=20)

    assert (await fetched(plane, 10)).error_code == 0
    assert (await fetched(plane, 15)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert (await fetched(plane, 21)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_follower_serves_no_consumer_that_does_not_know_of_it(plane: DataPlane) -> None:
    await followed(plane, end=10, high_watermark=6)

    assert (await fetched(plane, 0, version=10)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await fetched(plane, 0, rack="")).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    fenced = await fetched(plane, 0, epoch=1)
    assert fenced.error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_an_unknown_selector_is_refused() -> None:
    with pytest.raises(ConfigError, match="Java classes cannot run here"):
        broker_config_from({"replica.selector.class": "com.example.Mine"})
    assert broker_config_from({"replica.selector.class": RACK_AWARE}).replica_selector_class == RACK_AWARE
