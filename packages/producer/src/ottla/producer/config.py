"""The producer's configuration. Names are Kafka's, in snake case; other clients' names are aliases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, Unpack

from ottla.client.config import ClientConfig, ClientSettings
from ottla.client.field_types import check_alone
from ottla.client.interceptors import load
from ottla.client.serialization import RecordSerializers, SerializerSpec, check_serializer
from ottla.client.setting_aliases import refresh_interval, renamed, without_effect
from ottla.client.settings import (
    Alias,
    SettingError,
    check_string,
    configure,
    from_properties,
    setting,
    suggest_names,
    validate,
)
from ottla.producer.partitioner import Partitioner, PartitionerFunction, partitioner
from ottla.protocol.records import Codec

CODECS = {
    "none": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}

CompressionType = Literal["none", "gzip", "snappy", "lz4", "zstd"]

FOREVER = -1

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


def _handlers(value: Any) -> tuple[object, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _old_acks(value: Any) -> int | str:
    if str(value) not in ("-1", "0", "1", "all"):
        raise ValueError("since Kafka 0.8.2 it cannot be a number of brokers; give 0, 1, -1 or 'all'")
    return value if isinstance(value, int) or value == "all" else int(value)


def _partitioner(value: Any) -> Any:
    return _OLD_PARTITIONERS.get(value, value) if isinstance(value, str) else value


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


@suggest_names
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """The settings of a producer."""

    acks: Literal[0, 1, -1, "all"] = -1
    """Replicas that must have a batch before it is acknowledged: -1 or "all" all in-sync ones, 1 the leader,
    0 none."""
    enable_idempotence: bool | None = None
    """Whether brokers drop repetitions of a batch (KIP-98). None: with acks=-1, if they support it."""
    linger_ms: float = setting(5, at_least=0)
    """How long a batch waits for further records; 0 sends at once."""
    batch_size: int = setting(128 * 1024, at_least=1)
    """The largest batch of a partition, in bytes before compression; a full one is sent without linger."""
    max_request_size: int = setting(1_048_576, at_least=1)
    """The largest record, and about the largest request, in bytes."""
    buffer_memory: int = setting(32 * 1024 * 1024, at_least=1)
    """Bytes of records that may wait for their acknowledgement; `send` waits while there are more."""
    queue_buffering_max_messages: int = setting(0, at_least=0)
    """Records that may wait for their acknowledgement, beside `buffer_memory`; 0: no limit but the bytes."""
    batch_num_messages: int = setting(0, at_least=0, at_most=2_147_483_647)
    """The largest batch of a partition in records, beside `batch_size`; 0: no limit but the bytes."""
    max_block_ms: int = setting(60_000, at_least=FOREVER)
    """How long `send` may wait, for buffer space or metadata; 0 raises BufferFull at once, -1: no limit."""
    compression_type: CompressionType = setting("none", synonyms={None: "none"})
    """The codec of batches."""
    compression_level: int | None = None
    """The compression level, in the scale of the codec; None: the default of the codec."""
    compressed_topics: Sequence[str] | None = None
    """The topics whose batches are compressed; None: all topics."""
    delivery_timeout_ms: int = setting(120_000, at_least=1)
    """How long a record may take from `send` to its acknowledgement, retries included."""
    metadata_refresh_at_each_send: bool = False
    """Whether `send` refreshes the topic's metadata first, which costs a request per call. It is what
    `topic.metadata.refresh.interval.ms=0` means."""
    metadata_max_idle_ms: int = setting(300_000, at_least=1)
    """A topic's metadata is no longer refreshed after so long without a record, until the next one."""
    retries: int = setting(2_147_483_647, at_least=0)
    """How often a batch may be sent again; `delivery_timeout_ms` is the better limit."""
    partitioner: str | Partitioner | PartitionerFunction | None = None
    """Chooses the partition of a record without one: a partitioner's name, an object with `partition`, or a
    callable (key, all partitions, available partitions). None: keys as Java's client, the rest adaptively."""
    key_serializer: SerializerSpec = None
    """The serializer of keys. None: bytes and text only."""
    value_serializer: SerializerSpec = None
    """The serializer of values. None: bytes and text as they are, other values as msgpack."""
    key_type: Any = None
    """The type of keys, instead of a serializer: bytes, str, or another as JSON (`FieldType`: msgpack)."""
    value_type: Any = None
    """The type of values, instead of a serializer: a dataclass, a msgspec struct, a pydantic model, a
    TypedDict or another type as JSON (`FieldType`: msgpack), bytes, or str."""
    interceptors: Sequence[object] = ()
    """Objects whose methods are called as records are sent, batched and acknowledged."""
    transactional_id: str | None = None
    """The id of the producer's transactions; a later producer with the same id fences this one."""
    transaction_timeout_ms: int = setting(60_000, at_least=1)
    """After so long the coordinator aborts a transaction that was not ended."""
    client: ClientConfig = field(default_factory=ClientConfig)
    """Connections, timeouts and security."""

    aliases: ClassVar[Mapping[str, Alias]] = PRODUCER_ALIASES

    def __post_init__(self) -> None:
        validate(self)
        if self.acks == "all":
            object.__setattr__(self, "acks", -1)
        object.__setattr__(self, "interceptors", load(self.interceptors))
        if isinstance(self.compressed_topics, str):
            object.__setattr__(self, "compressed_topics", tuple(self.compressed_topics.split(",")))
        self._check_promises()
        check_serializer(self.key_serializer, is_key=True)
        check_serializer(self.value_serializer)
        for name, serializer in (("key_type", "key_serializer"), ("value_type", "value_serializer")):
            kind = check_alone(getattr(self, name), name, serializer, getattr(self, serializer))
            object.__setattr__(self, name, kind)
        partitioner(self.partitioner)

    def _check_promises(self) -> None:
        if self.enable_idempotence and self.acks != -1:
            raise SettingError("enable_idempotence needs acks=-1")
        if self.transactional_id == "":
            raise SettingError("transactional_id must not be empty; leave it out to have no transactions")
        check_string("transactional_id", self.transactional_id)
        if self.transactional_id is not None and (self.enable_idempotence is False or self.acks != -1):
            raise SettingError("transactional_id needs acks=-1 and idempotence")

    @classmethod
    def of(cls, **settings: Unpack[ProducerSettings]) -> Self:
        """Return a config of flat settings, those of ClientConfig and SecurityConfig among them."""
        return configure(cls, settings)

    @classmethod
    def from_properties(
        cls, source: str | Path | Mapping[str, Any], **settings: Unpack[ProducerSettings]
    ) -> Self:
        """Read a properties file, or a mapping, with dotted names; `settings` win over it."""
        return from_properties(cls, source, **settings)

    @property
    def required_acks(self) -> int:
        """`acks` as a number of the protocol."""
        return -1 if self.acks == "all" else self.acks

    def serializers(self) -> RecordSerializers:
        """Return the serializers of keys and values."""
        return RecordSerializers(
            self.key_serializer if self.key_type is None else self.key_type.serializer,
            self.value_serializer if self.value_type is None else self.value_type.serializer,
        )

    def of_bytes(self) -> Self:
        """Return this config for a producer of keys and values that are bytes already."""
        return replace(self, key_serializer=None, value_serializer=None, key_type=None, value_type=None)

    def codec_for(self, topic: str) -> Codec:
        """Return the codec of a topic's batches."""
        if self.compressed_topics and topic not in self.compressed_topics:
            return Codec.NONE
        return CODECS[self.compression_type]


class UntypedProducerSettings(ClientSettings, total=False):
    """The fields of ProducerConfig as keywords, without those that give keys and values their types."""

    bootstrap_servers: str | Sequence[str] | None
    acks: Literal[0, 1, -1, "all"]
    enable_idempotence: bool | None
    linger_ms: float
    batch_size: int
    max_request_size: int
    buffer_memory: int
    queue_buffering_max_messages: int
    batch_num_messages: int
    max_block_ms: int
    compression_type: CompressionType | None
    compression_level: int | None
    compressed_topics: Sequence[str] | None
    delivery_timeout_ms: int
    metadata_refresh_at_each_send: bool
    metadata_max_idle_ms: int
    retries: int
    partitioner: str | Partitioner | PartitionerFunction | None
    interceptors: Sequence[object]
    transactional_id: str | None
    transaction_timeout_ms: int


class ProducerSettings(UntypedProducerSettings, total=False):
    """The fields of ProducerConfig as keywords; `ProducerConfig` says what they mean."""

    key_serializer: SerializerSpec
    value_serializer: SerializerSpec
    key_type: Any
    value_type: Any
