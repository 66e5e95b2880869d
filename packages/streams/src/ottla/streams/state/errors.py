"""Errors of keyed stores."""

from __future__ import annotations

from pathlib import Path

from ottla.streams.errors import StreamsError


class StoreClosed(StreamsError):
    """The store was closed: its partition is no longer assigned."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"the state file {path} is closed: its partition is no longer assigned")
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.path,)


class StoreDamaged(StreamsError):
    """The state file is damaged, and is rebuilt from its topic: what was read for it is read again."""

    def __init__(self, path: Path, cause: BaseException | None) -> None:
        because = "" if cause is None else f" ({cause})"
        super().__init__(f"the state file {path} is damaged{because} and is rebuilt from its topic")
        self.path = path
        self.cause = cause

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.path, self.cause)
