"""The phases of a transactional producer and their transitions. Pure.

    IDLE -> OPEN -> FLUSHING -> COMMITTING -> IDLE
    OPEN, FLUSHING -> ABORTING -> IDLE
    OPEN, FLUSHING -> FAILED -> ABORTING
    COMMITTING -> FAILED
    FLUSHING -> PREPARED, where `end_prepared` ends it, and this producer can only be closed
    and from everywhere to LOST, where the producer can only be closed.

A transaction that FAILED can only be aborted: a record or an offset of it is not written. A producer is LOST
when another one uses its transactional id, or the coordinator does not know it any more. A leader that
rejects its epoch proves neither (KIP-588): the abort finds out, and obtains a new epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NoReturn

from ottla.client.errors import ClientError, UnsupportedByBroker
from ottla.protocol import errors
from ottla.protocol.errors import (
    ClusterAuthorizationFailed,
    ErrorCode,
    InvalidProducerIdMapping,
    InvalidTxnState,
    TransactionalIdAuthorizationFailed,
    TransactionCoordinatorFenced,
    UnsupportedVersion,
)
from ottla.protocol.topics import TopicPartition


class Phase(Enum):
    """The phase of a transactional producer; the value completes the sentence 'the producer is ...'."""

    CLOSED = "not open"
    IDLE = "in no transaction"
    OPEN = "in a transaction"
    FLUSHING = "flushing the transaction"
    FAILED = "in a transaction that can only be aborted"
    PREPARED = "left with a prepared transaction, which end_prepared ends"
    COMMITTING = "committing"
    ABORTING = "aborting"
    LOST = "unusable"


_ALLOWED: dict[Phase, frozenset[Phase]] = {
    Phase.CLOSED: frozenset({Phase.IDLE}),
    Phase.IDLE: frozenset({Phase.OPEN}),
    Phase.OPEN: frozenset({Phase.FAILED, Phase.FLUSHING, Phase.ABORTING}),
    Phase.FLUSHING: frozenset(
        {Phase.FAILED, Phase.FLUSHING, Phase.PREPARED, Phase.COMMITTING, Phase.ABORTING}
    ),
    Phase.PREPARED: frozenset(),
    Phase.FAILED: frozenset({Phase.ABORTING}),
    Phase.COMMITTING: frozenset({Phase.IDLE, Phase.COMMITTING, Phase.FAILED}),
    Phase.ABORTING: frozenset({Phase.IDLE, Phase.ABORTING}),
    Phase.LOST: frozenset(),
}

_FATAL = (
    errors.ProducerFenced,
    InvalidProducerIdMapping,
    InvalidTxnState,
    TransactionalIdAuthorizationFailed,
    TransactionCoordinatorFenced,
    ClusterAuthorizationFailed,
    UnsupportedVersion,
    UnsupportedByBroker,
)

# Answers after a write to the log of the coordinator that failed: the record may be in it nevertheless.
_LEAVES_IN_DOUBT = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.UNKNOWN_SERVER_ERROR}
)

Registrable = TopicPartition | str
"""A partition, or a group by its id."""


class TransactionError(ClientError):
    """A call that is not allowed in the current phase of the producer."""


class TransactionFailed(ClientError):
    """The transaction can only be aborted; `__cause__` is the error of one of its records or offsets."""


class TransactionAborted(TransactionFailed):
    """The application aborted the transaction before the record was sent."""

    def __init__(self) -> None:
        super().__init__("the transaction was aborted before the record was sent")


class ProducerLost(ClientError):
    """The producer can only be closed; `__cause__` says why: most often another producer fenced it."""


class ProducerFenced(ProducerLost, errors.ProducerFenced):
    """Another producer uses the transactional id, or the coordinator ended a transaction that took too long.

    Every call and every record of a fenced producer fails with it.
    """

    def __init__(self, transactional_id: str) -> None:
        self.message = (
            f"the producer is fenced: another one uses the transactional id {transactional_id!r}, or its "
            "transaction took longer than transaction_timeout_ms; close this producer"
        )
        Exception.__init__(self, self.message)
        self.transactional_id = transactional_id


def is_fatal(error: BaseException) -> bool:
    """Whether no further transaction is possible after an error."""
    return isinstance(error, _FATAL)


@dataclass(slots=True)
class TransactionState:
    """The phase of one producer, and what its coordinator knows of the transaction."""

    phase: Phase = Phase.CLOSED
    partitions: set[TopicPartition] = field(default_factory=set)
    """The partitions that are registered with the coordinator."""
    has_offsets: bool = False
    """Whether a group is registered with the coordinator."""
    in_doubt: Counter[Registrable] = field(default_factory=Counter)
    """How many requests to register each of these may or may not have been executed."""
    is_aborted: bool = False
    """Whether the coordinator has aborted the transaction, while the new epoch is still missing."""
    cause: BaseException | None = None
    """Why it is FAILED or LOST."""
    gap: bool = False
    """A numbered batch failed, so that the producer needs a new epoch."""
    version: int = 1
    """The version of the transaction. In version 2 the brokers register what is written (KIP-890)."""

    @property
    def takes_records(self) -> bool:
        """Whether records may be sent."""
        return self.phase is Phase.OPEN

    @property
    def may_be_aborted(self) -> bool:
        """Whether a transaction is open whose commit cannot have reached the coordinator."""
        return Phase.ABORTING in _ALLOWED[self.phase]

    @property
    def is_begun(self) -> bool:
        """Whether the coordinator has certainly begun the transaction: something is registered."""
        return bool(self.partitions) or self.has_offsets

    @property
    def is_empty(self) -> bool:
        """Whether nothing can be registered with the coordinator: then there is nothing for it to end."""
        return not self.is_begun and not self.in_doubt

    def to(self, phase: Phase, doing: str) -> None:
        """Change the phase. Raises TransactionError, TransactionFailed or ProducerLost if not allowed."""
        if phase not in _ALLOWED[self.phase]:
            self.refuse(doing)
        if phase in (Phase.IDLE, Phase.OPEN):
            self.partitions.clear()
            self.in_doubt.clear()
            self.has_offsets = self.is_aborted = False
            self.cause = None
        self.phase = phase

    def refuse(self, doing: str) -> NoReturn:
        """Raise the error that says why a call is not allowed now."""
        if isinstance(self.cause, ProducerFenced):
            raise ProducerFenced(self.cause.transactional_id) from self.cause
        if self.phase is Phase.LOST:
            raise ProducerLost(f"cannot {doing}: {self.cause}; close this producer") from self.cause
        if self.phase is Phase.FAILED:
            raise TransactionFailed(f"cannot {doing}, only abort: {self.cause}") from self.cause
        if self.phase is Phase.IDLE:
            raise TransactionError(
                f"cannot {doing} outside of a transaction; use `async with producer.transaction():`"
            )
        raise TransactionError(f"cannot {doing}: the producer is {self.phase.value}")

    def failed(self, error: BaseException, *, of_record: bool = False) -> None:
        """Note that a record, an offset or the end of the transaction failed for good.

        A leader that refuses a record as outside of the open transaction does not know the coordinator's
        state: the abort finds out. A broker that is too old for version 2 may serve the next transaction.
        """
        is_of_transaction = isinstance(error, InvalidTxnState) or (
            self.version > 1 and isinstance(error, UnsupportedByBroker)
        )
        if is_fatal(error) and not (of_record and is_of_transaction):
            self.phase, self.cause = Phase.LOST, error
        elif self.phase in (Phase.OPEN, Phase.FLUSHING, Phase.COMMITTING):
            self.phase, self.cause = Phase.FAILED, error

    def unregistered(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions that are not registered yet, sorted."""
        return sorted(set(partitions) - self.partitions)

    def registered_by_brokers(self, what: Iterable[Registrable]) -> None:
        """Note partitions or groups that are about to be written to: brokers register them."""
        for named in what:
            if isinstance(named, str):
                self.has_offsets = True
            else:
                self.partitions.add(named)

    def asked(self, what: Iterable[Registrable]) -> None:
        """Note that a request to register partitions or groups is about to be sent."""
        self.in_doubt.update(named for named in what if named not in self.partitions)

    def answered(self, what: Collection[Registrable], code: int) -> None:
        """Note the coordinator's answer to such a request."""
        if code == ErrorCode.NONE:
            self.partitions.update(named for named in what if not isinstance(named, str))
            self.has_offsets = self.has_offsets or any(isinstance(named, str) for named in what)
            for named in what:
                self.in_doubt.pop(named, None)
        elif code not in _LEAVES_IN_DOUBT:
            self.in_doubt -= Counter(what)  # an earlier request may have been executed nevertheless
