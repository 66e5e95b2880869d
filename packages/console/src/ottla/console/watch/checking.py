"""Check rules by a command: once for CI, or over the hours that the history has."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from ottla.client.environment import monotonic_s, now_ms
from ottla.client.errors import NoBrokerAvailable
from ottla.console.clusters.connections import ShownClusters
from ottla.console.clusters.samples import NoSample
from ottla.console.settings import ClusterSettings
from ottla.console.watch.alerts import Alerts, Event
from ottla.console.watch.collecting import ENDS, KEPT_READINGS, LAG, MEMBERS, PROBLEMS
from ottla.console.watch.looks import WrittenTimes, look_at
from ottla.console.watch.rule_files import Rule
from ottla.console.watch.rules import COMPARING, Finding, Readings, finding, findings, remembered


class NoHistory(Exception):
    """There is no history to test rules over; the message says what to change."""


async def check_now(
    settings: ClusterSettings, rules: Sequence[Rule], between_s: float
) -> list[tuple[Rule, Finding]]:
    """Return that for which rules hold now; rules that compare two looks wait for the second.

    Raises ClientError where the cluster does not answer.
    """
    times = WrittenTimes()
    async with ShownClusters([settings], monotonic_s) as clusters:
        (cluster,) = clusters
        try:
            earlier = None
            look = await look_at(cluster, times, now_ms() / 1_000)
            if any(rule.kind in COMPARING for rule in rules):
                await asyncio.sleep(between_s)
                cluster.forget()
                earlier = remembered(look, None)
                look = await look_at(cluster, times, now_ms() / 1_000)
        except NoSample as error:
            raise NoBrokerAvailable([str(error)]) from None
    return [(rule, found) for rule in rules for found in findings(rule, look, earlier)]


# --- over the history


@dataclass(slots=True)
class _Minute:
    """The points of a cluster at one time, by kind and name."""

    cluster: str
    at_s: int
    points: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))


def events_of(path: Path, rules: Sequence[Rule], since_s: int) -> Iterator[Event]:
    """Return what rules would have raised and cleared since a time, by a history. Raises NoHistory.

    Points are means of a minute, of ten after a day: what holds for less than that may be missed.
    """
    alerts = Alerts(rules)
    earlier: dict[str, _Minute] = {}
    for minute in _minutes(path, since_s):
        yield from alerts.step(_readings(minute, earlier.get(minute.cluster)), minute.at_s).events
        if "unreachable" not in minute.points:
            earlier[minute.cluster] = minute


def _minutes(path: Path, since_s: int) -> Iterator[_Minute]:
    if not path.exists():
        raise NoHistory(f"there is no history at {path}: `ottla console` writes one while it runs")
    query = (
        "SELECT at_s, cluster, kind, name, mean FROM points JOIN series ON series.id = points.series "
        "WHERE at_s >= ? ORDER BY at_s, cluster"
    )
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            rows = database.execute(query, (since_s,))
            for (at_s, cluster), points in groupby(rows, key=lambda row: (row[0], row[1])):
                minute = _Minute(cluster, at_s)
                for _, _, kind, name, mean in points:
                    minute.points[kind][name] = mean
                yield minute
    except sqlite3.Error as error:
        raise NoHistory(f"{path} is no history that can be read: {error}") from None


def _readings(minute: _Minute, earlier: _Minute | None) -> Readings:
    """Return the readings of a minute; a group of which it has no lag is unknown."""
    points = minute.points
    found = {
        kind: tuple(finding(kind, name, value) for name, value in points.get(kind, {}).items())
        for kind in KEPT_READINGS
    }
    if PROBLEMS not in points:  # there was no look
        return Readings(minute.cluster, {"unreachable": found["unreachable"]}, is_reached=False)
    lags, members = points.get(LAG, {}), points.get(MEMBERS, {})
    before = {} if earlier is None else earlier.points
    found |= {
        "lag": tuple(finding("lag", group, lag) for group, lag in lags.items()),
        "lag_growing": tuple(
            finding("lag_growing", group, lag)
            for group, lag in lags.items()
            if lag > before.get(LAG, {}).get(group, lag)
        ),
        "no_members": tuple(
            finding("no_members", group, lag) for group, lag in lags.items() if members.get(group) == 0
        ),
        "silent_topic": tuple(
            finding("silent_topic", topic, 1)
            for topic, end in points.get(ENDS, {}).items()
            if before.get(ENDS, {}).get(topic) == end
        ),
    }
    brokers = {
        kind: frozenset(name.partition(":")[0] for name in points.get(kind, {}))
        for kind in ("disk", "certificate")
    }
    return Readings(minute.cluster, found, brokers=brokers, groups=frozenset(lags))
