"""Table pipelines: rows of growing database tables and of outboxes become records."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from pydantic import Field

from ottla.pipeline.jobs.database.connection import Database, DatabaseFailed, reflected
from ottla.pipeline.jobs.database.followed_tables import (
    FollowedTable,
    Follower,
    Outbox,
    PendingEvents,
    now_utc,
)
from ottla.pipeline.jobs.database.row_values import Record
from ottla.pipeline.jobs.declaration import Job, Mistake, Seconds, Target, cluster_errors
from ottla.pipeline.jobs.declaration_errors import within
from ottla.pipeline.lazy import sa
from ottla.producer import SyncProducer

if TYPE_CHECKING:
    from ottla.pipeline.jobs.run import Run

log = logging.getLogger(__name__)

Rows = Sequence[Mapping[str, Any]]


class Tables(Job):
    """Database → topics: rows of tables that grow, and events of outboxes."""

    kind: Literal["tables"] = "tables"
    adds_up: ClassVar[bool] = True
    database: Database
    target: Target
    tables: list[FollowedTable] = Field(default_factory=list)
    outboxes: list[Outbox] = Field(default_factory=list)
    trigger: Seconds = 2.0

    def inspect(self) -> Iterator[Mistake]:
        """Yield mistakes beyond the types of single values."""
        yield from within("database", self.database.inspect())
        yield from within("target", self.target.inspect())
        for index, table in enumerate(self.tables):
            yield from within("tables", within(index, table.inspect()))
        for index, outbox in enumerate(self.outboxes):
            yield from within("outboxes", within(index, outbox.inspect()))
        if not self.tables and not self.outboxes:
            yield Mistake((), "nothing is read: [[tables]] names a table, [[outboxes]] an outbox")
        yield from self._named_twice()

    def _named_twice(self) -> Iterator[Mistake]:
        names = [*(table.table for table in self.tables), *(outbox.table for outbox in self.outboxes)]
        for index, table in enumerate(self.tables):
            if names.count(table.table) > 1:
                twice = "is named twice, and a pipeline has only one position in each table"
                yield Mistake(("tables", index, "table"), twice)

    def run(self, run: Run) -> None:
        """Send new rows, until there are none (`run.once`) or `run.stopping`."""
        while True:
            try:
                self._run(run)
            except sa.exc.OperationalError as error:
                if run.once:
                    raise DatabaseFailed(f"the database failed: {_said(error)}") from error
                log.warning("the database failed", extra={"retry_in_s": self.trigger, "reason": _said(error)})
                if not run.stopping.wait(self.trigger):
                    continue
            except sa.exc.SQLAlchemyError as error:
                raise DatabaseFailed(f"the database rejected a statement: {_said(error)}") from error
            return

    def _run(self, run: Run) -> None:
        with cluster_errors(), ExitStack() as stack:
            engine = stack.enter_context(self.database.connect())
            producer = stack.enter_context(SyncProducer(config=self.target.producer_config()))
            feeds = [Feed(source, engine, producer, run) for source in self._row_sources(engine, run)]
            while not run.stopping.is_set():
                moved = sum([feed.step() for feed in feeds])
                if not moved and (run.once or run.stopping.wait(self.trigger)):
                    return

    def _row_sources(self, engine: sa.Engine, run: Run) -> Iterator[RowSource]:
        for table in self.tables:
            yield FollowedTableSource(table, engine, run)
        for outbox in self.outboxes:
            yield OutboxSource(outbox, engine, self.name)


class RowSource(Protocol):
    """The differences between followed tables and outboxes."""

    name: str

    def statement(self) -> sa.Select[Any]:
        """Return the query for the next rows."""

    def left(self) -> sa.Select[Any]:
        """Return the query for the number of remaining rows."""

    def records(self, rows: Rows) -> list[Record]:
        """Convert rows to records."""

    def done(self, rows: Rows) -> None:
        """Record durably that rows were sent."""


class Feed:
    """Moves the rows of one table, batch by batch."""

    def __init__(self, source: RowSource, engine: sa.Engine, producer: SyncProducer, run: Run) -> None:
        self._source = source
        self._engine = engine
        self._producer = producer
        self._run = run
        self._batches = run.state(f"{source.name}.batches")
        self._left: int | None = None
        run.begin(source.name)

    def step(self) -> int:
        """Send the next rows, if any; return their number."""
        begun = time.monotonic()
        with self._engine.connect() as connection:
            rows: Rows = [dict(row) for row in connection.execute(self._source.statement()).mappings()]
            if rows and not self._left:
                self._left = int(connection.execute(self._source.left()).scalar_one())
        if not rows:
            return 0
        self._send(self._source.records(rows))
        self._source.done(rows)
        self._report(len(rows), begun)
        return len(rows)

    def _send(self, records: Sequence[Record]) -> None:
        acknowledgements = [
            self._producer.send(
                record.topic,
                record.value,
                record.key,
                timestamp_ms=record.timestamp_ms,
                headers=record.all_headers(),
            )
            for record in records
        ]
        for acknowledgement in acknowledgements:
            acknowledgement.result()

    def _report(self, rows: int, begun: float) -> None:
        batch = int(self._batches.read().get("next", 0))
        self._batches.write({"next": batch + 1}, durable=False)
        self._left = max(0, (self._left or rows) - rows)
        spent_ms = (time.monotonic() - begun) * 1_000
        self._run.report(batch, rows=rows, batch_ms=spent_ms, lag=self._left, query=self._source.name)


class FollowedTableSource:
    """A followed table; its position is under the checkpoint."""

    def __init__(self, declared: FollowedTable, engine: sa.Engine, run: Run) -> None:
        self.name = declared.table
        self._place = run.state(declared.table)
        self._follower = Follower(declared, reflected(engine, declared.table), self._place.read())
        self._prefix = f"{run.job.name}/{declared.table}"

    def statement(self) -> sa.Select[Any]:
        """Return the query for the next rows."""
        return self._follower.statement(now_utc())

    def left(self) -> sa.Select[Any]:
        """Return the query for the number of remaining rows."""
        return self._follower.left(now_utc())

    def records(self, rows: Rows) -> list[Record]:
        """Convert rows to records."""
        return self._follower.records(rows, self._prefix)

    def done(self, rows: Rows) -> None:
        """Store the new position."""
        self._follower.advance(rows)
        self._place.write(self._follower.state())


class OutboxSource:
    """An outbox; sent rows are deleted or marked in the table."""

    def __init__(self, declared: Outbox, engine: sa.Engine, name: str) -> None:
        self.name = declared.table
        self._engine = engine
        self._pending = PendingEvents(declared, reflected(engine, declared.table))
        self._prefix = f"{name}/{declared.table}"
        self.statement: Callable[[], sa.Select[Any]] = self._pending.statement
        self.left: Callable[[], sa.Select[Any]] = self._pending.left

    def records(self, rows: Rows) -> list[Record]:
        """Convert rows to records."""
        return [self._pending.record(row, self._prefix) for row in rows]

    def done(self, rows: Rows) -> None:
        """Delete or mark the rows."""
        with self._engine.begin() as connection:
            connection.execute(self._pending.sent(rows, now_utc()))


def _said(error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    return " ".join(str(cause).split())
