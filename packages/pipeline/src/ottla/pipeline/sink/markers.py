"""Markers: which batch of a query each of its partitions wrote last. Pure.

A marker is written in the transaction of the rows that it stands for, so it is there just when they are. Each
replaces the one before it (the topic is compacted): what is asked is only ever about the last.

Readers of committed records wait at the first transaction that is open, whosever it is; a reader that did so
here could overlook a marker behind it, and rows would come twice. So the ledger reads everything, and decides
by itself: what a producer wrote counts when its next control batch says commit.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass

from ottla.pipeline.sink.errors import MarkersUnreadable, StaleBatch
from ottla.pipeline.sink.task_identity import TaskIdentity
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
    """The last batch that a partition of a query wrote, and of how many rows."""

    batch: int
    rows: int
    run: str
    """Which run of the batch did it; when the batch comes again, that is another one. Empty: not known."""

    def encoded(self, task: TaskIdentity) -> bytes:
        """Return what is written of it, for machines and for people who look."""
        where = {"query": task.query, "partition": task.partition}
        return json.dumps({**where, "batch": self.batch, "rows": self.rows, "run": self.run}).encode()


def decoded(value: bytes) -> Marker:
    """Undo `Marker.encoded`. Raises MarkersUnreadable.

    One that does not say its run is of a version that wrote none: of an earlier run in any case.
    """
    try:
        found = json.loads(value)
        return Marker(int(found["batch"]), int(found["rows"]), str(found.get("run", "")))
    except (ValueError, TypeError, KeyError):
        raise MarkersUnreadable(
            f"{value[:80]!r} is no marker of a batch: option markers.topic must name a topic of its own"
        ) from None


Markers = Mapping[int, Marker]
"""The markers of a query, by the number of the task."""


def is_written(known: Markers, task: TaskIdentity) -> bool:
    """Whether the rows of a task are written. Raises StaleBatch if a later batch of the query has begun."""
    later = max((each.batch for each in known.values()), default=task.batch)
    if later > task.batch:
        raise StaleBatch(str(task), later)
    own = known.get(task.partition)
    return own is not None and own.batch == task.batch


def is_begun(known: Markers, batch: int, run: str) -> bool:
    """Whether an earlier run of a batch wrote some of it."""
    return any(each.batch == batch and each.run != run for each in known.values())


def missing_task(known: Markers, batch: int, tasks: Container[int]) -> int | None:
    """Return a task that wrote rows of a batch, and that is not among those of the batch now."""
    return next((task for task, each in known.items() if each.batch == batch and task not in tasks), None)


class MarkerLog:
    """Takes the log of markers, piece by piece, and knows the last one of each key that is committed."""

    def __init__(self, next_offset: int = 0) -> None:
        self.next_offset = next_offset
        self._latest: dict[str, dict[int, Marker]] = {}
        self._open: dict[int, list[tuple[bytes, Marker | None]]] = {}

    def of(self, query: str) -> Markers:
        """Return the last markers of a query."""
        return self._latest.get(query, {})

    def take(self, records: Buffer) -> None:
        """Take what was fetched from `next_offset` on; a batch that is cut off at the end is left.

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
    """Undo `Place.key`. Raises MarkersUnreadable."""
    try:
        query, _, partition = key.decode().rpartition("/")
        return query, int(partition)
    except ValueError:
        raise MarkersUnreadable(
            f"{key[:80]!r} is no key of a marker: option markers.topic must name a topic of its own"
        ) from None
