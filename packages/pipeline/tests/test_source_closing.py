"""Connections that fail to close: the original error matters more."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from ottla.client.cluster import Cluster
from ottla.client.errors import DeadlineExceeded, NoBrokerAvailable
from ottla.consumer.fetch.offset_lookups import OffsetLookups
from ottla.pipeline.source.config import SourceConfig
from ottla.pipeline.source.offset_bounds import Edge
from ottla.pipeline.source.range_reader import consumer_for, forget_consumer
from ottla.pipeline.source.topic_offsets import BrokerTopicOffsets, Connect, LookupClient
from ottla.protocol.errors import KafkaError, UnknownTopicOrPartition
from ottla.protocol.topics import TopicPartition

ZERO = TopicPartition("t", 0)


def config_of(servers: str = "localhost:9092", **options: object) -> SourceConfig:
    given = {"kafka.bootstrap.servers": servers, "subscribe": "t"}
    more = {name.replace("_", "."): str(value) for name, value in options.items()}
    return SourceConfig.of(given | more, streaming=False)


class Answers(OffsetLookups):
    """Fails a number of times, then reports end offset 7 everywhere."""

    def __init__(self, failures: list[KafkaError]) -> None:
        self.failures = failures

    async def offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        if self.failures:
            raise self.failures.pop()
        return dict.fromkeys(times, 7)


def badly(failures: int) -> Connect:
    """Yield connections, some of which fail to answer, and all of which fail to close."""
    left: list[KafkaError] = [UnknownTopicOrPartition(f"failure {number}") for number in range(failures)]

    @asynccontextmanager
    async def connect() -> AsyncIterator[LookupClient]:
        yield LookupClient(Cluster("localhost:9092"), Answers(left))
        raise OSError("the socket was gone")

    return connect


def test_a_question_is_asked_again_though_closing_failed(caplog: pytest.LogCaptureFixture) -> None:
    lookup = BrokerTopicOffsets(config_of(fetchOffset_numRetries=3), badly(3))

    with caplog.at_level(logging.WARNING):
        assert lookup.offsets(Edge.LATEST, [ZERO]) == {ZERO: 7}
        lookup.close()

    assert caplog.text.count("closing connections failed reason=OSError: the socket was gone") == 4
    asked = [line.partition(" retry=")[2] for line in caplog.text.splitlines() if " retry=" in line]
    assert asked == [f"{number} retries=3" for number in (1, 2, 3)]


def test_the_last_error_is_that_of_the_question() -> None:
    lookup = BrokerTopicOffsets(config_of(fetchOffset_numRetries=1), badly(2))

    with pytest.raises(UnknownTopicOrPartition, match="failure 0"):
        lookup.offsets(Edge.LATEST, [ZERO])
    lookup.close()


def test_a_cluster_that_was_never_reached_is_asked_once() -> None:
    attempts = 0

    @asynccontextmanager
    async def connect() -> AsyncIterator[LookupClient]:
        nonlocal attempts
        attempts += 1
        if attempts:
            raise DeadlineExceeded("reaching the cluster", 15.0, NoBrokerAvailable(["no broker"]))
        yield LookupClient(Cluster("localhost:9092"), Answers([]))

    lookup = BrokerTopicOffsets(config_of(fetchOffset_numRetries=3), connect)

    with pytest.raises(DeadlineExceeded):
        lookup.offsets(Edge.LATEST, [ZERO])
    assert attempts == 1


def test_a_reader_is_kept_for_its_settings_until_it_is_forgotten() -> None:
    first, same = consumer_for(config_of()), consumer_for(config_of(failOnDataLoss=False))
    assert first is same

    forget_consumer(config_of())

    assert consumer_for(config_of()) is not first


def test_the_reader_longest_unused_makes_room() -> None:
    servers = [f"broker-{number}:9092" for number in range(5)]
    readers = [consumer_for(config_of(each)) for each in servers]

    assert consumer_for(config_of(servers[4])) is readers[4]
    assert consumer_for(config_of(servers[0])) is not readers[0]
