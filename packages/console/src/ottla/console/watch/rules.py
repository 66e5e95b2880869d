"""Judge rules of alerts by a look at a cluster. Pure.

A look becomes readings: of each kind the subjects with a number, and those of which nothing is known. A rule
is about every subject that its `match` names, each by itself: one group behind raises one alert. Unknown is
neither good nor bad: it raises nothing and clears nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from ottla.admin import PartitionHealth, problems
from ottla.admin.groups import GroupProgress
from ottla.console.clusters.group_rows import total_lag
from ottla.console.watch.looks import Look
from ottla.console.watch.rule_files import GROUP_KINDS, Rule
from ottla.protocol.topics import TopicPartition

TEXTS: Final[Mapping[str, str]] = {
    "lag": "group {subject} is {value:.0f} records behind",
    "time_lag": "group {subject} is {value:.0f} s behind",
    "lag_growing": "the lag of group {subject} grows, to {value:.0f} records",
    "no_members": "group {subject} has no members and is {value:.0f} records behind",
    "silent_topic": "nothing is written to topic {subject}",
    "under_replicated": "{value:.0f} partitions of topic {subject} lack replicas",
    "offline": "{value:.0f} partitions of topic {subject} are offline: no in-sync replica is alive",
    "no_leader": "{value:.0f} partitions of topic {subject} have no leader",
    "unclean_election": "{value:.0f} partitions of topic {subject} are led by a replica that was not in "
    "sync: records may be lost",
    "broker_away": "{subject} is away",
    "disk": "the volume of log directory {subject} is {value:.0f} % full",
    "certificate": "the certificate of broker {subject} ends in {value:.1f} days",
    "unreachable": "cluster {subject} does not answer",
}
"""One line for people, of each kind."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a rule is about: its name, its number, and one line for people."""

    subject: str
    value: float
    text: str


class Unknown(NamedTuple):
    """A subject of which a look knows nothing, or not enough to clear an alert."""

    subject: str


