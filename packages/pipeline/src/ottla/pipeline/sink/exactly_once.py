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
then each of those with a marker has found its rows again. See `_waits` for why nothing less will do.

What this does not see: rows that went to other tasks in the same numbers. And where a query was changed, and
started again while a task of the run before still writes somewhere, that task may commit after others of the
new run did, which found no marker then. Its rows may be theirs, too. It is noticed (its place has a marker
that the new run's task compares), but what was committed stays: transactional ids fence off one place each,
and brokers have no fence for all of them. Where the query is as it was, such a task does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from ottla.pipeline.sink.at_least_once import put_all
from ottla.pipeline.sink.columns import Columns
from ottla.pipeline.sink.config import SinkConfig
from ottla.pipeline.sink.errors import ReplayChanged, WaitedTooLong
from ottla.pipeline.sink.marker_topic import PARTITION
from ottla.pipeline.sink.markers import Marker, Markers, is_begun, is_written, missing_task
from ottla.pipeline.sink.row_sender import RowSender
from ottla.pipeline.sink.sink_client import PendingTransaction, SinkClient, sink_client_for
from ottla.pipeline.sink.task_identity import TaskIdentity
from ottla.producer import Producer
from ottla.protocol.errors import InvalidTxnState

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task has done, for the driver."""

    task: TaskIdentity
    rows: int
    """How many rows of the place are written, now or before."""
    is_replay: bool = False
    """Whether an earlier run has written some of the batch."""
    pending: PendingTransaction | None = None
    """The transaction with the rows, where the driver is to commit it."""


# --- in tasks


def write_exactly_once(
    batches: Iterator[pa.RecordBatch], columns: Columns, config: SinkConfig, task: TaskIdentity, run: str
) -> TaskResult:
    """Write the rows of a task in a transaction, unless they are written already.

    `run` is the same for all tasks of the batch, and another one when the batch comes again.

    Raises NoTransactions, TransactionFenced, ReplayChanged, StaleBatch, MarkersUnreadable, and the producer's
    errors; readers of committed records then see none of the rows.
    """
    rows = _from_first(batches)
    with sink_client_for(config) as client:
        # A first look, before anybody is fenced off. It decides what costs nothing when it is wrong: that
        # without rows there is nothing to do, and for how long a transaction may have to be open.
        known = client.markers(task.query)
        if rows is None and not (is_written(known, task) or is_begun(known, task.batch, run)):
            return TaskResult(task, 0)  # as nothing would be when it came again
        with client.producer(task, waits=_waits(known, task, run, config)) as producer:
            return _done(client, producer, rows, columns, task, run)


def _done(
    client: SinkClient,
    producer: Producer,
    rows: Iterator[pa.RecordBatch] | None,
    columns: Columns,
    task: TaskIdentity,
    run: str,
) -> TaskResult:
    """Do what the markers say, now that no other attempt at the place can add one."""
    known = client.markers(task.query)
    is_replay = is_begun(known, task.batch, run)
    if is_written(known, task):
        _compare(rows, known[task.partition], task, client.config)
        return TaskResult(task, known[task.partition].rows, is_replay)
    if rows is None:
        return TaskResult(task, 0, is_replay)
    count = _write(client, producer, rows, columns, task, run)
    pending = _finished(client, producer, waits=_waits(known, task, run, client.config))
    return TaskResult(task, count, is_replay, pending)


def _waits(known: Markers, task: TaskIdentity, run: str, config: SinkConfig) -> bool:
    """Whether a task without a marker has to leave its transaction to the driver.

    Rows a, b, c, d were cut into ab | cd, and task 0 committed. The batch comes again, and task 1 comes
    first; the cut may be a | bcd by now. Why task 1 must not commit at once, whatever markers might say:

    - Of task 1 the earlier run left nothing that it could compare with: it had committed nothing. That task 0
      once had two rows says nothing about b. Only task 0 can tell that it has two rows again, and that may be
      an hour later.
    - Say it came before, and wrote into its marker that this run has found its rows again. If all markers say
      so, is task 1 safe? Not from task 2 of the earlier run, which is thought dead, has no marker yet, and
      may still commit: with d, say. It is fenced off once task 2 of this run begins, and nobody but the
      driver knows when all tasks have begun.
    - A digest of rows, or the number of tasks, in markers would tell more cuts apart that came again; neither
      tells it any sooner.

    So transactions are open for as long as what is left of the batch takes, and brokers end them after
    `transaction.max.timeout.ms`. Whoever says that the cut is the same, or does not mind, need not wait.
    """
    return config.fail_on_changed_replay and is_begun(known, task.batch, run)


def _write(
    client: SinkClient,
    producer: Producer,
    rows: Iterator[pa.RecordBatch],
    columns: Columns,
    task: TaskIdentity,
    run: str,
) -> int:
    client.call(producer.begin_transaction)
    sender = RowSender(client.thread, producer)
    count = put_all(sender, rows, columns)
    sender.finish()
    marker = Marker(task.batch, count, run).encoded(task)
    client.call(lambda: producer.send(client.config.markers_topic, marker, task.key, PARTITION))
    return count


def _finished(client: SinkClient, producer: Producer, *, waits: bool) -> PendingTransaction | None:
    if waits:
        return PendingTransaction(
            client.call(producer.prepare_transaction), producer.config.transaction_timeout_ms
        )
    client.call(producer.commit_transaction)
    return None


def _from_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch] | None:
    """Return rows from the first batch on that has any; None where there are none."""
    for batch in batches:
        if batch.num_rows:
            return chain([batch], batches)
    return None


def _compare(
    rows: Iterator[pa.RecordBatch] | None, known: Marker, task: TaskIdentity, config: SinkConfig
) -> None:
    """Count the rows that came again. Raises ReplayChanged where they are more or fewer than before."""
    if config.fail_on_changed_replay:
        count = sum(each.num_rows for each in rows or ())
        if count != known.rows:
            raise ReplayChanged(str(task), known.rows, f"with {count}")


# --- in the driver, which has heard of all tasks


def commit_all(done: list[TaskResult], config: SinkConfig) -> None:
    """Commit what tasks have left open. Raises ReplayChanged where a task of an earlier run is missing.

    Raises WaitedTooLong, and what else kept a transaction from being committed, after it has tried all.
    """
    if not any(each.is_replay for each in done):
        return
    with sink_client_for(config) as client:
        if config.fail_on_changed_replay:
            _refuse_fewer_tasks(client, done)
        # From here on each of them is right by itself: whatever is committed has its marker, and is left
        # alone when the batch comes again for the others. So one that was ended must not end the rest, or a
        # batch that is too long for its first transactions would be so each time.
        failed = client.end(_pending(done), committed=True)
        if failed:
            raise failed[0]


def _refuse_fewer_tasks(client: SinkClient, done: list[TaskResult]) -> None:
    query, batch = done[0].task.query, done[0].task.batch
    known = client.markers(query)
    missing = missing_task(known, batch, {each.task.partition for each in done})
    if missing is not None:
        now = f"in {len(done)} tasks, without this one"
        raise ReplayChanged(str(TaskIdentity(query, batch, missing)), known[missing].rows, now)


def abort_all(done: list[TaskResult], config: SinkConfig) -> None:
    """Abort what tasks have left open: readers of committed records would wait for it.

    Raises the first of what kept transactions from being aborted, after it has tried all.
    """
    pending = _pending(done)
    if not pending:
        return
    with sink_client_for(config) as client:
        failed = client.end(pending, committed=False)
        # The others are committed, or another attempt's.
        left = [error for error in failed if not isinstance(error, WaitedTooLong | InvalidTxnState)]
        if left:
            raise left[0]


def _pending(done: Sequence[TaskResult]) -> list[PendingTransaction]:
    return [each.pending for each in done if each.pending is not None]


def forget_tasks(tasks: Iterable[TaskIdentity], config: SinkConfig) -> None:
    """Delete the markers of a write that is over, and that nobody will do again."""
    forgotten = list(tasks)
    if forgotten:
        with sink_client_for(config) as client:
            client.delete(forgotten)
