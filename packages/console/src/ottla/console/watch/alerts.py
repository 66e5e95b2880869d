"""Alerts: raised when a rule has held for its time, cleared when it does not hold any more. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Final, Literal

from ottla.console.watch.rule_files import Rule
from ottla.console.watch.rules import Finding, Readings, held_by

MOST_EVENTS: Final = 1_000
"""Events that are kept; the oldest go first."""
EVENT_KINDS: Final = frozenset({"unclean_election"})
"""Kinds that are seen once: their alerts stand for an hour after that, whatever `for_minutes` is."""
EVENT_S: Final = 3_600


@dataclass(frozen=True, slots=True)
class Event:
    """An alert that was raised or cleared, or a silence that began or ended."""

    at_s: int
    kind: Literal["raised", "cleared", "silenced", "silence ended"]
    rule: str
    cluster: str
    subject: str
    text: str
    is_silent: bool = False
    """Whether it is not sent."""
    since_s: int = 0

    @property
    def id(self) -> str:
        """The same id for each copy of the same message: receivers drop a second one by it."""
        return message_id(self.rule, self.cluster, self.subject, self.since_s, self.kind)


def message_id(rule: str, cluster: str, subject: str, since_s: int, kind: str) -> str:
    """Return the id of the message that an alert is raised, or cleared."""
    parts = "\0".join((rule, cluster, subject, str(since_s), kind))
    return hashlib.blake2b(parts.encode(errors="replace"), digest_size=12).hexdigest()


@dataclass(slots=True)
class Alert:
    """A rule that holds for a subject: since when, and whether that is long enough to have raised it."""

    rule: Rule
    cluster: str
    subject: str
    since_s: int
    text: str
    is_raised: bool = False
    is_sent: bool = False
    seen_s: int = 0
    """When the rule held last."""

    @property
    def key(self) -> tuple[str, str, str]:
        """The names by which it is known."""
        return self.rule.name, self.cluster, self.subject

    @property
    def raised_id(self) -> str:
        """The id of the message that it is raised."""
        return message_id(*self.key, self.since_s, "raised")


@dataclass(frozen=True, slots=True)
class Silence:
    """Alerts that are not sent until a time; each part is a pattern of names with `*`."""

    rule: str
    cluster: str
    subject: str
    from_s: int
    until_s: int
    reason: str
    author: str
    id: int = 0

    def covers(self, alert: Alert, at_s: int) -> bool:
        """Whether it silences an alert at a time."""
        return (
            at_s < self.until_s
            and fnmatchcase(alert.rule.name, self.rule)
            and fnmatchcase(alert.cluster, self.cluster)
            and fnmatchcase(alert.subject, self.subject)
        )


@dataclass(frozen=True, slots=True)
class Step:
    """The outcome of a step: the events, and those of them and of earlier ones that are to be sent."""

    events: tuple[Event, ...] = ()
    notices: tuple[Event, ...] = ()


class Alerts:
    """The state of all rules over the readings of all clusters.

    A cluster that is not looked at keeps its alerts, and so does a subject of which nothing is known. What is
    silenced when it is raised is sent once the silence is over, if it still stands.
    """

    def __init__(
        self, rules: Iterable[Rule], *, standing: Iterable[Alert] = (), events: Iterable[Event] = (),
        silences: Iterable[Silence] = (),
    ) -> None:  # fmt: skip
        """`standing` are alerts that an earlier process has raised; those of other rules are dropped."""
        self.rules = tuple(rules)
        by_name = {rule.name: rule for rule in self.rules}
        self._held = {
            alert.key: replace(alert, rule=by_name[alert.rule.name])
            for alert in standing
            if alert.rule.name in by_name
        }
        self.events = list(events)[-MOST_EVENTS:]
        self.silences = list(silences)

    @property
    def raised(self) -> list[Alert]:
        """The alerts that stand, the oldest first."""
        return sorted(
            (alert for alert in self._held.values() if alert.is_raised), key=lambda alert: alert.since_s
        )

    def silence_of(self, alert: Alert, at_s: int) -> Silence | None:
        """Return the silence of an alert that lasts longest; None while it is sent."""
        covering = [silence for silence in self.silences if silence.covers(alert, at_s)]
        return max(covering, key=lambda silence: silence.until_s, default=None)

    def step(self, readings: Readings, at_s: int, held: Mapping[str, list[Finding]] | None = None) -> Step:
        """Judge the readings of a cluster: raise and clear alerts.

        `held` has what `held_by` returns for the readings, which for many topics takes longer than the rest.
        """
        events: list[Event] = []
        held = held_by(self.rules, readings) if held is None else held
        for rule in self.rules:
            found = {finding.subject: finding for finding in held[rule.name]}
            events += self._cleared(rule, readings, found, at_s)
            events += [
                event
                for finding in found.values()
                if (event := self._held_by(rule, readings.cluster, finding, at_s))
            ]
        self._add(events)
        return Step(tuple(events), tuple(self._notices(events, readings.cluster, at_s)))

    def silence(self, silence: Silence) -> Event:
        """Begin a silence."""
        self.silences.append(silence)
        text = f"until {moment(silence.until_s)} by {silence.author}: {silence.reason}"
        event = _of_silence("silenced", silence, silence.from_s, text)
        self._add([event])
        return event

    def end_silence(self, number: int, at_s: int, author: str) -> Event | None:
        """End a silence before its time; None for one that there is not."""
        ended = next((silence for silence in self.silences if silence.id == number), None)
        if ended is None:
            return None
        self.silences.remove(ended)
        event = _of_silence("silence ended", ended, at_s, f"by {author}")
        self._add([event])
        return event

    def forget_silences(self, at_s: int) -> list[Silence]:
        """Drop the silences that are over, and return them."""
        over = [silence for silence in self.silences if silence.until_s <= at_s]
        self.silences = [silence for silence in self.silences if silence.until_s > at_s]
        return over

    def _add(self, events: list[Event]) -> None:
        self.events = [*self.events, *events][-MOST_EVENTS:]

    def _held_by(self, rule: Rule, cluster: str, finding: Finding, at_s: int) -> Event | None:
        alert = self._held.setdefault(
            (rule.name, cluster, finding.subject), Alert(rule, cluster, finding.subject, at_s, finding.text)
        )
        alert.text, alert.seen_s = finding.text, at_s
        waits_s = 0 if rule.kind in EVENT_KINDS else rule.for_minutes * 60
        if alert.is_raised or at_s - alert.since_s < waits_s:
            return None
        alert.is_raised = True
        return self._event("raised", alert, at_s)

    def _cleared(self, rule: Rule, readings: Readings, found: dict[str, Finding], at_s: int) -> list[Event]:
        over = [
            alert
            for alert in self._held.values()
            if alert.key[:2] == (rule.name, readings.cluster)
            and alert.subject not in found
            and not readings.is_unknown(rule.kind, alert.subject)
            and not (rule.kind in EVENT_KINDS and at_s - alert.seen_s < EVENT_S)
        ]
        events = []
        for alert in over:
            del self._held[alert.key]
            if alert.is_raised:
                # Its end is news to those only that were sent its begin.
                events.append(replace(self._event("cleared", alert, at_s), is_silent=not alert.is_sent))
        return events

    def _event(self, kind: Literal["raised", "cleared"], alert: Alert, at_s: int) -> Event:
        is_silent = alert.rule.silent or self.silence_of(alert, at_s) is not None
        return Event(
            at_s, kind, alert.rule.name, alert.cluster, alert.subject, alert.text, is_silent, alert.since_s
        )

    def _notices(self, events: list[Event], cluster: str, at_s: int) -> Iterable[Event]:
        yield from (event for event in events if event.kind == "cleared" and not event.is_silent)
        for alert in self.raised:
            if alert.cluster != cluster or alert.is_sent:
                continue
            event = self._event("raised", alert, at_s)
            if not event.is_silent:
                alert.is_sent = True
                yield event


def _of_silence(kind: Literal["silenced", "silence ended"], silence: Silence, at_s: int, text: str) -> Event:
    return Event(at_s, kind, silence.rule, silence.cluster, silence.subject, text, is_silent=True)


def moment(at_s: int) -> str:
    """Return a time as people read it, with its zone."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M} UTC"
