"""Small files that a pipeline stores under its checkpoint."""

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
    """The identity of a batch among all queries and all checkpoints."""

    app: str
    """The id of a checkpoint and a query."""
    id: int

    def __str__(self) -> str:
        return f"{self.app}-{self.id:06d}"


class StateFile:
    """A JSON object in a file that is replaced atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        """Return the stored object; empty if there is none. Raises PipelineError for another content."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise PipelineError(f"{self.path} is damaged ({error}); restore it from a backup") from None
        if not isinstance(found, dict):
            raise PipelineError(f"{self.path} is damaged (not a JSON object); restore it from a backup")
        return found

    def write(self, value: Mapping[str, Any], *, durable: bool = True) -> None:
        """Replace the object; `durable` waits until it is on disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(f".{self.path.name}.new")
        with beside.open("w", encoding="utf-8") as file:
            json.dump(value, file, indent=1, default=str)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        beside.replace(self.path)


class BatchCounts:
    """The sum of counts over batches; a repeated batch replaces its own counts."""

    def __init__(self, file: StateFile) -> None:
        self._file = file
        self._seen: dict[str, Any] = file.read() or {"batch": -1, "before": {}, "batch_counts": {}}

    @property
    def totals(self) -> dict[str, int]:
        """The counts of all batches so far."""
        seen = self._seen  # read it once: another thread may replace it
        return add_counts(seen["before"], seen["batch_counts"])

    def record(self, batch_id: int, counts: Mapping[str, int]) -> None:
        """Store the counts of a batch durably."""
        before = self._seen["before"] if batch_id == self._seen["batch"] else self.totals
        self._seen = {"batch": batch_id, "before": before, "batch_counts": dict(counts)}
        self._file.write(self._seen)


def add_counts(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Add counts by name; the names keep their order."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
