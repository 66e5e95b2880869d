"""What members are told when the log did not take what they said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.protocol.errors import ErrorCode

_COMMIT_ANSWERS: Final[Mapping[int, ErrorCode]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}
_GROUP_ANSWERS: Final[Mapping[int, ErrorCode]] = {
    **_COMMIT_ANSWERS,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def after_failed_commit(code: ErrorCode) -> ErrorCode:
    """Say in a consumer's words why offsets could not be written."""
    return _COMMIT_ANSWERS.get(code, code)


def after_failed_group_write(code: ErrorCode) -> ErrorCode:
    """Say in a member's words why its group could not be written."""
    return _GROUP_ANSWERS.get(code, code)
