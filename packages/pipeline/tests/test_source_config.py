"""The options of a source."""

from __future__ import annotations

import pytest

from ottla.pipeline.errors import OptionError
from ottla.pipeline.source.config import SourceConfig
from ottla.protocol.topics import TopicPartition

LEAST = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}


def config(*, streaming: bool = False, **given: str) -> SourceConfig:
    return SourceConfig.of(
        LEAST | {name.replace("__", "."): each for name, each in given.items()}, streaming=streaming
    )


def test_defaults_are_those_of_spark() -> None:
    found = config()

    assert found.fail_on_data_loss
    assert not found.include_headers
    assert found.max_offsets_per_trigger is None
    assert found.max_trigger_delay_ms == 15 * 60 * 1_000
    assert found.poll_timeout_ms == 120_000
    assert (found.fetch_retries, found.fetch_retry_interval_ms) == (3, 10)
    assert found.when_no_offset == "error"
    assert found.value.kind == "raw"


def test_the_names_of_options_have_no_case() -> None:
    found = SourceConfig.of(
        {"KAFKA.Bootstrap.Servers": "a:1", "SUBSCRIBE": "orders", "failondataloss": "FALSE"}, streaming=False
    )

    assert not found.fail_on_data_loss
    assert found.consumer_config().client.bootstrap_servers == "a:1"


def test_brokers_have_to_be_named() -> None:
    with pytest.raises(OptionError, match=r"'kafka.bootstrap.servers' is missing"):
        SourceConfig.of({"subscribe": "orders"}, streaming=False)


@pytest.mark.parametrize(
    "given",
    [{}, {"subscribe": "a", "assign": '{"a": [0]}'}, {"subscribe": "a", "subscribePattern": "a"}],
)
def test_exactly_one_option_says_what_to_read(given: dict[str, str]) -> None:
    with pytest.raises(
        OptionError, match="exactly one of the options subscribe, subscribePattern and assign"
    ):
        SourceConfig.of({"kafka.bootstrap.servers": "a:1", **given}, streaming=False)


def test_topics_are_a_list() -> None:
    wanted = config(subscribe=" orders, bills,,").wanted

    assert wanted.topics == wanted.names == frozenset({"orders", "bills"})
    assert wanted.matches("bills")
    assert not wanted.matches("bill")


def test_a_pattern_may_be_found_anywhere_in_a_name() -> None:
    wanted = SourceConfig.of(
        {"kafka.bootstrap.servers": "a:1", "subscribePattern": "ord.*s"}, streaming=False
    ).wanted

    assert wanted.names is None
    assert wanted.matches("my-orders-2")
    assert not wanted.matches("order")


def test_partitions_are_assigned() -> None:
    wanted = SourceConfig.of(
        {"kafka.bootstrap.servers": "a:1", "assign": '{"orders": [1]}'}, streaming=False
    ).wanted

    assert wanted.partitions == {TopicPartition("orders", 1)}
    assert wanted.names == frozenset({"orders"})
    assert wanted.matches("orders")


@pytest.mark.parametrize(
    ("name", "value"),
    [("subscribe", " , "), ("assign", "{}"), ("maxOffsetsPerTrigger", "0"), ("minOffsetsPerTrigger", "many"),
     ("minPartitions", "0"), ("maxRecordsPerPartition", "-1"), ("failOnDataLoss", "perhaps"),
     ("includeHeaders", "1"), ("maxTriggerDelay", "soon"), ("startingOffsetsByTimestampStrategy", "earliest"),
     ("kafkaConsumer.pollTimeoutMs", "0"), ("fetchOffset.numRetries", "-1"), ("value.format", "xml")],
)  # fmt: skip
def test_an_invalid_value_is_rejected_by_the_name_of_its_option(name: str, value: str) -> None:
    given = LEAST | {name: value}
    if name == "assign":
        del given["subscribe"]

    with pytest.raises(OptionError, match=name):
        SourceConfig.of(given, streaming=True)


def test_an_invalid_pattern_is_rejected() -> None:
    with pytest.raises(OptionError, match="'subscribePattern' is not a regular expression"):
        SourceConfig.of({"kafka.bootstrap.servers": "a:1", "subscribePattern": "("}, streaming=False)


def test_an_option_that_there_is_not_is_refused_with_the_nearest() -> None:
    with pytest.raises(OptionError, match="'startingoffset'; did you mean 'startingOffsets'"):
        config(startingOffset="earliest")


def test_the_least_of_a_trigger_is_not_above_the_most() -> None:
    with pytest.raises(OptionError, match=r"minOffsetsPerTrigger \(5\) .* maxOffsetsPerTrigger \(4\)"):
        config(streaming=True, minOffsetsPerTrigger="5", maxOffsetsPerTrigger="4")


@pytest.mark.parametrize(
    ("value", "ms"), [("15m", 900_000), ("30s", 30_000), ("200ms", 200), ("1500", 1_500), ("2 h", 7_200_000)]
)
def test_a_delay_is_a_time(value: str, ms: int) -> None:
    assert config(streaming=True, maxTriggerDelay=value).max_trigger_delay_ms == ms


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(OptionError, match=f"'{name}' cannot be set here: a stream has no end"):
        config(streaming=True, **{name: "1"})


def test_limits_of_triggers_do_nothing_in_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    config(maxOffsetsPerTrigger="5")

    assert "option has no effect option=maxOffsetsPerTrigger" in caplog.text


@pytest.mark.parametrize(
    "name", ["auto.offset.reset", "enable.auto.commit", "key.deserializer", "value.deserializer",
             "interceptor.classes"],
)  # fmt: skip
def test_settings_of_the_source_itself_cannot_be_set(name: str) -> None:
    with pytest.raises(OptionError, match=f"'kafka.{name}' cannot be set: "):
        SourceConfig.of(LEAST | {f"kafka.{name}": "x"}, streaming=False)


@pytest.mark.parametrize("streaming", [False, True])
def test_options_of_spark_s_own_sink_are_accepted_with_a_note(
    streaming: bool, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"topic": "bills", "checkpointLocation": "/tmp/bills", "queryName": "bills"}
    assert config(streaming=streaming, **given) == config(streaming=streaming)
    for name in given:
        assert f"option has no effect option={name} reason=it is an option of writes" in caplog.text


@pytest.mark.parametrize("name", ["acks", "linger.ms", "key.serializer", "compression.type"])
def test_settings_of_the_producer_are_left_out_with_a_note(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = SourceConfig.of(LEAST | {f"kafka.{name}": "any"}, streaming=False)

    assert found == config()
    assert f"option=kafka.{name} reason=it is a setting of the producer" in caplog.text


def test_other_settings_of_kafka_reach_the_consumer() -> None:
    found = config(
        kafka__isolation__level="read_committed", kafka__fetch__max__bytes="1000000", kafka__group__id="label"
    ).consumer_config()

    assert found.reads_committed
    assert found.fetch_max_bytes == 1_000_000
    assert found.group_id is None


def test_nothing_is_jumped_over_committed_or_created() -> None:
    found = config().consumer_config()

    assert found.auto_offset_reset == "none"
    assert not found.enable_auto_commit
    assert not found.allow_auto_create_topics


def test_an_invalid_setting_of_kafka_is_rejected() -> None:
    with pytest.raises(OptionError, match="kafka"):
        config(kafka__fetch__max__bytes="many").consumer_config()
