"""Steps: the nodes of a topology as functions that pass records on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ottla.streams.errors import RecordUndecodable
from ottla.streams.language.aggregating import aggregate_step
from ottla.streams.language.calls import Step, called
from ottla.streams.language.nodes import (
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
from ottla.streams.language.runs import Output, Run
from ottla.streams.language.serdes import write_any

SourceStep = Callable[[Run], Awaitable[None]]


class Compiler:
    """Makes steps of nodes, each once: streams that were merged share what follows."""

    def __init__(self) -> None:
        self._steps: dict[int, Step] = {}

    def source(self, source: Source) -> SourceStep:
        """Return what decodes the record of a run and passes it on. The step raises RecordUndecodable."""
        following = self.children(source)

        async def step(run: Run) -> None:
            record = run.record
            if record.value is None:
                run.counters.without_value += 1
                return
            try:
                key = None if record.key is None else source.key.deserialize(record.key)
                value = source.value.deserialize(record.value)
            except Exception as error:
                raise RecordUndecodable(record.topic_partition, record.offset, error) from error
            await following(run, key, value)

        return step

    def children(self, node: Node) -> Step:
        """Return what passes a record on to all children of a node, in the order of their declaration."""
        steps = [self.step(child) for child in node.children]
        if len(steps) == 1:
            return steps[0]

        async def all_of_them(run: Run, key: Any, value: Any) -> None:
            for step in steps:
                await step(run, key, value)

        return all_of_them

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
                return _join(node, following)
            case Aggregate():
                return aggregate_step(node, following)
            case Merge():
                return following
            case _:
                return _stateless(node, following)


def _stateless(node: Node, following: Step) -> Step:
    match node:
        case Filter(test=test):
            return _filter(test, following)
        case Peek(function=function):
            return _peek(function, following)
        case KeyBy(function=function):
            return _key_by(function, following)
        case MapValues(function=function, is_flat=is_flat):
            return _flat_map_values(function, following) if is_flat else _map_values(function, following)
        case MapPairs(function=function, is_flat=is_flat):
            return _flat_map(function, following) if is_flat else _map(function, following)
        case _:
            raise TypeError(f"{type(node).__name__} is no step")


def _filter(test: Callable[..., Any], following: Step) -> Step:
    async def step(run: Run, key: Any, value: Any) -> None:
        if await called(test(value)):
            await following(run, key, value)

    return step


def _peek(function: Callable[..., Any], following: Step) -> Step:
    async def step(run: Run, key: Any, value: Any) -> None:
        await called(function(value))
        await following(run, key, value)

    return step


def _key_by(function: Callable[..., Any], following: Step) -> Step:
    async def step(run: Run, key: Any, value: Any) -> None:
        await following(run, await called(function(value)), value)

    return step


def _map_values(function: Callable[..., Any], following: Step) -> Step:
    async def step(run: Run, key: Any, value: Any) -> None:
        await following(run, key, await called(function(value)))

    return step


def _flat_map_values(function: Callable[..., Any], following: Step) -> Step:
    async def step(run: Run, key: Any, value: Any) -> None:
        for each in await called(function(value)):
            await following(run, key, each)

    return step


def _map(function: Callable[..., Any], following: Step) -> Step:
    async def step(run: Run, key: Any, value: Any) -> None:
        new_key, new_value = await called(function(key, value))
        await following(run, new_key, new_value)

    return step


def _flat_map(function: Callable[..., Any], following: Step) -> Step:
    async def step(run: Run, key: Any, value: Any) -> None:
        for new_key, new_value in await called(function(key, value)):
            await following(run, new_key, new_value)

    return step


def _branch(node: Branch, children: list[Step]) -> Step:
    tests, otherwise = node.tests, children[-1]

    async def step(run: Run, key: Any, value: Any) -> None:
        for test, child in zip(tests, children, strict=False):
            if await called(test(value)):
                await child(run, key, value)
                return
        await otherwise(run, key, value)

    return step


def _sink(node: Sink) -> Step:
    write_key = write_any if node.key is None else node.key.serialize
    write_value = write_any if node.value is None else node.value.serialize

    async def step(run: Run, key: Any, value: Any) -> None:
        run.outputs.append(
            Output(
                node.topic,
                None if key is None else write_key(key),
                None if value is None else write_value(value),
                run.timestamp_ms,
            )
        )

    return step


def _join(node: Join, following: Step) -> Step:
    table, joiner, by = node.table, node.joiner, node.by

    async def step(run: Run, key: Any, value: Any) -> None:
        wanted = key if by is None else await called(by(value))
        row = None
        if wanted is not None:
            data = await run.lookup.row(table, table.key.serialize(wanted))
            row = None if data is None else table.value.deserialize(data)
        elif not node.is_left:
            run.counters.without_key += 1
        if row is not None or node.is_left:
            await following(run, key, await called(joiner(value, row)))

    return step
