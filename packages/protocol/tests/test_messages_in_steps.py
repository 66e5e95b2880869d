"""Messages read and written in steps: the same bytes and values, and control after few elements."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

import pytest

from ottla.protocol._source import STEP
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from ottla.protocol.primitives import MalformedMessage, UnencodableValue
from ottla.protocol.schema import Message

T = TypeVar("T")


def finish(steps: Generator[tuple[int, Any], None, T]) -> tuple[list[int], T]:
    """Return the elements that each step announced, and the message."""
    announced = []
    while True:
        try:
            announced.append(next(steps)[0])
        except StopIteration as end:
            return announced, end.value


MANY = 10 * STEP
REQUESTS = [
    (MetadataRequest(topics=[MetadataRequestTopic(name=f"t{i}") for i in range(MANY)]), (0, 9)),
    (
        FetchRequest(
            topics=[
                FetchTopic(topic=f"t{i}", partitions=[FetchPartition(partition=j) for j in range(20)])
                for i in range(MANY // 20)
            ]
        ),
        (0, 7, 12),
    ),
    (
        ListOffsetsRequest(
            topics=[
                ListOffsetsTopic(
                    name="t", partitions=[ListOffsetsPartition(partition_index=i) for i in range(MANY)]
                )
            ]
        ),
        (1, 6),
    ),
]
EACH = [(message, version) for message, versions in REQUESTS for version in versions]


@pytest.mark.parametrize(("message", "version"), EACH, ids=lambda one: getattr(type(one), "__name__", one))
def test_a_large_request_is_read_in_steps(message: Message, version: int) -> None:
    announced, read = finish(type(message).decode_in_steps(message.encode(version), version))

    assert read == message
    assert len(announced) >= MANY // STEP
    assert announced == sorted(announced)
    assert announced[-1] >= MANY


def test_a_small_request_is_read_in_one_step() -> None:
    message = MetadataRequest(topics=[MetadataRequestTopic(name="t")])

    assert finish(MetadataRequest.decode_in_steps(message.encode(9), 9)) == ([], message)


def test_the_length_of_an_array_is_known_before_its_elements_are_made() -> None:
    request = ListOffsetsRequest(replica_id=7, topics=REQUESTS[2][0].topics)  # type: ignore[attr-defined]

    announced, so_far = next(ListOffsetsRequest.decode_in_steps(request.encode(6), 6))

    assert announced == MANY + 1
    assert so_far.replica_id == 7
    assert so_far.topics == []


def test_numbers_are_counted_too() -> None:
    request = OffsetFetchRequest(
        group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=list(range(MANY)))]
    )

    announced, read = finish(OffsetFetchRequest.decode_in_steps(request.encode(5), 5))

    assert announced == [MANY + 1, MANY + 1]
    assert read == request


@pytest.mark.parametrize("version", [1, 6])
def test_a_large_response_is_written_in_steps(version: int) -> None:
    partitions = [ListOffsetsPartitionResponse(partition_index=i, offset=i) for i in range(MANY)]
    response = ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=partitions)])

    pieces = list(response.encode_in_steps(version))

    assert b"".join(pieces) == response.encode(version)
    assert len(pieces) > MANY // STEP
    assert max(map(len, pieces)) < 2 * len(b"".join(pieces)) / (MANY / STEP)


def test_failures_name_the_field_as_those_of_the_whole_message_do() -> None:
    data = REQUESTS[0][0].encode(9)
    with pytest.raises(MalformedMessage) as whole:
        MetadataRequest.decode(data[:-100], 9)
    with pytest.raises(MalformedMessage) as in_steps:
        finish(MetadataRequest.decode_in_steps(data[:-100], 9))
    assert str(in_steps.value) == str(whole.value)

    wrong = MetadataResponse(cluster_id=5)  # type: ignore[arg-type]
    with pytest.raises(UnencodableValue) as whole_writing:
        wrong.encode(9)
    with pytest.raises(UnencodableValue) as stepwise_writing:
        list(wrong.encode_in_steps(9))
    assert str(stepwise_writing.value) == str(whole_writing.value)
