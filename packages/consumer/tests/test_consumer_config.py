from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from ottla.client.settings import aliases, configure, settings_of
from ottla.consumer.assignors import StickyAssignor
from ottla.consumer.config import ConsumerConfig, ConsumerSettings


def test_every_field_can_be_given_as_a_keyword_and_every_keyword_is_a_field() -> None:
    assert set(ConsumerSettings.__annotations__) == {*settings_of(ConsumerConfig), "client", "security"}


def test_every_alias_stands_for_a_field_or_says_what_became_of_it() -> None:
    for name, alias in aliases(ConsumerConfig).items():
        assert name not in settings_of(ConsumerConfig)
        assert alias.field in settings_of(ConsumerConfig) or alias.expand or alias.advice, name


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"group": "x"}, "there is no setting 'group'"),
        ({"group_ids": "x"}, "there is no setting 'group_ids'; did you mean 'group_id'?"),
        ({"group_id": ""}, "group_id must not be empty; leave it out"),
        ({"group_id": "ü" * 20_000}, "^group_id has 40000 bytes, at most 32767$"),
        ({"group_instance_id": "a"}, "group_instance_id needs a group_id"),
        ({"group_id": "a", "group_instance_id": "b" * 32_768}, "^group_instance_id has 32768 bytes, at most"),
        ({"auto_offset_reset": "first"}, "must be 'earliest' or 'latest' or 'none', not 'first'"),
        ({"heartbeat_interval_ms": 50_000}, "heartbeat_interval_ms must be below session_timeout_ms"),
        ({"partition_assignment_strategy": "rang"}, "there is no assignor 'rang'"),
        ({"value_deserializer": "yaml"}, "'yaml' is not known"),
        ({"max_poll_records": 0}, "max_poll_records must be at least 1, not 0"),
        ({"group_protocol": "raft"}, "must be 'classic' or 'consumer', not 'raft'"),
        ({"group_remote_assignor": "range"}, 'group_remote_assignor needs group_protocol="consumer"'),
        ({"group_protocol": "consumer"}, '^group_protocol="consumer" needs a group_id$'),
        (
            {"group_id": "a", "group_protocol": "CONSUMER", "heartbeat_interval_ms": 1_000},
            "heartbeat_interval_ms is a setting of the classic protocol; .* consumer.heartbeat.interval.ms",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        configure(ConsumerConfig, settings)

    assert "\n" not in str(refused.value)


CONSUMER_PROPERTIES = """
zookeeper.connect=one:2181/kafka
bootstrap.servers=one:9092
group.id=billing
socket.timeout.ms=20000
fetch.message.max.bytes=2097152
auto.commit.enable=false
auto.offset.reset=smallest
consumer.timeout.ms=5000
rebalance.max.retries=4
partition.assignment.strategy=roundrobin
"""


def test_a_properties_file_of_kafka_08_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "consumer.properties"
    file.write_text(CONSUMER_PROPERTIES)

    with caplog.at_level(logging.WARNING):
        config = ConsumerConfig.from_properties(file)

    assert config.client.bootstrap_servers == "one:9092"
    assert config.client.request_timeout_ms == 20_000
    assert (config.group_id, config.auto_offset_reset, config.enable_auto_commit) == (
        "billing",
        "earliest",
        False,
    )
    assert (config.max_partition_fetch_bytes, config.consumer_timeout_ms) == (2_097_152, 5_000)
    messages = [record.getMessage() for record in caplog.records]
    assert [message.partition(":")[0] for message in messages] == [
        "zookeeper.connect",
        "rebalance.max.retries",
    ]
    assert "ZookeeperConsumerConnector" in messages[0]


@pytest.mark.parametrize(("old", "new"), [("largest", "latest"), ("smallest", "earliest"), ("error", "none")])
def test_older_words_for_where_to_begin_are_understood(old: Any, new: str) -> None:
    assert ConsumerConfig(auto_offset_reset=old).auto_offset_reset == new
    assert ConsumerConfig.of(auto_offset_reset=old).auto_offset_reset == new


def test_the_group_gets_what_concerns_it() -> None:
    config = ConsumerConfig.of(
        group_id="g",
        session_timeout_ms=9_000,
        isolation_level="read_committed",
        partition_assignment_strategy=[StickyAssignor],  # type: ignore[list-item]
        metadata_max_age_ms=50,
    )

    group = config.group()

    assert group is not None
    assert (group.group_id, group.session_timeout_ms, group.require_stable) == ("g", 9_000, True)
    assert group.metadata_max_age_ms == 50
    assert ConsumerConfig().group() is None
