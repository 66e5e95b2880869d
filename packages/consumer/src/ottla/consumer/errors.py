"""What can go wrong in the consumer itself."""

from __future__ import annotations

from ottla.client.errors import ClientError
from ottla.protocol.topics import TopicPartition


class ConsumerClosed(ClientError):
    """The consumer is not open: nothing can be read."""


class NoOffset(ClientError):
    """There is no offset to read a partition from, and `auto_offset_reset` is `none`."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(f"{partition} has no offset to start from; seek, or set auto_offset_reset")
        self.partition = partition
