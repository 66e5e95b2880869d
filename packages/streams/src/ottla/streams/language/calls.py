"""How steps call functions of programs, which may be plain or async, and each other.

Nothing waits most of the time: so a step is a plain call, and returns something to await only where it came
to an async function, or to a store that reads its file. A coroutine per step would cost more than the work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from ottla.streams.language.runs import Headers, Run

Waiting = Awaitable[None] | None
"""None: all is done. Otherwise it is awaited, and the rest is done then."""
Step = Callable[[Run, Any, Any], Waiting]
"""Takes a run, a key and a value."""
GoOn = Callable[[Run, Any, Any, Any], Waiting]
"""Takes a run, a key, a value, and the result of a call."""


def calling(function: Callable[[Any], Any], go_on: GoOn) -> Step:
    """Return a step that calls a function of the value and goes on with its result."""

    def step(run: Run, key: Any, value: Any) -> Waiting:
        made = function(value)
        if hasattr(made, "__await__"):
            return then(made, go_on, run, key, value)
        return go_on(run, key, value, made)

    return step


def calling_with_key(function: Callable[[Any, Any], Any], go_on: GoOn) -> Step:
    """Return a step that calls a function of key and value and goes on with its result."""

    def step(run: Run, key: Any, value: Any) -> Waiting:
        made = function(key, value)
        if hasattr(made, "__await__"):
            return then(made, go_on, run, key, value)
        return go_on(run, key, value, made)

    return step


async def then(made: Awaitable[Any], go_on: GoOn, run: Run, key: Any, value: Any) -> None:
    """Await the result of a call and go on with it."""
    waiting = go_on(run, key, value, await made)
    if waiting is not None:
        await waiting


def in_turn(turns: Iterator[Waiting]) -> Waiting:
    """Do one thing after the other; each begins when it is taken from the iterator."""
    for waiting in turns:
        if waiting is not None:
            return _rest(waiting, turns)
    return None


def without(header: str | None, run: Run, turns: Iterator[Callable[[], Waiting]]) -> Waiting:
    """Do one thing after the other; what they write has the run's headers without one of them, or none.

    Several records that were made of one are no copies of each other: so they must not have its message id.
    A window that closes has no headers: those of the record that closes it say nothing about it.
    """
    headers = run.headers
    run.headers = () if header is None else [pair for pair in headers if pair[0] != header]
    waiting = in_turn(turn() for turn in turns)
    if waiting is not None:
        return _with(headers, run, waiting)
    run.headers = headers
    return None


async def _with(headers: Headers, run: Run, waiting: Awaitable[None]) -> None:
    await waiting
    run.headers = headers


async def _rest(first: Awaitable[None], turns: Iterator[Waiting]) -> None:
    await first
    for waiting in turns:
        if waiting is not None:
            await waiting
