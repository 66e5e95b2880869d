"""An asyncio consumer for Kafka and Ottla.

`Consumer` reads topics: alone, or as a member of a group whose members divide the partitions. `ShareConsumer`
reads topics as queues. It and the consumers of Kafka's first years, `SimpleConsumer` and
`ZookeeperConsumerConnector`, are imported when they are asked for.
"""

from typing import TYPE_CHECKING, Any

from ottla.client.group_metadata import GroupMetadata, OffsetAndMetadata
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.consumer import Consumer
from ottla.consumer.errors import (
    CommitFailed,
    ConsumerClosed,
    ConsumerStopped,
    CorruptBatch,
    Fenced,
    GroupFailed,
    ListenerFailed,
    LogTruncated,
    NoOffset,
    NoSuchPartitions,
    NotAssigned,
    OffsetOutOfRange,
    OversizedBatch,
    PositionNotFound,
    RecordDeserializationFailed,
    UnknownBatchCompression,
    UnreadableBatch,
    WrongMode,
)
from ottla.consumer.fetch.offset_lookups import OffsetAndTimestamp
from ottla.consumer.metrics import ConsumerMetrics
from ottla.consumer.record import ConsumerInterceptor, ConsumerRecord, Record, RecordBatch
from ottla.consumer.subscription import RebalanceListener, TopicFilter
from ottla.consumer.sync import SyncConsumer
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.consumer.share import (
        AcknowledgementFailed,
        ShareBatch,
        ShareConsumer,
        ShareConsumerConfig,
        ShareRecord,
        SyncShareConsumer,
    )
    from ottla.consumer.simple import SimpleConsumer
    from ottla.consumer.zookeeper import ZookeeperConsumerConfig, ZookeeperConsumerConnector

__all__ = [
    "AcknowledgementFailed",
    "CommitFailed",
    "Consumer",
    "ConsumerClosed",
    "ConsumerConfig",
    "ConsumerInterceptor",
    "ConsumerMetrics",
    "ConsumerRecord",
    "ConsumerStopped",
    "CorruptBatch",
    "Fenced",
    "GroupFailed",
    "GroupMetadata",
    "ListenerFailed",
    "LogTruncated",
    "NoOffset",
    "NoSuchPartitions",
    "NotAssigned",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetOutOfRange",
    "OversizedBatch",
    "PositionNotFound",
    "RebalanceListener",
    "Record",
    "RecordBatch",
    "RecordDeserializationFailed",
    "ShareBatch",
    "ShareConsumer",
    "ShareConsumerConfig",
    "ShareRecord",
    "SimpleConsumer",
    "SyncConsumer",
    "SyncShareConsumer",
    "TopicFilter",
    "TopicPartition",
    "UnknownBatchCompression",
    "UnreadableBatch",
    "WrongMode",
    "ZookeeperConsumerConfig",
    "ZookeeperConsumerConnector",
]

__version__ = "0.1.0"

_LATE = {
    "AcknowledgementFailed": "ottla.consumer.share",
    "ShareBatch": "ottla.consumer.share",
    "ShareConsumer": "ottla.consumer.share",
    "ShareConsumerConfig": "ottla.consumer.share",
    "ShareRecord": "ottla.consumer.share",
    "SyncShareConsumer": "ottla.consumer.share",
    "SimpleConsumer": "ottla.consumer.simple",
    "ZookeeperConsumerConfig": "ottla.consumer.zookeeper",
    "ZookeeperConsumerConnector": "ottla.consumer.zookeeper",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATE[name]), name)
