"""All that is kept of a series, between batches. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from ottla.pipeline.jobs.alerting.alert_state import AlertEvent
from ottla.pipeline.jobs.alerting.rule_state import SampleSpans, SilenceRuleState, WindowRuleState
from ottla.pipeline.jobs.alerting.rules import Rule


@dataclass(slots=True)
class SeriesState:
    """What rules remember of a series, by their names."""

    windows: dict[str, WindowRuleState] = field(default_factory=dict)
    silences: dict[str, SilenceRuleState] = field(default_factory=dict)
    heard: SampleSpans = field(default_factory=SampleSpans)
    """When there were samples: a series that is silent for very long is forgotten."""

    @classmethod
    def of(cls, kept: str) -> SeriesState:
        """Read what was kept."""
        return _KEPT.validate_json(kept)

    def kept(self) -> str:
        """Return it as text."""
        return _KEPT.dump_json(self).decode()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to keep."""
        return not self.heard.spans

    def add(self, rules: Sequence[Rule], forget_ms: int, at_ms: int, value: float) -> None:
        """Take in a sample."""
        self.heard.add(at_ms, forget_ms)
        for rule in rules:
            self._state_of(rule).add(rule, at_ms, value)

    def advance(self, rules: Sequence[Rule], forget_ms: int, until_ms: int) -> list[AlertEvent]:
        """Return what is to be said when no sample from before a time can come any more."""
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
        """Forget rules that are not declared any more; what they said is over."""
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
        """Return what a rule remembers; a rule that is new begins."""
        if rule.missing is None:
            return self.windows.setdefault(rule.name, WindowRuleState())
        return self.silences.setdefault(rule.name, SilenceRuleState())

    def due(self, rules: Sequence[Rule], forget_ms: int) -> int | None:
        """Return when it has to be looked at next, if nothing comes."""
        known = [self.heard.due(forget_ms), *(self._state_of(rule).due(rule) for rule in rules)]
        return min((each for each in known if each is not None), default=None)


_KEPT = TypeAdapter(SeriesState)
