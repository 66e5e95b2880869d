"""The topology: what streams and tables of a program read, keep and write. Pure: nothing runs here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from ottla.streams.errors import TopologyError
from ottla.streams.language.declarations import (
    Aggregate,
    Declarations,
    GlobalTable,
    Join,
    Node,
    Origin,
    Source,
    StoreKind,
    StoreSpec,
    Table,
    TableNode,
)
from ottla.streams.language.serdes import TypeOrSerde, serde_of
from ottla.streams.language.stream import Stream

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class SubTopology:
    """The steps of the records of one topic, up to where they are written to another."""

    topic: str
    sources: tuple[Source, ...]
    aggregates: tuple[Aggregate, ...]
    tables: tuple[TableNode, ...]
    """The tables that its joins look up, each once."""
    fed_by: str | None
    """The topic of the sub-topology that writes this one's topic with `through`."""

    @property
    def stores(self) -> tuple[StoreSpec, ...]:
        """The stores of its aggregates."""
        return tuple(aggregate.store for aggregate in self.aggregates)

    @property
    def levels(self) -> dict[str, int]:
        """How many aggregates each store's comes after, in the longest chain of them."""
        levels: dict[str, int] = {}
        waiting: list[tuple[Node, int]] = [(source, 0) for source in self.sources]
        while waiting:
            node, level = waiting.pop()
            if isinstance(node, Aggregate):
                levels[node.store.name] = max(level, levels.get(node.store.name, 0))
                level += 1
            waiting.extend((child, level) for child in node.children)
        return levels


@dataclass(frozen=True)
class Plan:
    """A checked topology: sub-topologies by their topics."""

    parts: dict[str, SubTopology] = field(default_factory=dict)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that a processor subscribes to."""
        return tuple(self.parts)

    @property
    def global_tables(self) -> tuple[TableNode, ...]:
        """The global tables of all parts, each once."""
        tables = {id(table): table for part in self.parts.values() for table in part.tables}
        return tuple(table for table in tables.values() if table.is_global)


class Topology:
    """Declares streams and tables; `plan` returns them checked. An `App` has the same methods."""

    def __init__(self, *, store: StoreKind = "memory") -> None:
        self._declarations = Declarations(store)

    @overload
    def stream(self, topic: str, *, key: TypeOrSerde[K], value: TypeOrSerde[V]) -> Stream[K, V]: ...
    @overload
    def stream(self, topic: str, *, value: TypeOrSerde[V]) -> Stream[bytes, V]: ...
    @overload
    def stream(self, topic: str, *, key: TypeOrSerde[K]) -> Stream[K, bytes]: ...
    @overload
    def stream(self, topic: str) -> Stream[bytes, bytes]: ...
    def stream(
        self, topic: str, *, key: TypeOrSerde[Any] = bytes, value: TypeOrSerde[Any] = bytes
    ) -> Stream[Any, Any]:
        """Return the records of a topic as a stream.

        `key` and `value` are types: bytes, str (UTF-8), any type that JSON has a form of (a msgspec.Struct,
        a dataclass, a builtin), or a Serde. Records without a value are left out: they mean something in
        tables only. A key may be None where records have none.
        """
        source = Source(topic, serde_of(key), serde_of(value))
        self._declarations.sources.append(source)
        return Stream(self._declarations, source, Origin((source,)), source.key, source.value)

    def table(
        self, topic: str, *, key: TypeOrSerde[K], value: TypeOrSerde[V], store: StoreKind | None = None
    ) -> Table[K, V]:
        """Return a topic as a table: the newest value of each key; a record without a value removes its key.

        It must have as many partitions as the streams that are joined with it. Partition p of it is read to
        its end before records of partition p of the stream are handled, and followed from then on.
        """
        return Table(self._declarations, self._table_node(topic, key, value, store, is_global=False))

    def global_table(
        self, topic: str, *, key: TypeOrSerde[K], value: TypeOrSerde[V], store: StoreKind | None = None
    ) -> GlobalTable[K, V]:
        """Return a topic as a table of which every member has all partitions; any key may be looked up."""
        return GlobalTable(self._declarations, self._table_node(topic, key, value, store, is_global=True))

    def plan(self) -> Plan:
        """Return the sub-topologies. Raises TopologyError if there are no streams."""
        sources = self._declarations.sources
        if not sources:
            raise TopologyError('there is no stream; declare one with .stream("topic", ...)')
        topics = dict.fromkeys(source.topic for source in sources)
        parts = {
            topic: _part(topic, [source for source in sources if source.topic == topic]) for topic in topics
        }
        return Plan(parts)

    def _table_node(
        self, topic: str, key: Any, value: Any, store: StoreKind | None, *, is_global: bool
    ) -> TableNode:
        if topic in self._declarations.table_topics:
            raise TopologyError(f"there are two tables of {topic!r}; declare it once and use it again")
        self._declarations.table_topics.add(topic)
        kind = store or self._declarations.store
        return TableNode(topic, serde_of(key), serde_of(value), kind, is_global)

    @property
    def is_empty(self) -> bool:
        """Whether no stream was declared."""
        return not self._declarations.sources


def _part(topic: str, sources: Sequence[Source]) -> SubTopology:
    nodes = list(_reachable(sources))
    tables = {id(node.table): node.table for node in nodes if isinstance(node, Join)}
    feeding = [source.fed_by.topic for source in sources if source.fed_by is not None]
    return SubTopology(
        topic,
        tuple(sources),
        tuple(node for node in nodes if isinstance(node, Aggregate)),
        tuple(tables.values()),
        feeding[0] if feeding else None,
    )


def _reachable(sources: Sequence[Source]) -> Iterator[Node]:
    """Yield the nodes below sources, parents first, each once."""
    seen: set[int] = set()
    waiting: list[Node] = list(sources)
    while waiting:
        node = waiting.pop(0)
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            waiting.extend(node.children)
