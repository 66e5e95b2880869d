"""An asyncio consumer for Kafka and Ottla.

It reads partitions that it is given, or all of its topics. It does not share partitions with other members of
a group yet: `group_id` only says under which name offsets are kept.
"""

from ottla.consumer.config import ConsumerConfig
from ottla.consumer.consumer import Consumer
from ottla.consumer.errors import ConsumerClosed, NoOffset
from ottla.consumer.record import ConsumerRecord

__all__ = ["Consumer", "ConsumerClosed", "ConsumerConfig", "ConsumerRecord", "NoOffset"]

__version__ = "0.1.0"
