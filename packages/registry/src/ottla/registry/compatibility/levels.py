"""Compatibility levels: which versions a schema is compared with, and in which direction. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from ottla.registry.client import LEVELS

P = TypeVar("P")
_DIRECTIONS: Final = {"BACKWARD": (True, False), "FORWARD": (False, True), "FULL": (True, True)}


class Compare(Protocol):
    """Returns why values of a writer's schema cannot be read as the reader's."""

    def __call__(self, reader: Any, writer: Any, /) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Version:
    """A version to compare with: its number, its kind, and what was read of it."""

    number: int
    kind: str
    parsed: Any


def compared(level: str, versions: Sequence[P]) -> Sequence[P]:
    """Return the versions that a schema must be compatible with; `versions` are in order."""
    if level == "NONE":
        return ()
    return versions if level.endswith("_TRANSITIVE") else versions[-1:]


def messages(level: str, kind: str, parsed: Any, versions: Sequence[Version], compare: Compare) -> list[str]:
    """Return why a schema is not compatible with versions of its subject; empty if it is."""
    assert level in LEVELS
    for version in reversed(compared(level, versions)):
        if version.kind != kind:
            return [f"version {version.number} is of type {version.kind}, and this schema of type {kind}"]
        backward, forward = _DIRECTIONS[level.removesuffix("_TRANSITIVE")]
        found = [
            *(_said("BACKWARD", version, compare(parsed, version.parsed)) if backward else ()),
            *(_said("FORWARD", version, compare(version.parsed, parsed)) if forward else ()),
        ]
        if found:
            return found
    return []


def _said(direction: str, version: Version, found: list[str]) -> list[str]:
    reader, writer = "this schema", f"version {version.number}"
    if direction == "FORWARD":
        reader, writer = writer, reader
    return [f"{direction}: {text} (reader: {reader}, writer: {writer})" for text in found]
