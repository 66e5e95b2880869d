"""The meaning of the options of a sink, and rejected options."""

from __future__ import annotations

import pickle

import pytest

from ottla.pipeline.errors import OptionError
from ottla.pipeline.sink.config import MARKERS_TOPIC, SinkConfig
from ottla.pipeline.sink.errors import BrokersUnreachable
from ottla.pipeline.sink.spark_writers import require_brokers

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def config(**options: str) -> SinkConfig:
    return SinkConfig.of(SERVERS | {name.replace("__", "."): value for name, value in options.items()})


def test_without_options_rows_are_written_at_least_once_where_the_column_topic_says() -> None:
    found = config()

    assert (found.delivery, found.topic, found.write_id) == ("at-least-once", None, None)
    assert (found.markers_topic, found.fail_on_changed_replay) == (MARKERS_TOPIC, True)
    producer = found.producer_config()
    assert (producer.acks, producer.enable_idempotence) == (-1, None)


def test_kafkas_settings_are_the_producers() -> None:
    found = config(kafka__linger__ms="20", kafka__compression__type="zstd", KAFKA__acks="1")

    producer = found.producer_config()
    assert (producer.linger_ms, producer.compression_type, producer.acks) == (20, "zstd", 1)
    assert producer.client.bootstrap_servers == "127.0.0.1:9092"


def test_exactly_once_has_time_for_a_task_unless_told_otherwise() -> None:
    assert config(delivery="exactly-once").producer_config("x").transaction_timeout_ms == 300_000
    short = config(delivery="Exactly-Once", kafka__transaction__timeout__ms="9000")
    assert short.producer_config("x").transaction_timeout_ms == 9_000
    assert config().producer_config().transaction_timeout_ms == 60_000


def test_more_time_is_asked_for_where_the_options_say_nothing_of_it() -> None:
    assert config().producer_config("x", timeout_ms=900_000).transaction_timeout_ms == 900_000
    short = config(kafka__transaction__timeout__ms="9000")
    assert short.producer_config("x", timeout_ms=900_000).transaction_timeout_ms == 9_000


def test_a_configuration_can_be_sent_to_workers() -> None:
    found = config(delivery="exactly-once", topic="orders")

    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"delivery": "twice"},
            "delivery' must be 'at-least-once' or 'dedupe' or 'exactly-once'",
        ),
        ({"topik": "orders"}, "no option 'topik'; did you mean 'topic'?"),
        ({"topic": " "}, "option 'topic' is missing"),
        ({"topic": "my orders"}, "option 'topic': 'my orders' has characters other than ASCII letters"),
        ({"markers.topic": "."}, "option 'markers.topic': a topic cannot be named '.'"),
        ({"write.id": ""}, "option 'write.id' is missing"),
        ({"includeTimestamps": "maybe"}, "true or false"),
        ({"kafka.transactional.id": "x"}, "exactly-once derives one for each task"),
        ({"kafka.key.serializer": "x"}, "keys are written as raw bytes"),
        ({"kafka.value.serializer": "x"}, "values are written as raw bytes"),
        ({"kafka.partitioner.class": "round_robin"}, "column `partition`"),
        ({"kafka.interceptor.classes": "x"}, "columns"),
        ({"kafka.linger.ms": "soon"}, "linger.ms must be a number"),
        ({"kafka.lingers.ms": "5"}, "did you mean 'linger.ms'"),
        ({"delivery": "exactly-once", "kafka.acks": "1"}, "transactional_id needs acks=-1"),
    ],
)
def test_invalid_options_are_explained(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        SinkConfig.of(SERVERS | options)

    assert message in str(caught.value)


def test_options_of_spark_s_own_source_are_accepted_with_a_note(caplog: pytest.LogCaptureFixture) -> None:
    given = {
        "subscribe": "orders",
        "startingOffsets": "latest",
        "failOnDataLoss": "false",
        "includeHeaders": "x",
    }
    assert config(**given) == config()
    for name in given:
        assert f"option has no effect option={name} reason=it is an option of reads" in caplog.text


def test_settings_of_the_consumer_are_left_out_with_a_note(caplog: pytest.LogCaptureFixture) -> None:
    assert config(kafka__max__poll__records="5", kafka__key__deserializer="any") == config()
    assert "option=kafka.max.poll.records reason=it is a setting of the consumer" in caplog.text


@pytest.mark.parametrize(
    ("codec", "level"), [("gzip", 9), ("lz4", 12), ("zstd", 19), ("snappy", None), (None, None)]
)
def test_the_level_of_the_codec_in_use_is_the_producer_s(codec: str | None, level: int | None) -> None:
    levels = {"compression.gzip.level": "9", "compression.lz4.level": "12", "compression.zstd.level": "19"}
    given = {f"kafka.{name}": text for name, text in levels.items()}
    chosen = {} if codec is None else {"kafka.compression.type": codec}

    assert SinkConfig.of(SERVERS | given | chosen).producer_config().compression_level == level


def test_servers_have_to_be_named() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers"):
        SinkConfig.of({"topic": "orders"})


def test_later_attempts_at_a_task_wait_less_for_a_broker() -> None:
    config = SinkConfig.of({"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.bootstrap.timeout.ms": "8000"})
    waits = [config.for_attempt(number).producer_config().client.bootstrap_timeout_ms for number in range(4)]
    assert waits == [8_000, 2_000, 2_000, 2_000]


def test_the_driver_says_which_brokers_it_cannot_reach() -> None:
    config = SinkConfig.of({"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.bootstrap.timeout.ms": "100"})
    with pytest.raises(BrokersUnreachable, match=r"no row was written.*'127.0.0.1:1'.*within 0.1 s"):
        require_brokers(config)
