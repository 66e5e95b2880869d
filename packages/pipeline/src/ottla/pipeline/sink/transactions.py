"""What a task does for exactly-once: one transaction for its rows and the marker that says they are written.

The steps, and why in this order:

1. Obtain the epoch of the transactional id of this place. Whoever began before, an attempt that is thought
   dead say, can commit nothing from here on; what it had committed is complete.
2. Look the marker up. Only now, because only now it cannot come any more behind one's back. Where it stands,
   the rows are written: those that came again are counted, and left alone.
3. Write rows, the marker last, and commit.

When an earlier run has written the batch in part, a task without a marker cannot tell by itself whether its
rows are among those: they may have gone to another task then. (Spark does not even tell tasks in Python how
many they are.) So it leaves its transaction open, and the driver commits it once it has heard of all tasks:
then each of those with a marker has found its rows again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from ottla.pipeline.sink.columns import Columns
from ottla.pipeline.sink.config import SinkConfig
from ottla.pipeline.sink.desk import Desk, desk_for
from ottla.pipeline.sink.errors import ReplayChanged, TakenOver
from ottla.pipeline.sink.identity import Place
from ottla.pipeline.sink.marker_topic import PARTITION
from ottla.pipeline.sink.markers import Marker, is_begun, is_written, missing_task
from ottla.pipeline.sink.outbox import Outbox
from ottla.pipeline.sink.writing import put_all
from ottla.producer import PreparedTransaction, Producer
from ottla.protocol.errors import InvalidTxnState

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Done:
    """What a task has done, for the driver."""

    place: Place
    rows: int
    """How many rows of the place are written, now or before."""
    comes_again: bool = False
    """Whether an earlier run has written some of the batch."""
    prepared: PreparedTransaction | None = None
    """The transaction with the rows, where the driver is to commit it."""


# --- in tasks


def write_once(
    batches: Iterator[pa.RecordBatch], columns: Columns, config: SinkConfig, place: Place, run: str
) -> Done:
    """Write the rows of a task in a transaction, unless they are written already.

    `run` is the same for all tasks of the batch, and another one when the batch comes again.

    Raises NoTransactions, TakenOver, ReplayChanged, SetBack, MarkersUnreadable, and what else kept rows from
    being written: none of them is seen then by readers of committed records.
    """
    rows = _from_first(batches)
    with desk_for(config) as desk:
        if rows is None and _is_first(desk, place, run):
            return Done(place, 0)  # as nothing would be when it came again
        with desk.producer(place) as producer:
            known = desk.markers(place.query)
            comes_again = is_begun(known, place.batch, run)
            if is_written(known, place):
                _compare(rows, known[place.partition], place, config)
                return Done(place, known[place.partition].rows, comes_again)
            if rows is None:
                return Done(place, 0, comes_again)
            count = _write(desk, producer, rows, columns, place, run)
            return Done(place, count, comes_again, _finished(desk, producer, is_prepared=comes_again))


def _is_first(desk: Desk, place: Place, run: str) -> bool:
    known = desk.markers(place.query)
    return not (is_written(known, place) or is_begun(known, place.batch, run))


def _write(
    desk: Desk, producer: Producer, rows: Iterator[pa.RecordBatch], columns: Columns, place: Place, run: str
) -> int:
    desk.call(producer.begin_transaction)
    outbox = Outbox(desk.thread, producer)
    count = put_all(outbox, rows, columns)
    outbox.finish()
    marker = Marker(place.batch, count, run).encoded(place)
    desk.call(lambda: producer.send(desk.config.markers_topic, marker, place.key, PARTITION))
    return count


def _finished(desk: Desk, producer: Producer, *, is_prepared: bool) -> PreparedTransaction | None:
    if is_prepared:
        return desk.call(producer.prepare_transaction)
    desk.call(producer.commit_transaction)
    return None


def _from_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch] | None:
    """Return rows from the first batch on that has any; None where there are none."""
    for batch in batches:
        if batch.num_rows:
            return chain([batch], batches)
    return None


def _compare(rows: Iterator[pa.RecordBatch] | None, known: Marker, place: Place, config: SinkConfig) -> None:
    """Count the rows that came again. Raises ReplayChanged where they are more or fewer than before."""
    if config.fail_on_changed_replay:
        count = sum(each.num_rows for each in rows or ())
        if count != known.rows:
            raise ReplayChanged(str(place), known.rows, f"with {count}")


# --- in the driver, which has heard of all tasks


def commit_all(done: list[Done], config: SinkConfig) -> None:
    """Commit what tasks have left open. Raises ReplayChanged where a task of an earlier run is missing."""
    if not any(each.comes_again for each in done):
        return
    with desk_for(config) as desk:
        if config.fail_on_changed_replay:
            _refuse_fewer_tasks(desk, done)
        for each in done:
            if each.prepared is not None:
                desk.end(each.prepared, committed=True)


def _refuse_fewer_tasks(desk: Desk, done: list[Done]) -> None:
    query, batch = done[0].place.query, done[0].place.batch
    known = desk.markers(query)
    missing = missing_task(known, batch, {each.place.partition for each in done})
    if missing is not None:
        now = f"in {len(done)} tasks, without this one"
        raise ReplayChanged(str(Place(query, batch, missing)), known[missing].rows, now)


def abort_all(done: list[Done], config: SinkConfig) -> None:
    """Abort what tasks have left open: readers of committed records would wait for it."""
    prepared = [each.prepared for each in done if each.prepared is not None]
    if not prepared:
        return
    with desk_for(config) as desk:
        for each in prepared:
            with suppress(TakenOver, InvalidTxnState):  # it is committed, or another attempt's
                desk.end(each, committed=False)


def forget_places(places: Iterable[Place], config: SinkConfig) -> None:
    """Delete the markers of a write that is over, and that nobody will do again."""
    forgotten = list(places)
    if forgotten:
        with desk_for(config) as desk:
            desk.delete(forgotten)
