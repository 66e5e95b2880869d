"""The error codes of responses to requests of groups and transactions whose write to the log failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.protocol.errors import ErrorCode

FENCED_FROM: Final = 2
"""The version of AddPartitionsToTxn, AddOffsetsToTxn and EndTxn that knows PRODUCER_FENCED (KIP-588)."""
INITIALIZE_FENCED_FROM: Final = 4
"""The version of InitProducerId that knows it."""

_COMMIT_ERRORS: Final[Mapping[int, ErrorCode]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}
_CONFIRMATION_ERRORS: Final[Mapping[int, ErrorCode]] = {
    code: ErrorCode.NOT_COORDINATOR
    for code, answer in _COMMIT_ERRORS.items()
    if answer is ErrorCode.NOT_COORDINATOR
}
_RECORD_ERRORS: Final[Mapping[int, ErrorCode]] = {
    **_COMMIT_ERRORS,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
_GROUP_ERRORS: Final[Mapping[int, ErrorCode]] = {
    **_COMMIT_ERRORS,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def after_failed_transaction_write(code: ErrorCode) -> ErrorCode:
    """Return the error of a request to the transaction coordinator for a write that failed with `code`."""
    return _RECORD_ERRORS.get(code, code)


def known_to(version: int, error: ErrorCode, fenced_from: int = FENCED_FROM) -> ErrorCode:
    """Return the error as clients of this version know it: older ones know another code for the fenced."""
    if error is ErrorCode.PRODUCER_FENCED and version < fenced_from:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def after_failed_commit(code: ErrorCode) -> ErrorCode:
    """Return the error of OffsetCommit for a write that failed with `code`."""
    return _COMMIT_ERRORS.get(code, code)


def after_failed_confirmation(code: ErrorCode) -> ErrorCode:
    """Return the error of an OffsetFetch before which the coordinator was not confirmed to be the leader.

    Clients of every version repeat OffsetFetch after these two.
    """
    return _CONFIRMATION_ERRORS.get(code, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def after_failed_group_write(code: ErrorCode) -> ErrorCode:
    """Return the error of JoinGroup and SyncGroup for a classic group whose write failed with `code`."""
    return _GROUP_ERRORS.get(code, code)


def after_failed_group_records(code: ErrorCode) -> ErrorCode:
    """Return the error of a request to a group of another kind, whose records failed with `code`.

    Members of these repeat a heartbeat after COORDINATOR_NOT_AVAILABLE; another one ends them.
    """
    return _RECORD_ERRORS.get(code, code)
