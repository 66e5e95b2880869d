"""An asyncio consumer for Kafka and Ottla.

`Consumer` reads topics: alone, or as a member of a group whose members share the partitions.
"""

from ottla.client.groups import GroupMetadata, OffsetAndMetadata
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.consumer import Consumer
from ottla.consumer.errors import (
    ConsumerClosed,
    LogTruncated,
    NoOffset,
    NotAssigned,
    OffsetOutOfRange,
    RecordDeserializationFailed,
    WrongMode,
)
from ottla.consumer.group_errors import CommitFailed, Fenced, GroupFailed, ListenerFailed
from ottla.consumer.interceptors import ConsumerInterceptor
from ottla.consumer.listener import RebalanceListener
from ottla.consumer.lookups import OffsetAndTimestamp
from ottla.consumer.metrics import ConsumerMetrics
from ottla.consumer.record import ConsumerRecord, RecordBatch
from ottla.consumer.subscription import TopicFilter
from ottla.protocol.topics import TopicPartition

__all__ = [
    "CommitFailed",
    "Consumer",
    "ConsumerClosed",
    "ConsumerConfig",
    "ConsumerInterceptor",
    "ConsumerMetrics",
    "ConsumerRecord",
    "Fenced",
    "GroupFailed",
    "GroupMetadata",
    "ListenerFailed",
    "LogTruncated",
    "NoOffset",
    "NotAssigned",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetOutOfRange",
    "RebalanceListener",
    "RecordBatch",
    "RecordDeserializationFailed",
    "TopicFilter",
    "TopicPartition",
    "WrongMode",
]

__version__ = "0.1.0"
