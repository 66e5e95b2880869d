"""The exceptions for error codes of a coordinator that keep a member out of its group."""

from __future__ import annotations

from ottla.consumer.errors import Fenced, GroupFailed, InconsistentAssignors
from ottla.protocol.errors import ErrorCode, error_for


def coordinator_error(group_id: str, code: int, assignors: list[str], instance_id: str | None) -> Exception:
    """Return the exception for an error code that keeps a member out of its group."""
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
