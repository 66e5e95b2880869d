"""Streams and tables as programs declare them. Pure: every method adds a node, and nothing runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from ottla.streams.errors import TopologyError
from ottla.streams.language.declarations import (
    Aggregate,
    Branch,
    Declarations,
    Filter,
    GlobalTable,
    Join,
    KeyBy,
    MapPairs,
    MapValues,
    Merge,
    Node,
    Origin,
    Peek,
    Sink,
    Source,
    StoreKind,
    StoreSpec,
    Table,
    check_name,
    check_order,
    count_up,
    from_first,
    from_initial,
    type_of,
)
from ottla.streams.language.serdes import Serde, TypeOrSerde, serde_of
from ottla.streams.language.windows import Tumbling, WindowRules, WindowValue

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
W = TypeVar("W")
T = TypeVar("T")
G = TypeVar("G")
A = TypeVar("A")


class Stream(Generic[K, V]):
    """Records with keys of type K and values of type V.

    Every method returns a new stream and leaves this one as it is; functions may be plain or async. They run
    on the event loop, one record of a key after the other.
    """

    def __init__(
        self,
        declarations: Declarations,
        node: Node,
        origin: Origin,
        key: Serde[K] | None,
        value: Serde[V] | None,
    ) -> None:
        self._declarations = declarations
        self._node = node
        self._origin = origin
        self._key = key
        self._value = value

    # --- each record by itself

    def filter(self, test: Callable[[V], bool | Awaitable[bool]]) -> Stream[K, V]:
        """Keep the records for whose value `test` returns true."""
        return self._then(Filter(test))

    @overload
    def map(self, function: Callable[[K, V], Awaitable[tuple[K2, W]]]) -> Stream[K2, W]: ...
    @overload
    def map(self, function: Callable[[K, V], tuple[K2, W]]) -> Stream[K2, W]: ...
    def map(self, function: Callable[[K, V], Any]) -> Stream[Any, Any]:
        """Replace key and value by the pair that `function(key, value)` returns."""
        return self._rekeyed(MapPairs(function, is_flat=False), "map")

    @overload
    def flat_map(self, function: Callable[[K, V], Awaitable[Iterable[tuple[K2, W]]]]) -> Stream[K2, W]: ...
    @overload
    def flat_map(self, function: Callable[[K, V], Iterable[tuple[K2, W]]]) -> Stream[K2, W]: ...
    def flat_map(self, function: Callable[[K, V], Any]) -> Stream[Any, Any]:
        """Replace a record by the pairs that `function(key, value)` returns, none or many."""
        return self._rekeyed(MapPairs(function, is_flat=True), "flat_map")

    @overload
    def map_values(self, function: Callable[[V], Awaitable[W]]) -> Stream[K, W]: ...
    @overload
    def map_values(self, function: Callable[[V], W]) -> Stream[K, W]: ...
    def map_values(self, function: Callable[[V], Any]) -> Stream[K, Any]:
        """Replace the value by `function(value)`; the key stays."""
        return self._revalued(MapValues(function, is_flat=False))

    @overload
    def flat_map_values(self, function: Callable[[V], Awaitable[Iterable[W]]]) -> Stream[K, W]: ...
    @overload
    def flat_map_values(self, function: Callable[[V], Iterable[W]]) -> Stream[K, W]: ...
    def flat_map_values(self, function: Callable[[V], Any]) -> Stream[K, Any]:
        """Replace a record by one for each value that `function(value)` returns; the key stays."""
        return self._revalued(MapValues(function, is_flat=True))

    @overload
    def key_by(self, function: Callable[[V], Awaitable[K2]]) -> Stream[K2, V]: ...
    @overload
    def key_by(self, function: Callable[[V], K2]) -> Stream[K2, V]: ...
    def key_by(self, function: Callable[[V], Any]) -> Stream[Any, V]:
        """Replace the key by `function(value)`. Put `.through(...)` after it before joins and aggregates."""
        stream = self._rekeyed(KeyBy(function), "key_by")
        stream._value = self._value
        return stream

    def peek(self, function: Callable[[V], object]) -> Stream[K, V]:
        """Call a function with each value, and pass the record on."""
        return self._then(Peek(function))

    def handle(self, function: Callable[[V], Awaitable[object] | object]) -> None:
        """Call a function with each value, as the end of the stream: its return finishes the record."""
        self._then(Peek(function))

    # --- several streams

    def branch(self, *tests: Callable[[V], bool | Awaitable[bool]]) -> tuple[Stream[K, V], ...]:
        """Split the stream: one stream per test, of the records for which it is the first that is true.

        The last stream, one more than there are tests, has the records for which none is.
        """
        if not tests:
            raise TopologyError("branch needs at least one test")
        split = self._then(Branch(tests))
        return tuple(split._then(Merge()) for _ in range(len(tests) + 1))

    def merge(self, other: Stream[K, V]) -> Stream[K, V]:
        """Return the records of both streams, each in its own order."""
        self._check_same_program(other._declarations, "merge")
        node = Merge()
        self._node.children.append(node)
        other._node.children.append(node)
        ours, theirs = self._origin, other._origin
        origin = Origin(
            tuple(dict.fromkeys((*ours.sources, *theirs.sources))),
            ours.rekeyed_by or theirs.rekeyed_by,
            ours.is_final or theirs.is_final,
        )
        key = self._key if self._key is other._key else None
        value = self._value if self._value is other._value else None
        return Stream(self._declarations, node, origin, key, value)

    # --- topics

    def to(
        self, topic: str, *, key: TypeOrSerde[K] | None = None, value: TypeOrSerde[V] | None = None
    ) -> None:
        """Write the records to a topic, partitioned by their key.

        Without `key` and `value` they are written as they were read, or by their types: bytes, str as UTF-8,
        all others as JSON. None as value is a tombstone.
        """
        self._refuse_loop(topic, "to")
        self._then(Sink(topic, self._serde(key, self._key), self._serde(value, self._value)))

    def through(
        self, topic: str, *, key: TypeOrSerde[K] | None = None, value: TypeOrSerde[V] | None = None
    ) -> Stream[K, V]:
        """Write the records to a topic and read them back: those of a key are in one partition then.

        The topic is created if it is missing, with as many partitions as the one that this stream is of.
        """
        self._refuse_loop(topic, "through")
        key_serde, value_serde = self._serde(key, self._key), self._serde(value, self._value)
        missing = "key" if key_serde is None else "value" if value_serde is None else None
        if key_serde is None or value_serde is None:
            raise TopologyError(
                f'through("{topic}") cannot know the type to read back; add {missing}=TYPE to it'
            )
        if any(source.topic == topic for source in self._declarations.sources):
            raise TopologyError(
                f"through({topic!r}): a stream reads this topic already; merge both before it"
            )
        self._then(Sink(topic, key_serde, value_serde))
        source = Source(topic, key_serde, value_serde, fed_by=self._origin.sources[0])
        self._declarations.sources.append(source)
        return Stream(self._declarations, source, Origin((source,)), key_serde, value_serde)

    # --- tables

    @overload
    def join(self, table: Table[K, T], joiner: Callable[[V, T], Awaitable[W]]) -> Stream[K, W]: ...
    @overload
    def join(self, table: Table[K, T], joiner: Callable[[V, T], W]) -> Stream[K, W]: ...
    @overload
    def join(
        self, table: GlobalTable[G, T], joiner: Callable[[V, T], Awaitable[W]], *, by: Callable[[V], G]
    ) -> Stream[K, W]: ...
    @overload
    def join(
        self, table: GlobalTable[G, T], joiner: Callable[[V, T], W], *, by: Callable[[V], G]
    ) -> Stream[K, W]: ...
    def join(self, table: Any, joiner: Callable[..., Any], *, by: Callable[..., Any] | None = None) -> Any:
        """Replace the value by `joiner(value, row)` with the table's value of the key; drop it without one.

        A global table is looked up by `by(value)`.
        """
        return self._joined("join", table, joiner, by, is_left=False)

    @overload
    def left_join(
        self, table: Table[K, T], joiner: Callable[[V, T | None], Awaitable[W]]
    ) -> Stream[K, W]: ...
    @overload
    def left_join(self, table: Table[K, T], joiner: Callable[[V, T | None], W]) -> Stream[K, W]: ...
    @overload
    def left_join(
        self, table: GlobalTable[G, T], joiner: Callable[[V, T | None], Awaitable[W]], *, by: Callable[[V], G]
    ) -> Stream[K, W]: ...
    @overload
    def left_join(
        self, table: GlobalTable[G, T], joiner: Callable[[V, T | None], W], *, by: Callable[[V], G]
    ) -> Stream[K, W]: ...
    def left_join(
        self, table: Any, joiner: Callable[..., Any], *, by: Callable[..., Any] | None = None
    ) -> Any:
        """As `join`, with None where the table has no value of the key."""
        return self._joined("left_join", table, joiner, by, is_left=True)

    # --- state

    def aggregate(
        self,
        initial: Callable[[], A],
        function: Callable[[A, V], A | Awaitable[A]],
        *,
        name: str | None = None,
        state: TypeOrSerde[A] | None = None,
        store: StoreKind | None = None,
    ) -> Stream[K, A]:
        """Keep a value per key: `function(before, value)`, beginning with `initial()`. None removes it.

        The stream has each new value. `state` is the type of the value, if it is not that of `initial()`;
        `store` says where values are kept, and `name` names the store and its changelog topic.
        """
        options = _Options(name, state, store)
        return _aggregated(self, "aggregate", options, from_initial(initial, function), initial)

    def count(self, *, name: str | None = None, store: StoreKind | None = None) -> Stream[K, int]:
        """Count the records of each key."""
        return _aggregated(self, "count", _Options(name, int, store), count_up)

    def reduce(
        self,
        function: Callable[[V, V], V | Awaitable[V]],
        *,
        name: str | None = None,
        state: TypeOrSerde[V] | None = None,
        store: StoreKind | None = None,
    ) -> Stream[K, V]:
        """Keep a value per key: the first record's, then `function(before, value)`."""
        options = _Options(name, state or self._value, store)
        return _aggregated(self, "reduce", options, from_first(function))

    def window(self, windows: Tumbling, *, grace_ms: int = 0) -> WindowedStream[K, V]:
        """Aggregate by key and window of event time, the records' timestamps.

        A window takes records until a record of its key, or all of its partition, is `grace_ms` beyond its
        end; a record that comes later is counted and dropped.
        """
        if grace_ms < 0:
            raise TopologyError(f"grace_ms cannot be {grace_ms}; give 0 or more")
        return WindowedStream(self, WindowRules(windows, grace_ms))

    # --- inside

    def _then(self, node: Node) -> Stream[K, V]:
        self._node.children.append(node)
        return Stream(self._declarations, node, self._origin, self._key, self._value)

    def _revalued(self, node: Node, origin: Origin | None = None) -> Stream[K, Any]:
        self._node.children.append(node)
        return Stream(self._declarations, node, origin or self._origin, self._key, None)

    def _rekeyed(self, node: Node, method: str) -> Stream[Any, Any]:
        self._node.children.append(node)
        origin = Origin(self._origin.sources, method, self._origin.is_final)
        return Stream(self._declarations, node, origin, None, None)

    def _serde(self, given: TypeOrSerde[T] | None, known: Serde[T] | None) -> Serde[T] | None:
        return known if given is None else serde_of(given)

    def _joined(
        self, method: str, table: Any, joiner: Callable[..., Any], by: Any, *, is_left: bool
    ) -> Stream[K, Any]:
        if not isinstance(table, Table | GlobalTable):
            raise TopologyError(f"{method} needs a table, not {table!r}; make one with .table(...)")
        self._check_same_program(table._declarations, method)
        if isinstance(table, GlobalTable) != (by is not None):
            raise TopologyError(
                f"{method} with the global table {table._node.topic!r} needs by=function of the value"
                if by is None
                else f"{method} by a function needs a global table; {table._node.topic!r} is looked up by key"
            )
        if isinstance(table, Table) and self._origin.rekeyed_by is not None:
            raise TopologyError(
                f"{self._origin.rekeyed_by} changed the key before {method} with {table._node.topic!r}: add "
                '.through("topic") between them, so that equal keys are in one partition'
            )
        return self._revalued(Join(table._node, joiner, is_left, by))

    def _check_same_program(self, other: Declarations, method: str) -> None:
        if other is not self._declarations:
            raise TopologyError(f"{method} needs a stream or table of the same app; this one is of another")

    def _refuse_loop(self, topic: str, method: str) -> None:
        if topic in self._origin.topics:
            raise TopologyError(f"{method}({topic!r}) would read its own output again; name another topic")


