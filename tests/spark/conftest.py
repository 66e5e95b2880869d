"""One Spark, and one broker, for all tests of the session: starting Spark takes longer than most of them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.broker.testing import BrokerProcess
from peers.spark import missing_java, spark_session
from peers.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming import StreamingQuery

Options = Mapping[str, object]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip everything here where there is no Java, and say what to install."""
    missing = missing_java()
    for item in items:
        if missing and "tests/spark/" in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark with two threads for tasks."""
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests; the names of topics keep them apart."""
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="session")
def topics(broker: BrokerProcess) -> Iterator[Topics]:
    """Makes and fills topics of the broker."""
    with Topics(broker.bootstrap_servers) as topics:
        yield topics


@pytest.fixture
def fresh() -> Callable[[str], str]:
    """Make names that no other test uses."""
    return lambda stem: f"{stem}-{secrets.token_hex(4)}"


@pytest.fixture
def table(spark: SparkSession, broker: BrokerProcess) -> Callable[[Options], DataFrame]:
    """Make tables of topics of the broker: `table({"subscribe": "orders"})`."""

    def table(options: Options) -> DataFrame:
        return with_options(spark.read.format("ottla"), broker, options).load()

    return table


@dataclass
class Stream:
    """A query that collects rows, batch by batch; it can be started again at its checkpoint."""

    rows: Callable[[], DataFrame]
    checkpoint: Path
    trigger: Mapping[str, Any]
    batches: dict[int, list[Row]] = field(default_factory=dict)
    query: StreamingQuery | None = None
    collect: Callable[[DataFrame, int], None] = field(init=False)

    def __post_init__(self) -> None:
        self.collect = self._collect

    def start(self) -> StreamingQuery:
        """Start, at the checkpoint where there is one."""
        writer = self.rows().writeStream.option("checkpointLocation", str(self.checkpoint))
        self.query = writer.trigger(**self.trigger).foreachBatch(self.collect).start()
        return self.query

    def _collect(self, batch: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = batch.collect()

    def run(self) -> list[Row]:
        """Run until the query ends by itself; return all its rows."""
        self.start().awaitTermination()
        return self.all_rows

    def read(self) -> list[Row]:
        """Wait until all that there is has been read; return all rows."""
        assert self.query is not None, "start the query first"
        self.query.processAllAvailable()
        return self.all_rows

    @property
    def all_rows(self) -> list[Row]:
        """The rows of all batches."""
        return [row for rows in self.batches.values() for row in rows]

    @property
    def sizes(self) -> list[int]:
        """How many rows each batch had."""
        return [len(rows) for rows in self.batches.values()]

    def stop(self) -> None:
        """Stop the query."""
        if self.query is not None:
            self.query.stop()


@pytest.fixture
def stream(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> Iterator[Callable[..., Stream]]:
    """Make streams of topics of the broker: `stream({"subscribe": "orders"}, availableNow=True)`."""
    made: list[Stream] = []

    def stream(options: Options, of: BrokerProcess = broker, **trigger: Any) -> Stream:
        made.append(
            Stream(
                lambda: with_options(spark.readStream.format("ottla"), of, options).load(),
                tmp_path / f"checkpoint-{len(made)}",
                trigger or {"processingTime": "0 seconds"},
            )
        )
        return made[-1]

    yield stream
    for each in made:
        each.stop()


def with_options(reader: Any, broker: BrokerProcess, options: Options) -> Any:
    """Give a reader of Spark the broker and other options."""
    return reader.options(**{"kafka.bootstrap.servers": broker.bootstrap_servers, **options})
