"""Topics as streams, on real Spark against a real broker."""

from __future__ import annotations

import io
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import fastavro
import msgpack
import pytest

from ottla.broker.testing import BrokerProcess
from ottla.pipeline.spark import DEFAULTS
from peers.spark import Stream
from peers.topics import Sent, Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    Streams = Callable[..., Stream]

TIMEOUT_S = 120
FROM_FIRST = {"startingOffsets": "earliest"}


def values(rows: list[Row]) -> list[str]:
    return sorted(bytes(row.value).decode() for row in rows)


def names(*counts: int, start: int = 0) -> list[str]:
    """Name the values that `Topics.fill` sends."""
    return sorted(f"{index}-{number}" for index, count in enumerate(counts) for number in range(start, count))


# --- from where


def test_a_stream_begins_behind_the_last_record(
    stream: Streams, topics: Topics, fresh: Callable[[str], str]
) -> None:
    name = topics.create(fresh("latest"), 2)
    topics.fill(name, {0: 3, 1: 1})
    query = stream({"subscribe": name})

    query.start()
    assert query.read() == []
    topics.fill(name, {0: 2}, start=3)
    assert values(query.read()) == ["0-3", "0-4"]


@pytest.mark.slice
def test_a_stream_begins_where_options_say_and_has_the_columns_of_a_table(
    stream: Streams, topics: Topics, fresh: Callable[[str], str]
) -> None:
    name = topics.create(fresh("begins"), 2)
    for partition in (0, 1):
        topics.send(
            name,
            [
                Sent(key=b"k", value=b"%d-%d" % (partition, at), partition=partition, timestamp_ms=at * 1_000,
                     headers=(("h", b"1"),))
                for at in (1, 2, 3)
            ],
        )  # fmt: skip

    def read(**given: object) -> list[Row]:
        return stream({"subscribe": name, **given}, availableNow=True).run()

    rows = read(startingOffsets="earliest", includeHeaders="true")
    assert values(rows) == ["0-1", "0-2", "0-3", "1-1", "1-2", "1-3"]
    assert {(row.key, row.topic, row.timestampType, row.headers[0].value) for row in rows} == {
        (b"k", name, 0, b"1")
    }
    assert [row.offset for row in rows if row.partition == 1] == [0, 1, 2]
    assert values(read(startingOffsets=json.dumps({name: {"0": 2, "1": -1}}))) == ["0-3"]
    assert values(read(startingTimestamp=2_500)) == ["0-3", "1-3"]
    by_time = json.dumps({name: {"0": 9_000, "1": 2_000}})
    late = {"startingOffsetsByTimestamp": by_time, "startingOffsetsByTimestampStrategy": "latest"}
    assert values(read(**late)) == ["1-2", "1-3"]
    assert read() == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"endingOffsets": "latest"}, "'endingOffsets' cannot be set here: a stream has no end"),
        ({"subscribe": "missing"}, "topic 'missing' does not exist"),
        ({"startingTimestamp": 1}, "has no record at or after that time"),
    ],
)
def test_unreadable_bounds_are_explained(
    stream: Streams, topics: Topics, fresh: Callable[[str], str], given: dict[str, object], words: str
) -> None:
    query = stream({"subscribe": topics.create(fresh("words"))} | given)

    with pytest.raises(Exception, match=r"OptionError|UnknownTopicOrPartition") as raised:
        query.start()
        query.read()
    assert words in str(raised.value)


# --- how much at once


def test_a_trigger_takes_no_more_than_allowed_shared_by_what_partitions_have(
    stream: Streams, topics: Topics, fresh: Callable[[str], str]
) -> None:
    name = topics.create(fresh("most"), 2)
    topics.fill(name, {0: 30, 1: 10})
    query = stream({"subscribe": name, "maxOffsetsPerTrigger": 20} | FROM_FIRST, availableNow=True)

    assert values(query.run()) == names(30, 10)
    assert query.sizes == [20, 20]
    assert Counter(row.partition for row in query.batches[0]) == {0: 15, 1: 5}


