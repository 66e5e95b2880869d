"""Steps: the nodes of a topology as functions that pass the records of a topic on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal

from ottla.consumer import ConsumerRecord
from ottla.producer import ProducerRecord
from ottla.streams.dedupe.identity import MESSAGE_ID_HEADER
from ottla.streams.errors import RecordUndecodable
from ottla.streams.language.aggregating import Windowing, aggregate_step
from ottla.streams.language.declarations import (
    Aggregate,
    Branch,
    Filter,
    Join,
    KeyBy,
    MapPairs,
    MapValues,
    Merge,
    Node,
    Peek,
    Sink,
    Source,
)
from ottla.streams.language.runs import (
    GoOn,
    Run,
    Step,
    Waiting,
    calling,
    calling_with_key,
    in_turn,
    then,
    without,
)
from ottla.streams.language.serdes import write_any
from ottla.streams.language.topology import SubTopology

SourceStep = Callable[[Run], Waiting]


class Compiler:
    """Makes steps of nodes, each once: streams that were merged share what follows."""

    def __init__(self) -> None:
        self._steps: dict[int, Step] = {}

    def source(self, source: Source) -> SourceStep:
        """Return what decodes the record of a run and passes it on. The step raises RecordUndecodable."""
        following = self.children(source)
        read_key, read_value = source.key.deserialize, source.value.deserialize

        def step(run: Run) -> Waiting:
            record: ConsumerRecord[Any, Any] = run.record
            key, value = record.key, record.value
            if value is None:
                run.counters.without_value += 1
                return None
            part: Literal["key", "value"] = "key"
            try:
                key = None if key is None else read_key(key)
                part = "value"
                value = read_value(value)
            except Exception as error:
                how = f"as {source.key if part == 'key' else source.value}"
                raise RecordUndecodable(record.topic_partition, record.offset, error, how, part) from error
            return following(run, key, value)

        return step

    def children(self, node: Node) -> Step:
        """Return what passes a record on to all children of a node, in the order of their declaration."""
        steps = [self.step(child) for child in node.children]
        if len(steps) == 1:
            return steps[0]

        return lambda run, key, value: in_turn(step(run, key, value) for step in steps)

    def step(self, node: Node) -> Step:
        """Return the step of a node and all that follows it."""
        if id(node) not in self._steps:
            self._steps[id(node)] = self._made(node)
        return self._steps[id(node)]

    def _made(self, node: Node) -> Step:
        if isinstance(node, Branch):
            return _branch(node, [self.step(child) for child in node.children])
        following = self.children(node)
        match node:
            case Sink():
                return _sink(node)
            case Join():
                return Joining(node, following)
            case Aggregate():
                return aggregate_step(node, following)
            case Merge():
                return following
            case _:
                return _stateless(node, following)


def _stateless(node: Node, following: Step) -> Step:
    match node:
        case Filter(test=test):
            return calling(test, lambda run, key, value, made: following(run, key, value) if made else None)
        case Peek(function=function):
            return calling(function, lambda run, key, value, _: following(run, key, value))
        case KeyBy(function=function):
            return calling(function, lambda run, _, value, made: following(run, made, value))
        case MapValues(function=function, is_flat=is_flat):
            return calling(function, _each_value(following) if is_flat else _value(following))
        case MapPairs(function=function, is_flat=is_flat):
            return calling_with_key(function, _each_pair(following) if is_flat else _pair(following))
        case _:
            raise TypeError(f"{type(node).__name__} is no step")


def _value(following: Step) -> GoOn:
    return lambda run, key, _, made: following(run, key, made)


def _each_value(following: Step) -> GoOn:
    def go_on(run: Run, key: Any, _: Any, made: Any) -> Waiting:
        return without(MESSAGE_ID_HEADER, run, (partial(following, run, key, value) for value in made))

    return go_on


def _pair(following: Step) -> GoOn:
    return lambda run, _key, _value, made: following(run, *made)


def _each_pair(following: Step) -> GoOn:
    def go_on(run: Run, _key: Any, _value: Any, made: Any) -> Waiting:
        return without(MESSAGE_ID_HEADER, run, (partial(following, run, *pair) for pair in made))

    return go_on


def _branch(node: Branch, children: list[Step]) -> Step:
    step = children[-1]
    for test, child in zip(reversed(node.tests), reversed(children[: len(node.tests)]), strict=True):
        step = _either(test, child, step)
    return step


def _either(test: Callable[..., Any], child: Step, otherwise: Step) -> Step:
    return calling(test, lambda run, key, value, made: (child if made else otherwise)(run, key, value))


def _sink(node: Sink) -> Step:
    topic = node.topic
    write_key = write_any if node.key is None else node.key.serialize
    write_value = write_any if node.value is None else node.value.serialize

    def step(run: Run, key: Any, value: Any) -> None:
        run.outputs.append(
            ProducerRecord(
                topic,
                None if value is None else write_value(value),
                None if key is None else write_key(key),
                None,
                run.timestamp_ms,
                run.headers,
            )
        )

    return step


async def _beside(key: bytes, data: Awaitable[bytes | None]) -> tuple[bytes, bytes | None]:
    return key, await data


class Joining:
    """Looks the key up in a table, or what `by` makes of the value, and passes on what `joiner` makes."""

    def __init__(self, node: Join, following: Step) -> None:
        self._table = node.table
        self._joiner = node.joiner
        self._is_left = node.is_left
        self._by = None if node.by is None else calling(node.by, self._look)
        self._joined = _value(following)

    def __call__(self, run: Run, key: Any, value: Any) -> Waiting:
        """Look up the row of a record."""
        return self._look(run, key, value, key) if self._by is None else self._by(run, key, value)

    def _look(self, run: Run, key: Any, value: Any, wanted: Any) -> Waiting:
        if wanted is None:
            run.counters.without_key += not self._is_left
            return self._join(run, key, value, (b"", None))
        row_key = self._table.key.serialize(wanted)
        data = run.lookup.row(self._table, row_key)
        if data is None or isinstance(data, bytes):
            return self._join(run, key, value, (row_key, data))
        return then(_beside(row_key, data), self._join, run, key, value)

    def _join(self, run: Run, key: Any, value: Any, found: tuple[bytes, bytes | None]) -> Waiting:
        row_key, data = found
        try:
            row = None if data is None else self._table.value.deserialize(data)
        except Exception as error:
            remedy = f"it is no {self._table.value}: write the row of this key again"
            raise run.cannot_decode(run.lookup.name_row(self._table, row_key), remedy, error) from error
        if row is None and not self._is_left:
            return None
        made = self._joiner(value, row)
        if hasattr(made, "__await__"):
            return then(made, self._joined, run, key, value)
        return self._joined(run, key, value, made)


class CompiledPart:
    """The steps for a record: all streams of its topic, and then windows of idle keys close."""

    def __init__(self, part: SubTopology) -> None:
        compiler = Compiler()
        self.part = part
        self._steps: list[SourceStep] = [compiler.source(source) for source in part.sources]
        steps = (compiler.step(node) for node in part.aggregates)
        self._sweeping = [step for step in steps if isinstance(step, Windowing)]
        self._only = self._steps[0] if len(self._steps) == 1 and not self._sweeping else None

    def process(self, run: Run, time_ms: int) -> Waiting:
        """Take a record all the way; `time_ms` is the time of its partition."""
        if self._only is not None:
            return self._only(run)
        waiting = in_turn(step(run) for step in self._steps)
        if waiting is not None:
            return self._sweep_after(waiting, run, time_ms)
        if any(step.is_due(run, time_ms) for step in self._sweeping):
            return self._sweep(run, time_ms)
        return None

    async def _sweep_after(self, waiting: Waiting, run: Run, time_ms: int) -> None:
        if waiting is not None:
            await waiting
        await self._sweep(run, time_ms)

    async def _sweep(self, run: Run, time_ms: int) -> None:
        for step in self._sweeping:
            if step.is_due(run, time_ms):
                await step.sweep(run, time_ms)
