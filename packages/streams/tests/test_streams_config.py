from __future__ import annotations

from typing import Any

import pytest

from ottla.client.settings import SettingError
from ottla.streams import Processor, StreamsConfig
from ottla.streams.config import transactional


def test_a_name_of_both_clients_is_set_for_both() -> None:
    config = StreamsConfig.of(group_id="g", bootstrap_servers="h:1", max_concurrency=5)

    assert config.group_id == "g"
    assert config.max_concurrency == 5
    assert config.consumer.client.bootstrap_servers == "h:1"
    assert config.producer.client.bootstrap_servers == "h:1"


def test_retries_of_handlers_are_not_those_of_the_producer() -> None:
    config = StreamsConfig.of(group_id="g", retries=3, retry_backoff_ms=7)

    assert (config.retries, config.retry_backoff_ms) == (3, 7)
    assert config.producer.retries > 1_000_000
    assert config.producer.client.retry_backoff_ms == 100


def test_a_new_group_starts_at_the_first_record_unless_told_otherwise() -> None:
    assert StreamsConfig.of(group_id="g").consumer.auto_offset_reset == "earliest"
    assert StreamsConfig.of(group_id="g", auto_offset_reset="latest").consumer.auto_offset_reset == "latest"


def test_a_properties_file_has_kafkas_dotted_names(tmp_path: Any) -> None:
    file = tmp_path / "streams.properties"
    file.write_text("group.id=g\nmax.concurrency=5\nlinger.ms=1\n")

    config = StreamsConfig.from_properties(file, max_concurrency=6)

    assert (config.group_id, config.max_concurrency, config.producer.linger_ms) == ("g", 6, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": "keys"}, "order must be 'key', 'partition', 'none' or a function"),
        ({"retrys": 3}, "did you mean 'retries'"),
        ({"bootstrap_server": "a:1"}, "did you mean 'bootstrap_servers'"),
        ({"linger": 1}, "did you mean 'linger_ms'"),
        ({"value_deserializer": "json"}, "annotate the handler"),
        ({"enable_auto_commit": True}, "finished offsets are always committed"),
        ({"drain_timeout_ms": 300_000}, "must be below max_poll_interval_ms"),
        ({"poison_keys": "set-aside"}, "poison_keys needs a dead_letter_topic"),
        ({"on_error": {ValueError: "drop"}}, "must be 'retry', 'dead-letter', 'skip' or 'stop'"),
        ({"on_error": "skip"}, "on_error maps types of exceptions to what follows.* it is not 'skip'"),
        ({"on_error": {ValueError: "dead-letter"}}, "set dead_letter_topic"),
        ({"max_concurrency": 0}, "max_concurrency must be at least 1"),
        ({"retry_backoff_ms": 10, "retry_backoff_max_ms": 9}, "retry_backoff_max_ms must be at least"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_cure(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        StreamsConfig.of(group_id="g", **settings)


def test_a_dead_letter_topic_that_is_read_itself_is_refused() -> None:
    with pytest.raises(SettingError, match="'orders' is read by this handler"):
        Processor(print, "orders", group_id="g", dead_letter_topic="orders")


def test_a_processor_needs_a_group() -> None:
    with pytest.raises(SettingError, match="group_id is needed"):
        _ = StreamsConfig.of().group_id


def test_the_consumer_neither_commits_nor_waits_by_itself() -> None:
    reading = StreamsConfig.of(group_id="g").reading()

    assert (reading.enable_auto_commit, reading.handling_grace_ms) == (False, 0)


def test_a_transaction_of_a_process_that_died_is_ended_soon_and_commits_end_before() -> None:
    config = StreamsConfig.of(group_id="g", processing_guarantee="exactly-once")
    slow = StreamsConfig.of(group_id="g", processing_guarantee="exactly-once", transaction_timeout_ms=60_000)

    assert (config.producer.transaction_timeout_ms, transactional(config, "x").commit_timeout_ms) == (
        10_000,
        8_000,
    )
    assert (slow.producer.transaction_timeout_ms, transactional(slow, "x").commit_timeout_ms) == (
        60_000,
        15_000,
    )
    assert StreamsConfig().producer.transaction_timeout_ms == 10_000


def test_properties_with_dots_win_over_what_streams_set_by_default() -> None:
    config = StreamsConfig.from_properties({"transaction.timeout.ms": "30000", "auto.offset.reset": "latest"})

    assert (config.producer.transaction_timeout_ms, config.consumer.auto_offset_reset) == (30_000, "latest")
