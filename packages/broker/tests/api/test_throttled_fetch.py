"""Records that a leader sends to throttled followers."""

from __future__ import annotations

from ottla.broker.api.fetch import general as fetch
from ottla.broker.api.fetch.response import FetchAnswer
from ottla.broker.api.testing import DataPlane, batch_of
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic

IN_SYNC, LAGGING = 2, 3


async def fetched(plane: DataPlane, replica: int) -> int:
    """Return the bytes that a follower gets at offset 0."""
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        replica_id=replica,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic="t", partitions=[wanted])],
    )
    answer = fetch.handle(plane.services, request, plane.context(request.API_KEY, 12))
    answer = answer if isinstance(answer, FetchAnswer) else await answer
    return sum(one.size for _, partitions in answer.topics for one in partitions)


async def test_a_leader_above_its_rate_sends_to_followers_in_sync_only(plane: DataPlane) -> None:
    plane.overrides["t"] = {"leader.replication.throttled.replicas": "0:1"}
    partition = await plane.lead("t", isr=(1, IN_SYNC), replicas=(1, IN_SYNC, LAGGING))
    partition.append(batch_of(b"x" * 10_000), required_acks=1, now_ms=1)
    quota = plane.services.replication_quotas.leader
    quota.bytes_per_s = 15_000

    first, second, third = [await fetched(plane, LAGGING) for _ in range(3)]

    assert (first > 10_000, second > 10_000, third) == (True, True, 0)
    assert await fetched(plane, IN_SYNC) > 10_000
    assert quota.byte_rate > 3 * 10_000
    quota.bytes_per_s = 1 << 40
    assert await fetched(plane, LAGGING) > 10_000


async def test_a_rate_does_not_hold_up_partitions_that_are_not_throttled(plane: DataPlane) -> None:
    plane.overrides["t"] = {"leader.replication.throttled.replicas": "1:1,0:2"}
    partition = await plane.lead("t", isr=(1,), replicas=(1, LAGGING))
    partition.append(batch_of(b"x" * 10_000), required_acks=1, now_ms=1)
    quota = plane.services.replication_quotas.leader
    quota.bytes_per_s = 0
    quota.record(1)

    assert await fetched(plane, LAGGING) > 10_000
    assert quota.is_exceeded
