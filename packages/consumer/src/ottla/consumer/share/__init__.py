"""Share groups: many members read one partition, and each record is acknowledged by itself (KIP-932).

`ShareConsumer` reads topics as queues. A record that a member acquires is locked for it for a while; it is
given to another member after a release, or once the lock ends without an acknowledgement.
"""

from ottla.consumer.share.config import ShareConsumerConfig
from ottla.consumer.share.consumer import ShareConsumer
from ottla.consumer.share.errors import AcknowledgementFailed, AlreadyAcknowledged, NotAcknowledged
from ottla.consumer.share.record import ShareBatch, ShareRecord
from ottla.consumer.share.sync import SyncShareConsumer

__all__ = [
    "AcknowledgementFailed",
    "AlreadyAcknowledged",
    "NotAcknowledged",
    "ShareBatch",
    "ShareConsumer",
    "ShareConsumerConfig",
    "ShareRecord",
    "SyncShareConsumer",
]
