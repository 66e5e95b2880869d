"""A change log becomes a table: each row as its last change left it, also where the pipeline is killed."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from ottla.broker.testing import BrokerProcess
from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.change_reader import DELETED, IGNORED, ROW, SAID, ChangeReader, Changes
from ottla.pipeline.jobs.changelog import newest
from ottla.pipeline.jobs.declaration_files import read_job
from ottla.pipeline.jobs.run import Run
from ottla.pipeline.jobs.samples import sample_declaration
from ottla.pipeline.jobs.samples.sample_data import changes
from ottla.pipeline.jobs.value_parsing import REASON
from peers.pipelines import SPARK, Pipeline
from peers.spark_cluster import SparkCluster, declared_on
from peers.topics import Sent, Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Fresh = Callable[[str], str]
Said = list[tuple[dict[str, Any], bool]] | str | None
"""Rows and whether they are gone; or why a record cannot be read; or None where it says nothing."""

KEY, COLUMNS = {"id": "BIGINT"}, {"name": "STRING", "points": "INT"}
ANNA = {"id": 1, "name": "Anna", "points": 5}
GONE = {"id": 1, "name": None, "points": None}
OTHERS = json.dumps({"name": "Anna", "points": 5})


def _said(
    spark: SparkSession, declared: dict[str, Any], *records: tuple[str | None, str | None]
) -> list[Said]:
    """Return what each record says; they are pairs of key and value."""
    base: dict[str, Any] = {"key": KEY, "columns": COLUMNS}
    given = Changes.model_validate(base | declared)
    assert list(given.inspect()) == []
    rows = [(at, _bytes(key), _bytes(value)) for at, (key, value) in enumerate(records)]
    frame = spark.createDataFrame(rows, "at INT, key BINARY, value BINARY")
    read = ChangeReader(given).add_to(frame).orderBy("at").collect()
    return [_one(row.asDict(recursive=True)) for row in read]


def _one(row: dict[str, Any]) -> Said:
    if row[IGNORED]:
        return None
    return row[REASON] or [(each[ROW], each[DELETED]) for each in row[SAID]]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _dump(**value: Any) -> str:
    return json.dumps(value)


def test_rows(spark: SparkSession) -> None:
    assert _said(
        spark, {},
        ('{"id": 1}', OTHERS),
        ("1", OTHERS),
        ('"1"', OTHERS),
        ("1", None),
        ("1", "{}"),
        ("1", '{"name": "Anna", "points": "many"}'),
        ("1", "no json"), ("1", "null"), ("1", ""), ("1", "[1]"),
        ("one", OTHERS), (None, OTHERS), (None, None), ('{"nr": 1}', OTHERS),
    ) == [
        *[[(ANNA, False)]] * 3,
        [(GONE, True)],
        [(GONE, False)],
        *["the value is no JSON of these columns"] * 5,
        *["the key has no id"] * 4,
    ]  # fmt: skip


def test_keys_of_text_and_of_several_columns(spark: SparkSession) -> None:
    text = {"key": {"code": "STRING"}, "columns": {}}
    assert _said(spark, text, ("FI-1", "{}"), ('"a\\"b"', "{}"), ('"odd', "{}"), ('{"code": "x"}', None)) == [
        [({"code": "FI-1"}, False)],
        [({"code": 'a"b'}, False)],
        [({"code": '"odd'}, False)],
        [({"code": "x"}, True)],
    ]
    two = {"key": {"shop.id": "INT", "id": "STRING"}, "columns": {"payload": "STRING"}}
    assert _said(spark, two, ('{"shop.id": 1, "id": "x"}', '{"payload": "p"}'), ('{"id": "x"}', "{}")) == [
        [({"shop.id": 1, "id": "x", "payload": "p"}, False)],
        "the key has no shop.id",
    ]


def test_the_key_among_the_values(spark: SparkSession) -> None:
    assert _said(
        spark, {"key_from": "value"}, (None, json.dumps(ANNA)), ("7", None), (None, '{"name": "Anna"}')
    ) == [[(ANNA, False)], None, "the value has no id"]


def test_flat(spark: SparkSession) -> None:
    assert _said(
        spark, {"form": "flat"},
        ("1", _dump(name="Anna", points=5, op="insert")),
        ("1", _dump(name="Anna", points=5)),
        ("1", _dump(op="D")),
        ("1", None),
    ) == [[(ANNA, False)], [(ANNA, False)], [(GONE, True)], [(GONE, True)]]  # fmt: skip
    unwrapped = {"form": "flat", "operation": "__deleted", "deletes": "true", "key_from": "value"}
    assert _said(
        spark, unwrapped,
        (None, json.dumps(ANNA | {"__deleted": "false"})),
        (None, json.dumps(ANNA | {"__deleted": True})),
    ) == [[(ANNA, False)], [(ANNA, True)]]  # fmt: skip


@pytest.mark.parametrize(
    "wrap", [lambda value: value, lambda value: {"schema": {"type": "s"}, "payload": value}]
)
def test_debezium(spark: SparkSession, wrap: Callable[[Any], Any]) -> None:
    def envelope(op: str, before: Any = None, after: Any = None, **more: Any) -> str:
        return json.dumps(wrap({"op": op, "before": before, "after": after, **more}))

    key = json.dumps(wrap({"id": 1}))
    assert _said(
        spark, {"form": "debezium"},
        (key, envelope("c", after=ANNA)), (key, envelope("r", after=ANNA)), (key, envelope("u", ANNA, ANNA)),
        (key, envelope("d", before=ANNA)), (key, None),
        (None, envelope("m", message={"prefix": "x"})),
        (key, envelope("t")), (key, "{}"), (key, envelope("u", ANNA)),
        (key, envelope("c", after={"points": "x"})), ("{}", envelope("c", after=ANNA)),
    ) == [
        *[[(ANNA, False)]] * 3, *[[(GONE, True)]] * 2, None,
        "the operation is not known: t", "the operation is not known: none",
        "the value does not have the row", "the value is no JSON of these columns", "the key has no id",
    ]  # fmt: skip
    assert _said(
        spark, {"form": "debezium", "key_from": "value", "table": "shop.customers"},
        (None, envelope("c", after=ANNA, source={"db": "shop", "table": "customers"})),
        (None, envelope("c", after=ANNA, source={"db": "x", "schema": "shop", "table": "customers"})),
        (None, envelope("c", after=ANNA, source={"db": "shop", "table": "orders"})),
        (None, envelope("d", before=ANNA, source={"db": "shop", "table": "customers"})),
        (None, None),
    ) == [[(ANNA, False)], [(ANNA, False)], None, [(GONE, True)], None]  # fmt: skip


def test_maxwell(spark: SparkSession) -> None:
    def said(kind: str, table: str = "customers", **more: Any) -> str:
        return _dump(database="shop", table=table, type=kind, ts=1, data=ANNA, **more)

    key, other = (_dump(database="shop", table=name, **{"pk.id": 1}) for name in ("customers", "orders"))
    assert _said(
        spark, {"form": "maxwell", "table": "shop.customers"},
        (key, said("insert")), (key, said("bootstrap-insert")), (key, said("update", old={"points": 4})),
        (key, said("delete")), (key, None),
        (key, said("bootstrap-start")), (other, said("insert", "orders")), (other, None),
        (key, said("vacuum")), (key, _dump(type="insert")),
        (key, said("update", old={"id": 9})),
    ) == [
        *[[(ANNA, False)]] * 3, [(ANNA | {"id": 1}, True)], [(GONE, True)],
        None, None, None,
        "the operation is not known: vacuum", "the value does not have the row",
        [(ANNA, False), (GONE | {"id": 9}, True)],
    ]  # fmt: skip
    assert _said(spark, {"form": "maxwell", "key_from": "value"}, (None, said("delete")), (None, None)) == [
        [(ANNA, True)],
        None,
    ]


def test_the_newest_change_wins(spark: SparkSession) -> None:
    records = [
        # topic, partition, offset, second, key, value
        ("a", 0, 8, 9, "1", "old, although its time is late"),
        ("a", 0, 9, 1, "1", "last of its partition"),
        ("a", 0, 10, 5, "2", "by time: before"),
        ("a", 1, 2, 6, "2", "by time: after"),
        ("a", 0, 11, 7, "3", "same time, lower partition"),
        ("a", 1, 3, 7, "3", "same time, higher partition"),
        ("a", 0, 12, 7, "4", "there"),
        ("a", 0, 13, 7, "4", None),
    ]
    rows = [
        (topic, partition, offset, second, key.encode(), _bytes(value and _dump(name=value)))
        for topic, partition, offset, second, key, value in records
    ]
    frame = spark.createDataFrame(
        rows, "topic STRING, partition INT, offset LONG, timestamp LONG, key BINARY, value BINARY"
    )
    given = Changes(key=KEY, columns={"name": "STRING"})
    for shuffled in (frame, frame.orderBy("key", "offset"), frame.orderBy("offset", ascending=False)):
        found = newest(ChangeReader(given).add_to(shuffled), ["id"]).collect()
        assert {row["id"]: (row["name"], row[DELETED]) for row in found} == {
            1: ("last of its partition", False),
            2: ("by time: after", False),
            3: ("same time, higher partition", False),
            4: (None, True),
        }


class Changed:
    """A topic of changes of customers, and a declaration of the table that follows them."""

    def __init__(self, folder: Path, topics: Topics, fresh: Fresh) -> None:
        self.folder = folder
        self.topics = topics
        self.topic = topics.create(fresh("changes"), 2)
        self.dead = topics.create(fresh("dead"))
        self.checkpoint = folder / "state" / "customers"

    def declare(
        self, per_batch: int = 1_000, replaced: Mapping[str, str] = MappingProxyType({}), spark: str = SPARK
    ) -> Path:
        """Write the sample's declaration for this topic, and return its file."""
        text = sample_declaration("changelog").replace("shop.customers-dead", self.dead)
        text = text.replace('"shop.customers"]', f'"{self.topic}"]\nmax_records_per_batch = {per_batch}')
        text = text.replace("127.0.0.1:9092", self.topics.bootstrap_servers).replace("10s", "100ms")
        for old, new in replaced.items():
            assert old in text
            text = text.replace(old, new)
        file = self.folder / "customers.toml"
        file.write_text(text + spark)
        return file

    def send(self, values: Iterable[tuple[str, str | None]]) -> None:
        """Send changes; those of one row keep their order."""
        sent = [
            Sent(
                value=None if value is None else value.encode(), key=key.encode(),
                partition=json.loads(key)["id"] % 2,
            )
            for key, value in values
        ]  # fmt: skip
        self.topics.send(self.topic, sent)

    def rows(self) -> list[dict[str, Any]]:
        """Return what is in the table."""
        found: list[dict[str, Any]] = (
            DeltaTable(self.folder / "lake/customers").to_pyarrow_table().to_pylist()
        )
        return sorted(found, key=lambda row: int(row["id"]))

    def letters(self, spark: SparkSession) -> Counter[tuple[str, str]]:
        """Return the places of dead letters, and how often they are there."""
        frame = spark.read.format("ottla").option("subscribe", self.dead).option("includeHeaders", "true")
        rows = frame.option("kafka.bootstrap.servers", self.topics.bootstrap_servers).load().collect()
        headers = [{each.key: each.value.decode() for each in row.headers} for row in rows]
        return Counter((each["dead-partition"], each["dead-offset"]) for each in headers)