def test_available_now_stops_where_topics_ended_at_its_start(
    stream: Streams, topics: Topics, fresh: Callable[[str], str]
) -> None:
    name = topics.create(fresh("available"), 2)
    topics.fill(name, {0: 6})
    query = stream({"subscribe": name, "maxOffsetsPerTrigger": 2} | FROM_FIRST, availableNow=True)
    collect = query.collect

    def collect_and_send_more(batch: DataFrame, batch_id: int) -> None:
        collect(batch, batch_id)
        topics.fill(name, {0: 3, 1: 1}, start=6 + 10 * batch_id)

    query.collect = collect_and_send_more
    assert values(query.run()) == names(6)
    assert query.sizes == [2, 2, 2]

    query.collect = collect
    assert len(query.run()) == 6 + 3 * (3 + 1)


@contextmanager
def written(topics: Topics, name: str) -> Iterator[list[str]]:
    """Within, somebody writes to a topic without a pause; gives what was written."""
    sent: list[str] = []
    enough, begun = threading.Event(), threading.Event()

    def write() -> None:
        while not enough.is_set():
            topics.send(name, [Sent(value=b"%d" % len(sent))])
            sent.append(str(len(sent)))
            begun.set()

    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(write)
        try:
            assert begun.wait(30)
            yield sent
        finally:
            enough.set()
            writing.result(30)


def test_available_now_from_the_end_of_a_topic_that_is_written_to(
    stream: Streams, topics: Topics, fresh: Callable[[str], str]
) -> None:
    name = topics.create(fresh("live"))
    query = stream({"subscribe": name}, availableNow=True)

    with written(topics, name) as sent:
        for _ in range(3):
            query.run()
    query.run()

    found = sorted(int(bytes(row.value)) for row in query.all_rows)
    assert found
    assert found == list(range(found[0], len(sent)))


def test_a_trigger_waits_until_there_is_enough_but_the_first_does_not(
    stream: Streams, topics: Topics, fresh: Callable[[str], str]
) -> None:
    name = topics.create(fresh("least"), 2)
    topics.fill(name, {0: 1})
    query = stream({"subscribe": name, "minOffsetsPerTrigger": 5, "maxTriggerDelay": "1h"} | FROM_FIRST)
    query.start()

    assert values(query.read()) == ["0-0"]
    topics.fill(name, {1: 4})
    assert values(query.read()) == ["0-0"]
    topics.fill(name, {0: 1}, start=1)
    assert values(query.read()) == names(2, 4)
    assert query.sizes == [1, 5]


def test_a_trigger_waits_no_longer_than_the_delay(
    stream: Streams, topics: Topics, fresh: Callable[[str], str]
) -> None:
    name = topics.create(fresh("delay"))
    query = stream(
        {"subscribe": name, "minOffsetsPerTrigger": 100, "maxOffsetsPerTrigger": 100, "maxTriggerDelay": "1s"}
        | FROM_FIRST
    )
    topics.fill(name, {0: 1})
    query.start()
    query.read()

    topics.fill(name, {0: 2}, start=1)
    assert query.query is not None
    while len(query.all_rows) < 3:
        assert not query.query.awaitTermination(1)
    assert values(query.all_rows) == names(3)


def test_a_batch_is_cut_into_tasks(stream: Streams, topics: Topics, fresh: Callable[[str], str]) -> None:
    name = topics.create(fresh("tasks"))
    topics.fill(name, {0: 10})
    tasks: list[int] = []
    for given in ({"minPartitions": 4}, {"maxRecordsPerPartition": 5}):
        query = stream({"subscribe": name, **given} | FROM_FIRST, availableNow=True)
        query.collect = lambda batch, batch_id: tasks.append(batch.rdd.getNumPartitions())
        query.run()

    assert tasks == [4, 2]