class WindowedStream(Generic[K, V]):
    """A stream in windows; its aggregates have one value per key and window."""

    def __init__(self, stream: Stream[K, V], rules: WindowRules, *, is_final: bool = False) -> None:
        self._stream = stream
        self._rules = rules
        self._is_final = is_final

    def final(self) -> WindowedStream[K, V]:
        """Emit each window once, when it closes, instead of after every record."""
        return WindowedStream(self._stream, self._rules, is_final=True)

    def aggregate(
        self,
        initial: Callable[[], A],
        function: Callable[[A, V], A | Awaitable[A]],
        *,
        name: str | None = None,
        state: TypeOrSerde[A] | None = None,
        store: StoreKind | None = None,
    ) -> Stream[K, WindowValue[A]]:
        """Keep a value per key and window: `function(before, value)`, beginning with `initial()`."""
        return self._aggregated(
            "aggregate", _Options(name, state, store), from_initial(initial, function), initial
        )

    def count(
        self, *, name: str | None = None, store: StoreKind | None = None
    ) -> Stream[K, WindowValue[int]]:
        """Count the records of each key and window."""
        return self._aggregated("count", _Options(name, int, store), count_up)

    def reduce(
        self,
        function: Callable[[V, V], V | Awaitable[V]],
        *,
        name: str | None = None,
        state: TypeOrSerde[V] | None = None,
        store: StoreKind | None = None,
    ) -> Stream[K, WindowValue[V]]:
        """Keep a value per key and window: the first record's, then `function(before, value)`."""
        options = _Options(name, state or self._stream._value, store)
        return self._aggregated("reduce", options, from_first(function))

    def _aggregated(
        self, method: str, options: _Options, update: Callable[..., Any], initial: Any = None
    ) -> Stream[K, Any]:
        return _aggregated(self._stream, method, options, update, initial, self._rules, self._is_final)


# --- aggregates


@dataclass(frozen=True)
class _Options:
    name: str | None
    state: Any
    store: StoreKind | None


def _aggregated(
    stream: Stream[K, Any],
    method: str,
    options: _Options,
    update: Callable[..., Any],
    initial: Callable[[], Any] | None = None,
    rules: WindowRules | None = None,
    is_final: bool = False,
) -> Stream[K, Any]:
    origin = stream._origin
    check_order(origin, method)
    state = options.state if options.state is not None or initial is None else type_of(initial())
    name = options.name or f"{origin.topics[0]}-{method}"
    if state is None:
        raise TopologyError(f"{method} of store {name!r} cannot know the type of its values; add state=TYPE")
    check_name(stream._declarations, name)
    if stream._key is None:
        raise TopologyError(
            f'{method} cannot know the type of keys after merge; add .through("topic") before it'
        )
    kind = options.store or stream._declarations.store
    spec = StoreSpec(name, kind, origin.topics[0], stream._key, serde_of(state))
    node = Aggregate(spec, update, rules, is_final)
    aggregated = stream._revalued(node, Origin(origin.sources, None, is_final or origin.is_final))
    aggregated._value = spec.state if rules is None else None
    return aggregated
