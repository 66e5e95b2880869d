"""Settings of members of groups in ZooKeeper, under the names of Kafka 0.7 to 1.1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.client.settings import SettingError
from ottla.consumer.zookeeper import ZookeeperConsumerConfig

GIVEN: dict[str, Any] = {"group_id": "g", "zookeeper_connect": "h:2181/kafka"}

KAFKA_1_1 = """
group.id=g
consumer.id=me
zookeeper.connect=a:2181,b:2181/kafka
zookeeper.session.timeout.ms=7000
zookeeper.connection.timeout.ms=8000
zookeeper.sync.time.ms=900
socket.timeout.ms=31000
socket.receive.buffer.bytes=65536
fetch.message.max.bytes=2000000
num.consumer.fetchers=2
auto.commit.enable=false
auto.commit.interval.ms=10000
queued.max.message.chunks=3
rebalance.max.retries=5
fetch.min.bytes=2
fetch.max.bytes=40000000
fetch.wait.max.ms=200
rebalance.backoff.ms=1500
refresh.leader.backoff.ms=300
offsets.channel.backoff.ms=500
offsets.channel.socket.timeout.ms=9000
offsets.commit.max.retries=6
offsets.storage=kafka
dual.commit.enabled=false
auto.offset.reset=smallest
consumer.timeout.ms=4000
client.id=c
exclude.internal.topics=false
partition.assignment.strategy=roundrobin
"""


def test_every_setting_of_kafka_1_1_is_read(tmp_path: Path) -> None:
    file = tmp_path / "consumer.properties"
    file.write_text(KAFKA_1_1)

    config = ZookeeperConsumerConfig.from_properties(file)

    assert config == ZookeeperConsumerConfig(
        group_id="g",
        consumer_id="me",
        zookeeper_connect="a:2181,b:2181/kafka",
        zookeeper_session_timeout_ms=7_000,
        zookeeper_connection_timeout_ms=8_000,
        zookeeper_sync_time_ms=900,
        socket_timeout_ms=31_000,
        socket_receive_buffer_bytes=65_536,
        fetch_message_max_bytes=2_000_000,
        auto_commit_enable=False,
        auto_commit_interval_ms=10_000,
        queued_max_message_chunks=3,
        rebalance_max_retries=5,
        fetch_min_bytes=2,
        fetch_max_bytes=40_000_000,
        fetch_wait_max_ms=200,
        rebalance_backoff_ms=1_500,
        refresh_leader_backoff_ms=300,
        offsets_channel_backoff_ms=500,
        offsets_channel_socket_timeout_ms=9_000,
        offsets_storage="kafka",
        dual_commit_enabled=False,
        auto_offset_reset="smallest",
        consumer_timeout_ms=4_000,
        client_id="c",
        exclude_internal_topics=False,
        partition_assignment_strategy="roundrobin",
    )


def test_connections_have_the_receive_buffer_that_is_set() -> None:
    config = ZookeeperConsumerConfig(**GIVEN, socket_receive_buffer_bytes=65_536)

    assert (config.client().receive_buffer_bytes, config.client().send_buffer_bytes) == (65_536, -1)


def test_the_names_of_kafka_0_7_are_known() -> None:
    old = {"groupid": "g", "zk.connect": "h", "autooffset.reset": "largest", "rebalance.retries.max": "7"}

    assert ZookeeperConsumerConfig.from_properties(old) == ZookeeperConsumerConfig(
        group_id="g", zookeeper_connect="h", auto_offset_reset="largest", rebalance_max_retries=7
    )


def test_a_rebalance_waits_as_long_as_zookeeper_may_lag_unless_told() -> None:
    assert ZookeeperConsumerConfig(**GIVEN).backoff_s == 2.0
    assert ZookeeperConsumerConfig(**GIVEN, rebalance_backoff_ms=10).backoff_s == 0.01


@pytest.mark.parametrize(
    ("settings", "zookeeper", "kafka"),
    [
        ({}, True, False),
        ({"offsets_storage": "kafka"}, True, True),
        ({"offsets_storage": "kafka", "dual_commit_enabled": False}, False, True),
        ({"dual_commit_enabled": False}, True, False),
    ],
)
def test_offsets_go_where_they_are_stored(settings: dict[str, Any], zookeeper: bool, kafka: bool) -> None:
    config = ZookeeperConsumerConfig(**GIVEN, **settings)

    assert (config.commits_to_zookeeper, config.commits_to_kafka) == (zookeeper, kafka)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"group_id": "a/b"}, "letters"),
        ({"zookeeper_connect": ""}, "no server"),
        ({"auto_offset_reset": "somewhere"}, "auto_offset_reset"),
        ({"rebalance_max_retries": 0}, "rebalance_max_retries"),
        ({"fetch_wait_max_ms": 40_000}, "socket_timeout_ms"),
        ({"offsets_storage": "disk"}, "offsets_storage"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        ZookeeperConsumerConfig(**{**GIVEN, **settings})


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(SettingError, match=r"rebalance\.max\.retries"):
        ZookeeperConsumerConfig.from_properties({"group.id": "g", "rebalance.max.retry": "3"})


def test_a_keyword_that_is_no_setting_is_refused_with_the_nearest_that_is() -> None:
    with pytest.raises(SettingError, match="did you mean 'zookeeper_connect'"):
        ZookeeperConsumerConfig(group_id="g", zookeper_connect="z:2181")  # type: ignore[call-arg]
