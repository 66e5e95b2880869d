"""The declarations of a topology: its streams, tables and stores as connected nodes. Pure data."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeVar

from ottla.streams.errors import TopologyError
from ottla.streams.language.serdes import Serde
from ottla.streams.language.windows import WindowRules

K = TypeVar("K")
V = TypeVar("V")

_STORE_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
StoreKind = Literal["memory", "sqlite"]
Function = Callable[..., Any]


@dataclass
class Declarations:
    """The declarations of one topology so far. `store` is the kind of stores that name none."""

    store: StoreKind = "memory"
    sources: list[Source] = field(default_factory=list)
    store_names: set[str] = field(default_factory=set)
    table_topics: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Origin:
    """Where the records of a stream come from, and what that allows."""

    sources: tuple[Source, ...]
    rekeyed_by: str | None = None
    """The method that changed the key; equal keys may be in different partitions now."""
    is_final: bool = False
    """Whether the records come when windows close, not when their key's records do."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the records were read from, each once."""
        return tuple(dict.fromkeys(source.topic for source in self.sources))


@dataclass(frozen=True, eq=False)
class Table(Generic[K, V]):
    """A topic with one value per key, for joins; made by `table`."""

    _declarations: Declarations
    _node: TableNode


@dataclass(frozen=True, eq=False)
class GlobalTable(Generic[K, V]):
    """A table of which every member has all partitions; made by `global_table`."""

    _declarations: Declarations
    _node: TableNode


def check_order(origin: Origin, method: str) -> None:
    """Raise TopologyError if equal keys may be in different partitions, or have no one order."""
    if origin.rekeyed_by is not None:
        raise TopologyError(
            f'{origin.rekeyed_by} changed the key before {method}: add .through("topic") between them, '
            "so that equal keys are in one partition"
        )
    if len(origin.topics) > 1:
        raise TopologyError(
            f'{method} would take records of {" and ".join(origin.topics)}: add .through("topic") after '
            "merge, so that the records of a key have one order"
        )
    if origin.is_final:
        raise TopologyError(
            f'{method} of a stream of closed windows: add .through("topic") before it, for windows may close '
            "without a record of their key"
        )


def check_name(declarations: Declarations, name: str) -> None:
    """Note the name of a store. Raises TopologyError if it is taken, or cannot be part of a topic."""
    if _STORE_NAME.fullmatch(name) is None:
        raise TopologyError(f"the store name {name!r} cannot be part of a topic; use letters, digits and ._-")
    if name in declarations.store_names:
        raise TopologyError(f"there are two stores named {name!r}; give one of them another name=")
    declarations.store_names.add(name)


def type_of(value: Any) -> type[Any] | None:
    """Return the type that an initial value stands for; None says nothing about it."""
    return None if value is None else type(value)


def from_initial(initial: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an update that begins with an initial value."""
    return lambda before, value: function(initial() if before is None else before, value)


def from_first(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an update that begins with the first value."""
    return lambda before, value: value if before is None else function(before, value)


def count_up(before: int | None, value: object) -> int:
    """Return a count after one more record."""
    return (before or 0) + 1


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
