"""A broker whose disk is full amid a transaction's end, and which is killed then."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.testing import BrokerProcess
from peers.small_disk import small_disk

TIMEOUT_S = 90.0
PAGE_BYTES = 4096
"""The page size of the file system: files take up whole pages."""
LEFT_BYTES = 30
"""In the last page of the log: less than a marker takes."""
FIRST_BYTES = 100


def log_of(broker: BrokerProcess, partition: int) -> Path:
    return broker.data_dir / f"t-{partition}" / "00000000000000000000.log"


def begin(broker: BrokerProcess) -> Producer:
    """Begin a transaction with records in both partitions; no marker fits in the last page of the second."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "id"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce("t", b"a", partition=0)
    producer.produce("t", bytes(FIRST_BYTES), partition=1)
    assert producer.flush(TIMEOUT_S) == 0
    size = log_of(broker, 1).stat().st_size
    overhead = size - FIRST_BYTES
    producer.produce("t", bytes(PAGE_BYTES - LEFT_BYTES - size - overhead), partition=1)
    assert producer.flush(TIMEOUT_S) == 0
    assert log_of(broker, 1).stat().st_size == PAGE_BYTES - LEFT_BYTES
    return producer


def committed(broker: BrokerProcess, count: int) -> list[int]:
    """The partitions of so many committed records, in order."""
    config = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"}
    consumer = Consumer({**config, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition("t", one, 0) for one in (0, 1)])
    found: list[int] = []
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while len(found) < count:
            assert time.monotonic() < deadline, found
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                found.append(message.partition())
    finally:
        consumer.close()
    return sorted(found)


def commit_until_one_marker_is_written(broker: BrokerProcess, producer: Producer) -> None:
    before = log_of(broker, 0).stat().st_size
    with suppress(KafkaException):
        producer.commit_transaction(5)
    deadline = time.monotonic() + TIMEOUT_S
    while log_of(broker, 0).stat().st_size == before:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("killed", [False, True], ids=["lives", "is killed"])
def test_a_commit_with_room_for_one_of_two_markers_is_complete_once_there_is_room(
    tmp_path: Path, killed: bool
) -> None:
    with small_disk(tmp_path / "disk", 64) as disk, BrokerProcess(disk.folder / "data") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("t", 2, 1)])["t"].result(TIMEOUT_S)
        producer = begin(broker)
        disk.fill()

        commit_until_one_marker_is_written(broker, producer)

        assert log_of(broker, 1).stat().st_size <= PAGE_BYTES
        if killed:
            broker.kill()
        disk.free()
        if killed:
            broker.start()
        assert committed(broker, 3) == [0, 1, 1]
