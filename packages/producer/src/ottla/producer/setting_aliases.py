"""Other names of the producer's settings: in older Kafka, Java, librdkafka and Python's clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla.client.setting_aliases import refresh_interval, renamed, without_effect
from ottla.client.settings import Alias

_CODES = ("none", "gzip", "snappy", "lz4", "zstd")
_OLD_PARTITIONERS = {
    "kafka.producer.DefaultPartitioner": "random_for_ten_minutes",
    "kafka.producer.ByteArrayPartitioner": "random_for_ten_minutes",
    "org.apache.kafka.clients.producer.RoundRobinPartitioner": "round_robin",
    "org.apache.kafka.clients.producer.UniformStickyPartitioner": "sticky",
    "org.apache.kafka.clients.producer.internals.DefaultPartitioner": None,
}


def _codec(value: Any) -> str:
    """Return the codec of a name, or of a number as in Kafka 0.8."""
    text = str(value).lower()
    if text.isdigit() and int(text) < len(_CODES):
        return _CODES[int(text)]
    return text


def _old_acks(value: Any) -> int | str:
    if str(value) not in ("-1", "0", "1", "all"):
        raise ValueError("since Kafka 0.8.2 it cannot be a number of brokers; give 0, 1, -1 or 'all'")
    return value if isinstance(value, int) or value == "all" else int(value)


def _partitioner(value: Any) -> Any:
    return _OLD_PARTITIONERS.get(value, value) if isinstance(value, str) else value


def _handlers(value: Any) -> tuple[object, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _producer_type(name: Any) -> dict[str, Any]:
    if str(name) not in ("sync", "async"):
        raise ValueError("give sync or async")
    return {}


def _refresh_interval(given: Any) -> dict[str, Any]:
    """Return the age of metadata; 0 means a refresh at each send."""
    if int(given) == 0:
        return {"metadata_refresh_at_each_send": True}
    return refresh_interval(given)


PRODUCER_ALIASES: Mapping[str, Alias] = {
    "request_required_acks": Alias("acks", "Kafka 0.8, librdkafka", _old_acks),
    "compression_codec": Alias("compression_type", "Kafka 0.8, librdkafka", _codec),
    **renamed(
        "Kafka 0.8",
        {
            "message_send_max_retries": "retries",
            "queue_buffering_max_ms": "linger_ms",
            "queue_enqueue_timeout_ms": "max_block_ms",
            "serializer_class": "value_serializer",
            "key_serializer_class": "key_serializer",
        },
    ),
    "partitioner_class": Alias("partitioner", "Kafka, Kafka 0.8", _partitioner),
    "interceptor_classes": Alias("interceptors", "Kafka", _handlers),
    "event_handler": Alias("interceptors", "Kafka 0.7", _handlers),
    "callback_handler": Alias("interceptors", "Kafka 0.7", _handlers),
    **renamed(
        "Kafka 0.7",
        {
            "queue_time": "linger_ms",
            "queue_size": "queue_buffering_max_messages",
            "buffer_size": "send_buffer_bytes",
        },
    ),
    **renamed("aiokafka", {"max_batch_size": "batch_size"}),
    **renamed(
        "librdkafka",
        {
            "message_timeout_ms": "delivery_timeout_ms",
            "message_max_bytes": "max_request_size",
        },
    ),
    "queue_buffering_max_kbytes": Alias("buffer_memory", "librdkafka", lambda kbytes: int(kbytes) * 1024),
    "producer_type": Alias(
        None,
        "Kafka 0.7 and 0.8",
        expand=_producer_type,
        advice="records are always sent from a queue; send_and_wait waits, linger_ms=0 sends at once",
    ),
    "topic_metadata_refresh_interval_ms": Alias(None, "Kafka 0.8, librdkafka", expand=_refresh_interval),
    "max_message_size": Alias("max_request_size", "Kafka 0.7"),
    "zk_connect": without_effect("Kafka 0.7", "brokers are found through bootstrap_servers"),
    "block_on_buffer_full": without_effect(
        "Kafka 0.8.2", "max_block_ms is the longest wait: -1 for ever, 0 not at all"
    ),
    "metadata_fetch_timeout_ms": Alias("max_block_ms", "Kafka 0.8.2"),
    "timeout_ms": Alias("request_timeout_ms", "Kafka 0.8.2"),
    "partitioner_adaptive_partitioning_enable": without_effect(
        "Kafka", "the default partitioner is adaptive; others are not"
    ),
    "partitioner_availability_timeout_ms": without_effect(
        "Kafka", "the default partitioner avoids slow partitions"
    ),
}
