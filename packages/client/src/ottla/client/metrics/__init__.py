"""Metrics as plain objects: attributes to read, samples to export.

A client counts per batch and per request, never per record, so the cost of counting is not measurable. Names
are Kafka's in snake case. Counters replace Kafka's rates, which a monitoring system derives from them;
averages are over the whole life of the client.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

__all__ = ["Description", "Kind", "Metrics", "Sample", "Source", "average", "counter", "gauge", "total"]

T = TypeVar("T", int, float)

Kind = Literal["counter", "gauge"]


@dataclass(frozen=True, slots=True)
class Description:
    """The name, kind, meaning and tags of a metric."""

    name: str
    kind: Kind
    meaning: str
    tags: tuple[str, ...] = ()

    @property
    def path(self) -> tuple[str, ...]:
        """The parts of its full name: metrics of topics have the same names as those of the client."""
        return (*self.tags, self.name)


class Sample(NamedTuple):
    """The current value of a metric. `tags` are the tags of its description, with their values."""

    description: Description
    tags: Mapping[str, str]
    value: float


def counter(meaning: str) -> int:
    """Declare a field that only grows."""
    return dataclasses.field(default=0, metadata={"kind": "counter", "meaning": meaning})


def total(meaning: str) -> float:
    """Declare a field that only grows and may be fractional: a sum of times."""
    return dataclasses.field(default=0.0, metadata={"kind": "counter", "meaning": meaning})


def gauge(meaning: str) -> float:
    """Declare a field that rises and falls."""
    return dataclasses.field(default=0.0, metadata={"kind": "gauge", "meaning": meaning})


def average(total: float, count: float) -> float:
    """Return total / count, 0 for a count of 0."""
    return total / count if count else 0.0


class Metrics:
    """The base of dataclasses whose fields are metrics.

    `derived` names properties that are metrics too, with their meaning: counters if the name ends in
    `_total`, gauges otherwise.
    """

    __slots__ = ()
    prefix: ClassVar[str] = ""
    derived: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def descriptions(cls, tags: tuple[str, ...] = ()) -> tuple[Description, ...]:
        """Return the description of each metric."""
        own = [
            Description(field.name, field.metadata["kind"], field.metadata["meaning"], tags)
            for field in dataclasses.fields(cls)  # type: ignore[arg-type]
            if "kind" in field.metadata
        ]
        derived = (
            Description(name, "counter" if name.endswith("_total") else "gauge", meaning, tags)
            for name, meaning in cls.derived.items()
        )
        return (*own, *derived)

    @classmethod
    def all_descriptions(cls) -> tuple[Description, ...]:
        """Return the description of each metric, those of topics and partitions included."""
        return cls.descriptions()

    def samples(self) -> Iterator[Sample]:
        """Yield every metric with its value, those of topics and partitions included."""
        return self.tagged({})

    def tagged(self, tags: Mapping[str, str]) -> Iterator[Sample]:
        """Yield the values of this object's metrics with the given tags."""
        for description in self.descriptions(tuple(tags)):
            yield Sample(description, tags, getattr(self, description.name))

    def snapshot(self) -> dict[str, Any]:
        """Return name -> value; for metrics with tags, tags and name -> {tag values: value}."""
        found: dict[str, Any] = {}
        for description, tags, value in self.samples():
            if not tags:
                found[description.name] = value
                continue
            by_tags = found.setdefault("_".join(description.path), {})
            by_tags["-".join(tags.values())] = value
        return found


class Source(NamedTuple):
    """Metrics of one client, with the tags that distinguish them from those of other clients."""

    metrics: Metrics
    tags: Mapping[str, str]

    def samples(self) -> Iterable[Sample]:
        """Yield its samples with its own tags added."""
        return (
            sample._replace(tags={**self.tags, **sample.tags}) if self.tags else sample
            for sample in self.metrics.samples()
        )
