"""Whether rules of alerts hold in a look at a cluster. Pure.

A rule is about everything that its `match` names, each by itself: one group behind raises one alert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from ottla.admin import problems
from ottla.console.clusters.group_rows import total_lag
from ottla.console.watch.collecting import Look
from ottla.console.watch.rule_files import Rule


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a rule is about: its name, its number, and one line for people."""

    subject: str
    value: float
    text: str


Finder = Callable[[Look], Iterator[Finding]]


def _lag(look: Look) -> Iterator[Finding]:
    for group, progress in look.progress.items():
        if (lag := total_lag(progress)) is not None:
            yield Finding(group, lag, f"group {group} is {lag} records behind")


def _no_members(look: Look) -> Iterator[Finding]:
    """Return the lag of groups without members, whose records stay unread."""
    for group, progress in look.progress.items():
        lag = total_lag(progress)
        if lag and not progress.description.members:
            yield Finding(group, lag, f"group {group} has no members and is {lag} records behind")


def _under_replicated(look: Look) -> Iterator[Finding]:
    lacking: dict[str, int] = {}
    for health in look.state.under_replicated:
        lacking[health.partition.topic] = lacking.get(health.partition.topic, 0) + 1
    for topic, count in lacking.items():
        yield Finding(topic, count, f"{count} partitions of topic {topic} lack replicas")


def _no_leader(look: Look) -> Iterator[Finding]:
    leaderless: dict[str, int] = {}
    for health in look.state.partitions:
        if health.leader is None:
            leaderless[health.partition.topic] = leaderless.get(health.partition.topic, 0) + 1
    for topic, count in leaderless.items():
        yield Finding(topic, count, f"{count} partitions of topic {topic} have no leader")


def _broker_away(look: Look) -> Iterator[Finding]:
    for problem in problems(look.state):
        if problem.kind in ("broker away", "no controller", "log directory offline"):
            yield Finding(problem.what, 1, problem.text)


def _disk(look: Look) -> Iterator[Finding]:
    for found in look.state.log_dirs:
        if found.total_bytes > 0:
            used = 100 * (found.total_bytes - found.usable_bytes) / found.total_bytes
            text = f"the volume of {found.path} on broker {found.broker} is {used:.0f} % full"
            yield Finding(f"{found.broker}:{found.path}", used, text)


FINDERS: Final[Mapping[str, Finder]] = {
    "lag": _lag,
    "no_members": _no_members,
    "under_replicated": _under_replicated,
    "no_leader": _no_leader,
    "broker_away": _broker_away,
    "disk": _disk,
}
"""The kinds that one look is enough for; `lag_growing` and `silent_topic` compare two."""


def findings(rule: Rule, look: Look, earlier: Look | None) -> list[Finding]:
    """Return that of a look for which a rule holds now."""
    if not fnmatchcase(look.cluster, rule.cluster):
        return []
    return [
        found
        for found in _all(rule.kind, look, earlier)
        if fnmatchcase(found.subject, rule.match) and found.value > rule.above
    ]


def _all(kind: str, look: Look, earlier: Look | None) -> Iterator[Finding]:
    if kind == "lag_growing":
        return _lag_growing(look, earlier)
    if kind == "silent_topic":
        return _silent_topic(look, earlier)
    return FINDERS[kind](look)


def _lag_growing(look: Look, earlier: Look | None) -> Iterator[Finding]:
    for group, progress in look.progress.items():
        before = None if earlier is None else earlier.progress.get(group)
        now, then = total_lag(progress), None if before is None else total_lag(before)
        if now is not None and then is not None and now > then:
            yield Finding(group, now, f"the lag of group {group} grows, to {now} records")


def _silent_topic(look: Look, earlier: Look | None) -> Iterator[Finding]:
    """Return the topics to which nothing was written since the look before."""
    if earlier is None:
        return
    for topic in sorted({partition.topic for partition in look.ends}):
        now = {partition: end for partition, end in look.ends.items() if partition.topic == topic}
        if now == {partition: end for partition, end in earlier.ends.items() if partition.topic == topic}:
            yield Finding(topic, 1, f"nothing is written to topic {topic}")
