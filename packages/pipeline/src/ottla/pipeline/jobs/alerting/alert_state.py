"""Alerts that begin, go on, and end. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["firing", "resolved"]


@dataclass(slots=True)
class ActiveAlert:
    """An alert that is on."""

    since_ms: int
    sent_ms: int
    number: int = 1
    """How often it was said to be on."""


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """What is to be said of an alert."""

    rule: str
    state: State
    at_ms: int
    since_ms: int
    number: int
    why: str
    value: float | None = None


@dataclass(slots=True)
class AlertState:
    """Says each change once, and what goes on as often as a rule wants."""

    alarm: ActiveAlert | None = None

    @property
    def is_firing(self) -> bool:
        """Whether the alert is on."""
        return self.alarm is not None

    def fire(
        self, rule: str, at_ms: int, since_ms: int, why: str, value: float | None, repeat_ms: int | None
    ) -> AlertEvent | None:
        """Say that something is wrong: when it begins, and again when `repeat_ms` have passed."""
        if self.alarm is None:
            self.alarm = ActiveAlert(since_ms, at_ms)
        elif repeat_ms is not None and at_ms - self.alarm.sent_ms >= repeat_ms:
            self.alarm = ActiveAlert(self.alarm.since_ms, at_ms, self.alarm.number + 1)
        else:
            return None
        return AlertEvent(rule, "firing", at_ms, self.alarm.since_ms, self.alarm.number, why, value)

    def end(self, rule: str, at_ms: int, why: str, value: float | None = None) -> AlertEvent | None:
        """Say that all is well again, where it was not."""
        alarm, self.alarm = self.alarm, None
        if alarm is None:
            return None
        return AlertEvent(rule, "resolved", at_ms, alarm.since_ms, alarm.number, why, value)
