"""How functions of programs are called: they may be plain or async."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

from ottla.streams.language.runs import Run

Step = Callable[[Run, Any, Any], Awaitable[None]]
"""Takes a run, a key and a value."""


async def called(result: Any) -> Any:
    """Return the result of a call, awaited if it is that of an async function."""
    return await result if isawaitable(result) else result
