"""The JSON files of reassignments, as kafka-reassign-partitions reads and writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ottla.protocol.topics import TopicPartition

ANY_DIR: Final = "any"
_VERSION: Final = 1


class MalformedReassignment(ValueError):
    """A file is not a reassignment; the message is one line that names the entry."""


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The replicas that a partition is to have, the preferred leader first, each in its log directory.

    `log_dirs` is empty or as long as `replicas`; `any` leaves the choice to the broker.
    """

    partition: TopicPartition
    replicas: tuple[int, ...]
    log_dirs: tuple[str, ...] = ()

    @property
    def chosen_dirs(self) -> dict[int, str]:
        """The log directory of each replica for which one is named, by broker."""
        pairs = zip(self.replicas, self.log_dirs, strict=False)
        return {broker: path for broker, path in pairs if path != ANY_DIR}


def encode_plans(plans: Iterable[PartitionPlan]) -> str:
    """Return the JSON of a reassignment, sorted by partition."""
    partitions = [
        {
            "topic": plan.partition.topic,
            "partition": plan.partition.partition,
            "replicas": list(plan.replicas),
            "log_dirs": list(plan.log_dirs) or [ANY_DIR] * len(plan.replicas),
        }
        for plan in sorted(plans, key=lambda plan: plan.partition)
    ]
    return json.dumps({"version": _VERSION, "partitions": partitions})


def decode_plans(text: str) -> list[PartitionPlan]:
    """Read the JSON of a reassignment. Raises MalformedReassignment."""
    plans = [_plan(entry) for entry in _entries(text, "partitions")]
    named = [plan.partition for plan in plans]
    if twice := {str(partition) for partition in named if named.count(partition) > 1}:
        raise MalformedReassignment(f"{min(twice)} is named twice")
    if not plans:
        raise MalformedReassignment("no partition is named")
    return plans


def decode_topics(text: str) -> list[str]:
    """Read the topics of a `--topics-to-move-json-file`. Raises MalformedReassignment."""
    return [_value(entry, "topic", str) for entry in _entries(text, "topics")]


def _entries(text: str, name: str) -> Iterator[Mapping[str, Any]]:
    try:
        whole = json.loads(text)
    except ValueError as error:
        raise MalformedReassignment(f"not JSON: {error}") from None
    if not isinstance(whole, dict) or not isinstance(whole.get(name), list):
        raise MalformedReassignment(f'not an object with a list "{name}"')
    if whole.get("version", _VERSION) != _VERSION:
        raise MalformedReassignment(f"version {whole['version']!r} is not known, only {_VERSION}")
    for entry in whole[name]:
        if not isinstance(entry, dict):
            raise MalformedReassignment(f"{entry!r} is not an object")
        yield entry


def _plan(entry: Mapping[str, Any]) -> PartitionPlan:
    partition = TopicPartition(_value(entry, "topic", str), _value(entry, "partition", int))
    replicas = tuple(_value(entry, "replicas", list))
    log_dirs = tuple(_value(entry, "log_dirs", list)) if "log_dirs" in entry else ()
    if not replicas or not all(isinstance(replica, int) and replica >= 0 for replica in replicas):
        raise MalformedReassignment(f"{partition}: replicas must be a list of broker ids")
    if len(set(replicas)) != len(replicas):
        raise MalformedReassignment(f"{partition}: a broker is named twice in replicas {list(replicas)}")
    if not all(isinstance(path, str) for path in log_dirs):
        raise MalformedReassignment(f"{partition}: log_dirs must be a list of directories")
    if log_dirs and len(log_dirs) != len(replicas):
        raise MalformedReassignment(
            f"{partition}: {len(replicas)} replicas and {len(log_dirs)} log_dirs: name as many, "
            "or no log_dirs"
        )
    return PartitionPlan(partition, replicas, log_dirs)


def _value(entry: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    value = entry.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise MalformedReassignment(f'{json.dumps(entry)} has no "{name}" of the right type')
    return value
