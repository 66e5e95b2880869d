"""Log directories of a broker, and brokers that are down."""

from __future__ import annotations

import pytest

from ottla.admin import Admin
from ottla.client.testing import ScriptedBroker
from ottla.protocol.errors import BrokerNotAvailable, ErrorCode, KafkaStorageError
from ottla.protocol.messages import log_dirs as describing
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.topics import TopicPartition


async def test_a_log_directory_that_is_offline_is_a_result_beside_the_others() -> None:
    replica = describing.DescribeLogDirsPartition(partition_index=0, partition_size=10)
    topic = describing.DescribeLogDirsTopic(name="orders", partitions=[replica])
    results = [
        describing.DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir="/broken"),
        describing.DescribeLogDirsResult(log_dir="/whole", topics=[topic]),
    ]
    async with ScriptedBroker() as broker:
        broker.on(MetadataRequest, lambda _: broker.metadata())
        broker.on(
            describing.DescribeLogDirsRequest, lambda _: describing.DescribeLogDirsResponse(results=results)
        )
        async with Admin(broker.bootstrap_servers) as admin:
            broken, whole = await admin.brokers.log_dirs(1)

    assert isinstance(broken.error, KafkaStorageError)
    assert (broken.path, str(broken.error), broken.replicas) == ("/broken", "/broken is offline", ())
    assert whole.error is None
    assert [each.partition for each in whole.replicas] == [TopicPartition("orders", 0)]
    assert len(broker.seen(describing.DescribeLogDirsRequest)) == 1


async def test_a_broker_that_is_down_is_named_with_those_that_are_alive() -> None:
    async with ScriptedBroker() as broker:
        broker.on(MetadataRequest, lambda _: broker.metadata())
        broker.on(describing.DescribeLogDirsRequest, lambda _: describing.DescribeLogDirsResponse())
        async with Admin(broker.bootstrap_servers) as admin:
            with pytest.raises(BrokerNotAvailable) as caught:
                await admin.brokers.log_dirs(3)

    assert str(caught.value) == "broker 3 is down, or not in the cluster: alive are 1"
