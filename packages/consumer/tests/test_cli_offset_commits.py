from __future__ import annotations

import pytest

from ottla.client.testing import ScriptedBroker
from ottla.consumer import Consumer, cli
from ottla.consumer.cli_offset_commits import PrintedPositions
from ottla.consumer.cli_selection import Range
from ottla.consumer.record import ConsumerRecord
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from ottla.protocol.records import BatchBuilder
from ottla.protocol.topics import TopicPartition


def three_records(_: FetchRequest) -> FetchResponse:
    builder = BatchBuilder()
    for value in (b"a", b"b", b"c"):
        builder.append(None, value, 0)
    data = PartitionData(high_watermark=3, records=builder.build())
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])


async def test_a_reader_that_closes_the_pipe_has_read_only_what_came_through() -> None:
    came_through: list[ConsumerRecord] = []

    def show(record: ConsumerRecord) -> None:
        if came_through:
            raise BrokenPipeError
        came_through.append(record)

    async with ScriptedBroker() as broker:
        broker.on(MetadataRequest, lambda _: broker.metadata("t"))
        broker.on(FetchRequest, three_records)
        broker.on(
            FindCoordinatorRequest,
            lambda _: FindCoordinatorResponse(node_id=1, host=broker.host, port=broker.port),
        )
        broker.on(OffsetCommitRequest, lambda _: OffsetCommitResponse())
        async with Consumer(
            bootstrap_servers=broker.bootstrap_servers, group_id="g", enable_auto_commit=False
        ) as consumer:
            consumer.assign([TopicPartition("t", 0)])
            consumer.seek(TopicPartition("t", 0), 0)
            printed_positions = PrintedPositions(consumer, commits=True)
            with pytest.raises(BrokenPipeError):
                await cli._print(consumer, printed_positions, {}, None, False, show, Range(None, None, None))
            await printed_positions.end()

        (commit,) = broker.seen(OffsetCommitRequest)
        assert [part.committed_offset for part in commit.topics[0].partitions] == [1]
