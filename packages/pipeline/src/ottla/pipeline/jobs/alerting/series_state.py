"""The state of a series between batches. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from ottla.pipeline.jobs.alerting.alert_state import AlertEvent
from ottla.pipeline.jobs.alerting.rule_state import SampleSpans, SilenceRuleState, WindowRuleState
from ottla.pipeline.jobs.alerting.rules import Rule


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
        return min((each for each in known if each is not None), default=None)


_KEPT = TypeAdapter(SeriesState)
