"""A run of a pipeline: its Spark session, its queries, its checkpoint, and the signals that stop it."""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from filelock import FileLock, Timeout

from ottla.client.page_server import Page
from ottla.pipeline.cost import Cost, add_java, begin_cost, cost_of
from ottla.pipeline.errors import JavaGone, PipelineError, cause, is_java_gone, is_slow_start, one_line
from ottla.pipeline.jobs.progress_report import (
    WRITE_INTERVAL_S,
    Batch,
    ProgressReport,
    ReportedJob,
    StatusListener,
    batch_of,
)
from ottla.pipeline.jobs.state_files import BatchKey, StateFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

log = logging.getLogger(__name__)

_END_S = 30.0
"""How long the last beat may take; it writes a small file."""


@contextmanager
def heartbeat(beat: Callable[[], None], every_s: float) -> Iterator[threading.Thread]:
    """Within this context, call `beat` at an interval on a thread, which is returned.

    The thread ends when the calling thread leaves the context or ends in any other way, and stops if the
    process is stopped. After an OSError it continues with the next beat.
    """
    owner, ended = threading.current_thread(), threading.Event()

    def go_on() -> None:
        while not ended.wait(every_s) and owner.is_alive():
            try:
                beat()
            except OSError as error:
                log.warning("cannot write the heartbeat", extra={"reason": str(error)})

    thread = threading.Thread(target=go_on, name=f"heartbeat of {owner.name}", daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        ended.set()
        thread.join(_END_S)


@contextmanager
def stop_on_signals(stopping: threading.Event, said: str = "") -> Iterator[None]:
    """Within this context, SIGTERM and a first Ctrl+C request a stop; a second Ctrl+C exits at once.

    `said` is printed at the request.
    """

    def ask(number: int, frame: Any) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()
        with suppress(OSError):  # stderr may be closed
            os.write(2, said.encode())  # the interrupted code may hold the lock of the buffered stream

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


EachBatch = Callable[["DataFrame", int], Mapping[str, int] | None]
"""Processes a batch with its id and returns counts. It may be called twice for one id.

The count `rows` replaces the number of records where Spark would count some twice.
"""

_COST = "cost"
"""The folder of the checkpoint into which workers write what the run costs."""
_LOOK_S = 0.5
_STARTS = 5
"""How often a query is started: Spark waits ten seconds for a Python worker, which may be too short on a busy
machine."""
_SAME_SIGNAL_S = 1.0
"""How long after Java's end this process may receive the same signal."""
FINISH_S = 30.0
"""How long a batch may continue after a stop request; an aborted batch is repeated at the next start."""


class RunnableJob(ReportedJob, Protocol):
    """A job as a run uses it; `declaration.Job` is one."""

    @property
    def trigger(self) -> float:
        """The interval between looks for new records, in seconds."""
        ...

    @property
    def spark(self) -> Mapping[str, Any]:
        """Settings of Spark."""
        ...

    def run(self, run: Run) -> None:
        """Run until all existing records are processed (`run.once`), or until `run.stopping`."""
        ...


class Run:
    """The environment of a running job. Only one run at a time uses a checkpoint."""

    def __init__(self, job: RunnableJob, *, once: bool = False, watch: StatusListener | None = None) -> None:
        self.job = job
        self.once = once
        self.stopping = threading.Event()
        self.checkpoint = Path(job.checkpoint)
        self._progress = ProgressReport(job, watch)
        self._session: SparkSession | None = None
        self._is_shared = False
        self._running: dict[str, StreamingQuery] = {}
        self._writers: dict[str, DataStreamWriter] = {}
        self._starts: Counter[str] = Counter()
        self._naming = threading.Lock()
        self._rows: dict[tuple[str, int], int] = {}

    def __call__(self) -> None:
        """Run the job to its end. Raises PipelineError, also if another run uses the checkpoint."""
        with self._alone():
            self._progress.publish("running")
            try:
                with heartbeat(self._progress.write_heartbeat, WRITE_INTERVAL_S):
                    self.job.run(self)
            except KeyboardInterrupt:
                self._progress.publish("stopped")
                raise
            except BaseException as error:
                told = JavaGone() if is_java_gone(error) or self._has_lost_java(error) else None
                if told is not None and self.stopping.wait(_SAME_SIGNAL_S):
                    # A signal to the process group ends Java too, possibly before this process receives it.
                    log.warning("Java was stopped, too; unfinished batches are repeated at the next start")
                    self._progress.publish("stopped")
                    return
                self._publish_failed(told or error)
                if told is not None:
                    raise told from error
                raise
            else:
                self._progress.publish("stopped" if self.stopping.is_set() else "done")
            finally:
                self._end()

    def _publish_failed(self, error: BaseException) -> None:
        """Publish a failure; where the disk is full, that fails too, and hides nothing."""
        try:
            self._progress.publish("failed", one_line(error))
        except OSError as unwritten:
            log.warning("cannot write the status", extra={"reason": str(unwritten)})

    def status_page(self, path: str) -> Page:
        """Return a page about this run, on any thread."""
        return self._progress.page(path)

    # --- with Spark

    @property
    def spark(self) -> SparkSession:
        """The Spark session, started at first use."""
        if self._session is None:
            from ottla.pipeline.spark import is_running, spark_session

            self._is_shared = is_running()
            workers = begin_cost(self.checkpoint / _COST)
            os.environ.update(workers)
            own = {f"executorEnv.{name}": value for name, value in workers.items()}
            self._session = spark_session(self.job.name, {**self.job.spark, **own})
        return self._session

    def stream(
        self, frame: DataFrame, each_batch: EachBatch, query: str = "main", output_mode: str = "append"
    ) -> StreamingQuery:
        """Start a query that passes batches to a function, and record its counts once per batch."""
        batch_counts = self._progress.batch_counts(query)

        def do(batch: DataFrame, batch_id: int) -> None:
            counts = dict(each_batch(batch, batch_id) or {})
            if "rows" in counts:
                self._rows[query, batch_id] = counts.pop("rows")
            if counts:
                batch_counts.record(batch_id, counts)

        return self._start(frame.writeStream.outputMode(output_mode).foreachBatch(do), query)

    def sink(
        self, frame: DataFrame, source: str, options: Mapping[str, str], query: str = "main"
    ) -> StreamingQuery:
        """Start a query that writes a stream with a data source, such as `ottla`."""
        return self._start(frame.writeStream.format(source).options(**options), query)

    def query_name(self, query: str) -> str:
        """Return Spark's name of a query of this pipeline."""
        return f"{self.job.name}.{query}"

    def cost(self, rows: int) -> Cost:
        """Return the cost of the run for so many rows."""
        return cost_of(self.checkpoint / _COST, rows, time.process_time())

    @property
    def app_id(self) -> str:
        """The id of this checkpoint.

        Another checkpoint counts batches from 0 again, so their ids need a prefix.
        """
        file = StateFile(self.checkpoint / "id.json")
        with self._naming:  # several queries may run their first batches at once
            found = file.read()
            if not found:
                found = {"id": f"{self.job.name}-{secrets.token_hex(4)}"}
                file.write(found)
        return str(found["id"])

    def batch_key(self, query: str, batch_id: int) -> BatchKey:
        """Return the key of a batch, unique among all batches written to the same table."""
        return BatchKey(f"{self.app_id}.{query}", batch_id)

    def wait(self, meanwhile: Callable[[], object] | None = None) -> None:
        """Wait for the queries and publish their progress; call `meanwhile` repeatedly.

        Stops all queries and raises PipelineError if one fails, or the error that `meanwhile` raises.
        """
        try:
            while not self._look_after() and not self.stopping.is_set():
                if meanwhile is not None:
                    meanwhile()
                self.stopping.wait(_LOOK_S)
        except Exception:
            self._stop_others()
            raise
        if self.stopping.is_set():
            self._stop_queries()
            self._look_after()

    def _look_after(self) -> bool:
        """Publish progress and restart queries; return whether all have ended.

        Raises PipelineError if one failed.
        """
        was_active = self._is_active()
        self._look()
        self._check_failed()  # which may have restarted a query
        return not (was_active or self._is_active())

    def _is_active(self) -> bool:
        return any(query.isActive for query in self._running.values())

    # --- without Spark

    def begin(self, query: str = "main") -> None:
        """Register a query of `report`, with its status from the previous run."""
        self._progress.begin(query)

    def report(
        self,
        batch_id: int,
        *,
        rows: int,
        batch_ms: float,
        lag: int | None = None,
        counts: Mapping[str, int] | None = None,
        query: str = "main",
    ) -> None:
        """Report a completed batch, for jobs without Spark."""
        if counts:
            self._progress.batch_counts(query).record(batch_id, counts)
        self._progress.add(query, Batch(batch_id, rows, batch_ms, lag))
        self._progress.publish_if_due()

    def state(self, query: str) -> StateFile:
        """Return a file under the checkpoint for positions of the job's own."""
        return StateFile(self.checkpoint / "places" / f"{query}.json")

    # --- private

    def _start(self, writer: DataStreamWriter, query: str) -> StreamingQuery:
        place = self.checkpoint / "queries" / query
        writer = writer.queryName(self.query_name(query)).option("checkpointLocation", str(place))
        every = f"{int(self.job.trigger * 1_000)} milliseconds"
        writer = writer.trigger(availableNow=True) if self.once else writer.trigger(processingTime=every)
        self._progress.begin(query)
        self._writers[query] = writer
        return self._begin(query)

    def _begin(self, query: str) -> StreamingQuery:
        self._starts[query] += 1
        self._running[query] = self._writers[query].start()
        return self._running[query]

    def _look(self) -> None:
        for name, query in self._running.items():
            for progress in query.recentProgress:
                batch = batch_of(_json(progress))
                if batch is not None:
                    rows = self._rows.pop((name, batch.id), batch.rows)
                    self._progress.add(name, replace(batch, rows=rows))
        self._progress.publish_if_due()

    def _check_failed(self) -> None:
        for name, query in list(self._running.items()):
            error = query.exception() if not query.isActive else None
            if error is None:
                continue
            why = cause(str(error))
            if not (is_slow_start(why) and self._starts[name] < _STARTS) or self.stopping.is_set():
                raise PipelineError(f"query {name} failed: {why}") from error
            # The checkpoint has the progress, so the query continues from there.
            log.warning("query restarted: a Python worker did not start in time", extra={"query": name})
            self._begin(name)

    def _stop_queries(self) -> None:
        until = time.monotonic() + FINISH_S
        stuck = [name for name, query in self._running.items() if not _is_stopped(query, until)]
        if stuck:
            raise PipelineError(
                f"query {' and '.join(stuck)} did not stop within the time for its batch; unfinished "
                "work is repeated at the next start"
            )

    def _stop_others(self) -> None:
        """Stop the other queries after a failure; only log if that fails, to report the first failure."""
        try:
            self._stop_queries()
        except PipelineError as error:
            log.warning("other queries not stopped", extra={"reason": str(error)})

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.checkpoint / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise PipelineError(
                f"{self.job.name} is already running: another process uses {self.checkpoint}. Stop "
                "that process, or give this pipeline another checkpoint"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def _has_lost_java(self, error: BaseException) -> bool:
        # A Java process that is shutting down answers requests with various errors.
        if self._session is None or not (isinstance(error, ConnectionError) or self.stopping.is_set()):
            return False
        from ottla.pipeline.spark import has_ended

        return has_ended(self._session)

    def _end(self) -> None:
        if self._session is not None and not self._is_shared:
            try:
                gateway = getattr(self._session.sparkContext, "_gateway", None)
                if (java := getattr(gateway, "proc", None)) is not None:
                    add_java(self.checkpoint / _COST, java.pid)
                self._session.stop()
            except Exception:
                log.debug("Spark had already ended", exc_info=True)


def _is_stopped(query: StreamingQuery, until: float) -> bool:
    """Stop a query after its batch; return whether Spark stopped it within its `stopTimeout`."""
    try:
        done = _last_batch(query)
        # If records keep arriving, the next batch begins at once, so only the end of this one is awaited.
        while _is_busy(query) and _last_batch(query) == done and time.monotonic() < until:
            time.sleep(0.1)
        if query.isActive:
            query.stop()
    except Exception:  # PySpark converts Java's TimeoutException to different types
        log.debug("a query does not stop", exc_info=True)
        return not _goes_on(query)
    return True


def _goes_on(query: StreamingQuery) -> bool:
    try:
        return bool(query.isActive)
    except Exception:  # Java has ended, and its queries with it
        return False


def _is_busy(query: StreamingQuery) -> bool:
    return query.isActive and bool(query.status["isTriggerActive"])


def _last_batch(query: StreamingQuery) -> object:
    progress = query.lastProgress
    return None if progress is None else (_json(progress)["batchId"], _json(progress)["timestamp"])


def _json(progress: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(progress.json) if hasattr(progress, "json") else dict(progress)
    return found
