"""Alerts: raised when a rule has held for its time, cleared when it does not hold any more. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from ottla.console.watch.collecting import Look
from ottla.console.watch.rule_files import GROUP_KINDS, Rule
from ottla.console.watch.rules import Finding, findings

MOST_EVENTS: Final = 1_000
"""Events that are kept; the oldest go first."""


@dataclass(frozen=True, slots=True)
class Event:
    """An alert that was raised or cleared."""

    at_s: int
    kind: Literal["raised", "cleared"]
    rule: str
    cluster: str
    subject: str
    text: str
    is_silent: bool = False


@dataclass(slots=True)
class Alert:
    """A rule that holds for a subject: since when, and whether that is long enough to have raised it."""

    rule: Rule
    cluster: str
    subject: str
    since_s: int
    text: str
    is_raised: bool = False


class Alerts:
    """The state of all rules over the looks at all clusters.

    A cluster that is not looked at keeps its alerts: silence of a cluster or a coordinator clears nothing.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self._held: dict[tuple[str, str, str], Alert] = {}
        self._earlier: dict[str, Look] = {}
        self.events: list[Event] = []

    @property
    def raised(self) -> list[Alert]:
        """The alerts that stand, the oldest first."""
        return sorted(
            (alert for alert in self._held.values() if alert.is_raised), key=lambda alert: alert.since_s
        )

    def step(self, look: Look, at_s: int) -> list[Event]:
        """Take a look at a cluster, and return the alerts that it raises and clears."""
        events = []
        earlier = self._earlier.get(look.cluster)
        for rule in self.rules:
            found = {finding.subject: finding for finding in findings(rule, look, earlier)}
            events += self._cleared(rule, look, found, at_s)
            events += [
                event
                for finding in found.values()
                if (event := self._held_by(rule, look.cluster, finding, at_s))
            ]
        self._earlier[look.cluster] = look
        self.events = [*self.events, *events][-MOST_EVENTS:]
        return events

    def _held_by(self, rule: Rule, cluster: str, finding: Finding, at_s: int) -> Event | None:
        alert = self._held.setdefault(
            (rule.name, cluster, finding.subject), Alert(rule, cluster, finding.subject, at_s, finding.text)
        )
        alert.text = finding.text
        if alert.is_raised or at_s - alert.since_s < rule.for_minutes * 60:
            return None
        alert.is_raised = True
        return Event(at_s, "raised", rule.name, cluster, finding.subject, finding.text, rule.silent)

    def _cleared(self, rule: Rule, look: Look, found: dict[str, Finding], at_s: int) -> list[Event]:
        cluster = look.cluster
        unknown = look.silent_groups if rule.kind in GROUP_KINDS else frozenset[str]()
        over = [
            key
            for key in self._held
            if key[:2] == (rule.name, cluster) and key[2] not in found and key[2] not in unknown
        ]
        events = []
        for key in over:
            alert = self._held.pop(key)
            if alert.is_raised:
                events.append(Event(at_s, "cleared", rule.name, cluster, key[2], alert.text, rule.silent))
        return events
