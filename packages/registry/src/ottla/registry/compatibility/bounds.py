"""Bounds on schemas by strangers: size, depth, and the steps of a comparison. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

MOST_DEPTH: Final = 100
MOST_STEPS: Final = 100_000
"""Pairs of parts that one comparison looks at."""
MOST_MESSAGES: Final = 50
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


class BadSchema(ValueError):
    """A schema cannot be read; the message says why."""


class TooComplex(BadSchema):
    """A comparison of two schemas takes more steps than are allowed."""


class Steps:
    """Counts the steps of a comparison."""

    def __init__(self) -> None:
        self._left = MOST_STEPS

    def take(self, count: int = 1) -> None:
        """Count steps. Raises TooComplex."""
        self._left -= count
        if self._left < 0:
            raise TooComplex(f"comparing the schemas takes more than {MOST_STEPS} steps")


class Found:
    """Keeps why pairs of types do not fit each other: each pair is compared once, also one within itself."""

    def __init__(self) -> None:
        self._messages: dict[tuple[int, int], list[str]] = {}

    def of(self, pair: tuple[int, int], compare: Callable[[], list[str]]) -> list[str]:
        """Return the messages of a pair, empty if it fits; `compare` finds them."""
        if pair not in self._messages:
            self._messages[pair] = []  # of a type within itself: as good as all of the type
            self._messages[pair] = compare()
            if self._messages[pair]:
                self._forget_behind(pair)
        return self._messages[pair]

    def _forget_behind(self, pair: tuple[int, int]) -> None:
        """Forget the pairs that fit only if this one did: those that were found since it began."""
        kept = []
        while (last := self._messages.popitem())[0] != pair:
            if last[1]:
                kept.append(last)
        self._messages |= dict([last, *kept])


def json_of(text: str) -> Any:
    """Return the JSON of a schema. Raises BadSchema, also for one that is too deep."""
    try:
        found = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise BadSchema("the schema is too deep") from None
    except ValueError as error:
        raise BadSchema(f"the schema is no JSON: {error}") from None
    if _SURROGATE.search(text) and _has_surrogate(found):
        raise BadSchema("the schema has half of a letter, which UTF-8 does not have")
    if _depth(found) > MOST_DEPTH:
        raise BadSchema(f"the schema is more than {MOST_DEPTH} levels deep")
    return found


def _has_surrogate(found: Any) -> bool:
    try:
        compact(found).encode()
    except UnicodeEncodeError:
        return True
    return False


def compact(found: Any) -> str:
    """Return JSON without spaces."""
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False)


def ordered(found: Any) -> Any:
    """Return JSON with the keys of its objects in order."""
    if isinstance(found, dict):
        return {key: ordered(found[key]) for key in sorted(found)}
    return [ordered(part) for part in found] if isinstance(found, list) else found


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _depth(found: Any) -> int:
    deepest, level = 0, [found]
    while level and deepest <= MOST_DEPTH:
        deepest += 1
        level = [
            part
            for parent in level
            if isinstance(parent, dict | list)
            for part in (parent.values() if isinstance(parent, dict) else parent)
        ]
    return deepest
