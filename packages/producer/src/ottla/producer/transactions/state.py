"""Where a transactional producer is, and where it may go from there. Pure.

    IDLE -> OPEN -> FLUSHING -> COMMITTING -> IDLE
    OPEN, FLUSHING -> ABORTING -> IDLE
    OPEN, FLUSHING -> FAILED -> ABORTING
    FLUSHING -> PREPARED, where somebody else ends it, and this producer can only be closed
    and from everywhere to LOST, where there is nothing to do but close the producer.

A transaction that FAILED can only be aborted: a record or an offset of it is not written. A producer is LOST
when another one uses its transactional id, or the coordinator does not know it any more. A leader of a
partition that refuses its epoch proves neither (KIP-588): the abort finds out, and gets a new epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from ottla.client.errors import ClientError, UnsupportedByBroker
from ottla.protocol.errors import (
    ClusterAuthorizationFailed,
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFenced,
    TransactionalIdAuthorizationFailed,
    TransactionCoordinatorFenced,
    UnsupportedVersion,
)
from ottla.protocol.topics import TopicPartition


class Phase(Enum):
    """What a transactional producer is about."""

    CLOSED = "not open"
    IDLE = "in no transaction"
    OPEN = "in a transaction"
    FLUSHING = "about to commit"
    FAILED = "in a transaction that can only be aborted"
    PREPARED = "done with a transaction that somebody else ends"
    COMMITTING = "committing"
    ABORTING = "aborting"
    LOST = "of no use any more"


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
    ProducerFenced,
    InvalidProducerIdMapping,
    InvalidTxnState,
    TransactionalIdAuthorizationFailed,
    TransactionCoordinatorFenced,
    ClusterAuthorizationFailed,
    UnsupportedVersion,
    UnsupportedByBroker,
)


class TransactionError(ClientError):
    """A call that does not fit to where the producer is with its transaction."""


class TransactionFailed(ClientError):
    """The transaction can only be aborted; `__cause__` is what became of one of its records or offsets."""


class ProducerLost(ClientError):
    """The producer can do nothing any more but be closed; `__cause__` says why: most often it was fenced."""


def is_fatal(error: BaseException) -> bool:
    """Say whether no further transaction is possible after an error."""
    return isinstance(error, _FATAL)


@dataclass(slots=True)
class TransactionState:
    """One producer's way through its transactions."""

    phase: Phase = Phase.CLOSED
    partitions: set[TopicPartition] = field(default_factory=set)
    """Those the coordinator knows to belong to the transaction."""
    has_offsets: bool = False
    cause: BaseException | None = None
    """Why it is FAILED or LOST."""
    gap: bool = False
    """A numbered batch was given up, so that the producer needs a new epoch."""

    @property
    def takes_records(self) -> bool:
        """Whether records may be sent."""
        return self.phase is Phase.OPEN

    @property
    def may_be_aborted(self) -> bool:
        """Whether there is a transaction, and no commit of it may have reached the coordinator."""
        return Phase.ABORTING in _ALLOWED[self.phase]

    @property
    def is_empty(self) -> bool:
        """Whether the coordinator has not heard of the transaction: then there is nothing for it to end."""
        return not self.partitions and not self.has_offsets

    def to(self, phase: Phase, doing: str) -> None:
        """Go on. Raises TransactionError, TransactionFailed or ProducerLost where that is no way to go."""
        if phase not in _ALLOWED[self.phase]:
            self.refuse(doing)
        if phase in (Phase.IDLE, Phase.OPEN):
            self.partitions.clear()
            self.has_offsets, self.cause = False, None
        self.phase = phase

    def refuse(self, doing: str) -> None:
        """Raise what tells why something cannot be done now."""
        if self.phase is Phase.LOST:
            raise ProducerLost(f"cannot {doing}: {self.cause}; close this producer") from self.cause
        if self.phase is Phase.FAILED:
            raise TransactionFailed(f"cannot {doing}, only abort: {self.cause}") from self.cause
        if self.phase is Phase.IDLE:
            raise TransactionError(
                f"cannot {doing} outside of a transaction; use `async with producer.transaction():`"
            )
        raise TransactionError(f"cannot {doing}: the producer is {self.phase.value}")

    def failed(self, error: BaseException) -> None:
        """Take in that something of the transaction went wrong for good."""
        if is_fatal(error):
            self.phase, self.cause = Phase.LOST, error
        elif self.phase in (Phase.OPEN, Phase.FLUSHING, Phase.COMMITTING):
            self.phase, self.cause = Phase.FAILED, error

    def unregistered(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return those that the coordinator does not know yet, in order."""
        return sorted(set(partitions) - self.partitions)
