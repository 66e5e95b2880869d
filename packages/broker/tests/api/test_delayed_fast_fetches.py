"""Plain fetches that wait for records, without a task, and then get the answer of the general path."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.broker.api.fetch._fast_path import fetch_at_hand
from ottla.broker.api.fetch.delayed_fast import DelayedFastFetch
from ottla.broker.api.fetch.testing import (
    admit,
    framed,
    general_path,
    joined,
    reader_with,
    request_of,
    served,
)
from ottla.broker.api.testing import DataPlane, FakeSession, batch_of
from ottla.broker.replication.replicas import HostedPartition
from ottla.broker.requests.fast_path import FastAnswers, Outcome, Wait
from ottla.protocol.api import ApiKey, decode_request_header
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.native import PlainFetch

BOUND_S = 60
VERSIONS = range(4, 19)


def delayed(plane: DataPlane, request: FetchRequest, version: int = 12) -> list[bytes | None]:
    """Begin the wait of a request; its answer comes into the list, None for the general path."""
    given: list[bytes | None] = []
    wait = wait_of(plane, request, version)
    wait.begin(lambda answers: given.append(None if answers is None else joined(answers.parts)))
    return given


def wait_of(plane: DataPlane, request: FetchRequest, version: int = 12, correlation_id: int = 1) -> Wait:
    outcome, answers = served(plane, reader_with(framed(request, version, correlation_id)))
    assert outcome == Outcome.WAITS
    assert not answers.parts
    assert answers.wait is not None
    return answers.wait


async def answers_in(given: list[bytes | None]) -> bytes | None:
    async with asyncio.timeout(BOUND_S):
        while not given:  # noqa: ASYNC110
            await asyncio.sleep(0)
    (answer,) = given
    return answer


async def admitted(plane: DataPlane, **settings: Any) -> HostedPartition:
    partition = await plane.lead(**settings)
    admit(plane, partition)
    return partition


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("isolation_level", [0, 1])
async def test_a_fetch_that_waited_gets_the_bytes_of_the_general_path(
    plane: DataPlane, version: int, isolation_level: int
) -> None:
    partition = await admitted(plane)
    request = request_of(max_wait_ms=3_600_000, min_bytes=200, isolation_level=isolation_level)
    given = delayed(plane, request, version)

    partition.append(batch_of(b"too little"), now_ms=1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not given
    partition.append(batch_of(b"a" * 200), now_ms=1)

    assert await answers_in(given) == await general_path(plane, request, version, 1)
    assert not partition.watchers
    assert len(plane.services.delayed_fetches) == 0


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("values", [[], [b"a"]])
async def test_a_fetch_whose_time_is_over_gets_what_there_is(
    plane: DataPlane, version: int, isolation_level: int, values: list[bytes]
) -> None:
    partition = await admitted(plane)
    for value in values:
        partition.append(batch_of(value), now_ms=1)
    terms: dict[str, Any] = {"min_bytes": 5000, "isolation_level": isolation_level}

    given = delayed(plane, request_of(max_wait_ms=1, **terms), version)

    assert await answers_in(given) == await general_path(plane, request_of(**terms), version, 1)


async def test_a_fetch_that_waits_is_left_to_the_general_path_when_the_partition_is_given_up(
    plane: DataPlane,
) -> None:
    partition = await admitted(plane)
    led, deleted = (delayed(plane, request_of(max_wait_ms=3_600_000)) for _ in range(2))

    await plane.lead(leader=2, leader_epoch=1, isr=(1, 2), replicas=(1, 2))
    await plane.replicas.stop([(partition.topic_partition, -1, True)])

    assert await answers_in(led) is None
    assert await answers_in(deleted) is None
    assert len(plane.services.delayed_fetches) == 0


async def test_a_fetch_whose_answer_fails_is_left_to_the_general_path(plane: DataPlane) -> None:
    partition = await admitted(plane)
    targets = plane.session.targets_of(ApiKey.FETCH)
    fetch = fetch_at_hand(reader_with(framed(request_of(max_wait_ms=3_600_000))), targets)
    assert fetch is not None
    given: list[Any] = []

    def fail(fetch: PlainFetch, is_over: bool) -> FastAnswers | None:
        raise RuntimeError("a fault")

    DelayedFastFetch(fetch, fail, plane.services.delayed_fetches, FakeSession()).begin(given.append)
    partition.append(batch_of(b"a"), now_ms=1)

    assert await answers_in(given) is None
    assert not partition.watchers
    assert len(plane.services.delayed_fetches) == 0


async def test_one_delayed_fetch_too_many_answers_the_oldest(plane: DataPlane) -> None:
    await admitted(plane)
    plane.services.delayed_fetches.limit = 2
    request = request_of(max_wait_ms=3_600_000)

    first, second, third = (delayed(plane, request) for _ in range(3))

    assert await answers_in(first) == await general_path(plane, request_of(), 12, 1)
    assert (second, third) == ([], [])


async def test_an_ended_wait_is_never_answered(plane: DataPlane) -> None:
    partition = await admitted(plane)
    given: list[object] = []
    wait = wait_of(plane, request_of(max_wait_ms=3_600_000))
    wait.begin(given.append)

    partition.append(batch_of(b"a"), now_ms=1)
    wait.end()
    for _ in range(5):
        await asyncio.sleep(0)

    assert not given
    assert not partition.watchers


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("rack", ["", "r"])
async def test_the_general_path_gets_the_fields_of_a_request_that_waited(
    plane: DataPlane, version: int, rack: str
) -> None:
    await admitted(plane)
    terms: dict[str, Any] = {"min_bytes": 5, "max_bytes": 99, "partition_max": 77, "isolation_level": 1}
    if version >= 11:
        terms["rack_id"] = rack
    request = request_of(max_wait_ms=500, **terms)
    frame = framed(request, version, correlation_id=7)

    header, handed_over, size = wait_of(plane, request, version, correlation_id=7).request(waited_ms=200.7)

    decoded, start = decode_request_header(memoryview(frame)[4:])
    expected = FetchRequest.decode(frame[4 + start :], version)
    expected.max_wait_ms = 300
    assert handed_over == expected
    assert (header.api_key, header.api_version, header.correlation_id) == decoded[:3]
    assert size == len(frame) - 4


async def test_a_request_that_has_waited_for_all_its_time_waits_no_longer(plane: DataPlane) -> None:
    await admitted(plane)

    _, handed_over, _ = wait_of(plane, request_of(max_wait_ms=500)).request(waited_ms=501.0)

    assert isinstance(handed_over, FetchRequest)
    assert handed_over.max_wait_ms == 0
