"""How many files the logs of a broker keep open, and partitions for which there would be none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from ottla.broker.config import BrokerConfig, LogConfig
from ottla.broker.log.files.open_files import PartitionRoom
from ottla.broker.log.hosting.registry import LogRegistry
from ottla.broker.log.log import Log
from ottla.broker.log.testing import append, records_of
from ottla.broker.runtime.environment import Environment
from ottla.broker.testing import BrokerProcess
from ottla.protocol.errors import PolicyViolation
from ottla.protocol.topics import TopicPartition

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts descriptors in /proc")


def descriptors(directory: Path) -> list[str]:
    """The files in a directory that this process has open, as endings."""
    found = []
    for one in os.listdir("/proc/self/fd"):
        try:
            path = Path(os.readlink(f"/proc/self/fd/{one}"))
        except FileNotFoundError:  # the listing's own
            continue
        if directory in path.parents and path.suffix:
            found.append(path.suffix)
    return found


def filled(logs: LogRegistry, partition: int, segments: int) -> Log:
    log = logs.create(TopicPartition("topic", partition), config=LogConfig(segment_bytes=300))
    while len(log.segments) < segments:
        append(log, b"v" * 100, now_ms=1)
    return log


@LINUX
async def test_open_segments_are_bounded_over_all_partitions(tmp_path: Path) -> None:
    config = BrokerConfig(log_dirs=(str(tmp_path),), max_open_segment_files=30)
    async with LogRegistry(config, Environment()) as logs:
        all_logs = [filled(logs, partition, 25) for partition in range(4)]
        assert len(descriptors(tmp_path)) <= 30

        for log in all_logs:
            log.flush()
            assert len(records_of(log)) == log.log_end_offset
        found = descriptors(tmp_path)
        for log in all_logs:
            log.offset_for_timestamp(0)

        assert set(found) == {".log"}
        assert 20 < len(found) <= 30
        assert len(descriptors(tmp_path)) <= 30

    async with LogRegistry(config, Environment()) as logs:
        assert sum(one.segments[0].largest_timestamp for one in logs) == 4_000
        assert descriptors(tmp_path) == [".log"] * 4


@LINUX
async def test_a_closed_or_deleted_log_leaves_no_file_open(tmp_path: Path) -> None:
    async with LogRegistry(BrokerConfig(log_dirs=(str(tmp_path),)), Environment()) as logs:
        for partition in range(3):
            records_of(filled(logs, partition, 5))
        logs.delete(TopicPartition("topic", 0))
        assert descriptors(tmp_path) == [".log"] * 10
    assert descriptors(tmp_path) == []


def test_partitions_beyond_the_descriptors_are_refused() -> None:
    now_ms, opened = 0.0, 40
    room = PartitionRoom(lambda: now_ms, lambda: opened, lambda: 160)

    room.check(110)
    with pytest.raises(PolicyViolation, match=r"cannot open 111 more partitions: 40 of the 160 files"):
        room.check(111)
    room.promise(60)
    room.promise(30)
    room.check(20)
    with pytest.raises(PolicyViolation):
        room.check(21)
    for _ in range(70):
        room.opened()
    opened += 70
    room.check(20)
    with pytest.raises(PolicyViolation):
        room.check(21)
    now_ms = 31_000
    room.check(40)


@LINUX
@pytest.mark.timeout(120)
def test_topics_whose_partitions_cannot_be_opened_are_refused(tmp_path: Path) -> None:
    import resource

    with BrokerProcess(tmp_path, {"auto.create.topics.enable": "false"}) as broker:
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (128, 128))
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        made, refused = [], []
        for number in range(12):
            future = admin.create_topics([NewTopic(f"t{number}", 10, 1)], request_timeout=60)[f"t{number}"]
            try:
                future.result()
                made.append(f"t{number}")
            except KafkaException as error:
                refused.append(error.args[0].name())
        assert 3 <= len(made) <= 9
        assert set(refused) == {"POLICY_VIOLATION"}
        with pytest.raises(KafkaException, match="cannot open 100 more partitions"):
            admin.create_partitions([NewPartitions("t0", 110)], request_timeout=60)["t0"].result()
        topics = admin.list_topics(timeout=30).topics
        assert sorted(topics) == sorted(made)
        assert all(one.leader >= 0 for topic in topics.values() for one in topic.partitions.values())
        failed: list[object] = []
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for topic in made:
            for partition in range(10):
                producer.produce(
                    topic, b"v", partition=partition, on_delivery=lambda error, _: failed.append(error)
                )
        assert producer.flush(60) == 0
        assert set(failed) == {None}