def test_progress_shows_how_far_behind_a_query_is(
    stream: Streams, topics: Topics, fresh: Callable[[str], str]
) -> None:
    name = topics.create(fresh("lag"))
    topics.fill(name, {0: 6})
    query = stream({"subscribe": name, "maxOffsetsPerTrigger": 4} | FROM_FIRST, availableNow=True)
    query.run()

    assert query.query is not None
    progress = [json.loads(each.json)["sources"][0] for each in query.query.recentProgress]
    first, second = (each for each in progress if each["numInputRows"])
    assert first["startOffset"] is None
    assert second["startOffset"] == first["endOffset"]
    ids = {"/ids": {name: topics.id_of(name)}}
    assert first["endOffset"] == {name: {"0": 4}, f"{name}/from": {"0": 0}} | ids
    assert second["endOffset"] == {name: {"0": 6}} | ids
    assert first["latestOffset"] == second["latestOffset"] == {name: {"0": 6}}


# --- going on


@pytest.mark.slice
def test_a_query_goes_on_where_it_stopped(
    stream: Streams, topics: Topics, fresh: Callable[[str], str]
) -> None:
    name = topics.create(fresh("goes-on"), 2)
    query = stream({"subscribe": name} | FROM_FIRST)
    topics.fill(name, {0: 3})
    query.start()
    query.read()
    query.stop()
    topics.fill(name, {0: 2, 1: 2}, start=3)

    query.start()
    query.read()

    assert values(query.all_rows) == sorted([*names(3), "0-3", "0-4", "1-3", "1-4"])


def add_partition(topics: Topics, name: str, records: int) -> None:
    """Give a topic of one partition another, with records."""
    topics.add_partitions(name, 2)
    with Topics(topics.bootstrap_servers) as afresh:  # a producer that knows the topic learns of it later
        afresh.fill(name, {1: records})


@pytest.mark.slice
@pytest.mark.parametrize(("start", "first"), [("latest", []), ("earliest", names(3))])
def test_an_aborted_first_batch_is_repeated_unchanged(
    stream: Streams, topics: Topics, fresh: Callable[[str], str], start: str, first: list[str]
) -> None:
    name = topics.create(fresh("first"))
    topics.fill(name, {0: 3})
    query = stream({"subscribe": name, "startingOffsets": start})
    query.break_off()
    topics.fill(name, {0: 2}, start=3)
    query.break_off()
    add_partition(topics, name, 2)

    query.start()
    while len(query.read()) < len(first) + 4:
        pass

    assert values(query.batches[0]) == first
    assert values(query.all_rows) == sorted([*first, "0-3", "0-4", "1-0", "1-1"])


def forget(query: Stream, *, commit: bool) -> None:
    """Take from a checkpoint where its first batch began, and maybe that this is done."""
    file = query.checkpoint / "offsets" / "0"
    *head, offsets = file.read_text().splitlines()
    ends = {topic: found for topic, found in json.loads(offsets).items() if "/" not in topic}
    assert len(ends) < len(json.loads(offsets))
    file.write_text("\n".join([*head, json.dumps(ends)]))
    file.with_name(".0.crc").unlink()
    if commit:
        for kept in ("0", ".0.crc"):
            (query.checkpoint / "commits" / kept).unlink()


@pytest.mark.parametrize("commit", [True, False])
def test_a_checkpoint_that_does_not_say_where_the_first_batch_began(
    stream: Streams, topics: Topics, fresh: Callable[[str], str], commit: bool
) -> None:
    name = topics.create(fresh("before"))
    topics.fill(name, {0: 3})
    query = stream({"subscribe": name} | FROM_FIRST)
    query.start()
    query.read()
    query.stop()
    forget(query, commit=commit)
    add_partition(topics, name, 2)

    query.start()
    while len(query.read()) < 5:
        pass

    assert values(query.all_rows) == names(3, 2)
    assert values(query.batches[0]) == names(3)


def test_new_partitions_and_topics_are_read_from_their_first_record(
    stream: Streams, topics: Topics, fresh: Callable[[str], str]
) -> None:
    stem = fresh("new")
    topics.create(f"{stem}-a")
    query = stream({"subscribePattern": f"{stem}-."})  # from the end of what there is: new ones are new
    query.start()
    assert query.read() == []

    topics.add_partitions(f"{stem}-a", 2)
    topics.fill(f"{stem}-a", {0: 1, 1: 2})
    topics.create(f"{stem}-b")
    topics.fill(f"{stem}-b", {0: 1})
    while len(query.read()) < 4:
        pass

    assert sorted((row.topic[-1], bytes(row.value)) for row in query.all_rows) == [
        ("a", b"0-0"), ("a", b"1-0"), ("a", b"1-1"), ("b", b"0-0")
    ]  # fmt: skip


