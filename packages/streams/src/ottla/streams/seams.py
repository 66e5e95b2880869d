"""The protocols between the parts of a processor. Each is implemented by one folder, and by fakes in tests.

The processor calls, for each piece of work: `Handler`; on an exception `FailurePolicy.decide`; on success
`Outputs.settle`, and it finishes the work when that is done. `Commits` makes finished offsets durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ottla.consumer import ConsumerRecord
from ottla.protocol.topics import TopicPartition

Order = Literal["key", "partition", "none"] | Callable[[ConsumerRecord], Hashable]
"""The records that keep their order: those of a key, of a partition, none, or those with equal results."""


class Work(Protocol):
    """One call of the handler: one record, or a batch of one partition in order of their offsets."""

    context: Any
    """For handlers, outputs and policies; None at first. It lives as long as the work, all attempts."""
    started_ms: int
    """When this attempt started, by the processor's monotonic clock; its time-out counts from then. A handler
    that waits for a process sets it to the time at which it got one."""

    @property
    def partition(self) -> TopicPartition:
        """The partition of the records."""

    @property
    def record(self) -> ConsumerRecord:
        """The first record."""

    @property
    def records(self) -> Sequence[ConsumerRecord]:
        """All records."""

    @property
    def offset(self) -> int:
        """The offset of the first record."""

    @property
    def lane(self) -> Hashable:
        """The value whose records keep their order, with `order="key"` the key; None: they have no order."""

    @property
    def attempt(self) -> int:
        """1 in the first attempt of this process."""


class Plan(Protocol):
    """The offset and metadata that a commit of one partition would write, fixed when the plan is made."""

    @property
    def partition(self) -> TopicPartition:
        """The partition."""

    @property
    def offset(self) -> int:
        """The offset to commit: all records below it are finished."""

    @property
    def metadata(self) -> str:
        """The commit metadata: finished offsets at or above `offset`."""

    @property
    def end(self) -> int:
        """One past the highest offset that it covers: all finished offsets below are covered, none above."""

    @property
    def is_complete(self) -> bool:
        """Whether the metadata names all finished offsets; some do not fit otherwise."""

    def covers(self, offset: int) -> bool:
        """Return whether a record is known finished once this is committed."""


# --- verdicts


@dataclass(frozen=True, slots=True)
class Retry:
    """The record is handled again at a time; its lane waits for it."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The record goes to `FailurePolicy.set_aside`, and is finished after that."""


@dataclass(frozen=True, slots=True)
class Skip:
    """The record is finished without having been handled."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The processor stops with HandlerFailed; nothing is committed past the record."""


Verdict = Retry | DeadLetter | Skip | Stop


# --- what the processor calls


class Handler(Protocol):
    """Handles a piece of work; raises what the user's function raised."""

    async def __call__(self, work: Work) -> None:
        """Handle the records. A return means success."""


class FailurePolicy(Protocol):
    """Decides about failures of handlers."""

    def decide(self, work: Work, error: BaseException, now_ms: int) -> Verdict:
        """Return what happens to work that failed. Pure; `now_ms` is the processor's monotonic clock."""

    async def set_aside(self, work: Work, error: BaseException) -> None:
        """Write the records as dead letters; return when they are acknowledged.

        An exception of it goes to `decide` again; the work's lane waits meanwhile.
        """


class Outputs(Protocol):
    """The records that handlers send."""

    def settle(self, work: Work) -> asyncio.Future[None] | None:
        """The handler succeeded. Return when its outputs are acknowledged; None: it sent nothing.

        The future's exception stops the processor with OutputFailed.
        """

    def discard(self, work: Work) -> None:
        """The attempt failed or was abandoned: forget what it did not send yet."""

    def revoked(self, partition: TopicPartition) -> None:
        """The partition is no longer assigned: forget its outputs. The last commit was before."""


class PartitionStates(Protocol):
    """State that handlers keep for partitions, restored where a partition is assigned."""

    async def assigned(self, partition: TopicPartition, offset: int | None) -> asyncio.Future[None] | None:
        """Restore the state of a partition; its records are taken in after that.

        The group waits meanwhile, so this is for seconds. What takes longer returns a future: the partition
        is paused until it is done. An exception, also of the future, stops the processor.
        """

    def committed(self, partition: TopicPartition, offset: int) -> None:
        """Everything below an offset is finished, and will not be handled again."""

    def revoked(self, partition: TopicPartition) -> None:
        """Give the state up: no handler of the partition runs any more, or all of them are cancelled now."""


class Commits(Protocol):
    """Makes finished offsets durable: by the consumer's commit, or inside a transaction."""

    @property
    def interval_ms(self) -> int:
        """The time between two commits."""

    @property
    def is_pending(self) -> bool:
        """Whether a call left a transaction open, which the next call ends, even one without plans."""

    async def commit(self, plans: Sequence[Plan]) -> Sequence[Plan]:
        """Commit plans, one per partition; return those that are durable now.

        The others are left for a later call. After an exception nothing counts as committed.
        """


class Observer(Protocol):
    """Follows the events of a processor, for metrics and logs; its methods return at once."""

    def on_assigned(self, partition: TopicPartition, offset: int | None) -> None:
        """A partition was assigned; its processing starts at an offset, or where the consumer starts."""

    def on_revoked(self, partition: TopicPartition, *, lost: bool) -> None:
        """A partition is no longer assigned."""

    def on_started(self, work: Work) -> None:
        """An attempt starts."""

    def on_finished(self, work: Work, duration_ms: float) -> None:
        """A handler succeeded."""

    def on_failed(self, work: Work, error: BaseException, verdict: Verdict) -> None:
        """An attempt failed, and this was decided."""

    def on_set_aside(self, work: Work) -> None:
        """The dead letters of work are acknowledged."""

    def on_commit(self, plans: Sequence[Plan], error: BaseException | None) -> None:
        """Offsets were committed, or refused."""

    def on_paused(self, partition: TopicPartition, *, paused: bool) -> None:
        """Intake of a partition was paused, or resumed."""


@dataclass(slots=True, eq=False)
class FinalFailure:
    """A failure after which the work is not handled again."""

    error: BaseException
    attempts: int
    sends: int = 0
    """How often its dead letters were sent."""


@dataclass(slots=True, eq=False)
class WorkState:
    """The state of a work, made when one of its parts first needs it."""

    outputs: list[Any] = field(default_factory=list)
    """The sends of the current attempt, as the `Outputs` keep them."""
    changelogs: Collection[str] = ()
    """The topics among those of its outputs that have state."""
    final: FinalFailure | None = None
    """Set once the work goes to the dead letters."""
    set_aside_offsets: set[int] = field(default_factory=set)
    """The records of a batch whose dead letters are acknowledged, because they cannot be decoded."""


def state_of(work: Work) -> WorkState:
    """Return the state of a work, and make it if there is none."""
    state = work.context
    if state is None:
        state = work.context = WorkState()
    assert isinstance(state, WorkState)
    return state
