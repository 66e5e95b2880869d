"""Attacks by members of share groups: hundreds of thousands of acknowledgements, and of share sessions."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from connections import resident_bytes
from group_attacks import Crowd, crowd, topic

from ottla.broker.share.sessions import MAX_PARTITIONS
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.share_groups import ShareGroupHeartbeatRequest
from ottla.protocol.messages.share_sessions import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
)
from ottla.protocol.records import BatchBuilder

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
RECORDS: Final = 2_000
"""As many as a group may have in flight of a partition."""
MANY: Final = 100_000
"""Batches of one request, for which `request.max.elements` is raised."""
LOCK_MS: Final = 20_000
PARTITIONS: Final = 100
"""Of each of as many sessions as reach the bound of all together; with 5 it takes 20 times the requests."""
SESSIONS: Final = MAX_PARTITIONS // PARTITIONS
OFFSET_MAX: Final = 2**63 - 1
READY_S: Final = 30.0


class ShareMember:
    """A member of the share group `g` on one connection of a crowd."""

    def __init__(self, members: Crowd, name: str, topic_id: UUID, *, link: int = 0) -> None:
        self._members = members
        self.topic_id = topic_id
        self.name = name
        self.link = link
        self.epoch = 0

    async def fetch(self, records: int, wait_ms: int = 0, partitions: int = 1) -> Any:
        """Fetch, and return the answer; one without an error goes on with the session."""
        request = ShareFetchRequest(
            group_id="g", member_id=self.name, share_session_epoch=self.epoch, max_wait_ms=wait_ms,
            min_bytes=1, max_bytes=1 << 20, max_records=records, batch_size=max(1, records),
            topics=[
                ShareFetchTopic(
                    topic_id=self.topic_id,
                    partitions=[ShareFetchPartition(partition_index=number) for number in range(partitions)],
                )
            ],
        )  # fmt: skip
        answer = await self._members.ask(request, link=self.link)
        self.epoch += answer.error_code == 0
        return answer

    async def acquired(self, records: int, within_s: float = READY_S) -> list[tuple[int, int, int]]:
        """Fetch until something comes, and return its ranges with their delivery counts."""
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            answer = await self.fetch(records, wait_ms=500)
            assert answer.error_code == 0, (ErrorCode(answer.error_code).name, answer.error_message)
            found = [piece for one in answer.responses for part in one.partitions
                     for piece in part.acquired_records]  # fmt: skip
            if found:
                return [(piece.first_offset, piece.last_offset, piece.delivery_count) for piece in found]
        return []

    async def acknowledge(
        self, ranges: Iterable[tuple[int, int]], *types: int, partitions: Sequence[int] = (0,)
    ) -> list[ErrorCode]:
        """Acknowledge ranges, each by a batch of its own; return the error of each partition."""
        batches = [
            AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(types))
            for first, last in ranges
        ]
        asked = [
            AcknowledgePartition(partition_index=number, acknowledgement_batches=batches)
            for number in partitions
        ]
        request = ShareAcknowledgeRequest(
            group_id="g", member_id=self.name, share_session_epoch=self.epoch, is_renew_ack=RENEW in types,
            topics=[AcknowledgeTopic(topic_id=self.topic_id, partitions=asked)],
        )  # fmt: skip
        answer = await self._members.ask(request, link=self.link)
        assert answer.error_code == 0, (ErrorCode(answer.error_code).name, answer.error_message)
        self.epoch += 1
        (found,) = answer.responses
        return [ErrorCode(partition.error_code) for partition in found.partitions]


async def shared_topic(members: Crowd, partitions: int) -> UUID:
    """Make a topic that the group `g` reads; return its id once its partitions are assigned."""
    await members.make_topics(1, partitions)
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic(0))])
    topic_id: UUID = (await members.ask(asked)).topics[0].topic_id
    epoch, names = 0, [topic(0)]
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s:
        answer = await members.ask(
            ShareGroupHeartbeatRequest(
                group_id="g", member_id="first", member_epoch=epoch, subscribed_topic_names=names
            )
        )
        assert answer.error_code == 0, (ErrorCode(answer.error_code).name, answer.error_message)
        epoch = answer.member_epoch
        if answer.assignment is not None and answer.assignment.topic_partitions:
            return topic_id
        await asyncio.sleep(0.1)
    raise AssertionError("the partitions were not assigned")


async def produce(members: Crowd, count: int) -> None:
    builder = BatchBuilder(1 << 20)
    for _ in range(count):
        builder.append(None, b"x", int(time.time() * 1000))
    data = PartitionProduceData(index=0, records=builder.build())
    request = ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic(0), partition_data=[data])]
    )
    assert (await members.ask(request, 7)).responses[0].partition_responses[0].error_code == 0


async def ready(members: Crowd, partitions: int = 1) -> ShareMember:
    """Make the topic, and begin its share partitions at their end."""
    topic_id = await shared_topic(members, partitions)
    member = ShareMember(members, "member", topic_id)
    await member.fetch(0, partitions=partitions)
    assert not await member.acquired(1, within_s=1)
    return member


@crowd(
    "100,000 batches of acknowledgements in one request",
    group_share_record_lock_duration_ms=str(LOCK_MS),
    request_max_elements=str(3 * MANY),
)
async def acknowledgements(members: Crowd) -> None:
    member = await ready(members)
    await produce(members, RECORDS)
    singly = [(offset, offset) for offset in range(MANY)]

    async def held() -> list[tuple[int, int, int]]:
        found = await member.acquired(RECORDS)
        assert (found[0][0], found[-1][1]) == (0, RECORDS - 1), found[:3]
        return found

    await held()
    none_held = [(RECORDS + offset, RECORDS + offset) for offset in range(MANY)]
    invalid, wrong_state = ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_RECORD_STATE
    for ranges, types, expected in (
        (none_held, [ACCEPT], invalid),
        (singly, [ACCEPT], invalid),
        ([(0, 0)] * MANY, [ACCEPT], wrong_state),
        ([*singly[:RECORDS], (RECORDS - 1, RECORDS - 1)], [ACCEPT], wrong_state),
        ([(OFFSET_MAX, OFFSET_MAX)] * MANY, [ACCEPT], invalid),
        ([(0, OFFSET_MAX)], [ACCEPT], invalid),
        ([(-5 - offset, -5) for offset in range(MANY)], [ACCEPT], invalid),
        ([(0, 90_000)], [ACCEPT, RELEASE] * 45_000 + [ACCEPT], invalid),
        ([(0, 0)] * MANY, [RENEW], ErrorCode.NONE),
        (singly[:RECORDS], [RENEW], ErrorCode.NONE),
    ):
        assert await member.acknowledge([(0, RECORDS - 1)], RENEW) == [ErrorCode.NONE]
        found = await member.acknowledge(ranges, *types)
        assert found == [expected], (found, ranges[:2], types[:2])
    await asyncio.sleep(1.1 * LOCK_MS / 1000)
    assert await member.acknowledge(singly[:RECORDS], ACCEPT) == [wrong_state], "the lock was over"
    assert {count for _, _, count in await held()} == {2}, "each record is there for its second delivery"
    assert await member.acknowledge(singly[:RECORDS], ACCEPT) == [ErrorCode.NONE]
    assert await member.acknowledge([(0, 0)] * MANY, ACCEPT) == [ErrorCode.NONE], "finished long ago"
    assert await member.acknowledge(singly[:RECORDS], RELEASE) == [ErrorCode.NONE]
    strange = await member.acknowledge([(0, 0)], ACCEPT, partitions=range(1, MANY // 3))
    assert set(strange) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    await produce(members, 1)
    assert await member.acquired(1) == [(RECORDS, RECORDS, 1)], "no record is lost, and none comes again"


@crowd(
    f"{SESSIONS:,} share sessions of {PARTITIONS} partitions each, and one more",
    group_share_max_share_sessions=str(MANY),
)
async def sessions(members: Crowd) -> None:
    member = await ready(members, PARTITIONS)
    names = [f"m{number}" for number in range(SESSIONS)]

    async def begin(number: int, link: int) -> ErrorCode:
        one = ShareMember(members, names[number], member.topic_id, link=link)
        return ErrorCode((await one.fetch(0, partitions=PARTITIONS)).error_code)

    found = Counter((await members.each(range(SESSIONS), begin)).values())
    assert found == {
        ErrorCode.NONE: SESSIONS - 1,  # the first member has one
        ErrorCode.SHARE_SESSION_LIMIT_REACHED: 1,
    }, found
    print(f"    with {SESSIONS:,} sessions: {resident_bytes(members.broker.pid) >> 20} MiB")
