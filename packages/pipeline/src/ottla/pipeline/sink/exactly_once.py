"""Exactly-once delivery: one transaction holds the rows of a task and the marker that says they are written.

The steps, and the reason for their order:

1. Obtain the epoch of the task's transactional id. This fences every earlier attempt, for example one that is
   believed dead: it can commit nothing from here on, and its committed transactions are complete.
2. Look up the marker. This comes second because only now no earlier attempt can add one. If there is a
   marker, the rows are written: count the replayed rows and write nothing.
3. Write the rows, then the marker, and commit.

An attempt that is fenced is not always dead: Spark starts copies of slow tasks. It waits for the marker of
the attempt that took over; `_of_other_attempt` explains why.

If an earlier run wrote part of the batch, a task without a marker cannot tell whether its rows are among the
written ones: they may have belonged to another task then. (Spark does not even tell Python tasks how many
tasks there are.) So the task leaves its transaction open, and the driver commits it when all tasks have
reported: then each task with a marker has found the same rows again. `_waits` explains why nothing less is
sufficient.

Two cases stay undetected. Rows may have moved between tasks without changing the counts. And if a query was
changed and restarted while a task of the previous run still writes, that task may commit after tasks of the
new run that found no marker; both may have written the same rows. The new run notices this (the task finds a
marker and compares), but committed rows stay: a transactional id fences one task, and brokers have no fence
for all of them. In an unchanged query such a task does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from ottla.pipeline.lazy import pa
from ottla.pipeline.sink.at_least_once import RowSender, put_all
from ottla.pipeline.sink.config import SinkConfig
from ottla.pipeline.sink.errors import ReplayChanged, TransactionFenced, WaitedTooLong
from ottla.pipeline.sink.markers import PARTITION, Marker, Markers, is_begun, is_written, missing_task
from ottla.pipeline.sink.sink_client import SinkClient, sink_client_for
from ottla.pipeline.sink.tasks import Columns, PendingTransaction, TaskIdentity, TaskResult
from ottla.pipeline.source.stream_offsets import Clock
from ottla.producer import Producer
from ottla.protocol.errors import InvalidTxnState

# --- in tasks

_LOOK_S = 1.0
"""The interval between looks for the marker of another attempt."""


def write_exactly_once(
    batches: Iterator[pa.RecordBatch],
    columns: Columns,
    config: SinkConfig,
    task: TaskIdentity,
    run: str,
    clock: Clock | None = None,
) -> TaskResult:
    """Write the rows of a task in one transaction, unless they are already written.

    `run` is the same for all tasks of one run of the batch, and differs when the batch is replayed. If
    another attempt at the task takes over, its result is returned when it has committed.

    Raises RowsCut, NoTransactions, TransactionFenced, ReplayChanged, StaleBatch, MarkersUnreadable, and the
    producer's errors; readers of committed records then see none of the rows.
    """
    rows = _from_first(batches)
    clock = clock or Clock()
    with sink_client_for(config) as client:
        # This first look happens before anyone is fenced. It decides only what is harmless if wrong: that a
        # task without rows has nothing to do, and the transaction timeout.
        known = client.markers(task.query)
        if rows is None and not (is_written(known, task) or is_begun(known, task.batch, run)):
            return TaskResult(task, 0)  # a replay would write nothing either
        begun_ms = clock.now_ms()
        try:
            with client.producer(task, waits=_waits(known, task, run, config)) as producer:
                return _done(client, producer, rows, columns, task, run)
        except TransactionFenced as fenced:
            if clock.now_ms() - begun_ms >= fenced.timeout_ms:
                raise  # the brokers ended it, and no other attempt
            return _of_other_attempt(client, task, run, fenced, clock)


def _of_other_attempt(
    client: SinkClient, task: TaskIdentity, run: str, fenced: TransactionFenced, clock: Clock
) -> TaskResult:
    """Return the result of the attempt that took over. Raises `fenced` if it does not commit in its time.

    With `spark.speculation`, a copy of a slow task takes over from it. If that failed at once, only the copy
    would run; when it was slow, too, Spark would start a third one, which takes over from the second, and so
    on, until the task has failed as often as Spark allows. While two attempts run, Spark starts no other.
    """
    until_ms = clock.now_ms() + fenced.timeout_ms
    while clock.now_ms() < until_ms:
        known = client.markers(task.query)
        if is_written(known, task):
            if known[task.partition].run != run:
                break  # its rows may be others: the next attempt counts them
            return TaskResult(task, known[task.partition].rows, is_begun(known, task.batch, run))
        clock.wait(_LOOK_S)
    raise fenced


def _done(
    client: SinkClient,
    producer: Producer,
    rows: Iterator[pa.RecordBatch] | None,
    columns: Columns,
    task: TaskIdentity,
    run: str,
) -> TaskResult:
    """Act on the markers; the fence guarantees that no other attempt at this task can add one."""
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

    Example: rows a, b, c, d were split into ab | cd, and task 0 committed. The batch is replayed and task 1
    runs first; the split may be a | bcd now. Task 1 must not commit at once, whatever the markers say:

    - The earlier run left nothing for task 1 to compare with, because task 1 committed nothing. The marker of
      task 0 with two rows says nothing about b. Only task 0 can tell that it has two rows again, maybe an
      hour later.
    - Suppose task 0 ran first and noted in its marker that this run found its rows again. If all markers say
      so, task 1 is still not safe from task 2 of the earlier run, which is believed dead, has no marker yet,
      and may still commit d. Task 2 is fenced when task 2 of this run begins, and only the driver knows when
      all tasks have begun.
    - A digest of the rows, or the number of tasks, in the markers would detect more changed splits, but not
      earlier.

    So the transactions stay open until the rest of the batch is done, and brokers end them after
    `transaction.max.timeout.ms`. With `failOnChangedReplay=false` the user asserts that the split is the
    same, or accepts the risk, and tasks do not wait.
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
    """Return the batches from the first one with rows on; None if there are no rows."""
    for batch in batches:
        if batch.num_rows:
            return chain([batch], batches)
    return None


def _compare(
    rows: Iterator[pa.RecordBatch] | None, known: Marker, task: TaskIdentity, config: SinkConfig
) -> None:
    """Count the replayed rows. Raises ReplayChanged if the count differs from the marker."""
    if config.fail_on_changed_replay:
        count = sum(batch.num_rows for batch in rows or ())
        if count != known.rows:
            raise ReplayChanged(str(task), known.rows, f"with {count} rows")


# --- on the driver, which has the results of all tasks


def commit_all(done: list[TaskResult], config: SinkConfig) -> None:
    """Commit the transactions that tasks left open.

    Raises ReplayChanged if a task of an earlier run is missing. Tries to commit all, then raises the first
    error: WaitedTooLong, or an error of the producer.
    """
    if not any(result.is_replay for result in done):
        return
    with sink_client_for(config) as client:
        if config.fail_on_changed_replay:
            _refuse_fewer_tasks(client, done)
        # From here on each transaction is correct by itself: a committed one has its marker, and a replay for
        # the others leaves it alone. So an expired transaction must not abort the rest, or a batch that is
        # too long for its first transactions would never finish.
        failed = client.end(_pending(done), committed=True)
        if failed:
            raise failed[0]


def _refuse_fewer_tasks(client: SinkClient, done: list[TaskResult]) -> None:
    query, batch = done[0].task.query, done[0].task.batch
    known = client.markers(query)
    missing = missing_task(known, batch, {result.task.partition for result in done})
    if missing is not None:
        now = f"in {len(done)} tasks, without this one"
        raise ReplayChanged(str(TaskIdentity(query, batch, missing)), known[missing].rows, now)


def abort_all(done: list[TaskResult], config: SinkConfig) -> None:
    """Abort the transactions that tasks left open, because readers of committed records would wait for them.

    Tries to abort all, then raises the first error.
    """
    pending = _pending(done)
    if not pending:
        return
    with sink_client_for(config) as client:
        failed = client.end(pending, committed=False)
        # The others are committed, or belong to another attempt.
        left = [error for error in failed if not isinstance(error, WaitedTooLong | InvalidTxnState)]
        if left:
            raise left[0]


def _pending(done: Sequence[TaskResult]) -> list[PendingTransaction]:
    return [result.pending for result in done if result.pending is not None]


def forget_tasks(tasks: Iterable[TaskIdentity], config: SinkConfig) -> None:
    """Delete the markers of a write that is complete and will not be repeated."""
    forgotten = list(tasks)
    if forgotten:
        with sink_client_for(config) as client:
            client.delete(forgotten)
