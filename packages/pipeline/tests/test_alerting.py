"""Rules about metrics: when alerts fire, repeat and are resolved. (The state store needs Spark.)"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.pipeline.jobs.alerting.on_spark import alert_record
from ottla.pipeline.jobs.alerting.rules import Anomaly, Rule, Window, judge
from ottla.pipeline.jobs.alerting.series_state import AlertEvent, SeriesState
from ottla.pipeline.jobs.alerts import Alerts
from ottla.pipeline.jobs.declaration_files import read_job
from ottla.pipeline.jobs.samples import sample_declaration
from ottla.pipeline.jobs.samples.sample_data import metrics

S, M = 1_000, 60_000
FORGET = 60 * M
Sample = tuple[int, float]


def rule(**given: Any) -> Rule:
    return Rule.model_validate({"name": "r", "metric": "m"} | given)


def play(
    rules: Sequence[Rule], samples: Iterable[Sample], until_ms: int, series: SeriesState | None = None
) -> list[AlertEvent]:
    series = series or SeriesState()
    for at_ms, value in samples:
        series.add(rules, FORGET, at_ms, value)
    return series.advance(rules, FORGET, until_ms)


def said(event: Iterable[AlertEvent]) -> list[tuple[str, float, float]]:
    """Return state, time and beginning of each event, in minutes."""
    return [(each.state, each.at_ms / M, each.since_ms / M) for each in event]


def minutes(*values: float | None) -> list[Sample]:
    """Return a sample in the middle of each minute, and none for None."""
    return [(at * M + 30 * S, value) for at, value in enumerate(values) if value is not None]


def test_a_threshold_fires_once_and_is_resolved_once() -> None:
    event = play([rule(above=90)], minutes(50, 95, 96, 97, 90, 50, 91), 10 * M)
    assert said(event) == [("firing", 2, 1), ("resolved", 5, 1), ("firing", 7, 6)]
    assert [each.why for each in event] == ["95 is above 90", "90 is within the limits", "91 is above 90"]
    assert said(play([rule(below=10, above=20)], minutes(15, 5, 15, 25, 15), 10 * M)) == [
        ("firing", 2, 1), ("resolved", 3, 1), ("firing", 4, 3), ("resolved", 5, 3),
    ]  # fmt: skip


def test_a_window_is_judged_when_it_is_over() -> None:
    series = SeriesState()
    assert play([rule(above=90)], minutes(95), M - 1, series) == []
    assert said(play([rule(above=90)], [], M, series)) == [("firing", 1, 0)]


def test_how_long_it_has_to_be_wrong() -> None:
    lasting = rule(above=90, lasting="3m")
    assert said(play([lasting], minutes(95, 95, 50, 95, 95, 95, 95, 50), 9 * M)) == [
        ("firing", 6, 3), ("resolved", 8, 3),
    ]  # fmt: skip
    some = rule(above=90, times="2 of 4")
    assert said(play([some], minutes(95, 50, 50, 95, 50, 50, 50, 50), 9 * M)) == [
        ("firing", 4, 0), ("resolved", 5, 0),
    ]  # fmt: skip


def test_windows_without_samples_say_nothing() -> None:
    lasting = rule(above=90, lasting="2m")
    assert said(play([lasting], minutes(95, None, 95, 95, None, None, 95, None, 50), 12 * M)) == [
        ("firing", 4, 2), ("resolved", 9, 2),
    ]  # fmt: skip


def test_alerts_that_go_on_are_repeated_when_wanted() -> None:
    event = play([rule(above=90, repeat="2m")], minutes(*[95] * 6, 50), 9 * M)
    assert said(event) == [("firing", 1, 0), ("firing", 3, 0), ("firing", 5, 0), ("resolved", 7, 0)]
    assert [each.number for each in event] == [1, 2, 3, 3]


def test_silence() -> None:
    silent = rule(missing="5m")
    event = play([silent], minutes(1, 1, *[None] * 8, 1, 1), 14 * M)
    assert said(event) == [("firing", 6.5, 1.5), ("resolved", 10.5, 1.5)]
    assert said(play([silent], minutes(1), 5 * M + 30 * S)) == [("firing", 5.5, 0.5)]
    assert play([silent], minutes(1), 5 * M + 30 * S - 1) == []
    repeated = play([rule(missing="5m", repeat="4m")], minutes(1, *[None] * 15, 1), 30 * M)
    assert said(repeated) == [
        ("firing", 5.5, 0.5), ("firing", 9.5, 0.5), ("firing", 13.5, 0.5), ("resolved", 16.5, 0.5),
        ("firing", 21.5, 16.5), ("firing", 25.5, 16.5), ("firing", 29.5, 16.5),
    ]  # fmt: skip


def test_a_series_that_is_silent_for_very_long_is_forgotten() -> None:
    series = SeriesState()
    rules = [rule(above=90), rule(name="s", missing="5m")]
    event = play(rules, minutes(95), 3 * 60 * M, series)
    assert [(each.rule, *each_said) for each, each_said in zip(event, said(event), strict=True)] == [
        ("r", "firing", 1, 0), ("s", "firing", 5.5, 0.5),
        ("r", "resolved", 60.5, 0), ("s", "resolved", 60.5, 0.5),
    ]  # fmt: skip
    assert event[-1].why == "the series is gone"
    assert series.is_empty
    assert series.due(rules, FORGET) is None
    assert said(play(rules[:1], [(200 * M, 95.0)], 201 * M, series)) == [("firing", 201, 200)]


def test_a_rule_that_is_gone_ends_what_it_said() -> None:
    series = SeriesState()
    play([rule(above=90)], minutes(95), 2 * M, series)
    event = play([rule(name="other", above=90)], [], 3 * M, series)
    assert [(each.rule, each.state, each.why) for each in event] == [("r", "resolved", "the rule is gone")]
    assert [
        each.rule
        for each in play([rule(name="third", above=1)], minutes(None, None, None, 95), 5 * M, series)
    ]
    assert [each.rule for each in play([], [], 6 * M, series)] == ["third"]
    assert series.is_empty, "of a series that no rule is about nothing is kept"


def test_the_aggregates_of_a_window() -> None:
    window = Window.of(3, 5.0)
    for at_ms, value in ((4, 1.0), (1, 9.0), (4, 2.0)):
        window.add(at_ms, value)
    taken = {take: window.taken(take) for take in ("mean", "min", "max", "sum", "count", "last")}
    assert taken == {"mean": 4.25, "min": 1, "max": 9, "sum": 17, "count": 4, "last": 2}


def test_anomalies() -> None:
    odd = rule(anomaly={"warm_up": 4, "score": 3, "history": "10m"})
    quiet = [10.0, 11, 9, 10]
    assert not judge(odd, 1_000, quiet[:3]).is_wrong, "too few to compare with"
    assert judge(odd, 15, quiet).is_wrong
    assert not judge(odd, 11, quiet).is_wrong
    assert judge(odd, 15, quiet).why == "15, where 10 ± 0.7413 is usual"
    assert judge(odd, 11, [10.0] * 4).is_wrong, "where nothing ever moves, everything is odd"
    least = rule(anomaly={"warm_up": 4, "least": 2, "history": "10m"})
    assert not judge(least, 11, [10.0] * 4).is_wrong
    high = rule(anomaly={"warm_up": 4, "side": "above", "history": "10m"})
    assert (judge(high, 15, quiet).is_wrong, judge(high, 5, quiet).is_wrong) == (True, False)


def test_outliers_move_the_mean_and_not_the_median() -> None:
    before = [10.0, 11, 9, 10, 10, 11, 9, 10, 500]
    mad, zscore = (rule(anomaly={"method": name, "warm_up": 4, "score": 3}) for name in ("mad", "zscore"))
    assert judge(mad, 60, before).is_wrong
    assert not judge(zscore, 60, before).is_wrong
    assert judge(zscore, 60, before[:-1]).is_wrong


def test_anomalies_are_found_among_recent_windows() -> None:
    odd = rule(anomaly={"warm_up": 3, "history": "5m"})
    values = [10, 12, 11, 10, 12, 90, 11, *[None] * 10, 90, 91, 90, 20]
    assert said(play([odd], minutes(*values), 60 * M)) == [
        ("firing", 6, 5), ("resolved", 7, 5),
        ("firing", 21, 20),
    ]  # fmt: skip


RULES = [
    rule(name="high", above=5, lasting="2m"),
    rule(name="some", above=5, times="2 of 3", repeat="3m", take="max"),
    rule(name="odd", anomaly={"warm_up": 3, "history": "10m"}, take="sum"),
    rule(name="silent", missing="4m", repeat="2m"),
]


@given(
    st.lists(st.tuples(st.integers(0, 200 * M), st.integers(0, 9)), max_size=60),
    st.integers(1, 20), st.randoms(use_true_random=False),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_it_does_not_matter_in_which_pieces_samples_come(
    samples: list[tuple[int, int]], pieces: int, chance: random.Random
) -> None:
    """The watermark never moves backwards, and the state is stored as text in between."""
    series, kept_of = SeriesState(), SeriesState.of
    found: list[AlertEvent] = []
    ordered = sorted((at, float(value)) for at, value in samples)
    ends = [*sorted(chance.randrange(200 * M) for _ in range(pieces)), 300 * M]
    left = ordered
    for end in ends:
        # Some samples after the watermark arrive early; those before it are complete.
        is_now = [each[0] <= end or chance.random() < 0.3 for each in left]
        now = [each for each, is_it in zip(left, is_now, strict=True) if is_it]
        left = [each for each, is_it in zip(left, is_now, strict=True) if not is_it]
        chance.shuffle(now)
        found += play(RULES, now, end, series)
        series = kept_of(series.kept())
    at_once = play(RULES, ordered, 300 * M)
    assert sorted(map(repr, found)) == sorted(map(repr, at_once))


@given(st.lists(st.tuples(st.integers(0, 200 * M), st.integers(0, 9)), min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_it_is_enough_to_look_when_it_is_due(samples: list[tuple[int, int]]) -> None:
    ordered = [(at, float(value)) for at, value in samples]
    at_once = play(RULES, ordered, 300 * M)
    series = SeriesState()
    found: list[AlertEvent] = []
    for at_ms, value in ordered:
        series.add(RULES, FORGET, at_ms, value)
    while (due := series.due(RULES, FORGET)) is not None and due <= 300 * M:
        more = series.advance(RULES, FORGET, due)
        after = series.due(RULES, FORGET)
        assert after is None or after > due, "time goes on"
        found += more
    assert sorted(map(repr, found)) == sorted(map(repr, at_once))


def test_an_alert_as_a_record() -> None:
    event = AlertEvent("cpu-high", "firing", 120_000, 60_000, 1, "95 is above 90", 95.0)
    found = alert_record("web", rule(name="cpu-high", above=90, severity="page"), event, "cpu", {"host": "ä"})
    value = json.loads(found["value"])
    assert value == {
        "id": found["id"], "pipeline": "web", "rule": "cpu-high", "metric": "cpu", "labels": {"host": "ä"},
        "state": "firing", "why": "95 is above 90", "value": 95.0, "since": "1970-01-01T00:01:00.000Z",
        "at": "1970-01-01T00:02:00.000Z", "number": 1, "severity": "page",
    }  # fmt: skip
    assert json.loads(found["key"]) == {
        "pipeline": "web", "rule": "cpu-high", "metric": "cpu", "labels": {"host": "ä"},
    }  # fmt: skip
    others = [
        alert_record("web", None, each, "cpu", {"host": host})["id"]
        for each, host in (
            (AlertEvent("cpu-high", "firing", 0, 60_000, 1, ""), "ä"),
            (AlertEvent("cpu-high", "resolved", 120_000, 60_000, 1, ""), "ä"),
            (AlertEvent("cpu-high", "firing", 120_000, 60_001, 1, ""), "ä"),
            (AlertEvent("cpu-high", "firing", 120_000, 60_000, 2, ""), "ä"),
            (event, "b"),
        )
    ]
    assert others[0] == found["id"], "the value may differ, and who reads it still knows it"
    assert len(set(others)) == 5


def alerts(rules: list[dict[str, Any]], **metrics: Any) -> Alerts:
    return Alerts.model_validate(
        {
            "kind": "alerts", "name": "a", "checkpoint": "state",
            "source": {"bootstrap_servers": "a:9092", "topics": ["m"]},
            "metrics": metrics, "rules": [{"name": "r", "metric": "m"} | each for each in rules],
            "alerts": {"topic": "alerts"}, "dead_letters": {"topic": "dead"},
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "where", "said"),
    [
        ({}, "rules[0]", "needs above and/or below, or [rules.anomaly], or missing"),
        ({"above": 1, "missing": "5m"}, "rules[0]", "one of the three"),
        ({"above": 1, "below": 2}, "rules[0].below", "must not be more than above"),
        ({"above": 1, "lasting": "5m", "times": "1 of 2"}, "rules[0].times", "means the same as lasting"),
        ({"above": 1, "lasting": "5s"}, "rules[0].lasting", "must not be shorter than window"),
        ({"above": 1, "times": "3 of 2"}, "rules[0].times", "must be a number of the last windows"),
        ({"missing": "5m", "take": "sum"}, "rules[0].take", "concerns windows"),
        ({"missing": "2d"}, "rules[0]", "increase that setting"),
        ({"anomaly": {"history": "5m"}}, "rules[0].anomaly.warm_up", "history contains fewer windows"),
    ],
)
def test_invalid_settings_are_mistakes_with_their_paths(given: dict[str, Any], where: str, said: str) -> None:
    (mistake,) = alerts([given]).inspect()
    assert mistake.where == where
    assert said in mistake.message


def test_rules_and_fields_have_names_of_their_own() -> None:
    found = alerts([{"above": 1}, {"above": 2}], labels=["host", "value"]).inspect()
    assert {each.where for each in found} == {"metrics.value", "metrics.labels", "rules[1].name"}


def test_times_that_cannot_be_read_are_said_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="such as \"3 of 5\", not 'often'"):
        rule(above=1, times="often")
    assert Anomaly().warm_up == 10


def test_the_sample_is_a_pipeline(tmp_path: Path) -> None:
    (tmp_path / "sample.toml").write_text(sample_declaration("alerts"))
    assert read_job(tmp_path / "sample.toml").kind == "alerts"
    longer = list(metrics(900))
    assert list(metrics(321)) == longer[:321]
