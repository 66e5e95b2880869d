"""The fast path of Fetch answers what the general path answers, byte for byte."""

from __future__ import annotations

import asyncio
import random
import struct
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.api.fetch._fast_path import fetch_at_hand, pass_fetch
from ottla.broker.api.fetch.testing import (
    admit,
    fast_path,
    framed,
    general_path,
    joined,
    reader_with,
    request_of,
    served,
)
from ottla.broker.api.testing import DataPlane, batch_of, topic_id_of
from ottla.broker.log.log import AppendOrigin
from ottla.broker.replication.replicas import HostedPartition
from ottla.broker.requests.fast_path import Outcome
from ottla.protocol.api import ApiKey, decode_request_header
from ottla.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    ForgottenTopic,
    ReplicaState,
)
from ottla.protocol.native import PlainFetch
from ottla.protocol.records import BatchBuilder, Codec, ControlType, end_transaction_marker

BOUND_S = 60
VERSIONS = range(4, 19)
INDEX: dict[bytes, Any] = {
    topic + partition.to_bytes(4): f"{name}-{partition}"
    for name in ("t", "thé")
    for partition in (0, 1)
    for topic in (name.encode(), b"\0" + topic_id_of(name).bytes)
}


def found_in(data: bytes, index: dict[bytes, Any] | None = None) -> PlainFetch | None:
    return fetch_at_hand(reader_with(data), INDEX if index is None else index)


# ---- finding them


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("client", [None, "", "c" * 200])
@pytest.mark.parametrize("topic", ["t", "thé"])
def test_a_plain_request_is_read(version: int, client: str | None, topic: str) -> None:
    request = request_of(1 << 40, topic=topic, partition_max=77, max_bytes=99, min_bytes=3, max_wait_ms=500)
    request.isolation_level = version % 2
    if version >= 11:
        request.rack_id = "r" * (version - 11)

    found = found_in(framed(request, version, 7, client))

    assert found is not None
    assert (found.target, found.version, found.correlation_id) == (f"{topic}-0", version, 7)
    assert (found.offset, found.partition_max_bytes, found.max_bytes) == (1 << 40, 77, 99)
    assert (found.min_bytes, found.max_wait_ms) == (3, 500)
    assert (found.committed_only, found.leader_epoch) == (version % 2 == 1, -1)


@pytest.mark.parametrize(
    "frame",
    [
        framed(request_of(), 3),
        framed(request_of(partition=2)),
        framed(request_of(topic="other")),
        framed(request_of(replica_id=2)),
        framed(request_of(session_epoch=0)),
        framed(request_of(session_id=5, session_epoch=3)),
        framed(request_of(session_id=5)),
        framed(request_of(last_fetched_epoch=0)),
        framed(request_of(topics=[])),
        framed(request_of(topics=request_of().topics + request_of(partition=1).topics)),
        framed(request_of(topics=request_of().topics + request_of(partition=1).topics), 4),
        framed(request_of(forgotten_topics_data=[ForgottenTopic(topic="t", partitions=[1])])),
        framed(request_of(forgotten_topics_data=[ForgottenTopic(topic="t", partitions=[1])]), 11),
        framed(request_of(rack_id="é"), 11),
        framed(request_of(rack_id="é"), 12),
        framed(request_of(topic="other"), 13),
        framed(request_of(replica_id=2), 14),
        framed(request_of(replica_state=ReplicaState(replica_id=2)), 15),
        framed(request_of(session_epoch=0), 17),
        framed(request_of(session_id=5, session_epoch=3), 17),
        framed(request_of(last_fetched_epoch=0), 17),
        framed(request_of(topics=[]), 17),
        framed(request_of(topics=request_of().topics + request_of(partition=1).topics), 17),
        framed(request_of(forgotten_topics_data=[ForgottenTopic(topic_id=UUID(int=1), partitions=[1])]), 17),
    ],
)
def test_what_is_not_plain_is_left_for_the_general_path(frame: bytes) -> None:
    reader = reader_with(frame)

    assert fetch_at_hand(reader, INDEX) is None
    assert bytes(reader.next_frame() or b"") == frame[4:]


