"""The fast path of Produce does what the general path does, byte for byte."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.api.produce import general as produce
from ottla.broker.api.produce._fast_path import pass_run, run_at_hand
from ottla.broker.api.produce.fast_path import ProduceFastPath
from ottla.broker.api.testing import ClockOfTurn, DataPlane, batch_of, topic_id_of
from ottla.broker.api.topic_metrics import TopicMetrics
from ottla.broker.metrics import Metrics
from ottla.broker.network.frames import FrameReader, ReceiveBuffer
from ottla.broker.network.request_metrics import RequestMetrics, RequestTimes
from ottla.broker.quotas.rates import UNLIMITED
from ottla.broker.requests.fast_path import FastAnswers, Outcome, ReceivedBytes
from ottla.protocol.api import ApiKey, RequestHeader, encode_request, response_header
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.native import ProduceRun
from ottla.protocol.topics import TopicPartition

BOUND_S = 60
BY_NAME: dict[bytes, Any] = {
    b"t\0\0\0\0": "t-0",
    b"t\0\0\0\1": "t-1",
    "thé".encode() + b"\0\0\0\0": "thé-0",
}
BY_ID = {b"\0" + topic_id_of(key[:-4].decode()).bytes + key[-4:]: at for key, at in BY_NAME.items()}
INDEX = BY_NAME | BY_ID


def request_of(
    records: bytes | None, *, topic: str = "t", partition: int = 0, acks: int = -1, **more: Any
) -> ProduceRequest:
    data = [PartitionProduceData(index=partition, records=records)]
    topics = [TopicProduceData(name=topic, topic_id=topic_id_of(topic), partition_data=data)]
    return ProduceRequest(acks=acks, timeout_ms=more.pop("timeout_ms", 1000), topic_data=topics, **more)


def framed(
    request: ProduceRequest, version: int = 9, correlation_id: int = 1, client: str | None = "c"
) -> bytes:
    body = encode_request(RequestHeader(ApiKey.PRODUCE, version, correlation_id, client), request)
    return struct.pack(">i", len(body)) + body


def reader_with(data: bytes) -> FrameReader:
    reader = FrameReader(ReceiveBuffer(1 << 20), 100 << 20)
    room = reader.get_buffer()
    room[: len(data)] = data
    reader.received(len(data))
    return reader


def run_in(data: bytes, index: dict[bytes, Any] | None = None) -> ProduceRun | None:
    return run_at_hand(reader_with(data), INDEX if index is None else index, UNLIMITED)


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("client", [None, "", "c" * 200])
@pytest.mark.parametrize("topic", ["t", "thé"])
def test_plain_requests_are_found_together(version: int, client: str | None, topic: str) -> None:
    batches = [batch_of(b"a"), batch_of(b"b" * 200, b"c"), batch_of(b"")]
    frames = [framed(request_of(one, topic=topic), version, 7, client) for one in batches]

    run = run_in(b"".join(frames))

    assert run is not None
    assert (run.target, run.version, run.acks, run.timeout_ms) == (f"{topic}-0", version, -1, 1000)
    assert (run.count, run.records, run.size_in_bytes) == (3, 4, sum(map(len, batches)))
    assert bytes(run.batches) == b"".join(batches)


def changed(records: bytes, position: int, value: int) -> bytes:
    data = bytearray(records)
    data[position] = value
    return bytes(data)


@pytest.mark.parametrize(
    "frame",
    [
        framed(request_of(batch_of(b"a"), acks=0)),
        framed(request_of(batch_of(b"a"), acks=2)),
        framed(request_of(batch_of(b"a"), topic="other")),
        framed(request_of(batch_of(b"a"), partition=2)),
        framed(request_of(batch_of(b"a"), partition=-1)),
        framed(request_of(batch_of(b"a"), transactional_id="x")),
        framed(request_of(batch_of(b"a")), 8)[:-1],
        framed(request_of(None)),
        framed(request_of(b"")),
        framed(request_of(batch_of(b"a") + batch_of(b"b"))),
        framed(request_of(batch_of(b"a")[:-1])),
        framed(request_of(changed(batch_of(b"a"), 16, 1))),
        framed(request_of(changed(batch_of(b"a"), 22, 0x10))),
        framed(request_of(changed(batch_of(b"a"), 22, 0x20))),
        framed(request_of(changed(batch_of(b"a"), 60, 0))),
        framed(request_of(changed(batch_of(b"a"), 60, 2))),
        framed(ProduceRequest(acks=1, timeout_ms=1)),
    ],
)
def test_what_is_not_plain_is_left_for_the_general_path(frame: bytes) -> None:
    assert run_in(frame) is None


def test_a_topic_name_longer_than_a_string_is_left_for_the_general_path() -> None:
    longest = "t" * 32_767
    index = {longest.encode() + b"\0\0\0\0": "longest", b"t" + longest.encode() + b"\0\0\0\0": "longer"}
    frame = framed(request_of(batch_of(b"a"), topic=longest))
    body = frame[4:].replace(b"\x80\x80\x02" + longest.encode(), b"\x81\x80\x02t" + longest.encode())

    assert run_in(frame, index) is not None
    assert run_in(struct.pack(">i", len(body)) + body, index) is None


def test_a_run_ends_where_the_partition_changes() -> None:
    frames = [framed(request_of(batch_of(b"a"), partition=one)) for one in (0, 0, 1, 1, 1)]
    reader = reader_with(b"".join(frames))

    runs = []
    while (run := run_at_hand(reader, INDEX, UNLIMITED)) is not None:
        runs.append((run.target, run.count))
        pass_run(reader, run)

    assert runs == [("t-0", 2), ("t-1", 3)]


def test_a_run_that_was_not_taken_is_still_frames() -> None:
    frames = [framed(request_of(batch_of(b"a")), correlation_id=number) for number in (1, 2)]
    reader = reader_with(b"".join(frames))

    assert run_at_hand(reader, INDEX, UNLIMITED) is not None

    assert [bytes(reader.next_frame() or b"") for _ in frames] == [frame[4:] for frame in frames]


@given(data=st.data())
def test_damaged_requests_are_never_misread(data: st.DataObject) -> None:
    """Flip and cut bytes of a request: what is still plain decodes to the same on the general path."""
    version = data.draw(st.integers(3, 9))
    frame = bytearray(framed(request_of(batch_of(b"value")), version))
    for _ in range(data.draw(st.integers(0, 3))):
        frame[data.draw(st.integers(4, len(frame) - 1))] = data.draw(st.integers(0, 255))
    cut = frame[: data.draw(st.integers(12, len(frame)))]
    cut[:4] = struct.pack(">i", len(cut) - 4)

    run = run_in(bytes(cut))

    if run is not None:
        decoded = _decoded(bytes(cut))
        partition = decoded.topic_data[0].partition_data[0]
        assert decoded.transactional_id is None
        assert run.key == decoded.topic_data[0].name.encode() + partition.index.to_bytes(4, signed=True)
        assert bytes(run.batches) == bytes(partition.records or b"")
        assert (run.acks, run.timeout_ms) == (decoded.acks, decoded.timeout_ms)


def _decoded(frame: bytes) -> ProduceRequest:
    from ottla.protocol.api import decode_request_header

    header, position = decode_request_header(memoryview(frame)[4:])
    return ProduceRequest.decode(frame[4 + position :], header.api_version)


async def general_path(plane: DataPlane, request: ProduceRequest, version: int, correlation_id: int) -> bytes:
    answer = produce.handle(plane.services, request, plane.context(ApiKey.PRODUCE, version))
    if isinstance(answer, Awaitable):
        answer = await answer
    assert answer is not None
    body = response_header(correlation_id, ApiKey.PRODUCE, version) + answer.encode(version)
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("seed", range(6))
async def test_both_paths_give_the_same_answers_and_logs(tmp_path: Path, version: int, seed: int) -> None:
    rng = random.Random(seed)
    general, fast = DataPlane(tmp_path / "general"), DataPlane(tmp_path / "fast")
    settings = {"message_timestamp_type": rng.choice(["CreateTime", "LogAppendTime"])}
    for plane in (general, fast):
        plane.environment.clock.now_ms = lambda: 1_700_000_000_000  # type: ignore[method-assign]
        await plane.lead(**settings)  # type: ignore[arg-type]
    general_answers, fast_answers = b"", b""
    await general_path(
        fast, request_of(batch_of(b"first")), version, 0
    )  # from here on the fast path knows it
    await general_path(general, request_of(batch_of(b"first")), version, 0)
    sequence = 0
    for turn in range(10):
        requests = []
        for _ in range(rng.randrange(1, 8)):
            count = rng.randrange(1, 4)
            values = [rng.randbytes(rng.randrange(50)) for _ in range(count)]
            if seed % 2:
                records = batch_of(*values, producer_id=5, epoch=0, sequence=sequence)
                sequence += count
            else:
                records = batch_of(*values)
            requests.append(records)
        if rng.random() < 0.3:
            requests.append(requests[-1])  # a retry, where the producer is idempotent
        if rng.random() < 0.3:
            requests.insert(0, changed(requests[0], 40, 0xEE))  # a wrong CRC
        for number, records in enumerate(requests):
            general_answers += await general_path(
                general, request_of(records, acks=1), version, turn * 100 + number
            )
        fast_answers += await _fast_path(fast, requests, version, turn)

    assert fast_answers == general_answers
    assert _stored(fast) == _stored(general)
    for plane in (general, fast):
        plane.logs.close()


def offered(plane: DataPlane, received: ReceivedBytes) -> tuple[int, FastAnswers]:
    """Offer bytes to the fast path; return its outcome and its answers."""
    answers, session = FastAnswers(), plane.session
    outcome = plane.services.produce_fast_path.serve(
        received, session.targets_of(ApiKey.PRODUCE), session, ClockOfTurn(plane.environment.clock), answers
    )
    return outcome, answers


async def _fast_path(plane: DataPlane, requests: list[bytes], version: int, turn: int) -> bytes:
    frames = [
        framed(request_of(records, acks=1), version, turn * 100 + number)
        for number, records in enumerate(requests)
    ]
    reader, answers, number = reader_with(b"".join(frames)), b"", 0
    while number < len(requests):
        outcome, served = offered(plane, reader)
        if outcome == Outcome.ANSWERED:
            answers += b"".join(part for part in served.parts if isinstance(part, bytes))
            number += served.count
            continue
        reader.next_frame()
        answers += await general_path(
            plane, request_of(requests[number], acks=1), version, turn * 100 + number
        )
        number += 1
    return answers


async def _waiting(
    plane: DataPlane, version: int, timeout_ms: int
) -> tuple[asyncio.Task[bytes], list[asyncio.Task[bytes]]]:
    """Begin the waits for replicas of a run of two requests, and of the same two on the general path."""
    requests = [request_of(batch_of(value), timeout_ms=timeout_ms) for value in (b"a", b"bc")]
    frames = b"".join(framed(request, version, number) for number, request in enumerate(requests))
    outcome, answers = offered(plane, reader_with(frames))
    assert outcome == Outcome.BEGUN
    assert answers.count == 2
    assert answers.awaited is not None
    general = [
        asyncio.ensure_future(general_path(plane, one, version, at)) for at, one in enumerate(requests)
    ]
    fast = asyncio.ensure_future(answers.awaited)
    await asyncio.sleep(0)
    return fast, general


async def _follows(plane: DataPlane, version: int) -> None:
    await plane.lead(isr=(1, 2), replicas=(1, 2), leader_epoch=4)
    partition = plane.replicas.hosted(TopicPartition("t", 0))
    assert partition is not None
    plane.services.produce_fast_path.admit(plane.context(ApiKey.PRODUCE, version), partition)


@pytest.mark.parametrize("version", range(3, 14))
async def test_a_run_whose_leadership_ends_is_told_the_new_leader(tmp_path: Path, version: int) -> None:
    plane = DataPlane(tmp_path)
    await _follows(plane, version)
    fast, general = await _waiting(plane, version, 60_000)

    await plane.lead(leader=2, leader_epoch=5, isr=(1, 2), replicas=(1, 2))

    async with asyncio.timeout(BOUND_S):
        answers = await fast
        assert answers == b"".join([await one for one in general])
    (size,) = struct.unpack_from(">i", answers)
    response = ProduceResponse.decode(answers[8 + (version >= 9) : 4 + size], version)
    (one,) = response.responses[0].partition_responses
    assert one.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    if version >= 10:
        assert (one.current_leader.leader_id, one.current_leader.leader_epoch) == (2, 5)
        assert [(node.node_id, node.host) for node in response.node_endpoints] == [(2, "host-2")]
    plane.logs.close()


@pytest.mark.parametrize("version", range(3, 14))
async def test_a_run_that_waits_too_long_is_answered_as_on_the_general_path(
    tmp_path: Path, version: int
) -> None:
    plane = DataPlane(tmp_path)
    await _follows(plane, version)

    fast, general = await _waiting(plane, version, 1)

    async with asyncio.timeout(BOUND_S):
        assert await fast == b"".join([await one for one in general])
    plane.logs.close()


def _stored(plane: DataPlane) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(plane.logs.root.rglob("*.log")))


def two_requests() -> FastAnswers:
    """Answers to a run of two requests, of 100 bytes each."""
    answers = FastAnswers()
    answers.version, answers.count, answers.size_in_bytes = 9, 2, 200
    return answers


def a_fast_path(registry: Metrics) -> ProduceFastPath:
    return ProduceFastPath(TopicMetrics(registry), lambda _listener, _version, response: response)


def test_waiting_for_replicas_counts_as_remote_time() -> None:
    registry = Metrics()
    request_metrics = RequestMetrics(registry)
    times = RequestTimes(request_metrics, [a_fast_path(registry)], lambda: 0.0, lambda _delay, _call: None)

    times.measure_waited(
        ApiKey.PRODUCE, two_requests(), received_ms=-30.0, begun_ms=-20.0
    )  # its clock says 0

    metrics = request_metrics.of(ApiKey.PRODUCE)
    assert (metrics.total_time_ms.count, metrics.total_time_ms.max) == (2, 30.0)
    assert (metrics.local_time_ms.max, metrics.remote_time_ms.max) == (10.0, 20.0)
    assert request_metrics.requests(ApiKey.PRODUCE, 9).count == 2


def test_a_run_that_waits_for_no_replica_has_no_remote_time() -> None:
    registry = Metrics()
    request_metrics, fast_path = RequestMetrics(registry), a_fast_path(registry)
    times = RequestTimes(request_metrics, [fast_path], lambda: 0.0, lambda _delay, _call: None)

    fast_path.note(two_requests(), 5.0)
    times.flush()

    metrics = request_metrics.of(ApiKey.PRODUCE)
    assert (metrics.total_time_ms.count, metrics.remote_time_ms.count) == (2, 2)
    assert (metrics.local_time_ms.max, metrics.remote_time_ms.max) == (5.0, 0.0)
    assert (metrics.request_bytes.count, metrics.request_bytes.max) == (2, 100.0)
    assert request_metrics.requests(ApiKey.PRODUCE, 9).count == 2
