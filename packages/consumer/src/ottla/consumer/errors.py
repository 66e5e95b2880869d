"""What can go wrong in the consumer itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


class GroupFailed(ClientError):
    """The consumer cannot be a member of its group. It tries again when it is asked for records again."""


class InconsistentAssignors(GroupFailed):
    """The members of the group have no assignor, or no type of protocol, in common."""

    def __init__(self, group_id: str, assignors: list[str]) -> None:
        super().__init__(
            f"group {group_id!r} has members that know none of our assignors ({', '.join(assignors)}), or "
            "that are no consumers. All members need one assignor in common: look at the group with `ottla "
            f"group describe {group_id}` and set partition_assignment_strategy to one that is used there, or "
            "choose another group_id"
        )
        self.assignors = assignors


class Fenced(GroupFailed):
    """Another consumer took over the group.instance.id. This one is no member any more, and stays out."""

    def __init__(self, group_id: str, instance_id: str) -> None:
        super().__init__(
            f"another consumer joined group {group_id!r} as {instance_id!r} and took our place; give each "
            "running consumer a group_instance_id of its own"
        )
        self.instance_id = instance_id


class CommitFailed(ClientError):
    """Offsets were not committed, because the group gave the partitions to others meanwhile.

    What was read since the last commit will be read again by the new owners.
    """


class NoSuchPartitions(errors.UnknownTopicOrPartition):
    """Offsets were not committed of partitions that are not there, or not any more; those of others were.

    It is raised at once, and not tried again for a minute as Java's client does: commits that follow would
    wait behind it. A topic that was made just now is known to all brokers a moment later; commit again.
    """

    retriable = False

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self.partitions = frozenset(partitions)
        names = ", ".join(str(each) for each in sorted(self.partitions))
        super().__init__(f"offsets were not committed, as there is no such partition: {names}")


class ListenerFailed(ClientError):
    """A rebalance listener did not end in time, or was cancelled."""


def named_error(what: str, code: int) -> errors.KafkaError:
    """Return what a broker answered about something. Newer brokers may have codes that nobody here knows."""
    return errors.error_for(code, f"{what}: {errors.error_for(code).code.name}")
