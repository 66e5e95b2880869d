"""The outcomes of operations on a log. `LogState.apply` makes each the log's state, in one step.

An operation decides or carries out something, on the loop or on a thread, and changes nothing of the log
itself: it returns one of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ottla.zookeeper.frozen_classes import frozen

if TYPE_CHECKING:
    from pathlib import Path

    from ottla.broker.config import LogConfig
    from ottla.broker.log.compaction.replacement import ReplacementPlan
    from ottla.broker.log.segments.segment import Segment
    from ottla.broker.log.state.producer_state import ProducerStates
    from ottla.broker.log.state.unsynced import FlushPlan
    from ottla.protocol.storage.checkpoints import EpochStart


@frozen
class Configured:
    """The topic has another configuration."""

    config: LogConfig


# ---- leader epochs and the log's start


@frozen
class EpochBegun:
    """Records from `start_offset` on are of a leader epoch."""

    leader_epoch: int
    start_offset: int


@frozen
class EpochsTruncated:
    """Epochs that begin at or above the log end are dropped: they wrote no record."""

    end_offset: int


@frozen
class LogStartMoved:
    """The records below `offset` are deleted."""

    offset: int


# ---- segments


@frozen
class Rolled:
    """A new segment is appended to, and the one before is sealed."""

    sealed: Segment
    segment: Segment
    now_ms: int


@frozen
class ActiveReopened:
    """The indexes of the active segment, which is empty, were made again."""

    now_ms: int


@frozen
class Expired:
    """Retention drops the oldest segments."""

    segments: list[Segment]
    log_start_offset: int


@frozen
class ReplacementBegun:
    """A thread begins to put cleaned segments in the place of old ones, which are read until then."""

    plan: ReplacementPlan


@frozen
class ReplacementSettled:
    """The thread of a replacement has ended: all of it is done, or it has failed."""

    plan: ReplacementPlan


@frozen
class Compacted:
    """The cleaner has compacted the log up to `end_offset`."""

    end_offset: int


# ---- truncation


@frozen
class TruncationBegun:
    """A thread begins to cut segments; an empty placeholder stands for them meanwhile."""

    changed: list[Segment]
    placeholder: Segment
    recovery_point: int
    cleaned_offset: int | None


@frozen
class Truncated:
    """The thread of a truncation has cut the log."""

    last: Segment
    log_end_offset: int
    recovery_point: int
    producers: ProducerStates
    epochs_end_offset: int
    """Leader epochs that begin there or above are dropped."""
    restarted: bool
    """Whether all records were dropped: the log starts at its end."""


# ---- the disk


@frozen
class Flushed:
    """Everything in a plan is on the disk."""

    plan: FlushPlan


@frozen
class TookPlace:
    """The log, a copy, has taken the place of the same log in another directory, and takes over its facts."""

    leader_epochs: tuple[EpochStart, ...]
    log_start_offset: int
    producers: ProducerStates
    config: LogConfig


@frozen
class Renamed:
    """The log's directory has another name."""

    directory: Path


@frozen
class Failed:
    """The disk cannot be relied on: nothing may be written any more."""

    error: OSError


@frozen
class Closed:
    """The log's files are closed for good; `reason` is what an append is refused with."""

    reason: OSError


Outcome: TypeAlias = (
    Configured
    | EpochBegun
    | EpochsTruncated
    | LogStartMoved
    | Rolled
    | ActiveReopened
    | Expired
    | ReplacementBegun
    | ReplacementSettled
    | Compacted
    | TruncationBegun
    | Truncated
    | Flushed
    | TookPlace
    | Renamed
    | Failed
    | Closed
)