@pytest.fixture
def changed(tmp_path: Path, topics: Topics, fresh: Fresh) -> Changed:
    """A topic of its own."""
    return Changed(tmp_path, topics, fresh)


def _run(file: Path) -> dict[str, Any]:
    said: dict[str, Any] = {}
    Run(read_job(file), once=True, watch=said.update)()
    counts: dict[str, Any] = said["queries"]["main"]["counts"]
    return counts


def _truth(values: Iterable[tuple[str, str | None]]) -> tuple[list[dict[str, Any]], int]:
    """Return the rows that there are at the end, and how many records cannot be read."""
    there: dict[str, dict[str, Any]] = {}
    dead = 0
    for key, value in values:
        try:
            after = value and json.loads(value)["after"]
        except ValueError:
            dead += 1
            continue
        there.pop(key, None)
        if after:
            there[key] = after
    return sorted(there.values(), key=lambda row: int(row["id"])), dead


def _check(changed: Changed, values: list[tuple[str, str | None]], counts: dict[str, int]) -> None:
    rows, dead = _truth(values)
    assert changed.rows() == rows
    assert counts["inserted"] - counts["deleted"] == len(rows), "what was done again counts once"
    assert counts["dead"] == dead


def test_the_table_follows(spark: SparkSession, changed: Changed) -> None:
    values = list(changes(1_200))
    changed.send(values[:700])
    file = changed.declare(per_batch=200)
    _check(changed, values[:700], _run(file))
    assert len(changed.letters(spark)) == _truth(values[:700])[1] > 3
    changed.send(values[700:])
    counts = _run(file)
    _check(changed, values, counts)
    assert counts["updated"] > 100
    assert _run(file) == counts, "with nothing new nothing is done"
    assert DeltaTable(changed.folder / "lake/customers").history(1)[0]["operation"] == "MERGE"


