"""Two brokers with one id: the second at its start, or the first after it has slept."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ottla.broker.api.testing import batch_of
from ottla.broker.testing import BrokerFailed, BrokerProcess
from ottla.protocol.api import ApiKey, RequestHeader, encode_request
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from ottla.zookeeper import paths
from ottla.zookeeper.embedded import EmbeddedCoordinator
from ottla.zookeeper.kazoo_session import KazooSession

TIMEOUT_S = 60.0


@pytest.fixture
async def coordinator() -> AsyncIterator[EmbeddedCoordinator]:
    async with EmbeddedCoordinator() as coordinator:
        yield coordinator


SESSION_TIMEOUT_MS = 4_000


def broker_on(coordinator: EmbeddedCoordinator, directory: Path) -> BrokerProcess:
    return BrokerProcess(
        directory,
        {
            "broker.id": "7",
            "zookeeper.connect": coordinator.connect_string,
            "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
        },
    )


def framed(
    key: ApiKey, version: int, correlation_id: int, request: ProduceRequest | CreateTopicsRequest
) -> bytes:
    body = encode_request(RequestHeader(key, version, correlation_id, "test"), request)
    return struct.pack(">i", len(body)) + body


def produce(correlation_id: int) -> bytes:
    """A record with acks=1."""
    data = [PartitionProduceData(index=0, records=batch_of(b"value"))]
    topics = [TopicProduceData(name="orders", partition_data=data)]
    return framed(
        ApiKey.PRODUCE, 9, correlation_id, ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics)
    )


async def answer(reader: asyncio.StreamReader) -> int:
    """The correlation id of the next answer."""
    async with asyncio.timeout(TIMEOUT_S):
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return int.from_bytes((await reader.readexactly(size))[:4])


async def answers_until_the_end(reader: asyncio.StreamReader) -> list[int]:
    """The correlation ids of the answers until the connection ends."""
    answers = []
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            answers.append(await answer(reader))
    return answers


async def a_writer_to(broker: BrokerProcess) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection over which a record was written, so that the next ones are written the quickest way."""
    reader, writer = await asyncio.open_connection(broker.host, broker.port)
    topic = CreatableTopic(name="orders", num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=int(TIMEOUT_S * 1000))
    writer.write(framed(ApiKey.CREATE_TOPICS, 5, 1, request) + produce(2))
    assert [await answer(reader), await answer(reader)] == [1, 2]
    return reader, writer


async def sleeps_past_its_session(coordinator: EmbeddedCoordinator, broker: BrokerProcess) -> None:
    async with KazooSession(coordinator.connect_string) as session:
        gone = asyncio.Event()
        assert await session.exists(paths.broker(7), lambda _: gone.set()) is not None
        broker.pause()
        async with asyncio.timeout(TIMEOUT_S):
            await gone.wait()


async def expire_the_broker(coordinator: EmbeddedCoordinator) -> None:
    async with KazooSession(coordinator.connect_string) as session:
        stat = await session.exists(paths.broker(7))
    assert stat is not None
    coordinator.expire(stat.ephemeral_owner)


async def test_a_broker_that_slept_while_another_took_its_id_ends_with_one_line(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    slept, successor = broker_on(coordinator, tmp_path / "slept"), broker_on(coordinator, tmp_path / "next")
    await asyncio.to_thread(slept.start)
    slept.pause()
    await expire_the_broker(coordinator)
    await asyncio.to_thread(successor.start)
    reader, writer = await asyncio.open_connection(slept.host, slept.port)

    slept.resume()
    status = await asyncio.to_thread(slept.wait, TIMEOUT_S)

    assert status == 1
    said = slept.log_file.read_text()
    assert "Traceback" not in said
    assert slept.last_words(1).startswith("Error: a broker with id 7 is registered already")
    async with asyncio.timeout(TIMEOUT_S):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()
    async with KazooSession(coordinator.connect_string) as session:
        assert await session.exists(paths.broker(7)) is not None
    await asyncio.to_thread(successor.stop)


async def test_a_broker_that_slept_while_another_took_its_id_acknowledges_nothing(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    slept, successor = broker_on(coordinator, tmp_path / "slept"), broker_on(coordinator, tmp_path / "next")
    await asyncio.to_thread(slept.start)
    reader, writer = await a_writer_to(slept)
    await sleeps_past_its_session(coordinator, slept)
    await asyncio.to_thread(successor.start)

    writer.write(b"".join(map(produce, range(500))))
    slept.resume()

    assert await answers_until_the_end(reader) == []
    assert await asyncio.to_thread(slept.wait, TIMEOUT_S) == 1
    writer.close()
    await asyncio.to_thread(successor.stop)


async def test_a_broker_that_slept_past_its_session_and_kept_its_id_goes_on(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    broker = broker_on(coordinator, tmp_path / "slept")
    await asyncio.to_thread(broker.start)
    reader, writer = await a_writer_to(broker)
    await sleeps_past_its_session(coordinator, broker)

    writer.write(b"".join(map(produce, range(500))))
    broker.resume()

    assert [await answer(reader) for _ in range(500)] == list(range(500))
    assert "requests wait" in broker.log_file.read_text()
    writer.close()
    await asyncio.to_thread(broker.stop)


async def test_a_broker_that_slept_past_its_session_registers_again(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    broker = broker_on(coordinator, tmp_path / "slept")
    await asyncio.to_thread(broker.start)
    async with KazooSession(coordinator.connect_string) as session:
        before = await session.exists(paths.broker(7))
        assert before is not None
        broker.pause()
        registered = asyncio.Event()
        coordinator.expire(before.ephemeral_owner)
        assert await session.exists(paths.broker(7), lambda _: registered.set()) is None

        broker.resume()
        async with asyncio.timeout(TIMEOUT_S):
            await registered.wait()

        after = await session.exists(paths.broker(7))
        assert after is not None
        assert after.czxid > before.czxid
    await asyncio.to_thread(broker.stop)


async def test_a_second_broker_with_the_same_id_is_refused_with_one_line(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    first, second = broker_on(coordinator, tmp_path / "first"), broker_on(coordinator, tmp_path / "second")
    await asyncio.to_thread(first.start)

    with pytest.raises(BrokerFailed):
        await asyncio.to_thread(second.start)

    (line,) = second.log_file.read_text().splitlines()
    assert line.startswith("Error: a broker with id 7 is registered already")
    await asyncio.to_thread(first.stop)
