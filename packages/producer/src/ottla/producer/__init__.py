"""An asyncio producer for Kafka and Ottla, and a synchronous one."""

from ottla.client.group_metadata import GroupMetadata, OffsetAndMetadata
from ottla.client.moved_modules import MovedModules
from ottla.client.serialization import SerializationFailed
from ottla.producer.accumulator import Acknowledgement, Acknowledgements, BatchBuilder
from ottla.producer.config import ProducerConfig, ProducerSettings
from ottla.producer.errors import (
    BufferFull,
    DeliveryTimeout,
    NoSuchPartition,
    ProducerClosed,
    RecordRefused,
    RecordTooLarge,
    TopicRecreated,
)
from ottla.producer.metrics import ProducerMetrics
from ottla.producer.partitioner import Partitioner
from ottla.producer.producer import Producer
from ottla.producer.record import ProducerInterceptor, ProducerRecord, RecordMetadata
from ottla.producer.sync import SyncProducer
from ottla.producer.transactions.prepared_transaction import PreparedTransaction, end_prepared
from ottla.producer.transactions.state import (
    ProducerFenced,
    ProducerLost,
    TransactionAborted,
    TransactionError,
    TransactionFailed,
)
from ottla.protocol.topics import TopicPartition

__all__ = [
    "Acknowledgement",
    "Acknowledgements",
    "BatchBuilder",
    "BufferFull",
    "DeliveryTimeout",
    "GroupMetadata",
    "NoSuchPartition",
    "OffsetAndMetadata",
    "Partitioner",
    "PreparedTransaction",
    "Producer",
    "ProducerClosed",
    "ProducerConfig",
    "ProducerFenced",
    "ProducerInterceptor",
    "ProducerLost",
    "ProducerMetrics",
    "ProducerRecord",
    "ProducerSettings",
    "RecordMetadata",
    "RecordRefused",
    "RecordTooLarge",
    "SerializationFailed",
    "SyncProducer",
    "TopicPartition",
    "TopicRecreated",
    "TransactionAborted",
    "TransactionError",
    "TransactionFailed",
    "end_prepared",
]

__version__ = "0.1.0"

MovedModules({"ottla.producer.interceptors": "ottla.producer.record"}, "ottla-producer").install()
