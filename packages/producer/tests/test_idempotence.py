"""Producer ids and sequences of batches, and which batch may be sent behind which."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from ottla.producer import ProducerConfig
from ottla.producer.accumulator import Accumulator, Appender, Batch
from ottla.producer.sender.idempotence import Idempotence
from ottla.producer.sender.sequence_numbers import SequenceNumbers
from ottla.protocol.errors import ErrorCode, KafkaError, error_for
from ottla.protocol.messages.producer_ids import InitProducerIdResponse
from ottla.protocol.topics import TopicPartition

ORDERS = TopicPartition("orders", 0)
REJECTED = error_for(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


class Ids:
    """A cluster that assigns the ids 1, 2, ..."""

    def __init__(self) -> None:
        self._last = 0

    async def send_to_any(self, *_: Any) -> InitProducerIdResponse:
        self._last += 1
        return InitProducerIdResponse(producer_id=self._last, producer_epoch=0)


@dataclass
class Coordinator:
    """The coordinator of a transactional producer."""

    producer_id: int = 9
    producer_epoch: int = 4
    registered: set[TopicPartition] = field(default_factory=set)
    produce_version: int | None = None

    def sends_to(self, partition: TopicPartition) -> None:
        assert partition in self.registered

    def is_registered(self, partitions: Iterable[TopicPartition]) -> bool:
        return self.registered.issuperset(partitions)

    async def register(self, partitions: Iterable[TopicPartition]) -> None:
        self.registered.update(partitions)

    def failed(self, error: BaseException, *, numbered: bool = False) -> None:
        raise AssertionError(error)

    async def meaning_of(self, rejection: KafkaError) -> Exception:
        return rejection


class Sending:
    """One partition whose batches hold a record each; `send` drains, packs and numbers one."""

    def __init__(self, idempotence: Idempotence) -> None:
        self.idempotence = idempotence
        self.accumulator = Accumulator(
            batch_size=1, linger_ms=0, buffer_memory=10_000, max_record_size=1_000, monotonic_ms=lambda: 0.0
        )
        self._appender = Appender(self.accumulator)
        self._topic = self.accumulator.update_topic("t", 1, [0])

    def batches(self, count: int) -> list[Batch]:
        for _ in range(count):
            self._appender.append(self._topic, None, b"x", 0, None, None)
        return self.accumulator.incomplete_batches()[-count:]

    def send(self, batch: Batch) -> tuple[int, int]:
        asyncio.run(self.idempotence.prepare([batch]))
        self.accumulator.drain(batch)
        batch.pack(0, None)
        self.idempotence.number(batch)
        return batch.producer_id, batch.base_sequence

    def acknowledge(self, batch: Batch) -> None:
        self.accumulator.finish(batch)
        batch.succeed(0, -1)


def sending(coordinator: Coordinator | None = None, **settings: Any) -> Sending:
    cluster: Any = Ids()
    config = ProducerConfig(**settings)
    return Sending(Idempotence(cluster, config, SequenceNumbers(), coordinator))


def test_nothing_follows_the_first_batch_of_an_id_before_it_is_written() -> None:
    partition = sending()
    first, second, third = partition.batches(3)

    assert partition.send(first) == (1, 0)
    assert not partition.idempotence.may_follow(second)
    partition.acknowledge(first)
    assert partition.send(second) == (1, 1)
    assert partition.idempotence.may_follow(third)


def test_a_retry_keeps_its_sequence() -> None:
    partition = sending()
    (batch,) = partition.batches(1)
    partition.send(batch)

    partition.accumulator.reenqueue(batch, 0.0)

    assert partition.send(batch) == (1, 0)


def test_after_a_failed_batch_the_next_one_gets_a_new_id() -> None:
    partition = sending()
    failed, following = partition.batches(2)
    partition.send(failed)

    partition.idempotence.failed(failed)
    partition.accumulator.finish(failed)

    assert not partition.idempotence.is_ready([following])
    assert partition.send(following) == (2, 0)


def test_a_batch_under_the_old_id_is_numbered_anew_only_when_a_broker_rejected_its_sequence() -> None:
    partition = sending()
    written, failed, sent = partition.batches(3)
    partition.send(written)
    partition.acknowledge(written)
    partition.send(failed)
    partition.send(sent)
    partition.idempotence.failed(failed)
    partition.accumulator.finish(failed)

    partition.accumulator.reenqueue(sent, 0.0)
    assert partition.send(sent) == (1, 2)
    assert partition.idempotence.is_sequence_rejected(sent, REJECTED)
    partition.idempotence.rejected(sent)
    partition.accumulator.reenqueue(sent, 0.0)

    assert partition.send(sent) == (2, 0)


def test_a_rejected_sequence_behind_an_older_batch_is_kept() -> None:
    partition = sending()
    written, older, newer = partition.batches(3)
    partition.send(written)
    partition.acknowledge(written)
    partition.send(older)
    partition.send(newer)

    partition.idempotence.rejected(newer)
    partition.accumulator.reenqueue(newer, 0.0)

    assert partition.send(newer) == (1, 2)


def test_a_new_id_waits_for_the_batches_of_the_old_one() -> None:
    partition = sending()
    written, failed, in_flight, new = partition.batches(4)
    partition.send(written)
    partition.acknowledge(written)
    partition.send(failed)
    partition.send(in_flight)
    partition.idempotence.failed(failed)
    partition.accumulator.finish(failed)

    assert not partition.idempotence.may_follow(new)
    partition.acknowledge(in_flight)
    assert partition.idempotence.may_follow(new)


def test_a_transaction_numbers_under_the_id_of_its_coordinator_once_the_partition_is_registered() -> None:
    coordinator = Coordinator()
    partition = sending(coordinator, transactional_id="once")
    (batch,) = partition.batches(1)

    assert not partition.idempotence.is_ready([batch])
    assert partition.send(batch) == (9, 0)
    assert coordinator.registered == {TopicPartition("t", 0)}
    assert partition.idempotence.is_ready([batch])


def test_a_transaction_cannot_go_on_under_a_new_id() -> None:
    partition = sending(Coordinator(), transactional_id="once")
    (oldest,) = partition.batches(1)
    partition.send(oldest)

    assert not partition.idempotence.is_sequence_rejected(oldest, REJECTED)


@pytest.mark.parametrize("settings", [{"acks": 1}, {"acks": 0}, {"enable_idempotence": False}])
def test_without_idempotence_one_batch_is_in_flight_and_has_no_sequence(settings: dict[str, Any]) -> None:
    partition = sending(**settings)
    (batch,) = partition.batches(1)

    assert partition.idempotence.max_in_flight == 1
    assert partition.send(batch) == (-1, -1)


def test_sequences_count_records_and_wrap() -> None:
    sequences = SequenceNumbers()
    assert sequences.take(ORDERS, 5) == -1

    sequences.start(7, 0)

    assert [sequences.take(ORDERS, 2**31 - 1), sequences.take(ORDERS, 3), sequences.take(ORDERS, 1)] == [
        0,
        2**31 - 1,
        2,
    ]


def test_a_new_id_counts_from_zero() -> None:
    sequences = SequenceNumbers()
    sequences.start(7, 0)
    sequences.take(ORDERS, 5)

    sequences.give_up_id()
    assert not sequences.has_id
    sequences.start(8, 0)

    assert sequences.take(ORDERS, 1) == 0
