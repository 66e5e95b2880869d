"""The nodes of a topology: what was declared, and how it is connected. Pure data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from ottla.streams.language.serdes import Serde
from ottla.streams.language.windows import WindowRules

StoreKind = Literal["memory", "sqlite"]
Function = Callable[..., Any]


@dataclass(eq=False)
class Node:
    """A step of records; its children get what it passes on."""

    children: list[Node] = field(default_factory=list, kw_only=True)


@dataclass(eq=False)
class Source(Node):
    """The records of a topic. `fed_by` is the source of a stream that goes `through` the topic."""

    topic: str
    key: Serde[Any]
    value: Serde[Any]
    fed_by: Source | None = None


@dataclass(eq=False)
class Sink(Node):
    """Writes records to a topic; without serdes by the types of keys and values."""

    topic: str
    key: Serde[Any] | None
    value: Serde[Any] | None


@dataclass(eq=False)
class Filter(Node):
    """Passes records on for which a function of the value is true."""

    test: Function


@dataclass(eq=False)
class Branch(Node):
    """Passes a record to the child of the first test that is true, or else to the last child."""

    tests: tuple[Function, ...]


@dataclass(eq=False)
class Merge(Node):
    """Passes on what comes from any parent, or from a branch."""


@dataclass(eq=False)
class MapPairs(Node):
    """Replaces key and value by the pairs that a function of both returns: one, or any number."""

    function: Function
    is_flat: bool


@dataclass(eq=False)
class MapValues(Node):
    """Replaces the value by the result of a function of it: one, or any number."""

    function: Function
    is_flat: bool


@dataclass(eq=False)
class KeyBy(Node):
    """Replaces the key by the result of a function of the value."""

    function: Function


@dataclass(eq=False)
class Peek(Node):
    """Calls a function of the value, and passes the record on."""

    function: Function


@dataclass(frozen=True, eq=False)
class TableNode:
    """A topic whose newest record of each key is looked up; `is_global`: all partitions on every member."""

    topic: str
    key: Serde[Any]
    value: Serde[Any]
    store: StoreKind
    is_global: bool


@dataclass(eq=False)
class Join(Node):
    """Passes on what a function makes of the value and the table's value of the key, or of `by`."""

    table: TableNode
    joiner: Function
    is_left: bool
    by: Function | None


@dataclass(frozen=True)
class StoreSpec:
    """A keyed store of the records of one source topic."""

    name: str
    kind: StoreKind
    topic: str
    key: Serde[Any]
    state: Serde[Any]


@dataclass(eq=False)
class Aggregate(Node):
    """Keeps a value per key, or per key and window.

    `update` makes it of the value before, or None, and a record's value.
    """

    store: StoreSpec
    update: Function
    windows: WindowRules | None = None
    is_final: bool = False
