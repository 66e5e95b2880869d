"""Errors of the consumer and of its group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.client.errors import ClientError, Need, error_about
from ottla.client.serialization import PreparationNeeded, RecordField, one_line
from ottla.protocol import errors
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.records import CorruptRecords, DecompressedTooLarge
from ottla.protocol.topics import TopicPartition


class ConsumerClosed(ClientError):
    """The consumer is not open."""


class ConsumerStopped(ConsumerClosed):
    """`stop` was called. Iterations end by it; calls that return records raise it."""


class WrongMode(ClientError):
    """Both a subscription and a manual assignment were made, or neither: exactly one is needed."""


class NotAssigned(ClientError):
    """The partition is not assigned to this consumer, or not any more."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(f"{partition} is not assigned to this consumer")
        self.partition = partition


class NoOffset(ClientError):
    """A partition has no offset to start from, and `auto_offset_reset` is `none`."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(f"{partition} has no offset to start from; seek, or set auto_offset_reset")
        self.partition = partition


class PositionNotFound(NoOffset):
    """A position was not found in time: the partition does not exist, or its leader cannot be asked."""

    def __init__(self, partition: TopicPartition, timeout_s: float, cause: Exception | None) -> None:
        why = cause or "no broker answered"
        Exception.__init__(self, f"the position of {partition} was not found within {timeout_s:g} s: {why}")
        self.partition = partition


class OffsetOutOfRange(NoOffset, errors.OffsetOutOfRange):
    """Positions are outside of the log, and `auto_offset_reset` is `none`."""

    def __init__(self, partitions: Mapping[TopicPartition, int]) -> None:
        self.partitions = dict(partitions)
        self.partition = next(iter(self.partitions))
        positions = ", ".join(
            f"{partition} at offset {offset}" for partition, offset in self.partitions.items()
        )
        self.message = f"not in the log any more, or not yet: {positions}; seek to an existing offset"
        Exception.__init__(self, self.message)


class LogTruncated(ClientError):
    """A partition lost records that were read already, by an unclean leader election (KIP-320).

    `diverges_at` is the offset from which the log differs from what was read; None if unknown.
    """

    def __init__(self, partition: TopicPartition, position: int, diverges_at: int | None) -> None:
        offset = "an unknown offset" if diverges_at is None else f"offset {diverges_at}"
        super().__init__(
            f"the log of {partition} was truncated: it was read up to {position}, and differs from {offset} "
            "on; seek to the offset to continue at"
        )
        self.partition = partition
        self.position = position
        self.diverges_at = diverges_at


class RecordDeserializationFailed(ClientError):
    """A deserializer failed for a record's key or value. Seek past its offset to skip the record."""

    def __init__(
        self, what: RecordField, partition: TopicPartition, offset: int, cause: BaseException
    ) -> None:
        super().__init__(
            f"the {what} of {partition} at offset {offset} cannot be deserialized: {one_line(cause)}"
        )
        self.what = what
        self.partition = partition
        self.offset = offset
        self.cause = cause


class RecordUnprepared(Exception):
    """The deserializer of a record's key or value must wait first; inside of the consumer."""

    def __init__(
        self, what: RecordField, partition: TopicPartition, offset: int, needed: PreparationNeeded
    ) -> None:
        super().__init__(f"the deserializer of the {what} of {partition} at {offset} must wait first")
        self.what = what
        self.partition = partition
        self.offset = offset
        self.prepare = needed.prepare


class UnreadableBatch(ClientError):
    """A batch of the log cannot be read: its records from `offset` on are neither delivered nor skipped.

    The records before it were delivered. Seek to `next_offset`, behind the batch, to give up the rest of it.
    Without a seek the next call for records fetches the batch again, which mends damage on the way; for a
    batch that is damaged in the log, the error is raised again.
    """

    def __init__(self, partition: TopicPartition, offset: int, next_offset: int, reason: object) -> None:
        super().__init__(
            f"{partition} at offset {offset}: {reason}; to skip this batch, seek to offset {next_offset}"
        )
        self.partition = partition
        self.reason = str(reason)
        self.offset = offset
        """The first offset that could not be delivered."""
        self.next_offset = next_offset
        """The first offset behind the batch."""


class CorruptBatch(UnreadableBatch, CorruptRecords):
    """A batch, or one of its records, violates the format: a wrong checksum, length, count or offset."""


class OversizedBatch(UnreadableBatch, DecompressedTooLarge):
    """A compressed batch is larger than a reader decompresses (`max_decompressed_batch_bytes`)."""


class UnknownBatchCompression(UnreadableBatch, errors.UnsupportedCompressionType):
    """A batch is compressed with a codec that does not exist."""


def unreadable_batch(
    cause: errors.KafkaError, partition: TopicPartition, offset: int, next_offset: int
) -> UnreadableBatch:
    """Return the error of a batch that decoding failed for with `cause`."""
    kind: type[UnreadableBatch] = CorruptBatch
    if isinstance(cause, DecompressedTooLarge):
        kind = OversizedBatch
    elif isinstance(cause, errors.UnsupportedCompressionType):
        kind = UnknownBatchCompression
    return kind(partition, offset, next_offset, cause)


class GroupFailed(ClientError):
    """The consumer cannot join its group. It tries again when the application asks for records again."""


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
    """Another consumer joined with the same group.instance.id. This one stays out of the group."""

    def __init__(self, group_id: str, instance_id: str) -> None:
        super().__init__(
            f"another consumer joined group {group_id!r} as {instance_id!r} and took our place; give each "
            "running consumer a group_instance_id of its own"
        )
        self.instance_id = instance_id


class CommitFailed(ClientError):
    """Offsets were not committed, because the group assigned the partitions to other members.

    Records read since the last commit are read again by the new owners.
    """


class NoSuchPartitions(errors.UnknownTopicOrPartition):
    """Offsets of partitions that do not exist were not committed; offsets of the others were.

    It is raised at once, while Java's client retries for a minute: later commits would wait for it. A new
    topic is known to all brokers after a moment; commit again then.
    """

    retriable = False

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self.partitions = frozenset(partitions)
        names = ", ".join(str(partition) for partition in sorted(self.partitions))
        super().__init__(f"offsets were not committed: no such partition: {names}")


class ListenerFailed(ClientError):
    """A rebalance listener did not end in time, or was cancelled."""


def named_error(
    what: str, code: int, topic: str, operation: Operation = Operation.DESCRIBE
) -> errors.KafkaError:
    """Return the error of a code, with its subject. Unknown codes, of newer brokers, keep their number.

    `operation` is what the request needs on the topic.
    """
    need = Need(operation, ResourceType.TOPIC, topic)
    return error_about(code, f"{what}: {errors.error_for(code).code.name}", need)


def coordinator_error(group_id: str, code: int, assignors: list[str], instance_id: str | None) -> Exception:
    """Return the exception for an error code that keeps a member out of its group."""
    match code:
        case errors.ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            return InconsistentAssignors(group_id, assignors)
        case errors.ErrorCode.FENCED_INSTANCE_ID:
            return Fenced(group_id, instance_id or "")
        case errors.ErrorCode.GROUP_MAX_SIZE_REACHED:
            return GroupFailed(
                f"group {group_id!r} has as many members as the brokers permit (group.max.size); stop some"
            )
        case errors.ErrorCode.INVALID_SESSION_TIMEOUT:
            return GroupFailed(
                "session_timeout_ms is outside of what the brokers permit (group.min.session.timeout.ms to "
                "group.max.session.timeout.ms)"
            )
    return error_about(code, None, Need(Operation.READ, ResourceType.GROUP, group_id))