def test_a_request_that_was_not_taken_is_still_a_frame() -> None:
    frames = [framed(request_of(), correlation_id=number) for number in (1, 2, 3)]
    reader = reader_with(b"".join(frames))

    first, again = fetch_at_hand(reader, INDEX), fetch_at_hand(reader, INDEX)
    assert first is not None
    assert again is not None
    pass_fetch(reader, again)

    assert (first.correlation_id, again.correlation_id) == (1, 1)
    assert [bytes(reader.next_frame() or b"") for _ in range(2)] == [frame[4:] for frame in frames[1:]]


@pytest.mark.parametrize("version", VERSIONS)
def test_damaged_requests_are_never_misread(version: int) -> None:
    """Flip, cut and lengthen requests: what is still plain decodes to the same on the general path."""
    rng = random.Random(version)
    whole = framed(request_of(5, rack_id="rack" if version >= 11 else ""), version)
    plain = 0
    for _ in range(3000):
        frame = bytearray(whole)
        for _ in range(rng.randrange(3)):
            frame[rng.randrange(4, len(frame))] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        if rng.random() < 0.3:
            frame = frame[: rng.randrange(12, len(frame))] + rng.randbytes(rng.randrange(3))
        frame[:4] = struct.pack(">i", len(frame) - 4)
        found = found_in(bytes(frame))
        if found is not None:
            plain += 1
            assert terms_of(found) == decoded_terms(bytes(frame))
    assert plain


def terms_of(one: PlainFetch) -> tuple[object, ...]:
    return (
        one.key, one.version, one.correlation_id, one.max_wait_ms, one.min_bytes, one.max_bytes,
        one.committed_only, one.leader_epoch, one.offset, one.partition_max_bytes,
    )  # fmt: skip


def decoded_terms(frame: bytes) -> tuple[object, ...]:
    header, position = decode_request_header(memoryview(frame)[4:])
    request = FetchRequest.decode(frame[4 + position :], header.api_version)
    (topic,), (one,) = request.topics, request.topics[0].partitions
    named = topic.topic.encode() if header.api_version < 13 else b"\0" + topic.topic_id.bytes
    assert request.replica_state.replica_id == -1
    assert (request.replica_id, request.session_id, request.session_epoch) == (-1, 0, -1)
    assert not request.forgotten_topics_data
    assert one.last_fetched_epoch == -1
    return (
        named + one.partition.to_bytes(4, signed=True), header.api_version,
        header.correlation_id, request.max_wait_ms, request.min_bytes, request.max_bytes,
        request.isolation_level == 1, one.current_leader_epoch, one.fetch_offset, one.partition_max_bytes,
    )  # fmt: skip


# ---- answering them


def transactional(*values: bytes, sequence: int = 0) -> bytes:
    builder = BatchBuilder(1 << 30)
    for value in values:
        builder.append(None, value, 1000, [])
    return bytes(builder.build(producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True))


def marker(kind: ControlType) -> bytes:
    return end_transaction_marker(kind, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1)


async def filled(plane: DataPlane, rng: random.Random) -> HostedPartition:
    """A log of several segments and batches of all kinds, maybe with a high watermark in its middle."""
    alone = rng.random() < 0.6
    partition = await plane.lead(
        isr=(1,) if alone else (1, 2),
        replicas=(1,) if alone else (1, 2),
        segment_bytes=str(rng.choice([16_000, 40_000, 1 << 30])),
        index_interval_bytes=str(rng.choice([200, 4096])),
    )
    sequence = 0
    for _ in range(rng.randrange(1, 80)):
        values = [b"v" * rng.choice([0, 10, 500, 3000]) for _ in range(rng.randrange(1, 6))]
        kind = rng.random()
        if kind < 0.1 and alone:
            partition.append(transactional(*values, sequence=sequence), required_acks=1, now_ms=1)
            sequence += len(values)
            if rng.random() < 0.5:
                partition.append(
                    marker(rng.choice(list(ControlType))), now_ms=1, origin=AppendOrigin.COORDINATOR
                )
            continue
        codec = rng.choice([Codec.NONE, Codec.GZIP, Codec.ZSTD, Codec.LZ4])
        partition.append(batch_of(*values, codec=codec), required_acks=1, now_ms=1)
        if not alone and rng.random() < 0.5:
            bases = [0, partition.log.log_end_offset]
            partition.fetched(2, rng.choice(bases), 0, 1)
    if rng.random() < 0.3:
        partition.log.advance_log_start(rng.randrange(partition.high_watermark + 1))
    admit(plane, partition)
    return partition


