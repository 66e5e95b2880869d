"""An asyncio producer for Kafka and Ottla."""

from ottla.producer.config import ProducerConfig
from ottla.producer.errors import DeliveryTimeout, ProducerClosed, RecordTooLarge
from ottla.producer.producer import Producer
from ottla.producer.record import RecordMetadata

__all__ = [
    "DeliveryTimeout",
    "Producer",
    "ProducerClosed",
    "ProducerConfig",
    "RecordMetadata",
    "RecordTooLarge",
]

__version__ = "0.1.0"
