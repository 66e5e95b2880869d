"""Prometheus's view of what was collected: lags, rates, ends, problems, alerts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from ottla.admin import problems
from ottla.console.watch.alerts import Alert
from ottla.console.watch.collecting import Watched
from ottla.console.watch.looks import whole_lags

MOST_SERIES: Final = 20_000
"""The lines of one page, which Prometheus stores as as many series."""

_HELP: Final = {
    "ottla_console_collected_timestamp_seconds": "When the cluster was last looked at.",
    "ottla_console_cluster_problems": "Problems of a cluster, as the cluster's page lists them.",
    "ottla_console_brokers": "Brokers that are there.",
    "ottla_console_partitions": "Partitions, internal topics included.",
    "ottla_console_under_replicated_partitions": "Partitions of which not all replicas are in sync.",
    "ottla_console_leaderless_partitions": "Partitions without a leader.",
    "ottla_console_offline_partitions": "Partitions without a leader of which no in-sync replica is alive.",
    "ottla_console_log_dir_used_ratio": "The used part of the volume of a log directory.",
    "ottla_console_certificate_days": "Days until the certificate of a broker's listener ends.",
    "ottla_console_alert": "Alerts that stand, by rule.",
    "ottla_console_alerts_given_up_total": "Alerts that a target did not take.",
    "ottla_console_left_out_series": "Series that are left out of this page, as there are too many.",
    "ottla_console_group_lag_records": "Records that a group has not read, over all partitions.",
    "ottla_console_group_lag_seconds": "The age of the oldest record that a group has not read.",
    "ottla_console_group_members": "Members of a group.",
    "ottla_console_group_committed_records_per_second": "Records that a group commits as read.",
    "ottla_console_topic_written_records_per_second": "Records that are written to a topic.",
    "ottla_console_group_partition_lag_records": "Records of one partition that a group has not read.",
    "ottla_console_group_partition_offset": "The offset that a group has committed.",
    "ottla_console_partition_end_offset": "The offset after the last record of a partition.",
}
METRICS: Final = frozenset(_HELP)


class Sample(NamedTuple):
    """One line of the page."""

    name: str
    labels: Mapping[str, str]
    value: float


def exposition(
    watched: Mapping[str, Watched], standing: Iterable[Alert] = (), rules: Iterable[str] = (),
    given_up: Mapping[str, int] | None = None, *, most_series: int = MOST_SERIES,
) -> str:  # fmt: skip
    """Return the last look at each cluster in Prometheus's text format, in at most so many lines.

    Clusters come before groups, those before topics, and single partitions last: they are left out first.
    """
    found = list(_of_alerts(standing, rules, given_up or {}))
    for part in (_of_cluster, _of_groups, _of_topics, _of_partitions):
        for cluster in watched.values():
            found += part(cluster)
    kept = found[:most_series]
    kept.append(Sample("ottla_console_left_out_series", {}, max(0, len(found) - most_series)))
    by_name: dict[str, list[str]] = {name: [] for name in _HELP}
    for name, labels, value in kept:
        by_name[name].append(f"{name}{{{_labels(labels)}}} {value}" if labels else f"{name} {value}")
    lines = []
    for name, help_text in _HELP.items():
        if by_name[name]:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", *by_name[name]]
    return "\n".join(lines) + "\n"


def _of_alerts(
    standing: Iterable[Alert], rules: Iterable[str], given_up: Mapping[str, int]
) -> Iterator[Sample]:
    counts = Counter(alert.rule.name for alert in standing)
    for rule in rules:
        yield Sample("ottla_console_alert", {"rule": rule}, counts[rule])
    for target, count in given_up.items():
        yield Sample("ottla_console_alerts_given_up_total", {"target": target}, count)


def _of_cluster(watched: Watched) -> Iterator[Sample]:
    look, labels = watched.look, {"cluster": watched.look.cluster}
    state, found = look.state, watched.readings.found
    yield Sample("ottla_console_collected_timestamp_seconds", labels, watched.at_s)
    yield Sample("ottla_console_cluster_problems", labels, len(problems(state)))
    yield Sample("ottla_console_brokers", labels, len(state.brokers))
    yield Sample("ottla_console_partitions", labels, len(state.partitions))
    yield Sample("ottla_console_under_replicated_partitions", labels, len(state.under_replicated))
    for name, kind in (("leaderless", "no_leader"), ("offline", "offline")):
        count = sum(finding.value for finding in found.get(kind, ()))
        yield Sample(f"ottla_console_{name}_partitions", labels, count)
    for finding in found.get("disk", ()):
        broker, _, path = finding.subject.partition(":")
        of_dir = {**labels, "broker": broker, "path": path}
        yield Sample("ottla_console_log_dir_used_ratio", of_dir, finding.value / 100)
    for finding in found.get("certificate", ()):
        broker, _, listener = finding.subject.partition(":")
        of_listener = {**labels, "broker": broker, "listener": listener}
        yield Sample("ottla_console_certificate_days", of_listener, finding.value)


def _of_groups(watched: Watched) -> Iterator[Sample]:
    look, lags = watched.look, whole_lags(watched.look)
    for group, progress in look.progress.items():
        labels = {"cluster": look.cluster, "group": group}
        if group in lags:
            yield Sample("ottla_console_group_lag_records", labels, lags[group])
        if group in look.time_lags_s and group not in look.unclear_times:
            yield Sample("ottla_console_group_lag_seconds", labels, look.time_lags_s[group])
        yield Sample("ottla_console_group_members", labels, len(progress.description.members))
        if group in watched.committed_per_s:
            rate = watched.committed_per_s[group]
            yield Sample("ottla_console_group_committed_records_per_second", labels, rate)


def _of_topics(watched: Watched) -> Iterator[Sample]:
    for topic, rate in watched.written_per_s.items():
        labels = {"cluster": watched.look.cluster, "topic": topic}
        yield Sample("ottla_console_topic_written_records_per_second", labels, rate)


def _of_partitions(watched: Watched) -> Iterator[Sample]:
    look = watched.look
    for group, progress in look.progress.items():
        for found in progress.partitions:
            labels = {
                "cluster": look.cluster, "group": group, "topic": found.partition.topic,
                "partition": str(found.partition.partition),
            }  # fmt: skip
            if found.lag is not None:
                yield Sample("ottla_console_group_partition_lag_records", labels, max(found.lag, 0))
            if found.offset is not None:
                yield Sample("ottla_console_group_partition_offset", labels, found.offset)
    for partition, end in look.ends.items():
        labels = {
            "cluster": look.cluster, "topic": partition.topic, "partition": str(partition.partition)
        }  # fmt: skip
        yield Sample("ottla_console_partition_end_offset", labels, end)


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
