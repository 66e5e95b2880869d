"""Decide what follows a failure: a retry and when, a dead letter, nothing, or the end. Pure.

The verdict depends on the type of the exception: the nearest class in `on_error` counts. Four rules stand
above it:

1. An exception that is no `Exception` (SystemExit, KeyboardInterrupt) stops the processor.
2. An error in the declaration or use of the handler (InvalidHandler, ContextMisused, ThreadsExhausted), and
   state that cannot be restored (StateUnavailable) stop it too: all further records would fail the same way.
3. A record that cannot be decoded is never retried, even if `on_error` names one of its classes.
4. An ExceptionGroup that `on_error` does not name has the verdict of its exceptions: "stop" if one of them
   says so, else "dead-letter", else "retry"; "skip" only if all of them say so. What one of them rules out
   for good would be repeated in vain, and what one of them needs would be skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from ottla.client.retry import Backoff
from ottla.streams.errors import (
    ContextMisused,
    DeadLetterDelayed,
    DeadLetterRejected,
    InvalidHandler,
    KeySetAside,
    OutputFailed,
    OutputTooLarge,
    RecordUndecodable,
    RemoteError,
    StateTooLarge,
    StateUnavailable,
    StateUndecodable,
    ThreadsExhausted,
)
from ottla.streams.seams import DeadLetter, Retry, Skip, Stop, Verdict

Action = Literal["retry", "dead-letter", "skip", "stop"]

_STOPPING: Final = (
    InvalidHandler, ContextMisused, ThreadsExhausted, DeadLetterRejected, StateUnavailable, StateTooLarge,
)  # fmt: skip
_SEVERITY: Final[tuple[Action, ...]] = ("stop", "dead-letter", "retry", "skip")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Verdicts about failures; the fields are settings of StreamsConfig."""

    retries: int = 10
    backoff: Backoff = field(default_factory=lambda: Backoff(100, 60_000, 0.2))
    on_error: Mapping[type[BaseException], Action] = field(default_factory=dict)
    has_dead_letters: bool = False
    """Whether there is a dead-letter topic; without one, what would go there stops the processor."""

    def decide(self, error: BaseException, attempt: int, now_ms: int, chance: float) -> Verdict:
        """Return what follows the failure of attempt `attempt`, counted from 1.

        `chance` is from 0 up to 1, for the jitter. No wait is longer than the longest of the backoff.
        """
        if isinstance(error, DeadLetterDelayed):
            return Retry(now_ms + self._wait_ms(error.sends, chance))
        match self.action_for(error):
            case "retry" if attempt <= self.retries:
                return Retry(now_ms + self._wait_ms(attempt, chance))
            case "skip":
                return Skip()
            case "stop":
                return Stop()
            case _:
                return DeadLetter() if self.has_dead_letters else Stop()

    def action_for(self, error: BaseException) -> Action:
        """Return what `on_error` and the rules above say about an error, in each attempt."""
        if isinstance(error, BaseExceptionGroup) and self._named(type(error), BaseExceptionGroup) is None:
            actions = {self.action_for(failure) for failure in error.exceptions}
            return next(action for action in _SEVERITY if action in actions)
        if not isinstance(error, Exception) or isinstance(error, _STOPPING):
            return "stop"
        if isinstance(error, StateUndecodable):  # no fault of the record: only a name of its own counts
            return self._named(type(error), StateUndecodable) or "stop"
        if isinstance(error, OutputFailed):
            return self._for_outputs(error)
        kind = error.kind if isinstance(error, RemoteError) else type(error)
        action = self._named(kind, BaseException) or "retry"
        if isinstance(error, RecordUndecodable | KeySetAside | OutputTooLarge) and action == "retry":
            return "dead-letter"
        return action

    def _for_outputs(self, error: OutputFailed) -> Action:
        """Return what follows outputs that are not acknowledged; no attempt, for later records went on."""
        if not isinstance(error.cause, OutputTooLarge):
            return "stop"
        named = self._named(type(error), OutputFailed)
        return "dead-letter" if named is None or named == "retry" else named

    def _named(self, kind: type[BaseException], base: type[BaseException]) -> Action | None:
        """Return the action of the nearest class that `on_error` names, up to a base class."""
        nearest = (
            self.on_error[kind] for kind in kind.__mro__ if issubclass(kind, base) and kind in self.on_error
        )
        return next(nearest, None)

    def _wait_ms(self, attempt: int, chance: float) -> int:
        return round(min(self.backoff.delay_ms(attempt - 1, chance), self.backoff.max_ms))
