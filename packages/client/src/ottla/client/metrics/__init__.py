"""Metrics as plain objects: attributes to read, samples to export.

A client counts per batch and per request, never per record, so counting costs nothing that could be measured.
Names are Kafka's in snake case. What Kafka gives as a rate is left to whoever shows it; averages are over the
whole life of the client.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

T = TypeVar("T", int, float)

Kind = Literal["counter", "gauge"]


@dataclass(frozen=True, slots=True)
class Description:
    """What a metric is: its name, whether it only grows, what it says, and by what it is told apart."""

    name: str
    kind: Kind
    meaning: str
    tags: tuple[str, ...] = ()

    @property
    def path(self) -> tuple[str, ...]:
        """What its full name is made of: metrics of topics have the names of those of the client."""
        return (*self.tags, self.name)


class Sample(NamedTuple):
    """A metric's value now. `tags` are those of its description, with their values."""

    description: Description
    tags: Mapping[str, str]
    value: float


def counter(meaning: str) -> int:
    """Declare a field that only grows."""
    return dataclasses.field(default=0, metadata={"kind": "counter", "meaning": meaning})


def total(meaning: str) -> float:
    """Declare a field that only grows, by fractions too: sums of times."""
    return dataclasses.field(default=0.0, metadata={"kind": "counter", "meaning": meaning})


def gauge(meaning: str) -> float:
    """Declare a field that comes and goes."""
    return dataclasses.field(default=0.0, metadata={"kind": "gauge", "meaning": meaning})


def average(total: float, count: float) -> float:
    """Divide; nothing counts as zero."""
    return total / count if count else 0.0


class Metrics:
    """What metrics of clients have in common: dataclasses whose fields are metrics.

    `derived` names properties that are gauges too, with what they mean.
    """

    __slots__ = ()
    prefix: ClassVar[str] = ""
    derived: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def descriptions(cls, tags: tuple[str, ...] = ()) -> tuple[Description, ...]:
        """Say which metrics there are."""
        own = [
            Description(each.name, each.metadata["kind"], each.metadata["meaning"], tags)
            for each in dataclasses.fields(cls)  # type: ignore[arg-type]
            if "kind" in each.metadata
        ]
        return (*own, *(Description(name, "gauge", meaning, tags) for name, meaning in cls.derived.items()))

    @classmethod
    def all_descriptions(cls) -> tuple[Description, ...]:
        """Say which metrics there are, those of parts (topics, partitions) among them."""
        return cls.descriptions()

    def samples(self) -> Iterator[Sample]:
        """Give every metric with its value, those of parts among them."""
        return self.tagged({})

    def tagged(self, tags: Mapping[str, str]) -> Iterator[Sample]:
        """Give the values with some tags."""
        for each in self.descriptions(tuple(tags)):
            yield Sample(each, tags, getattr(self, each.name))

    def snapshot(self) -> dict[str, Any]:
        """Return name -> value; of what has tags, tags and name -> {tag values: value}."""
        found: dict[str, Any] = {}
        for description, tags, value in self.samples():
            if not tags:
                found[description.name] = value
                continue
            by_tags = found.setdefault("_".join(description.path), {})
            by_tags["-".join(tags.values())] = value
        return found


class Source(NamedTuple):
    """Metrics of one client, and what tells them from those of others."""

    metrics: Metrics
    tags: Mapping[str, str]

    def samples(self) -> Iterable[Sample]:
        """Give its samples with its own tags added."""
        return (
            each._replace(tags={**self.tags, **each.tags}) if self.tags else each
            for each in self.metrics.samples()
        )
