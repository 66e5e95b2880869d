"""Plans: what a change would do, in words and rows, and the call that does it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ottla.admin import Admin

MOST_ROWS: Final = 500


@dataclass(frozen=True, slots=True)
class Field:
    """One input of a form; `hidden` ones come from the link that led there."""

    name: str
    label: str
    value: str = ""
    kind: Literal["text", "number", "lines", "hidden", "choice", "check"] = "text"
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """A change before it is done.

    `perform` is None until the form has all that is needed, and `unclear` says what is missing. With `typed`
    the user must type that name first: the change cannot be taken back.
    """

    title: str
    button: str
    fields: tuple[Field, ...]
    summary: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    typed: str = ""
    unclear: str = ""
    perform: Callable[[Admin], Awaitable[str]] | None = None
    back: str = ""
    """Where a link leads after the change, below the cluster's address."""


Form = Mapping[str, str]
Planner = Callable[[Admin, Form], Awaitable[Plan]]


def cut(rows: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return as many rows as a page shows, with one that counts the others."""
    if len(rows) <= MOST_ROWS:
        return tuple(rows)
    return (*rows[:MOST_ROWS], (f"{len(rows) - MOST_ROWS} more", *[""] * (len(rows[0]) - 1)))
