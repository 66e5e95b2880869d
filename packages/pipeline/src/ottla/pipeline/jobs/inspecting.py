"""Mistakes of tables within tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ottla.pipeline.jobs.declaration_errors import Mistake


def within(step: str | int, mistakes: Iterable[Mistake]) -> Iterator[Mistake]:
    """Yield mistakes with the path that leads to their table."""
    for each in mistakes:
        yield Mistake((step, *each.path), each.message)
