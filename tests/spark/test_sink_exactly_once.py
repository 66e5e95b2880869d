"""Exactly once on Spark, on Ottla and Apache Kafka: batches that come again, failures, killed drivers."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.functions import lit, udf

from ottla.broker.testing import BrokerProcess
from peers.kraft_kafka import KraftKafka
from peers.maven import missing_tools
from peers.spark import with_patience
from peers.topics import Sent, Topics
from spark.topic_copying import Copying, arrived

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Broker = BrokerProcess | KraftKafka

PARTITIONS = 4
FEW_ROUNDS, ALL_ROUNDS = 3, 50
EARLY = 10
"""Of so many rounds one is of the first batch, and one more in any case."""
EARLY_TRIES = 8
"""How many queries are begun until one of them is killed in its first batch."""
ROWS_OF_A_ROUND = 600
"""More than a driver copies before it is killed, but not so many that the last one copies for an hour."""


@pytest.fixture(scope="module", params=["ottla", "kafka"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("broker")
    if request.param == "ottla":
        with BrokerProcess(folder) as ours:
            yield ours
        return
    if missing := missing_tools():
        pytest.skip(missing)
    with KraftKafka(folder, {"transaction.state.log.num.partitions": "8"}) as running:
        yield running


@pytest.fixture(scope="module")
def its_topics(broker: Broker) -> Iterator[Topics]:
    with Topics(broker.bootstrap_servers) as topics:
        yield topics


class Copy:
    """A query from one topic into another, in the Spark of the session."""

    def __init__(self, spark: SparkSession, topics: Topics, name: str, folder: Path) -> None:
        self.spark, self.topics, self.folder = spark, topics, folder
        self.source = topics.create(f"{name}-source", partitions=PARTITIONS)
        self.target = topics.create(f"{name}-target", partitions=2)
        self.options = {"kafka.bootstrap.servers": topics.bootstrap_servers}
        self.expected: Counter[str] = Counter()

    def fill(self, count: int) -> None:
        """Add records to the source, some to each partition."""
        start = sum(self.expected.values())
        names = [str(number) for number in range(start, start + count)]
        self.expected.update(names)
        self.topics.send(
            self.source,
            [Sent(value=name.encode(), partition=number % PARTITIONS) for number, name in enumerate(names)],
        )

    def rows(self, at_once: int = 1_000, **more: str) -> DataFrame:
        return (
            self.spark.readStream.format("ottla")
            .options(**self.options, subscribe=self.source, startingOffsets="earliest", **more)
            .option("maxOffsetsPerTrigger", at_once)
            .load()
            .select("value")
        )

    def run(self, rows: DataFrame) -> None:
        """Write what is there now."""
        writer = (
            rows.writeStream.format("ottla")
            .options(**self.options, topic=self.target, delivery="exactly-once")
            .option("checkpointLocation", str(self.folder))
            .trigger(availableNow=True)
        )
        with_patience(lambda: self.finish(writer.start()))

    def finish(self, query: object) -> None:
        try:
            assert query.awaitTermination(100)  # type: ignore[attr-defined]
        finally:
            query.stop()  # type: ignore[attr-defined]

    def arrived(self) -> Counter[str]:
        return arrived(self.topics.bootstrap_servers, self.target, 2)

    def forget_last_commit(self) -> None:
        """Make the query believe that its last batch was not finished, as after a kill at that moment."""
        last = max((self.folder / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def copy(spark: SparkSession, its_topics: Topics, fresh: Callable[[str], str], tmp_path: Path) -> Copy:
    return Copy(spark, its_topics, fresh("copy"), tmp_path / "checkpoint")


def test_a_repeated_batch_is_not_written_again(copy: Copy) -> None:
    copy.fill(300)
    copy.run(copy.rows(at_once=100))
    copy.forget_last_commit()

    copy.run(copy.rows(at_once=100))
    assert copy.arrived() == copy.expected
    copy.fill(50)
    copy.run(copy.rows(at_once=100))

    assert copy.arrived() == copy.expected


def failing_once(flag: Path, how: str) -> Callable[[bytes], bytes]:
    """Make the task that meets the value 199, the last of its rows, fail there, the first time."""

    def pass_on(value: bytes) -> bytes:
        if value == b"199" and not flag.exists():
            flag.touch()
            if how == "killed":
                os.kill(os.getpid(), 9)
            raise RuntimeError("the flag was not there")
        return value

    return pass_on


@pytest.mark.parametrize("how", ["raised", "killed"])
def test_tasks_that_were_done_are_left_alone_when_another_of_the_batch_failed(
    copy: Copy, how: str, tmp_path: Path
) -> None:
    copy.fill(200)
    passing = udf(failing_once(tmp_path / "flag", how), "binary", useArrow=False)
    rows = copy.rows().select(passing("value").alias("value"))

    with pytest.raises(PySparkException):
        copy.run(rows)
    before = copy.arrived()
    copy.run(rows)

    assert sum(before.values()) < 200
    assert copy.arrived() == copy.expected


def test_rows_that_went_to_other_tasks_are_noticed(copy: Copy) -> None:
    copy.fill(100)
    copy.run(copy.rows())
    copy.forget_last_commit()

    with pytest.raises(PySparkException, match="the rows were distributed differently over the tasks"):
        copy.run(copy.rows().coalesce(1))

    assert copy.arrived() == copy.expected
    copy.run(copy.rows())
    assert copy.arrived() == copy.expected


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(lambda copy: copy.rows(minPartitions="8"), id="more tasks"),
        pytest.param(lambda copy: copy.rows().coalesce(2), id="fewer tasks"),
        pytest.param(lambda copy: copy.rows().repartition(4, lit(0)), id="empty tasks"),
    ],
)
def test_a_batch_that_was_written_in_part_is_not_completed_by_other_tasks(
    copy: Copy, tmp_path: Path, cut: Callable[[Copy], DataFrame]
) -> None:
    copy.fill(200)
    passing = udf(failing_once(tmp_path / "flag", "raised"), "binary", useArrow=False)
    with pytest.raises(PySparkException):
        copy.run(copy.rows().select(passing("value").alias("value")))
    before = copy.arrived()
    assert 0 < sum(before.values()) < 200

    with pytest.raises(PySparkException, match="the rows were distributed differently over the tasks"):
        copy.run(cut(copy))
    assert copy.arrived() == before
    copy.run(copy.rows())

    assert copy.arrived() == copy.expected


def test_a_batch_write_is_done_once_when_it_has_a_name(copy: Copy) -> None:
    rows = copy.spark.range(100).selectExpr("CAST(id AS STRING) AS value").repartition(2)
    writer = rows.write.format("ottla").mode("append").options(**copy.options, topic=copy.target)
    once = {str(number): 1 for number in range(100)}

    for _ in range(2):
        writer.options(**{"delivery": "exactly-once", "write.id": copy.target}).save()
    assert copy.arrived() == once
    # Without one it is another write each time.
    rows.write.format("ottla").mode("append").options(
        **copy.options, topic=copy.target, delivery="exactly-once"
    ).save()
    assert copy.arrived() == dict.fromkeys(once, 2)


def test_a_batch_write_without_a_name_leaves_no_marker(copy: Copy) -> None:
    markers = f"{copy.target}-markers"
    options = {**copy.options, "topic": copy.target, "delivery": "exactly-once", "markers.topic": markers}
    rows = copy.spark.range(10).selectExpr("CAST(id AS STRING) AS value").repartition(2)

    rows.write.format("ottla").mode("append").options(**options).save()

    found = copy.spark.read.format("ottla").options(**copy.options, subscribe=markers).load()
    by_key: dict[bytes, list[bool]] = {}
    for row in found.orderBy("offset").collect():
        by_key.setdefault(bytes(row.key), []).append(row.value is None)
    assert list(by_key.values()) == [[False, True]] * 2


def test_writes_of_a_streams_batch_are_done_once_each(copy: Copy) -> None:
    copy.fill(60)

    def each(rows: DataFrame, batch_id: int) -> None:
        for name in ("first", "second"):
            named = {"delivery": "exactly-once", "write.id": name, "topic": copy.target}
            rows.write.format("ottla").mode("append").options(**copy.options, **named).save()

    for _ in range(2):
        query = (
            copy.rows()
            .writeStream.foreachBatch(each)
            .option("checkpointLocation", str(copy.folder))
            .trigger(availableNow=True)
            .start()
        )
        copy.finish(query)
        copy.forget_last_commit()

    assert copy.arrived() == dict.fromkeys(copy.expected, 2)


# --- drivers of their own


def send_round(broker: Broker, topic: str, start: int, partitions: int) -> int:
    """Send the rows of a round, by a producer that knows of all partitions; return how many they are."""
    rows = range(start, start + ROWS_OF_A_ROUND)
    with Topics(broker.bootstrap_servers) as afresh:
        return afresh.send(topic, [Sent(value=b"%d" % row, partition=row % partitions) for row in rows])


def kill_drivers(rounds: int, broker: Broker, topics: Topics, name: str, folder: Path) -> None:
    """Kill the driver once a round, some moment in the middle of its batches; then count.

    In the first round, and maybe in more, that is the first batch; the source has a partition more when this
    comes again.
    """
    seed = int(os.environ.get("SINK_SEED", random.randrange(2**32)))
    print("SINK_SEED =", seed)
    chance = random.Random(seed)
    copying = killed_in_its_first_batch(broker, topics, name, folder, chance)
    sent = ROWS_OF_A_ROUND
    topics.add_partitions(copying.source, PARTITIONS + 1)
    for round_ in range(1, rounds):
        sent += send_round(broker, copying.source, sent, PARTITIONS + 1)
        if round_ <= rounds // EARLY and not copying.has_begun:
            copying.run_and_kill_early(chance, workers_too=bool(round_ % 2))
            print(f"round {round_ + 1}: killed in the first batch: {not copying.has_begun}", flush=True)
        else:
            done = copying.run_and_kill(chance, workers_too=bool(round_ % 2))
            print(f"round {round_ + 1}: killed after batches {done}", flush=True)
    copying.run()

    found = arrived(broker.bootstrap_servers, copying.target, 2)
    lost = [number for number in range(sent) if str(number) not in found]
    doubled = [value for value, count in found.items() if count > 1]
    assert (lost, doubled, len(found)) == ([], [], sent)


def killed_in_its_first_batch(
    broker: Broker, topics: Topics, name: str, folder: Path, chance: random.Random
) -> Copying:
    """Begin a query, and kill its driver in its first batch.

    The moment is drawn. Where the batch was done by then, that showed nothing, and another query is begun.
    """
    for number in range(EARLY_TRIES):
        stem = f"{name}-{number}"
        source, target, place = f"{stem}-source", f"{stem}-target", folder / str(number)
        copying = Copying(broker.bootstrap_servers, source, target, place, {"at_once": 100})
        topics.create(source, partitions=PARTITIONS)
        topics.create(target, partitions=2)
        send_round(broker, source, 0, PARTITIONS)
        copying.run_and_kill_early(chance, workers_too=False)
        print(f"round 1: killed in the first batch: {not copying.has_begun}", flush=True)
        if not copying.has_begun:
            return copying
    raise AssertionError(f"of {EARLY_TRIES} kills none fell into a first batch")


@pytest.mark.timeout(600)
def test_no_row_is_lost_or_doubled_by_killing_drivers(
    broker: Broker, its_topics: Topics, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    kill_drivers(FEW_ROUNDS, broker, its_topics, fresh("kills"), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(7_200)
def test_no_row_is_lost_or_doubled_by_killing_drivers_fifty_times(
    broker: Broker, its_topics: Topics, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    kill_drivers(ALL_ROUNDS, broker, its_topics, fresh("kills"), tmp_path)