def test_a_new_column_and_partitions(spark: SparkSession, changed: Changed) -> None:
    changed.send([('{"id": 1}', _dump(op="c", after={"name": "Anna", "city": "Turku"}))])
    partitioned = {'path = "lake/customers"': 'path = "lake/customers"\npartition_by = "city"'}
    _run(changed.declare(replaced={'columns.points = "INT"\n': "", **partitioned}))
    assert changed.rows() == [{"id": 1, "name": "Anna", "city": "Turku"}]
    changed.send([('{"id": 1}', _dump(op="u", after={"name": "Anna", "city": "Oulu", "points": 3}))])
    counts = _run(changed.declare(replaced=partitioned))
    assert changed.rows() == [{"id": 1, "name": "Anna", "city": "Oulu", "points": 3}]
    assert counts == {"inserted": 1, "updated": 1, "deleted": 0, "dead": 0}
    assert [each.name for each in (changed.folder / "lake/customers").glob("city=*")] != []


def test_without_a_topic_for_dead_letters_it_stops_at_one(spark: SparkSession, changed: Changed) -> None:
    changed.send([('{"id": 2}', _dump(op="c", after={"name": "Anna"})), ('{"id": 2}', "no json")])
    file = changed.declare()
    file.write_text(file.read_text().split("[dead_letters]")[0] + SPARK)
    with pytest.raises(PipelineError, match=f"{changed.topic}-0 at offset 1: the value is no JSON of these"):
        _run(file)
    assert not (changed.folder / "lake").exists(), "nothing of such a batch is merged"


