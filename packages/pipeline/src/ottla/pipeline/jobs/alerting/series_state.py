"""The state of a series between batches: its rules and their alerts. Pure.

Time means the timestamps of samples. The events up to a time do not depend on how samples are split into
batches: a rule accepts them in any order, and evaluates a moment only when no earlier sample can arrive any
more.

The field names of these classes are those of the stored state.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import TypeAdapter

from ottla.pipeline.jobs.alerting.rules import Rule, Verdict, Window, judge

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


@dataclass(slots=True)
class SampleSpans:
    """Spans of time with samples, separated by silence of at least some length."""

    spans: list[tuple[int, int]] = field(default_factory=list)

    def add(self, at_ms: int, silence_ms: int) -> None:
        """Add a sample. Spans with less silence between them are merged."""
        at = bisect_left(self.spans, (at_ms, at_ms))
        self.spans.insert(at, (at_ms, at_ms))
        for left in (at, at - 1):
            if 0 <= left < len(self.spans) - 1:
                (first, end), (begin, last) = self.spans[left : left + 2]
                if begin - end < silence_ms:
                    self.spans[left : left + 2] = [(first, max(end, last))]

    def silence(self, silence_ms: int, until_ms: int) -> tuple[int, int | None] | None:
        """Return the start and the end (if any) of the first silence that is long enough."""
        if not self.spans or self.spans[0][1] + silence_ms > until_ms:
            return None
        again = self.spans[1][0] if len(self.spans) > 1 else None
        return self.spans[0][1], None if again is None or again > until_ms else again

    def due(self, silence_ms: int) -> int | None:
        """Return the time of the next evaluation, if no sample arrives."""
        return self.spans[0][1] + silence_ms if self.spans else None


@dataclass(slots=True)
class WindowRuleState:
    """The windows of a series: those that may still get samples, and the results of earlier ones."""

    open: dict[int, Window] = field(default_factory=dict)
    """By their start."""
    wrong: list[int] = field(default_factory=list)
    """The starts of windows that violated the rule, as far back as it needs them."""
    history: list[tuple[int, float]] = field(default_factory=list)
    """Starts and values of the windows that an anomaly is compared with."""
    bell: AlertState = field(default_factory=AlertState)

    def add(self, rule: Rule, at_ms: int, value: float) -> None:
        """Add a sample."""
        begin = at_ms - at_ms % rule.window_ms
        if begin in self.open:
            self.open[begin].add(at_ms, value)
        else:
            self.open[begin] = Window.of(at_ms, value)

    def advance(self, rule: Rule, until_ms: int) -> Iterator[AlertEvent]:
        """Evaluate windows that are complete; yield the events."""
        for begin in sorted(start for start in self.open if start + rule.window_ms <= until_ms):
            value = self.open.pop(begin).taken(rule.take)
            event = self._say(rule, begin, value, self._judge(rule, begin, value))
            if event is not None:
                yield event

    def _judge(self, rule: Rule, begin: int, value: float) -> Verdict:
        if rule.anomaly is None:
            return judge(rule, value, ())
        from_ms = begin - rule.anomaly.history * 1_000
        self.history = [result for result in self.history if result[0] >= from_ms]
        verdict = judge(rule, value, [earlier for _, earlier in self.history])
        self.history.append((begin, value))
        return verdict

    def _say(self, rule: Rule, begin: int, value: float, verdict: Verdict) -> AlertEvent | None:
        """Fire, repeat or resolve the alert. A window without samples changes nothing."""
        needed, out_of = rule.needed
        from_ms = begin - (out_of - 1) * rule.window_ms
        self.wrong = [start for start in self.wrong if start >= from_ms]
        if verdict.is_wrong:
            self.wrong.append(begin)
        end = begin + rule.window_ms
        if verdict.is_wrong and (len(self.wrong) >= needed or self.bell.is_firing):
            return self.bell.fire(rule.name, end, self.wrong[0], verdict.why, value, repeat_ms(rule))
        return None if len(self.wrong) >= needed else self.bell.end(rule.name, end, verdict.why, value)

    def forget(self, rule: Rule, at_ms: int) -> AlertEvent | None:
        """Forget the results; open windows stay."""
        self.wrong, self.history = [], []
        return self.bell.end(rule.name, at_ms, "the series is gone")

    def due(self, rule: Rule) -> int | None:
        """Return the time of the next evaluation, if no sample arrives."""
        return min(self.open) + rule.window_ms if self.open else None


@dataclass(slots=True)
class SilenceRuleState:
    """Whether a series is silent."""

    heard: SampleSpans = field(default_factory=SampleSpans)
    bell: AlertState = field(default_factory=AlertState)

    def add(self, rule: Rule, at_ms: int, value: float) -> None:
        """Add a sample."""
        self.heard.add(at_ms, _missing_ms(rule))

    def advance(self, rule: Rule, until_ms: int) -> Iterator[AlertEvent]:
        """Yield the events of silences that begin, continue and end."""
        while (silence := self.heard.silence(_missing_ms(rule), until_ms)) is not None:
            begin, end = silence
            yield from self._fire(rule, begin, until_ms if end is None else end - 1)
            if end is None:
                return
            self.heard.spans.pop(0)
            ended = self.bell.end(rule.name, end, "there are samples again")
            if ended is not None:
                yield ended

    def _fire(self, rule: Rule, begin: int, until_ms: int) -> Iterator[AlertEvent]:
        at_ms = begin + _missing_ms(rule)
        while True:
            event = self.bell.fire(
                rule.name, at_ms, begin, f"no sample for {rule.missing:g} s", None, repeat_ms(rule)
            )
            if event is not None:
                yield event
            again = self._again(rule)
            if again is None or again > until_ms:
                return
            at_ms = again

    def _again(self, rule: Rule) -> int | None:
        every = repeat_ms(rule)
        return None if every is None or self.bell.alarm is None else self.bell.alarm.sent_ms + every

    def forget(self, rule: Rule, at_ms: int) -> AlertEvent | None:
        """Forget the longest silence; samples after it stay."""
        self.heard.spans = [span for span in self.heard.spans if span[0] >= at_ms]
        return self.bell.end(rule.name, at_ms, "the series is gone")

    def due(self, rule: Rule) -> int | None:
        """Return the time of the next evaluation, if no sample arrives."""
        if not self.bell.is_firing:
            return self.heard.due(_missing_ms(rule))
        again = self.heard.spans[1][0] if len(self.heard.spans) > 1 else None
        known = [time for time in (again, self._again(rule)) if time is not None]
        return min(known, default=None)


def repeat_ms(rule: Rule) -> int | None:
    """Return the interval at which a firing alert is repeated."""
    return None if rule.repeat is None else max(1, round(rule.repeat * 1_000))


def _missing_ms(rule: Rule) -> int:
    assert rule.missing is not None, "only rules about silence have this state"
    return max(1, round(rule.missing * 1_000))


@dataclass(slots=True)
class SeriesState:
    """The state of each rule, by rule name. Its field names are those of the stored state."""

    windows: dict[str, WindowRuleState] = field(default_factory=dict)
    silences: dict[str, SilenceRuleState] = field(default_factory=dict)
    heard: SampleSpans = field(default_factory=SampleSpans)
    """Times with samples; a series with a very long silence is forgotten."""

    @classmethod
    def of(cls, kept: str) -> SeriesState:
        """Read the stored state."""
        return _KEPT.validate_json(kept)

    def kept(self) -> str:
        """Return the state as text to store."""
        return _KEPT.dump_json(self).decode()

    @property
    def is_empty(self) -> bool:
        """Whether there is no state to store."""
        return not self.heard.spans

    def add(self, rules: Sequence[Rule], forget_ms: int, at_ms: int, value: float) -> None:
        """Add a sample."""
        self.heard.add(at_ms, forget_ms)
        for rule in rules:
            self._state_of(rule).add(rule, at_ms, value)

    def advance(self, rules: Sequence[Rule], forget_ms: int, until_ms: int) -> list[AlertEvent]:
        """Return the events up to a time before which no sample can arrive any more."""
        said = list(self._dropped({rule.name for rule in rules}, until_ms))
        if not rules:
            self.heard = SampleSpans()
            return said
        while (silence := self.heard.silence(forget_ms, until_ms)) is not None:
            gone_ms = silence[0] + forget_ms
            said += self._advanced(rules, gone_ms)
            said += self._forgotten(rules, gone_ms)
            self.heard.spans.pop(0)
        return [*said, *self._advanced(rules, until_ms)]

    def _dropped(self, there: set[str], at_ms: int) -> Iterator[AlertEvent]:
        """Forget rules that are no longer declared, and resolve their alerts."""
        for states in (self.windows, self.silences):
            for name in states.keys() - there:
                ended = states.pop(name).bell.end(name, at_ms, "the rule is gone")
                if ended is not None:
                    yield ended

    def _advanced(self, rules: Sequence[Rule], until_ms: int) -> Iterator[AlertEvent]:
        for rule in rules:
            yield from self._state_of(rule).advance(rule, until_ms)

    def _forgotten(self, rules: Sequence[Rule], at_ms: int) -> Iterator[AlertEvent]:
        for rule in rules:
            ended = self._state_of(rule).forget(rule, at_ms)
            if ended is not None:
                yield ended

    def _state_of(self, rule: Rule) -> WindowRuleState | SilenceRuleState:
        """Return the state of a rule; a new rule gets a new one."""
        if rule.missing is None:
            return self.windows.setdefault(rule.name, WindowRuleState())
        return self.silences.setdefault(rule.name, SilenceRuleState())

    def due(self, rules: Sequence[Rule], forget_ms: int) -> int | None:
        """Return the time of the next evaluation, if no sample arrives."""
        known = [self.heard.due(forget_ms), *(self._state_of(rule).due(rule) for rule in rules)]
        return min((time for time in known if time is not None), default=None)


_KEPT = TypeAdapter(SeriesState)
