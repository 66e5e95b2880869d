"""What can go wrong in the consumer itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ottla.client.errors import ClientError
from ottla.protocol import errors
from ottla.protocol.topics import TopicPartition


class ConsumerClosed(ClientError):
    """The consumer is not open: nothing can be read."""


class WrongMode(ClientError):
    """Topics are subscribed to and partitions were assigned, or neither was: one of the two must be."""


class NotAssigned(ClientError):
    """The consumer does not read this partition, or does not any more."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(f"{partition} is not assigned to this consumer")
        self.partition = partition


class NoOffset(ClientError):
    """There is no offset to read a partition from, and `auto_offset_reset` is `none`."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(f"{partition} has no offset to start from; seek, or set auto_offset_reset")
        self.partition = partition


class OffsetOutOfRange(NoOffset, errors.OffsetOutOfRange):
    """Positions are outside of what the log has, and `auto_offset_reset` is `none`."""

    def __init__(self, partitions: Mapping[TopicPartition, int]) -> None:
        self.partitions = dict(partitions)
        self.partition = next(iter(self.partitions))
        places = ", ".join(f"{partition} at offset {offset}" for partition, offset in self.partitions.items())
        self.message = f"not in the log any more, or not yet: {places}; seek to where it goes on"
        Exception.__init__(self, self.message)


class LogTruncated(ClientError):
    """A partition lost records that were read already: an unclean leader took over (KIP-320).

    `diverges_at` is the offset from which on the log holds other records now, where that is known.
    """

    def __init__(self, partition: TopicPartition, position: int, diverges_at: int | None) -> None:
        place = "nobody knows where" if diverges_at is None else f"offset {diverges_at}"
        super().__init__(
            f"the log of {partition} was truncated: it was read up to {position}, and differs from {place} "
            "on; seek to where it goes on"
        )
        self.partition = partition
        self.position = position
        self.diverges_at = diverges_at


class RecordDeserializationFailed(ClientError):
    """A record's key or value is not what its deserializer reads. Seek past its offset to leave it out."""

    def __init__(
        self, what: Literal["key", "value"], partition: TopicPartition, offset: int, cause: BaseException
    ) -> None:
        super().__init__(f"the {what} of {partition} at offset {offset} cannot be deserialized: {cause}")
        self.what = what
        self.partition = partition
        self.offset = offset
        self.cause = cause


def named_error(what: str, code: int) -> errors.KafkaError:
    """Return what a broker answered about something. Newer brokers may have codes that nobody here knows."""
    return errors.error_for(code, f"{what}: {errors.error_for(code).code.name}")