def test_a_query_goes_on_over_a_restart_of_the_broker(
    stream: Streams, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "broker") as broker, Topics(broker.bootstrap_servers) as topics:
        name = topics.create(fresh("restart"))
        topics.fill(name, {0: 2})
        query = stream({"subscribe": name} | FROM_FIRST, broker)
        query.start()
        assert values(query.read()) == names(2)

        broker.kill()
        broker.start()
        topics.fill(name, {0: 2}, start=2)

        assert values(query.read()) == names(4)
        query.stop()


# --- stopping


def test_stopping_does_not_wait_for_ever_for_a_batch(
    spark: SparkSession, stream: Streams, topics: Topics, fresh: Callable[[str], str]
) -> None:
    setting = "spark.sql.streaming.stopTimeout"
    assert setting in DEFAULTS
    begun, released = threading.Event(), threading.Event()
    query = stream({"subscribe": topics.create(fresh("stuck"))})
    spark.conf.set(setting, "1s")

    def stick(batch: DataFrame, batch_id: int) -> None:
        begun.set()
        released.wait(TIMEOUT_S)

    query.collect = stick
    try:
        started = query.start()
        assert begun.wait(60)
        with pytest.raises(Exception, match=r"failed to terminate|TimeoutException"):
            query.stop()
    finally:
        released.set()
        spark.conf.unset(setting)
    with suppress(Exception):  # it was interrupted
        started.awaitTermination(60)
    assert not started.isActive


# --- values


def test_values_of_a_stream_are_decoded(stream: Streams, topics: Topics, fresh: Callable[[str], str]) -> None:
    name = topics.create(fresh("json"))
    topics.send(name, [Sent(value=b'{"id": 1}'), Sent(value=b"x")])
    given = {"subscribe": name, "value.format": "json", "value.schema": "id BIGINT"}

    rows = stream(given | FROM_FIRST, availableNow=True).run()

    assert [row.value for row in rows] == [(1,), None]
    assert [row.value_raw for row in rows] == [None, b"x"]


@pytest.mark.parametrize("kind", ["avro", "msgpack"])
def test_packed_values_of_a_stream_are_decoded_and_malformed_ones_kept_aside(
    stream: Streams, topics: Topics, fresh: Callable[[str], str], kind: str
) -> None:
    name = topics.create(fresh(kind), 2)
    record = {"id": 7, "at": datetime(2026, 5, 1, 10, 2, tzinfo=UTC), "tags": ["x", "y"], "price": None}
    topics.send(
        name,
        [
            Sent(value=_packed(kind, record), partition=0),
            Sent(value=b"\xc1", partition=0),
            Sent(value=None, partition=1),
        ],
    )
    schema = "id BIGINT, at TIMESTAMP, tags ARRAY<STRING>, price DOUBLE"
    given = {"value.format": kind, "value.schema": json.dumps(AVRO) if kind == "avro" else schema}

    rows = stream({"subscribe": name} | given | FROM_FIRST, availableNow=True).run()

    good, bad, null = sorted(rows, key=lambda row: (row.partition, row.offset))
    expected = record | {"at": datetime(2026, 5, 1, 10, 2)}
    assert good.value.asDict() == expected
    assert (bad.value, bytes(bad.value_raw)) == (None, b"\xc1")
    assert bad.value_error
    assert (null.value, null.value_raw, null.value_error) == (None, None, None)


AVRO = {
    "type": "record", "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "price", "type": ["null", "double"]},
    ],
}  # fmt: skip


def _packed(kind: str, record: dict[str, object]) -> bytes:
    if kind == "msgpack":
        packed: bytes = msgpack.packb(record, datetime=True)
        return packed
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(AVRO), record)
    return written.getvalue()