DYING = """
import os
from pathlib import Path
from types import MappingProxyType
from ottla.pipeline.jobs.changelog import Changelog
from ottla.pipeline.jobs.declaration_files import read_job

died = Path(__file__).with_name("died")

class Dying(Changelog):
    "Dies once, after a batch was merged and before Spark knows."

    def _merge(self, run, read, batch_id):
        counts = super()._merge(run, read, batch_id)
        if batch_id == 1 and not died.exists():
            died.touch()
            os.kill(os.getpid(), 9)
        return counts

pipeline = Dying(**dict(read_job(Path(__file__).with_name("customers.toml"))))
"""


@pytest.mark.timeout(900)
def test_killed_between_merging_and_committing(changed: Changed, tmp_path: Path) -> None:
    values = list(changes(800))
    changed.send(values)
    changed.declare(per_batch=200)
    file = tmp_path / "dying.py"
    file.write_text(DYING)
    pipeline = Pipeline(file, changed.checkpoint)
    with pytest.raises(AssertionError) as raised:
        pipeline.once()
    assert (tmp_path / "died").exists(), raised.value
    assert (pipeline.planned(), pipeline.committed()) == (2, 1)
    merged = [
        each for each in DeltaTable(tmp_path / "lake/customers").history() if each["operation"] == "MERGE"
    ]
    assert len(merged) == 2, "batch 1 is merged, and Spark does not know"
    _check(changed, values, pipeline.once()["queries"]["main"]["counts"])
    merged = [
        each for each in DeltaTable(tmp_path / "lake/customers").history() if each["operation"] == "MERGE"
    ]
    assert len({each["ottla-batch"] for each in merged}) == len(merged), "no batch is merged twice"


@pytest.mark.parametrize("rounds", [2, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.timeout(3_600)
def test_killed_in_the_middle(spark: SparkSession, changed: Changed, rounds: int) -> None:
    each = 1_000
    values = list(changes(each * (rounds + 1)))
    changed.send(values[:each])
    pipeline = Pipeline(changed.declare(per_batch=250), changed.checkpoint)
    chance = random.Random(rounds)
    for number in range(1, rounds + 1):
        begun = pipeline.planned()
        pipeline.start()
        pipeline.until(lambda begun=begun: pipeline.planned() > begun + 1)  # type: ignore[misc]
        time.sleep(chance.random())
        pipeline.kill()
        changed.send(values[number * each : (number + 1) * each])
    _check(changed, values, pipeline.once()["queries"]["main"]["counts"])
    dead = _truth(values)[1]
    assert len(changed.letters(spark)) == dead, "letters may come twice, and say their place"


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.timeout(3_600)
def test_workers_and_broker_are_killed(tmp_path: Path, fresh: Fresh, rounds: int) -> None:
    each = 1_000
    values = list(changes(each * (rounds + 1)))
    with BrokerProcess(tmp_path / "broker") as broker, Topics(broker.bootstrap_servers) as topics:
        changed = Changed(tmp_path, topics, fresh)
        changed.send(values[:each])
        pipeline = Pipeline(changed.declare(per_batch=250), changed.checkpoint)
        pipeline.start()
        for number in range(1, rounds + 1):
            more = values[number * each : (number + 1) * each]
            pipeline.kill_worker_and(broker, partial(changed.send, more))
        pipeline.until(lambda: pipeline.committed() >= 4 * (rounds + 1))
        assert pipeline.stop() == 0
        _check(changed, values, pipeline.once()["queries"]["main"]["counts"])


@pytest.mark.timeout(900)
def test_on_a_cluster_of_two_workers(spark: SparkSession, changed: Changed, cluster: SparkCluster) -> None:
    values = list(changes(1_200))
    changed.send(values)
    pipeline = Pipeline(changed.declare(per_batch=400, spark=declared_on(cluster)), changed.checkpoint)
    _check(changed, values, pipeline.once()["queries"]["main"]["counts"])
    assert len(changed.letters(spark)) == _truth(values)[1]
    assert cluster.workers_of_last_application() == 2
