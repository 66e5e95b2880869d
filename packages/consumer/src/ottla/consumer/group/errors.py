"""What can go wrong for a member of a group."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.client.errors import ClientError
from ottla.protocol.errors import ErrorCode, UnknownTopicOrPartition, error_for
from ottla.protocol.topics import TopicPartition


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


class NoSuchPartitions(UnknownTopicOrPartition):
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


def refusal(group_id: str, code: int, assignors: list[str], instance_id: str | None) -> Exception:
    """Return the error for an answer that keeps a member out of its group."""
    match code:
        case ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            return InconsistentAssignors(group_id, assignors)
        case ErrorCode.FENCED_INSTANCE_ID:
            return Fenced(group_id, instance_id or "")
        case ErrorCode.GROUP_MAX_SIZE_REACHED:
            return GroupFailed(
                f"group {group_id!r} has as many members as the brokers permit (group.max.size); stop some"
            )
        case ErrorCode.INVALID_SESSION_TIMEOUT:
            return GroupFailed(
                "session_timeout_ms is outside of what the brokers permit (group.min.session.timeout.ms to "
                "group.max.session.timeout.ms)"
            )
    return error_for(code)
