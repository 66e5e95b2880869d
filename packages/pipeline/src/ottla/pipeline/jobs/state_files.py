"""Small files that a pipeline keeps under its checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ottla.pipeline.errors import PipelineError


@dataclass(frozen=True, slots=True)
class BatchKey:
    """Tells a batch from all others: those of the same query, of other queries, and of other checkpoints."""

    app: str
    """A query of a checkpoint."""
    id: int

    def __str__(self) -> str:
        return f"{self.app}-{self.id:06d}"


class StateFile:
    """A JSON object in a file, replaced whole: after a crash it is the one before or the one after."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        """Return what was written last; nothing at first. Raises PipelineError for what is no JSON object."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise PipelineError(f"{self.path} is damaged ({error}); restore it from a backup") from None
        if not isinstance(found, dict):
            raise PipelineError(f"{self.path} is damaged (no JSON object); restore it from a backup")
        return found

    def write(self, value: Mapping[str, Any], *, durable: bool = True) -> None:
        """Replace it; `durable` waits until the disk has it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(f".{self.path.name}.new")
        with beside.open("w", encoding="utf-8") as file:
            json.dump(value, file, indent=1, default=str)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        beside.replace(self.path)


class BatchCounts:
    """Counts per batch, added up: a batch that is done again replaces its own, and counts once."""

    def __init__(self, file: StateFile) -> None:
        self._file = file
        self._seen: dict[str, Any] = file.read() or {"batch": -1, "before": {}, "batch_counts": {}}

    @property
    def totals(self) -> dict[str, int]:
        """What was counted up to now."""
        seen = self._seen  # once: another thread may keep a batch meanwhile
        return added(seen["before"], seen["batch_counts"])

    def keep(self, batch_id: int, counts: Mapping[str, int]) -> None:
        """Take the counts of a batch, durably."""
        before = self._seen["before"] if batch_id == self._seen["batch"] else self.totals
        self._seen = {"batch": batch_id, "before": before, "batch_counts": dict(counts)}
        self._file.write(self._seen)


def added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Add counts by their names, which keep their order."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
