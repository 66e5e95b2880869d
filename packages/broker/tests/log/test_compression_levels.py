"""A topic's own codec compresses with the topic's level (KIP-390)."""

from __future__ import annotations

import pytest

from ottla.broker.config import BrokerConfig, ConfigError, LogConfig
from ottla.broker.log.append.batch_preparation import convert, prepare
from ottla.protocol.records import BatchBuilder, convert_down, decode_records

TEXT = b" ".join(b"%d of many words that come again %d" % (n, n * n) for n in range(20_000))


def plain_batch() -> bytes:
    builder = BatchBuilder(2**31 - 1)
    builder.append(b"k", TEXT, 1)
    return builder.build()


def config_of(codec: str, level: int) -> LogConfig:
    settings = {"compression.type": codec, f"compression.{codec}.level": str(level)}
    return LogConfig.from_broker(BrokerConfig(), settings)


@pytest.mark.parametrize(("codec", "low", "high"), [("gzip", 1, 9), ("lz4", 1, 12), ("zstd", 1, 19)])
def test_a_higher_level_makes_less_of_the_same_records(codec: str, low: int, high: int) -> None:
    fast, small = (prepare(plain_batch(), config_of(codec, level)) for level in (low, high))

    assert len(small) < len(fast)
    assert [record.value for record in decode_records(small)] == [TEXT]


def test_converted_messages_are_compressed_with_the_level_as_well() -> None:
    legacy = convert_down(plain_batch(), 1)

    assert len(convert(legacy, 1, config_of("zstd", 19))) < len(convert(legacy, 1, config_of("zstd", 1)))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "10"),
        ("compression.lz4.level", "18"),
        ("compression.zstd.level", "23"),
    ],
)
def test_a_level_that_the_codec_has_not_is_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        LogConfig.from_broker(BrokerConfig(), {key: value})


def test_a_topic_may_have_neither_policy() -> None:
    config = LogConfig.from_broker(BrokerConfig(), {"cleanup.policy": ""})

    assert not config.delete
    assert not config.compact
