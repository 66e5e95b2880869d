"""Errors of share consumers."""

from __future__ import annotations

from ottla.client.errors import ClientError
from ottla.protocol.errors import ErrorCode, error_class
from ottla.protocol.topics import TopicPartition

_REASONS = {
    ErrorCode.INVALID_RECORD_STATE: "its lock had ended, and it is or was with another member",
    ErrorCode.SHARE_SESSION_NOT_FOUND: "the broker closed the session, and gives it to another member",
    ErrorCode.INVALID_SHARE_SESSION_EPOCH: "the broker closed the session, and gives it to another member",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "the partition has another leader, which gives it to a member again",
    ErrorCode.FENCED_LEADER_EPOCH: "the partition has another leader, which gives it to a member again",
}


class AcknowledgementFailed(ClientError):
    """The broker did not take an acknowledgement: the record will be, or was, given to a member again.

    `code` is the broker's error; None if it did not answer, and the acknowledgement may be taken or not.
    """

    def __init__(self, partition: TopicPartition, offset: int, code: int | None, why: object = None) -> None:
        known = None if code is None else _REASONS.get(ErrorCode(code))
        reason = known or why or (error_class(code).description if code is not None else "no answer")
        super().__init__(f"{partition} at offset {offset} was not acknowledged: {reason}")
        self.partition = partition
        self.offset = offset
        self.code = code


class AlreadyAcknowledged(ClientError):
    """The record was acknowledged before, in another way."""

    def __init__(self, partition: TopicPartition, offset: int, how: str) -> None:
        super().__init__(f"{partition} at offset {offset} has an acknowledgement already: {how}")
        self.partition = partition
        self.offset = offset


class NotAcknowledged(ClientError):
    """More records were asked for in the explicit mode than may be without an acknowledgement."""

    def __init__(self, count: int) -> None:
        super().__init__(
            f"{count} records have no acknowledgement yet: accept, release or reject some before more are "
            "asked for, or raise max_in_flight_records"
        )
        self.count = count