@pytest.mark.parametrize("seed", range(25))
async def test_both_paths_give_the_same_bytes(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    plane = DataPlane(tmp_path)
    answered = 0
    async with asyncio.timeout(BOUND_S):
        partition = await filled(plane, rng)
        end = partition.log.log_end_offset
        offset = 0
        for number in range(150):
            version = rng.choice(VERSIONS)
            offset = rng.choice([offset, rng.randrange(-1, end + 2), end, end - 1])
            request = request_of(
                offset,
                partition_max=rng.choice([-1, 0, 1, 100, 2000, 20_000, 1 << 20]),
                max_bytes=rng.choice([0, 1, 3000, 1 << 20, 2**31 - 1]),
                min_bytes=rng.choice([0, 1, 5000]),
                max_wait_ms=rng.choice([-1, 0, 1]),
                isolation_level=rng.randrange(2),
            )
            if version >= 9:
                request.topics[0].partitions[0].current_leader_epoch = rng.choice([-1, -1, 0, 5])
            mine = fast_path(plane, request, version, number)
            expected = await general_path(plane, request, version, number)
            if mine is not None:
                answered += 1
                assert mine == expected
    assert answered or partition.high_watermark == partition.log.log_start_offset
    plane.logs.close()


@pytest.mark.parametrize("version", range(12, 19))
async def test_a_fetch_that_went_well_brings_the_next_one_to_the_fast_path(
    plane: DataPlane, version: int
) -> None:
    partition = await plane.lead()
    partition.append(batch_of(b"a"), now_ms=1)
    assert fast_path(plane, request_of(), version, 1) is None

    expected = await general_path(plane, request_of(), version, 1)

    assert fast_path(plane, request_of(), version, 1) == expected
    other = 13 if version < 13 else 12  # one asks by name, the other by id
    assert fast_path(plane, request_of(), other, 1) is None


async def test_a_topic_made_again_under_its_name_is_not_served_by_the_id_before(plane: DataPlane) -> None:
    partition = await plane.lead()
    partition.append(batch_of(b"a"), now_ms=1)
    await general_path(plane, request_of(), 13, 1)
    assert fast_path(plane, request_of(), 13, 1) is not None

    await plane.replicas.stop([(partition.topic_partition, -2, True)])
    plane.topic_ids["t"] = UUID(int=2)
    again = await plane.lead(leader_epoch=1)
    again.append(batch_of(b"b"), now_ms=1)

    assert fast_path(plane, request_of(), 13, 1) is None
    by_id = request_of()
    by_id.topics[0].topic_id = UUID(int=2)
    expected = await general_path(plane, by_id, 13, 1)
    assert fast_path(plane, by_id, 13, 1) == expected


async def test_a_partition_that_is_followed_is_not_read_on_the_fast_path(plane: DataPlane) -> None:
    partition = await plane.lead()
    partition.append(batch_of(b"a"), now_ms=1)
    await general_path(plane, request_of(), 12, 1)
    assert fast_path(plane, request_of(), 12, 1) is not None

    await plane.lead(leader=2, leader_epoch=1, isr=(1, 2), replicas=(1, 2))

    assert fast_path(plane, request_of(), 12, 1) is None
    assert plane.services.fetch_fast_path.known.get(partition.topic_partition) is None


async def test_a_role_given_up_before_any_listener_is_told_stops_the_fast_path(plane: DataPlane) -> None:
    partition = await plane.lead()
    partition.append(batch_of(b"a"), now_ms=1)
    await general_path(plane, request_of(), 12, 1)
    assert fast_path(plane, request_of(), 12, 1) is not None

    partition.stop()

    assert not plane.session.targets_of(ApiKey.FETCH)[b"t\0\0\0\0"].retired
    assert fast_path(plane, request_of(), 12, 1) is None


async def test_a_deleted_partition_is_let_go(plane: DataPlane) -> None:
    partition = await plane.lead()
    other = await plane.lead(partition=1)
    for one in (partition, other):
        plane.services.fetch_fast_path.admit(plane.context(ApiKey.FETCH, 12), one)
    target = plane.session.targets_of(ApiKey.FETCH)[b"t\0\0\0\0"]

    await plane.replicas.stop([(partition.topic_partition, -1, True)])

    assert target.retired
    assert target.partition is None
    assert [one.partition for one in plane.services.fetch_fast_path.known] == [other]


async def test_requests_in_a_row_are_answered_together(plane: DataPlane) -> None:
    partition = await plane.lead()
    for _ in range(4):
        partition.append(batch_of(b"a" * 100), now_ms=1)
    plane.services.fetch_fast_path.admit(plane.context(ApiKey.FETCH, 12), partition)
    requests = [(request_of(one), 12, one) for one in range(3)]
    last = framed(request_of(9), 12, 9)
    reader = reader_with(b"".join(framed(*one) for one in requests) + last)

    outcome, answers = served(plane, reader)

    assert outcome == Outcome.ANSWERED
    assert (answers.count, bytes(reader.next_frame() or b"")) == (3, last[4:])
    assert joined(answers.parts) == b"".join([await general_path(plane, *one) for one in requests])


async def test_aborted_transactions_take_the_general_path(plane: DataPlane) -> None:
    partition = await plane.lead()
    partition.append(transactional(b"a"), now_ms=1)
    partition.append(marker(ControlType.ABORT), now_ms=1, origin=AppendOrigin.COORDINATOR)
    plane.services.fetch_fast_path.admit(plane.context(ApiKey.FETCH, 12), partition)

    assert fast_path(plane, request_of(isolation_level=1), 12, 1) is None
    assert fast_path(plane, request_of(), 12, 1) == await general_path(plane, request_of(), 12, 1)


async def test_transactions_aborted_behind_the_fetched_batches_are_not_told(plane: DataPlane) -> None:
    partition = await plane.lead()
    partition.append(batch_of(b"a" * 100), now_ms=1)
    for sequence in range(3):
        partition.append(transactional(b"b", sequence=sequence), now_ms=1)
        partition.append(marker(ControlType.ABORT), now_ms=1, origin=AppendOrigin.COORDINATOR)
    admit(plane, partition)
    first = request_of(partition_max=200, isolation_level=1)

    answer = await general_path(plane, first, 12, 1)

    assert aborted_in(answer, 12) == []
    assert fast_path(plane, first, 12, 1) == answer
    second = request_of(1, partition_max=100, isolation_level=1)
    assert aborted_in(await general_path(plane, second, 12, 1), 12) == [(7, 1)]
    everything = request_of(isolation_level=1)
    assert aborted_in(await general_path(plane, everything, 12, 1), 12) == [(7, 1), (7, 3), (7, 5)]


def aborted_in(frame: bytes, version: int) -> list[tuple[int, int]]:
    (topic,) = FetchResponse.decode(frame[9:], version).responses
    return [(one.producer_id, one.first_offset) for one in topic.partitions[0].aborted_transactions or []]


async def test_bytes_and_requests_are_counted_as_on_the_general_path(plane: DataPlane) -> None:
    partition = await plane.lead()
    partition.append(batch_of(b"a" * 100), now_ms=1)
    meters = plane.services.topic_metrics

    await general_path(plane, request_of(), 12, 1)
    counted = (meters.of("t").bytes_out, meters.all_topics.bytes_out, meters.all_topics.fetch_requests)
    once = [one.count for one in counted]
    assert fast_path(plane, request_of(), 12, 1) is not None

    assert [one.count for one in counted] == [2 * one for one in once]
