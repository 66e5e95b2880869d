"""Prometheus's view of what was collected: lag of groups, ends of partitions, problems of clusters. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ottla.admin import problems
from ottla.console.clusters.group_rows import total_lag
from ottla.console.watch.collecting import Look

_HELP: Final = {
    "ottla_console_group_lag_records": "Records that a group has not read, over all partitions.",
    "ottla_console_group_partition_lag_records": "Records of one partition that a group has not read.",
    "ottla_console_group_partition_offset": "The offset that a group has committed.",
    "ottla_console_group_members": "Members of a group.",
    "ottla_console_partition_end_offset": "The offset after the last record of a partition.",
    "ottla_console_cluster_problems": "Problems of a cluster, as the cluster's page lists them.",
    "ottla_console_under_replicated_partitions": "Partitions of which not all replicas are in sync.",
    "ottla_console_collected_timestamp_seconds": "When the cluster was last looked at.",
}


def exposition(looks: Mapping[str, tuple[Look, int]]) -> str:
    """Return the last look at each cluster in Prometheus's text format."""
    samples: dict[str, list[str]] = {name: [] for name in _HELP}
    for look, at_s in looks.values():
        for name, labels, value in _samples(look, at_s):
            samples[name].append(f"{name}{{{_labels(labels)}}} {value}")
    lines = []
    for name, help_text in _HELP.items():
        if samples[name]:
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} gauge", *samples[name]]
    return "\n".join(lines) + "\n"


def _samples(look: Look, at_s: int) -> Iterator[tuple[str, dict[str, str], float]]:
    cluster = {"cluster": look.cluster}
    yield "ottla_console_collected_timestamp_seconds", cluster, at_s
    yield "ottla_console_cluster_problems", cluster, len(problems(look.state))
    yield "ottla_console_under_replicated_partitions", cluster, len(look.state.under_replicated)
    for group, progress in look.progress.items():
        labels = cluster | {"group": group}
        if (lag := total_lag(progress)) is not None:
            yield "ottla_console_group_lag_records", labels, lag
        yield "ottla_console_group_members", labels, len(progress.description.members)
        for found in progress.partitions:
            of_partition = labels | {
                "topic": found.partition.topic, "partition": str(found.partition.partition),
            }  # fmt: skip
            if found.lag is not None:
                yield "ottla_console_group_partition_lag_records", of_partition, max(found.lag, 0)
            if found.offset is not None:
                yield "ottla_console_group_partition_offset", of_partition, found.offset
    for partition, end in look.ends.items():
        labels = cluster | {"topic": partition.topic, "partition": str(partition.partition)}
        yield "ottla_console_partition_end_offset", labels, end


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
