"""For tests: plain Fetch requests, and their answers of both paths."""

from __future__ import annotations

import struct
from collections.abc import Awaitable
from typing import Any

from ottla.broker.api.fetch import general as fetch
from ottla.broker.api.testing import ClockOfTurn, DataPlane, topic_id_of
from ottla.broker.network.frames import FrameReader, ReceiveBuffer
from ottla.broker.replication.replicas import HostedPartition
from ottla.broker.requests.fast_path import FastAnswers, Outcome, ReceivedBytes
from ottla.protocol.api import ApiKey, RequestHeader, encode_request, response_header
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic


def request_of(
    offset: int = 0, *, topic: str = "t", partition: int = 0, partition_max: int = 1 << 20, **more: Any
) -> FetchRequest:
    of_partition = {
        name: more.pop(name)
        for name in ("current_leader_epoch", "last_fetched_epoch", "log_start_offset")
        if name in more
    }
    one = FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=partition_max, **of_partition
    )
    return FetchRequest(
        **{
            "max_wait_ms": 0,
            "min_bytes": 1,
            "session_epoch": -1,
            "topics": [FetchTopic(topic=topic, topic_id=topic_id_of(topic), partitions=[one])],
            **more,
        }
    )


def framed(
    request: FetchRequest, version: int = 12, correlation_id: int = 1, client: str | None = "c"
) -> bytes:
    body = encode_request(RequestHeader(ApiKey.FETCH, version, correlation_id, client), request)
    return struct.pack(">i", len(body)) + body


def reader_with(data: bytes) -> FrameReader:
    reader = FrameReader(ReceiveBuffer(1 << 20), 100 << 20)
    reader.get_buffer()[: len(data)] = data
    reader.received(len(data))
    return reader


async def general_path(plane: DataPlane, request: FetchRequest, version: int, correlation_id: int) -> bytes:
    answer = fetch.handle(plane.services, request, plane.context(ApiKey.FETCH, version))
    if isinstance(answer, Awaitable):
        answer = await answer
    head = response_header(correlation_id, ApiKey.FETCH, version)
    body = head + joined(answer.encode_parts(version))
    return struct.pack(">i", len(body)) + body


def joined(parts: list[Any]) -> bytes:
    return b"".join(part if isinstance(part, bytes) else part.read() for part in parts)


def served(plane: DataPlane, received: ReceivedBytes) -> tuple[int, FastAnswers]:
    """Offer bytes to the fast path; return its outcome and its answers."""
    answers, session = FastAnswers(), plane.session
    outcome = plane.services.fetch_fast_path.serve(
        received, session.targets_of(ApiKey.FETCH), session, ClockOfTurn(plane.environment.clock), answers
    )
    return outcome, answers


def fast_path(plane: DataPlane, request: FetchRequest, version: int, correlation_id: int) -> bytes | None:
    outcome, answers = served(plane, reader_with(framed(request, version, correlation_id)))
    if outcome != Outcome.ANSWERED:
        return None
    answer = joined(answers.parts)
    assert (answers.count, answers.version, answers.size) == (1, version, len(answer))
    return answer


def admit(plane: DataPlane, partition: HostedPartition) -> None:
    """Admit the partition to the fast path of fetches, by name and by id."""
    for version in (12, 13):
        plane.services.fetch_fast_path.admit(plane.context(ApiKey.FETCH, version), partition)
