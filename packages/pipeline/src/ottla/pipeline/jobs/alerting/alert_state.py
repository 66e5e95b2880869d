"""Alerts that fire, repeat and are resolved. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["firing", "resolved"]


@dataclass(slots=True)
class ActiveAlert:
    """An alert that fires."""

    since_ms: int
    sent_ms: int
    number: int = 1
    """The number of events that reported it as firing."""


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """A record to send about an alert."""

    rule: str
    state: State
    at_ms: int
    since_ms: int
    number: int
    why: str
    value: float | None = None


@dataclass(slots=True)
class AlertState:
    """Reports each change once, and repeats a firing alert at the interval of its rule.

    Its field names are those of the stored state.
    """

    alarm: ActiveAlert | None = None

    @property
    def is_firing(self) -> bool:
        """Whether the alert fires."""
        return self.alarm is not None

    def fire(
        self, rule: str, at_ms: int, since_ms: int, why: str, value: float | None, repeat_ms: int | None
    ) -> AlertEvent | None:
        """Report a violation: return an event at its beginning, and again after `repeat_ms`."""
        if self.alarm is None:
            self.alarm = ActiveAlert(since_ms, at_ms)
        elif repeat_ms is not None and at_ms - self.alarm.sent_ms >= repeat_ms:
            self.alarm = ActiveAlert(self.alarm.since_ms, at_ms, self.alarm.number + 1)
        else:
            return None
        return AlertEvent(rule, "firing", at_ms, self.alarm.since_ms, self.alarm.number, why, value)

    def end(self, rule: str, at_ms: int, why: str, value: float | None = None) -> AlertEvent | None:
        """Resolve the alert if it fires."""
        alarm, self.alarm = self.alarm, None
        if alarm is None:
            return None
        return AlertEvent(rule, "resolved", at_ms, alarm.since_ms, alarm.number, why, value)