@dataclass(frozen=True, slots=True)
class Readings:
    """The findings of a look by kind, and what it does not know."""

    cluster: str
    found: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)
    unknown: Mapping[str, frozenset[str]] = field(default_factory=dict)
    brokers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The brokers that have answered, of the kinds with subjects `BROKER:…`: of others nothing is known."""
    groups: frozenset[str] | None = None
    """The groups that were asked for, where it is not known whether there are more."""
    is_reached: bool = True

    def is_unknown(self, kind: str, subject: str) -> bool:
        """Whether the look knows too little of a subject to clear its alerts."""
        if not self.is_reached:
            return kind != "unreachable"
        if kind in self.brokers and ":" in subject and subject.partition(":")[0] not in self.brokers[kind]:
            return True
        if kind in GROUP_KINDS and self.groups is not None and subject not in self.groups:
            return True
        return subject in self.unknown.get(kind, ())


def unreached(cluster: str, reason: str) -> Readings:
    """Return the readings of a cluster that does not answer."""
    text = f"cluster {cluster} does not answer: {reason}"
    return Readings(cluster, {"unreachable": (Finding(cluster, 1, text),)}, is_reached=False)


def finding(kind: str, subject: str, value: float) -> Finding:
    """Return a finding with the line of its kind."""
    return Finding(subject, value, TEXTS[kind].format(subject=subject, value=value))


Finder = Callable[[Look, Look | None], Iterator[Finding | Unknown]]


def _lag(look: Look, _: Look | None) -> Iterator[Finding | Unknown]:
    for group, progress in look.progress.items():
        yield from _numbered("lag", group, total_lag(progress), is_whole=_is_whole(progress))


def _numbered(kind: str, subject: str, value: float | None, *, is_whole: bool) -> Iterator[Finding | Unknown]:
    """Return a number; of a part of the partitions it is the least that it may be."""
    if value is None or not is_whole:
        yield Unknown(subject)
    if value is not None:
        yield finding(kind, subject, value)


def _is_whole(progress: GroupProgress) -> bool:
    """Whether the lag of all partitions with a commit is known: a leader that is away hides some."""
    return all(found.lag is not None for found in progress.partitions if found.offset is not None)


def _time_lag(look: Look, _: Look | None) -> Iterator[Finding | Unknown]:
    for group, progress in look.progress.items():
        known = group not in look.unclear_times and _is_whole(progress)
        yield from _numbered("time_lag", group, look.time_lags_s.get(group), is_whole=known)


def _lag_growing(look: Look, earlier: Look | None) -> Iterator[Finding | Unknown]:
    for group, progress in look.progress.items():
        before = None if earlier is None else earlier.progress.get(group)
        now, then = total_lag(progress), None if before is None else total_lag(before)
        is_known = _is_whole(progress) and before is not None and _is_whole(before)
        if now is None or then is None or not is_known:
            yield Unknown(group)
        elif now > then:
            yield finding("lag_growing", group, now)


def _no_members(look: Look, _: Look | None) -> Iterator[Finding | Unknown]:
    """Return the lag of groups without members, whose records stay unread."""
    for group, progress in look.progress.items():
        if not progress.description.members:
            yield from _numbered("no_members", group, total_lag(progress), is_whole=_is_whole(progress))


def _silent_topic(look: Look, earlier: Look | None) -> Iterator[Finding | Unknown]:
    """Return the topics to which nothing was written since the look before."""
    for topic, partitions in _partitions_of(look).items():
        then = {} if earlier is None else earlier.ends
        both = [partition for partition in partitions if partition in look.ends and partition in then]
        if any(look.ends[partition] != then[partition] for partition in both):
            continue
        yield finding("silent_topic", topic, 1) if len(both) == len(partitions) else Unknown(topic)


def _partitions_of(look: Look) -> dict[str, list[TopicPartition]]:
    found: dict[str, list[TopicPartition]] = defaultdict(list)
    for health in look.state.partitions:
        if not health.partition.topic.startswith("__"):
            found[health.partition.topic].append(health.partition)
    return found


def _counted(kind: str, lacking: Iterable[PartitionHealth]) -> Iterator[Finding]:
    counts: dict[str, int] = defaultdict(int)
    for health in lacking:
        counts[health.partition.topic] += 1
    for topic, count in counts.items():
        yield finding(kind, topic, count)


def _under_replicated(look: Look, _: Look | None) -> Iterator[Finding | Unknown]:
    return _counted("under_replicated", look.state.under_replicated)


def _no_leader(look: Look, _: Look | None) -> Iterator[Finding | Unknown]:
    return _counted("no_leader", (health for health in look.state.partitions if health.leader is None))


def _offline(look: Look, _: Look | None) -> Iterator[Finding | Unknown]:
    """Return partitions that get a leader only when a broker comes back, or by an unclean election."""
    alive = {broker.id for broker in look.state.brokers}
    return _counted(
        "offline",
        (health for health in look.state.partitions if health.leader is None and not alive & set(health.isr)),
    )


def _unclean_election(look: Look, earlier: Look | None) -> Iterator[Finding | Unknown]:
    """Return topics with a leader that was out of sync, where none of those in sync is so any more."""
    before = {} if earlier is None else {health.partition: health for health in earlier.state.partitions}
    return _counted(
        "unclean_election",
        (
            health
            for health in look.state.partitions
            if (then := before.get(health.partition)) is not None and _is_unclean(then, health)
        ),
    )


def _is_unclean(then: PartitionHealth, now: PartitionHealth) -> bool:
    """Whether a leader was elected that was not in sync.

    A reassignment takes leaders away, too: there those that were in sync are no replicas any more. A new
    topic of the same name begins with all its replicas in sync.
    """
    return (
        now.leader is not None
        and bool(then.isr)
        and not set(then.isr) & {now.leader, *now.isr}
        and set(then.isr) <= set(now.replicas)
    )


def _broker_away(look: Look, _: Look | None) -> Iterator[Finding | Unknown]:
    for problem in problems(look.state):
        if problem.kind in ("broker away", "no controller", "log directory offline"):
            yield Finding(problem.what, 1, problem.text)


def _disk(look: Look, _: Look | None) -> Iterator[Finding | Unknown]:
    for found in look.state.log_dirs:
        subject = f"{found.broker}:{found.path}"
        if found.error is None and found.total_bytes > 0:
            used = 100 * (found.total_bytes - found.usable_bytes) / found.total_bytes
            text = f"the volume of {found.path} on broker {found.broker} is {used:.0f} % full"
            yield Finding(subject, used, text)
        else:
            yield Unknown(subject)


def _certificate(look: Look, _: Look | None) -> Iterator[Finding | Unknown]:
    for subject, days in look.certificate_days.items():
        yield finding("certificate", subject, days)


def _unreachable(_: Look, __: Look | None) -> Iterator[Finding | Unknown]:
    """Return nothing: a look is there."""
    return iter(())


FINDERS: Final[Mapping[str, Finder]] = {
    "lag": _lag,
    "time_lag": _time_lag,
    "lag_growing": _lag_growing,
    "no_members": _no_members,
    "silent_topic": _silent_topic,
    "under_replicated": _under_replicated,
    "offline": _offline,
    "no_leader": _no_leader,
    "unclean_election": _unclean_election,
    "broker_away": _broker_away,
    "disk": _disk,
    "certificate": _certificate,
    "unreachable": _unreachable,
}
COMPARING: Final = frozenset({"lag_growing", "silent_topic", "unclean_election"})
"""The kinds that need a look before."""
_OFFSETS: Final = "__consumer_offsets"


def readings(look: Look, earlier: Look | None) -> Readings:
    """Return the readings of a look, compared with the one before."""
    found: dict[str, tuple[Finding, ...]] = {}
    unknown: dict[str, frozenset[str]] = {}
    for kind, finder in FINDERS.items():
        items = list(finder(look, earlier))
        found[kind] = tuple(item for item in items if isinstance(item, Finding))
        silent = look.silent_groups if kind in GROUP_KINDS else frozenset[str]()
        unknown[kind] = silent.union(item.subject for item in items if isinstance(item, Unknown))
    described = frozenset(str(log_dir.broker) for log_dir in look.state.log_dirs)
    answered = frozenset(subject.partition(":")[0] for subject in look.certificate_days)
    # A broker lists the groups of the partitions of their topic that it leads, and no others.
    lists_all = not any(
        health.leader is None and health.partition.topic == _OFFSETS for health in look.state.partitions
    )
    return Readings(
        look.cluster, found, unknown,
        {"disk": described, "broker_away": described, "certificate": answered},
        None if lists_all else frozenset(look.progress),
    )  # fmt: skip


def remembered(look: Look, earlier: Look | None) -> Look:
    """Return a look with what only the one before knows: the next one is compared with it.

    So a group is compared with the last time that its coordinator answered, and a partition with the last
    time that it had a leader.
    """
    if earlier is None:
        return look
    missing = {
        group: progress
        for group, progress in earlier.progress.items()
        if group in look.silent_groups or (group in look.progress and not _is_whole(look.progress[group]))
    }
    there = {health.partition for health in look.state.partitions}
    ends = {partition: end for partition, end in earlier.ends.items() if partition in there}
    return replace(look, progress={**look.progress, **missing}, ends=ends | dict(look.ends))


def holds(rule: Rule, found: Finding) -> bool:
    """Whether a rule holds for a finding of its kind."""
    if not fnmatchcase(found.subject, rule.match):
        return False
    return found.value < rule.days if rule.kind == "certificate" else found.value > rule.above


def holding(rule: Rule, read: Readings) -> list[Finding]:
    """Return that of the readings for which a rule holds now."""
    if not fnmatchcase(read.cluster, rule.cluster):
        return []
    return [found for found in read.found.get(rule.kind, ()) if holds(rule, found)]


def held_by(rules: Iterable[Rule], read: Readings) -> dict[str, list[Finding]]:
    """Return that of the readings for which each rule holds, by the rule's name."""
    return {rule.name: holding(rule, read) for rule in rules}


def findings(rule: Rule, look: Look, earlier: Look | None) -> list[Finding]:
    """Return that of a look for which a rule holds now."""
    return holding(rule, readings(look, earlier))
