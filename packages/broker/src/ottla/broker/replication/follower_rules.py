"""The decisions of a follower about one partition: what to ask for next, and what an answer changes. Pure.

A follower always asks for its log end, and names the leader epoch of its last record, so that the leader can
tell where the two logs diverge (KIP-101, KIP-595). Three rules keep replicas alike:

- An answer counts only if the partition has not changed since the request: the same leadership, and a log
  end that is still the offset asked for.
- The log is truncated to where both logs end the last epoch that both have, never to the high watermark:
  that is one fetch behind, and records above it may be acknowledged.
- The high watermark never passes the own log end. Only a truncation lowers it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ottla.protocol.errors import ErrorCode
from ottla.zookeeper.frozen_classes import frozen

if TYPE_CHECKING:
    from ottla.broker.log.state.leader_epochs import LeaderEpochs
    from ottla.protocol.messages.fetch import PartitionData

UNDEFINED: Final = -1
FIRST_BACKOFF_MS: Final = 50.0
"""The pause after a first failure; each further one doubles it, up to `replica.fetch.backoff.ms`."""


class FollowerLog(Protocol):
    """The bounds of a follower's log, and its leader epochs."""

    log_start_offset: int
    leader_epochs: LeaderEpochs

    @property
    def log_end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...


class FetchPosition(NamedTuple):
    """The fields of one partition in a Fetch request."""

    offset: int
    leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int


# ---- what an answer asks for


@frozen
class Append:
    """Append the answer's records, if any, then take over the leader's high watermark and log start."""

    high_watermark: int
    log_start_offset: int


@frozen
class TruncateTo:
    """Drop every record at or above `offset`."""

    offset: int


@frozen
class RestartAt:
    """Drop all records: the log starts and ends at `offset` then."""

    offset: int


@frozen
class AskBounds:
    """Ask the leader for its log start and log end (ListOffsets)."""


@frozen
class AskEpochEnd:
    """Ask the leader where `epoch` ends in its log (OffsetForLeaderEpoch)."""

    epoch: int


@frozen
class BackOff:
    """Ask again after a pause, because of this error."""

    error_code: int


@frozen
class Ignore:
    """The partition has changed since the request."""


Truncation = TruncateTo | RestartAt
Decision = Append | TruncateTo | RestartAt | AskBounds | AskEpochEnd | BackOff | Ignore


@dataclass(slots=True, eq=False)
class PartitionFetch:
    """The state of one partition while a follower follows it in one leader epoch."""

    leader_epoch: int
    names_epoch: bool = True
    """Whether fetches name the last epoch: not while the leader has no epoch to compare with."""
    lag: int = 0
    """Records below the leader's high watermark that are missing here, by the last answer."""
    is_caught_up: bool = False
    """Whether no such record was missing by the last answer: a throttle does not hold it up then."""
    due_ms: float = 0.0
    """When to fetch again, on the monotonic clock."""
    failures: int = 0
    """Failures since the last success."""
    failed: bool = False
    """Whether it is not fetched any more until it has another role."""

    def position(self, log: FollowerLog) -> FetchPosition:
        """Return what to ask for now."""
        epoch = log.leader_epochs.latest if self.names_epoch else UNDEFINED
        return FetchPosition(log.log_end_offset, self.leader_epoch, epoch, log.log_start_offset)

    def is_due(self, now_ms: float) -> bool:
        """Whether it may be fetched now."""
        return not self.failed and self.due_ms <= now_ms

    def on_answer(self, asked: FetchPosition, log: FollowerLog, answer: PartitionData) -> Decision:
        """Decide what the leader's answer to a fetch changes."""
        if asked.leader_epoch != self.leader_epoch or asked.offset != log.log_end_offset:
            return Ignore()
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return AskBounds()
        if answer.error_code:
            return BackOff(answer.error_code)
        diverging = answer.diverging_epoch
        if diverging.end_offset >= 0:
            return truncation_to(log, diverging.epoch, diverging.end_offset)
        return Append(answer.high_watermark, answer.log_start_offset)

    def on_bounds(self, log: FollowerLog, leader_start: int, leader_end: int) -> Decision:
        """Decide after the leader found the fetch offset, or the last epoch, out of its range.

        A longer log than the leader's is what an unclean election leaves; a shorter one than the leader's
        start what a long absence leaves. In between, the leader does not know the last epoch.
        """
        end = log.log_end_offset
        if leader_end < end:
            return truncated_at(log, leader_end)
        if leader_start > end:
            return RestartAt(leader_start)
        return AskEpochEnd(log.leader_epochs.latest) if self.names_epoch else BackOff(_OUT_OF_RANGE)

    def on_epoch_end(self, log: FollowerLog, epoch: int, end_offset: int) -> Decision:
        """Decide after the leader said where an epoch ends in its log.

        A leader that does not know the epoch leaves only the high watermark to truncate to. From then on,
        fetches name no epoch until a record of this leader is here.
        """
        if end_offset >= 0:
            return truncation_to(log, epoch, end_offset)
        self.names_epoch = False
        return TruncateTo(max(log.high_watermark, log.log_start_offset))

    def appended(self, log: FollowerLog) -> None:
        """Records of the leader were appended, or it had none."""
        self.failures = 0
        if not self.names_epoch and log.leader_epochs.latest == self.leader_epoch:
            self.names_epoch = True

    def back_off(self, now_ms: float, max_backoff_ms: float) -> None:
        """Pause after a failure: a short time first, for a leader that hears of its role a moment later."""
        self.due_ms = now_ms + backoff_ms(self.failures, max_backoff_ms)
        self.failures += 1


_OUT_OF_RANGE: Final = int(ErrorCode.OFFSET_OUT_OF_RANGE)


def backoff_ms(failures: int, max_backoff_ms: float) -> float:
    """Return the pause after `failures` earlier failures."""
    return min(max_backoff_ms, FIRST_BACKOFF_MS * 2.0 ** min(failures, 16))


def truncation_to(log: FollowerLog, epoch: int, end_offset: int) -> Truncation:
    """Decide where to truncate after the leader said that `epoch`, its largest up to ours, ends there.

    Where this log does not have that epoch, it is truncated to the end of its largest epoch below, and the
    next fetch continues the search from there (KIP-279).
    """
    log_end = log.log_end_offset
    if epoch == UNDEFINED:
        return truncated_at(log, min(end_offset, log_end))
    own_epoch, own_end = log.leader_epochs.end_offset_for(epoch, log_end)
    if own_end < 0:
        return truncated_at(log, min(end_offset, log_end))
    if own_epoch != epoch:
        return truncated_at(log, min(own_end, log_end))
    return truncated_at(log, min(own_end, end_offset, log_end))


def truncated_at(log: FollowerLog, offset: int) -> Truncation:
    """Return the truncation to an offset: below the log start nothing is left to keep."""
    return TruncateTo(offset) if offset >= log.log_start_offset else RestartAt(offset)
