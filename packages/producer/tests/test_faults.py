"""A broker that keeps numbers as Kafka's does and fails at random: records are written once, in order."""

from __future__ import annotations

import random
from collections import defaultdict
from functools import partial
from typing import Any

import pytest

from ottla.client.config import ClientConfig
from ottla.client.errors import ClientError
from ottla.client.testing import NODE_ID, ScriptedBroker
from ottla.producer import Acknowledgement, Producer, ProducerConfig
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.records import decode_records, read_header
from peers.accepting_broker import acknowledged, serving

PARTITIONS = 2
RECORDS = 200
RECOGNIZED = 5
FOR_NOW = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT)


class FaultyLeader:
    """Writes what has the right number; one in so many requests fails, before or after it is written."""

    def __init__(self, rng: random.Random, for_good: float) -> None:
        self.logs: dict[int, list[bytes | None]] = defaultdict(list)
        self._rng = rng
        self._for_good = for_good
        self._written: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
        self._ids = 0

    def new_id(self, _: InitProducerIdRequest) -> InitProducerIdResponse:
        self._ids += 1
        return InitProducerIdResponse(producer_id=self._ids, producer_epoch=0)

    def produce(self, request: ProduceRequest) -> ProduceResponse | None:
        (topic,) = request.topic_data
        parts = [self._take(part) for part in topic.partition_data]
        answer = ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=parts)])
        return None if self._rng.random() < 0.08 else answer

    def _take(self, part: PartitionProduceData) -> PartitionProduceResponse:
        error, offset = self._outcome(part.index, bytes(part.records or b""))
        return PartitionProduceResponse(index=part.index, error_code=error, base_offset=offset)

    def _outcome(self, index: int, records: bytes) -> tuple[int, int]:
        header, log = read_header(records), self.logs[index]
        written = self._written[header.producer_id, index]
        if self._rng.random() < 0.15:
            return self._rng.choice(FOR_NOW), -1
        for base, count, offset in written[-RECOGNIZED:]:
            if (base, count) == (header.base_sequence, header.record_count):
                return 0, offset
        if written and header.base_sequence != written[-1][0] + written[-1][1]:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        if header.record_count > 1 and self._rng.random() < 0.1:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        if self._rng.random() < self._for_good:
            return ErrorCode.INVALID_RECORD, -1
        written.append((header.base_sequence, header.record_count, len(log)))
        log.extend(record.value for record in decode_records(records))
        return 0, written[-1][2]


def config(rng: random.Random, **settings: Any) -> ProducerConfig:
    client = ClientConfig(
        retry_backoff_ms=1,
        retry_backoff_max_ms=4,
        max_in_flight_requests_per_connection=rng.choice([1, 5, 20]),
    )
    return ProducerConfig(
        client=client,
        batch_size=rng.choice([1, 100, 300]),
        compression_type=rng.choice(["none", "gzip"]),
        linger_ms=0,
        **settings,
    )


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("for_good", "settings"),
    [(0.0, {}), (0.05, {}), (0.02, {"delivery_timeout_ms": 30})],
    ids=["for now", "for good", "and too late"],
)
async def test_acknowledged_records_are_written_once_in_order(
    seed: int, for_good: float, settings: dict[str, Any]
) -> None:
    rng = random.Random(seed)
    leader = FaultyLeader(rng, for_good)
    async with serving(ScriptedBroker(), partitions=PARTITIONS) as broker:
        broker.on(InitProducerIdRequest, leader.new_id)
        broker.on(ProduceRequest, leader.produce)
        async with Producer(broker.bootstrap_servers, config(rng, **settings)) as producer:
            sent = [await producer.send("t", b"%d" % n, partition=n % PARTITIONS) for n in range(RECORDS)]

    assert_written_once_in_order(leader, sent, may_fail=bool(for_good or settings))


class MovingLeadership:
    """Both partitions move between two brokers that share the logs; metadata may name the wrong one."""

    def __init__(self, rng: random.Random, leader: FaultyLeader, *brokers: ScriptedBroker) -> None:
        self._rng, self._leader, self._brokers = rng, leader, brokers
        self._leads = self._told = NODE_ID
        for index, broker in enumerate(brokers):
            broker.on(MetadataRequest, self._metadata)
            broker.on(InitProducerIdRequest, leader.new_id)
            broker.on(ProduceRequest, partial(self._produce, NODE_ID + index))

    def _produce(self, node: int, request: ProduceRequest) -> ProduceResponse | None:
        if self._rng.random() < 0.1:
            self._leads = self._rng.choice([NODE_ID, NODE_ID + 1])
        if node != self._leads:
            return acknowledged(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self._leader.produce(request)

    def _metadata(self, _: MetadataRequest) -> MetadataResponse:
        if self._rng.random() < 0.7:
            self._told = self._leads
        answer = self._brokers[0].metadata("t", partitions=PARTITIONS, leader=self._told)
        answer.brokers = [
            MetadataResponseBroker(node_id=NODE_ID + index, host=each.host, port=each.port)
            for index, each in enumerate(self._brokers)
        ]
        return answer


@pytest.mark.parametrize("seed", range(8))
async def test_records_are_written_once_in_order_while_the_leader_moves(seed: int) -> None:
    rng = random.Random(seed)
    leader = FaultyLeader(rng, 0.0)
    async with ScriptedBroker() as one, ScriptedBroker() as other:
        MovingLeadership(rng, leader, one, other)
        async with Producer(one.bootstrap_servers, config(rng)) as producer:
            sent = [await producer.send("t", b"%d" % n, partition=n % PARTITIONS) for n in range(RECORDS)]

    assert_written_once_in_order(leader, sent)


def assert_written_once_in_order(
    leader: FaultyLeader, sent: list[Acknowledgement], *, may_fail: bool = False
) -> None:
    known = [each.exception() for each in sent]
    assert {type(error) for error in known if not isinstance(error, ClientError | KafkaError)} <= {type(None)}
    assert may_fail or known == [None] * RECORDS
    for index, log in leader.logs.items():
        numbers = [int(value or b"") for value in log]
        good = [n for n in range(index, RECORDS, PARTITIONS) if known[n] is None]
        assert len(numbers) == len(set(numbers))
        assert [n for n in numbers if known[n] is None] == good
        assert all(numbers[sent[n].offset] == n for n in good if sent[n].offset >= 0)
