"""Markers: the last batch that each task of a query wrote. Pure.

A marker is written in the transaction of its rows, so it exists exactly if they do. Each marker replaces the
previous one (the topic is compacted), because only the last one matters.

A reader of committed records stops at the first open transaction of any producer; here it could miss a marker
behind it, and rows would be written twice. So the marker log reads all records and decides itself: records of
a producer count when its next control batch is a commit.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass

from ottla.pipeline.sink.errors import MarkersUnreadable, StaleBatch
from ottla.pipeline.sink.tasks import TaskIdentity
from ottla.protocol.records import (
    Buffer,
    ControlType,
    decode_records,
    read_end_transaction_marker,
    split_batches,
    validate_batch,
)


@dataclass(frozen=True, slots=True)
class Marker:
    """The last batch that a task of a query wrote, and its number of rows."""

    batch: int
    rows: int
    run: str
    """The run that wrote the batch; a replay has another one. Empty: unknown."""

    def encoded(self, task: TaskIdentity) -> bytes:
        """Return the value of the marker record, as JSON."""
        where = {"query": task.query, "partition": task.partition}
        return json.dumps({**where, "batch": self.batch, "rows": self.rows, "run": self.run}).encode()


def decoded(value: bytes) -> Marker:
    """Undo `Marker.encoded`. Raises MarkersUnreadable.

    A marker without a run was written by an old version, so it belongs to an earlier run.
    """
    try:
        found = json.loads(value)
        return Marker(int(found["batch"]), int(found["rows"]), str(found.get("run", "")))
    except (ValueError, TypeError, KeyError):
        raise MarkersUnreadable(
            f"{value[:80]!r} is not a marker of a batch: option markers.topic must name a dedicated topic"
        ) from None


Markers = Mapping[int, Marker]
"""The markers of a query, by task number."""


def is_written(known: Markers, task: TaskIdentity) -> bool:
    """Whether the rows of a task are written. Raises StaleBatch if a later batch of the query has begun."""
    later = max((marker.batch for marker in known.values()), default=task.batch)
    if later > task.batch:
        raise StaleBatch(str(task), later)
    own = known.get(task.partition)
    return own is not None and own.batch == task.batch


def is_begun(known: Markers, batch: int, run: str) -> bool:
    """Whether an earlier run wrote part of a batch."""
    return any(marker.batch == batch and marker.run != run for marker in known.values())


def missing_task(known: Markers, batch: int, tasks: Container[int]) -> int | None:
    """Return a task that wrote rows of a batch but is missing in this run; None if there is none."""
    return next((task for task, marker in known.items() if marker.batch == batch and task not in tasks), None)


class MarkerLog:
    """Applies the records of the marker topic in order, and holds the last committed marker of each key."""

    def __init__(self, next_offset: int = 0) -> None:
        self.next_offset = next_offset
        self._latest: dict[str, dict[int, Marker]] = {}
        self._open: dict[int, list[tuple[bytes, Marker | None]]] = {}

    def of(self, query: str) -> Markers:
        """Return the last markers of a query."""
        return self._latest.get(query, {})

    def take(self, records: Buffer) -> None:
        """Apply the batches that were fetched from `next_offset` on; ignore a truncated batch at the end.

        Raises CorruptRecords, MarkersUnreadable.
        """
        for batch in split_batches(records, torn_tail=True):
            header = validate_batch(batch)
            if header.next_offset <= self.next_offset:
                continue
            self.next_offset = header.next_offset
            if header.is_control:
                self._end(header.producer_id, batch)
            else:
                self._add(header.producer_id if header.is_transactional else None, batch)

    def _add(self, producer_id: int | None, batch: Buffer) -> None:
        found = [
            (record.key, None if record.value is None else decoded(record.value))
            for record in decode_records(batch)
            if record.key is not None
        ]
        if producer_id is None:
            self._apply(found)
        else:
            self._open.setdefault(producer_id, []).extend(found)

    def _end(self, producer_id: int, batch: Buffer) -> None:
        marker = read_end_transaction_marker(batch)
        if marker is None:
            return
        written = self._open.pop(producer_id, [])
        if marker.type is ControlType.COMMIT:
            self._apply(written)

    def _apply(self, found: list[tuple[bytes, Marker | None]]) -> None:
        for key, marker in found:
            query, partition = _task_of(key)
            if marker is not None:
                self._latest.setdefault(query, {})[partition] = marker
                continue
            of_query = self._latest.get(query, {})
            of_query.pop(partition, None)
            if not of_query:
                self._latest.pop(query, None)


def _task_of(key: bytes) -> tuple[str, int]:
    """Undo `TaskIdentity.key`. Raises MarkersUnreadable."""
    try:
        query, _, partition = key.decode().rpartition("/")
        return query, int(partition)
    except ValueError:
        raise MarkersUnreadable(
            f"{key[:80]!r} is not the key of a marker: option markers.topic must name a dedicated topic"
        ) from None
