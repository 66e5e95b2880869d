"""The vocabulary of a transaction: its states, what the log stores, events, and the outcome of a step."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.frozen_classes import frozen

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_TIME: Final = -1
LAST_EPOCH: Final = 2**15 - 1
"""The largest epoch. No client gets it: it fences the producer with the epoch before it."""
EPOCH_RISES_FROM: Final = 2
"""The version of transactions whose end raises the epoch (KIP-890)."""

Token: TypeAlias = Hashable
"""Identifies a request that waits for its answer; the transaction only returns it with the reply."""


class TransactionState(Enum):
    """The states of a transactional id by the names that clients see, in the order of their numbers."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"


_State: TypeAlias = TransactionState
PREPARED: Final = frozenset({_State.PREPARE_COMMIT, _State.PREPARE_ABORT})
"""The end is decided, and markers are missing."""
COMPLETE: Final = frozenset({_State.COMPLETE_COMMIT, _State.COMPLETE_ABORT})
IDLE: Final = COMPLETE | {_State.EMPTY}
"""No transaction is open: a new one may begin, and the id may expire."""
# State -> the states from which it is entered, as in Kafka. Dead and PrepareEpochFence are never written:
# they are Kafka's names for an expiration and a fence that are on their way to the log. Here such an id keeps
# its state until the tombstone, or the PrepareAbort, is committed.
PREVIOUS_STATES: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    _State.EMPTY: IDLE,
    _State.ONGOING: IDLE | {_State.ONGOING},
    _State.PREPARE_COMMIT: frozenset({_State.ONGOING}),
    # From the idle ones in version 2: the abort of what has no partition raises the epoch, too.
    _State.PREPARE_ABORT: IDLE | {_State.ONGOING, _State.PREPARE_EPOCH_FENCE},
    _State.COMPLETE_COMMIT: frozenset({_State.PREPARE_COMMIT}),
    _State.COMPLETE_ABORT: frozenset({_State.PREPARE_ABORT}),
    _State.DEAD: IDLE,
    _State.PREPARE_EPOCH_FENCE: frozenset({_State.ONGOING}),
}


@frozen
class Producer:
    """A producer id with an epoch."""

    id: int
    epoch: int


NO_PRODUCER: Final = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@frozen(kw_only=True)
class TransactionSnapshot:
    """A transactional id as the log stores it; times are wall-clock milliseconds, -1 for none.

    `previous` is the producer before the last InitProducerId that named one, or before the last end in
    version 2, for their repetition (KIP-360, KIP-890). The log holds at most its id.
    """

    producer: Producer
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIME
    updated_ms: int = NO_TIME
    previous: Producer = NO_PRODUCER
    next_id: int = NO_PRODUCER_ID
    """The producer id that follows the completion, where the epochs of this one are used up."""
    version: int = 0
    """The version of transactions that the producer used last: 2 or more where the end raises the epoch."""

    @property
    def successor(self) -> Producer:
        """The producer after the completion of a transaction whose end is decided."""
        return self.producer if self.next_id == NO_PRODUCER_ID else Producer(self.next_id, 0)


UNREADABLE: Final = TransactionSnapshot(producer=NO_PRODUCER, timeout_ms=0, state=TransactionState.DEAD)
"""Stands for a record whose value cannot be read. The one before it is out of date: it must not be used."""


class Reason(Enum):
    """Why a snapshot is written."""

    INITIALIZED = "initialized"
    PARTITIONS_ADDED = "partitions added"
    ENDED = "ended"
    FENCED = "fenced"
    COMPLETED = "completed"
    EXPIRED = "expired"


@frozen
class Write:
    """A snapshot to be written, None for a tombstone; `Persisted` brings the transaction the result."""

    reason: Reason
    snapshot: TransactionSnapshot | None


# ---- events


@frozen(kw_only=True)
class Initialize:
    """InitProducerId: a producer begins to use the id.

    `expected` is the producer id and epoch that it has, if it goes on after an error (KIP-360). `new_id` is a
    unused producer id; without it the outcome may ask for one.
    """

    token: Token
    timeout_ms: int
    expected: Producer | None = None
    new_id: int | None = None


@frozen
class AddPartitions:
    """AddPartitionsToTxn, AddOffsetsToTxn: the producer is going to write to these partitions.

    In version 2 the leaders of the partitions ask, with the first batch of the producer.
    """

    token: Token
    producer: Producer
    partitions: frozenset[TopicPartition]
    version: int = 0


@frozen
class End:
    """EndTxn: the producer commits or aborts.

    In version 2 the epoch rises with it. `new_id` is an unused producer id; without it the outcome may ask
    for one, when there is no later epoch.
    """

    token: Token
    producer: Producer
    commit: bool
    version: int = 0
    new_id: int | None = None


@frozen
class CheckTimeout:
    """Time has passed: abort the transaction if it has been open for longer than its timeout."""


@frozen
class CheckExpiration:
    """Time has passed: remove the id if it was not used for `unused_ms`."""

    unused_ms: int


@frozen
class Complete:
    """Loaded with its end decided, or time to write the completion once more: go on."""


@frozen
class MarkersWritten:
    """These partitions have the marker, or need none any more."""

    partitions: frozenset[TopicPartition]


@frozen
class Persisted:
    """The write is committed and replayed, or it has failed."""

    error: ErrorCode = ErrorCode.NONE


Event: TypeAlias = (
    Initialize | AddPartitions | End | CheckTimeout | CheckExpiration | Complete | MarkersWritten | Persisted
)


# ---- outcome


@frozen
class Result:
    """The answer to a request; `producer` is set where InitProducerId, or EndTxn in version 2, succeeded."""

    error: ErrorCode
    producer: Producer = NO_PRODUCER


@frozen
class Reply:
    """The answer to the request that `token` identifies."""

    token: Token
    result: Result


@dataclass(slots=True)
class Outcome:
    """The effects of a step: write `write`, then send `replies`.

    With `sends_markers` the end is committed, and its markers are to be sent. With `completes_later` the
    completion could not be written: send `Complete` after a pause. With `needs_producer_id` nothing has
    happened: send the event again with a new producer id.
    """

    write: Write | None = None
    replies: list[Reply] = field(default_factory=list)
    sends_markers: bool = False
    completes_later: bool = False
    needs_producer_id: bool = False
