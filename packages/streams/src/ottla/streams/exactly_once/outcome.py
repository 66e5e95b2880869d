"""Decide by the error of a transaction whether to repeat it or to stop. Pure."""

from __future__ import annotations

from typing import Final

from ottla.client.cluster import NoSuchTopic
from ottla.producer import RecordTooLarge, TransactionFailed
from ottla.protocol import errors
from ottla.streams.errors import StreamsError

_PERMANENT: Final = (
    RecordTooLarge,
    NoSuchTopic,
    ValueError,
    errors.MessageTooLarge,
    errors.RecordListTooLarge,
    errors.InvalidTopicException,
    errors.InvalidRecord,
    errors.TopicAuthorizationFailed,
    errors.GroupAuthorizationFailed,
    errors.TransactionalIdAuthorizationFailed,
)


class TransactionsFenced(StreamsError):
    """Another producer uses the processor's transactional id, or a transaction took too long.

    Nothing of the open transaction is visible; a restart continues at the last committed one.
    """

    def __init__(self, cause: BaseException) -> None:
        super().__init__(f"the processor stops, because its transactions were fenced: {cause}")
        self.cause = cause


class OutputRejected(StreamsError):
    """The broker will never take an output of a handler; repeating its transaction changes nothing."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(f"the processor stops, because an output was rejected: {cause}")
        self.cause = cause


def cause_of(error: BaseException) -> BaseException:
    """Return what made a transaction fail, which TransactionFailed carries as its cause."""
    found: BaseException = error
    while isinstance(found, TransactionFailed) and found.__cause__ is not None:
        found = found.__cause__
    return found


def is_permanent(cause: BaseException) -> bool:
    """Whether the same transaction would fail again with certainty."""
    return isinstance(cause, _PERMANENT)
