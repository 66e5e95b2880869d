"""The native Produce of clients, held equal to the messages."""

from __future__ import annotations

import random

import pytest

from ottla.protocol.api import RequestHeader, encode_request_header
from ottla.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from ottla.protocol.native.produce_client import FIRST_VERSION, LAST_VERSION, offsets_of, produce_request

VERSIONS = range(FIRST_VERSION, LAST_VERSION + 1)
Topics = list[tuple[bytes, list[tuple[int, bytes]]]]


def some_topics(seed: int) -> Topics:
    some = random.Random(seed)
    return [
        (
            b"t" * some.choice([1, 130, 249]),
            [
                (some.randrange(2**31), some.randbytes(some.choice([0, 61, 127, 128, 20_000])))
                for _ in range(some.choice([1, 2, 200]) if some.random() < 0.5 else 1)
            ],
        )
        for _ in range(some.choice([0, 1, 1, 1, 3]))
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", range(12))
def test_a_request_has_the_bytes_that_the_message_has(version: int, seed: int) -> None:
    topics, client_id, transactional_id = (
        some_topics(seed),
        ("ottla", "", None)[seed % 3],
        (None, "tx")[seed % 2],
    )

    frame = b"".join(
        produce_request(
            version, 77 + seed, None if client_id is None else client_id.encode(),
            None if transactional_id is None else transactional_id.encode(), -1, 30_000, topics,
        )
    )  # fmt: skip

    message = ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(
                name=name.decode(),
                partition_data=[PartitionProduceData(index=index, records=data) for index, data in batches],
            )
            for name, batches in topics
        ],
    )
    expected = encode_request_header(RequestHeader(0, version, 77 + seed, client_id)) + message.encode(
        version
    )
    assert frame == len(expected).to_bytes(4, "big") + expected


def test_the_batches_of_a_large_request_are_not_copied_and_a_small_request_is_one_part() -> None:
    large, small = bytes(100_000), bytes(100)

    assert any(part is large for part in produce_request(9, 1, b"me", None, 1, 1, [(b"t", [(0, large)])]))
    assert len(produce_request(9, 1, b"me", None, 1, 1, [(b"t", [(0, small)])])) == 1


@pytest.mark.parametrize("version", [2, 13])
def test_other_versions_are_rejected(version: int) -> None:
    with pytest.raises(ValueError, match="3 to 12"):
        produce_request(version, 1, None, None, 1, 1, [])
    with pytest.raises(ValueError, match="3 to 12"):
        offsets_of(bytes(100), version)


def response(version: int, *topics: TopicProduceResponse, throttle_time_ms: int = 0) -> bytes:
    made = ProduceResponse(responses=list(topics), throttle_time_ms=throttle_time_ms)
    return b"\0\0\0\7" + (b"\0" if version >= 9 else b"") + made.encode(version)


def of(name: str, *partitions: PartitionProduceResponse) -> TopicProduceResponse:
    return TopicProduceResponse(name=name, partition_responses=list(partitions))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_without_an_error_is_read(version: int) -> None:
    frame = response(
        version,
        of(
            "a",
            PartitionProduceResponse(index=3, base_offset=2**40, log_append_time_ms=5, log_start_offset=1),
        ),
        of("b", *(PartitionProduceResponse(index=index, base_offset=index) for index in range(300))),
        throttle_time_ms=12,
    )

    found = offsets_of(memoryview(frame), version)

    expected = {("b", index): (index, -1) for index in range(300)} | {("a", 3): (2**40, 5)}
    assert found == (12, expected)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_with_an_error_is_left_to_the_message(version: int) -> None:
    good = PartitionProduceResponse(index=1, base_offset=7)
    bad = PartitionProduceResponse(index=0, error_code=6, base_offset=-1)

    assert offsets_of(response(version, of("a", good, bad)), version) is None
    assert offsets_of(response(version, of("a", bad), of("b", good)), version) is None


def test_a_response_with_record_errors_a_message_or_tags_is_left_to_the_message() -> None:
    errors = PartitionProduceResponse(record_errors=[BatchIndexAndErrorMessage()])
    message = PartitionProduceResponse(error_message="so so")
    leader = PartitionProduceResponse(current_leader=LeaderIdAndEpoch(leader_id=1, leader_epoch=1))

    assert offsets_of(response(9, of("a", errors)), 9) is None
    assert offsets_of(response(8, of("a", message)), 8) is None
    assert offsets_of(response(10, of("a", leader)), 10) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_damaged_response_is_left_to_the_message(version: int) -> None:
    frame = response(version, of("abc", PartitionProduceResponse(index=3, base_offset=2)))

    assert offsets_of(frame, version)
    assert [offsets_of(frame[:size], version) for size in range(len(frame))] == [None] * len(frame)
    assert offsets_of(frame + b"\0", version) is None
    assert offsets_of(frame.replace(b"abc", b"a\xffc"), version) is None
    for seed in range(500):
        some = random.Random(seed)
        damaged = bytearray(frame)
        damaged[some.randrange(len(frame))] = some.randrange(256)
        offsets_of(damaged, version)
