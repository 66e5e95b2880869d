"""SQL over topics of a real broker: equal to DuckDB on exported files, and no more is read than needed."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

duckdb: Any = pytest.importorskip("duckdb", reason="SQL needs duckdb")
import msgspec  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from ottla.admin import Admin  # noqa: E402
from ottla.client.cluster import NoSuchTopic  # noqa: E402
from ottla.client.config import ClientConfig  # noqa: E402
from ottla.consumer import ConsumerConfig, SyncConsumer  # noqa: E402
from ottla.consumer.sql import QueryFailed, Topics, read_table  # noqa: E402
from ottla.consumer.sql.scanning import FIRST_RECORDS, OffsetReader, reading_config  # noqa: E402
from ottla.producer import Producer, SyncProducer  # noqa: E402
from ottla.registry import AvroSerializer, SchemaRegistry  # noqa: E402
from ottla.registry.testing import RegistryThread  # noqa: E402

START = datetime(2026, 1, 31, 8, tzinfo=UTC)
MINUTE_MS = 60_000
FLIGHTS, PLANES = "sql.flights", "sql-planes"
COUNT = 3_000


def flight(number: int, chance: random.Random) -> dict[str, Any]:
    return {
        "number": number,
        "origin": chance.choice(["EWR", "LGA", "JFK"]),
        "delay": chance.randint(-10, 90),
        "distance": round(chance.random() * 1_000, 3),
        "tail": f"N{chance.randint(0, 20)}",
        "crew": {"captain": chance.choice(["Anna", "Jos\N{LATIN SMALL LETTER E WITH ACUTE}"]), "size": 2},
    } | ({"note": "late"} if number % 7 == 0 else {})


async def fill(servers: str) -> None:
    chance = random.Random(7)
    start_ms = int(START.timestamp() * 1_000)
    async with Admin(servers) as admin:
        await admin.topics.create(FLIGHTS, partitions=3)
        await admin.topics.create(PLANES, partitions=1)
    async with Producer(servers) as producer:
        for number in range(COUNT):
            # Times that are nearly, and not quite, in the order of offsets.
            at_ms = start_ms + (number // 50) * MINUTE_MS + chance.randint(-5, 5) * MINUTE_MS
            value = None if number % 500 == 499 else msgspec.json.encode(flight(number, chance))
            await producer.send(
                FLIGHTS, value, key=f"k{number % 5}".encode(), partition=number % 3, timestamp_ms=at_ms,
                headers=[("trace", b"t1")] if number % 9 == 0 else [],
            )  # fmt: skip
        for number in range(15):
            plane = {"tail": f"N{number}", "seats": 100 + number, "id": bytes([number, 255])}
            await producer.send(PLANES, msgspec.msgpack.encode(plane))
        await producer.flush()


@pytest.fixture(scope="module")
def filled(servers: str) -> str:
    asyncio.run(fill(servers))
    return servers


@pytest.fixture(scope="module")
def exported(filled: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A DuckDB with the topics as files: a line for each record, with the fields of its value."""
    folder = tmp_path_factory.mktemp("exported")
    connection = duckdb.connect()
    for topic, table, decode in (
        (FLIGHTS, "flights", msgspec.json.decode),
        (PLANES, "planes", msgspec.msgpack.decode),
    ):
        lines = []
        with SyncConsumer(
            topic, bootstrap_servers=filled, auto_offset_reset="earliest", consumer_timeout_ms=1_500
        ) as consumer:
            for record in consumer:
                own = {
                    "topic": topic,
                    "partition": record.partition,
                    "offset": record.offset,
                    "timestamp": datetime.fromtimestamp(record.timestamp_ms / 1_000, UTC).isoformat(),
                    "key": None if record.key is None else record.key.decode(),
                }
                lines.append(own | ({} if record.value is None else decode(record.value)))
        file = folder / f"{table}.jsonl"
        file.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
        connection.execute(
            f"CREATE TABLE {table} AS SELECT * FROM read_json('{file}', sample_size = -1)"
        ).fetchall()
    return connection


@pytest.fixture
def topics(filled: str) -> Iterator[Topics]:
    with Topics(filled) as opened:
        yield opened


def rows(found: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


QUERIES = [
    "SELECT count(*), count(origin), min(delay), max(distance) FROM flights",
    "SELECT origin, count(*), avg(delay) FROM flights WHERE timestamp > '2026-01-31 08:30Z' GROUP BY 1",
    "SELECT number, timestamp "
    "FROM flights WHERE timestamp BETWEEN '2026-01-31 08:20Z' AND '2026-01-31 08:25Z'",
    'SELECT "partition", "offset", number '
    'FROM flights WHERE "partition" = 1 AND "offset" BETWEEN 100 AND 120',
    "SELECT number FROM flights "
    'WHERE ("partition" = 0 AND "offset" < 5) OR ("partition" = 2 AND "offset" >= 995)',
    "SELECT number FROM flights WHERE key IN ('k1', 'k4') AND delay > 80 AND timestamp < '2026-01-31 08:10Z'",
    "SELECT crew.captain, sum(delay) FROM flights GROUP BY 1",
    "SELECT note, count(*) FROM flights WHERE note IS NOT NULL GROUP BY 1",
    "SELECT f.number, p.seats FROM flights f JOIN planes p USING (tail) WHERE f.delay > 85 ORDER BY 1",
    "WITH late AS (SELECT * FROM flights WHERE delay > 60) SELECT origin, count(*) FROM late GROUP BY 1",
    "SELECT a.number FROM flights a JOIN flights b ON a.number = b.number + 1 WHERE a.delay = b.delay",
    "SELECT origin, number FROM flights QUALIFY row_number() OVER (PARTITION BY origin ORDER BY number) = 2",
    "SELECT topic, id FROM planes WHERE seats > 110",
]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_gives_what_duckdb_gives_for_the_exported_files(
    query: str, topics: Topics, exported: Any
) -> None:
    over_topics = query.replace("planes p", f'"{PLANES}" p').replace("FROM planes", f'FROM "{PLANES}"')
    over_topics = over_topics.replace(" flights", f" {FLIGHTS}")
    expected = rows(exported.sql(query).to_arrow_table())
    assert expected
    assert rows(topics.query(over_topics).to_arrow()) == expected


def scanned(topics: Topics, where: str) -> dict[int, range]:
    sql = f'SELECT count(*) FROM "{FLIGHTS}" WHERE {where}'
    topics.query(sql).to_arrow()
    return topics.tables(sql)[FLIGHTS].scanned[-1]


def test_conditions_on_partition_and_offset_decide_what_is_fetched(topics: Topics) -> None:
    assert scanned(topics, '"partition" = 2 AND "offset" >= 990') == {2: range(990, 1_000)}
    assert scanned(topics, '"offset" < 10') == dict.fromkeys(range(3), range(10))
    assert scanned(topics, '"partition" > 2') == {}


def test_a_condition_on_the_time_skips_the_records_before_and_none_that_are_late(topics: Topics) -> None:
    found = scanned(topics, "timestamp >= TIMESTAMPTZ '2026-01-31 08:40:00Z'")
    assert {partition: span.stop for partition, span in found.items()} == dict.fromkeys(range(3), 1_000)
    # Record 2000 has minute 40 on the average; some that are late by five minutes come before it.
    assert all(500 < span.start < 700 for span in found.values()), found


def test_a_query_sees_the_records_that_were_there_when_it_started(filled: str) -> None:
    with SyncProducer(filled) as producer, Topics(filled) as topics:
        producer.send("sql-growing", b'{"n": 1}').result(30)
        assert topics.query('SELECT n FROM "sql-growing"').to_arrow().to_pylist() == [{"n": 1}]
        producer.send("sql-growing", b'{"n": 2}').result(30)
        assert topics.query('SELECT count(*) AS c FROM "sql-growing"').to_arrow().to_pylist() == [{"c": 2}]


def test_a_query_behind_one_that_is_not_read_yet_fails_in_one_line(topics: Topics) -> None:
    first = topics.query(f'SELECT number FROM "{FLIGHTS}"')
    with pytest.raises(QueryFailed, match="connection has an open result"):
        topics.query(f'SELECT origin FROM "{FLIGHTS}"')
    assert first.to_arrow().num_rows == COUNT


def test_following_runs_a_query_for_the_records_of_each_window(filled: str) -> None:
    sent: list[Sequence[int]] = [(), (1, 2, 3), (), (4,)]

    with SyncProducer(filled) as producer, Topics(filled) as topics:
        producer.send("sql-live", b'{"n": 0}').result(30)

        def wait(_: float) -> None:
            for number in sent.pop(0):
                producer.send("sql-live", b'{"n": %d}' % number).result(30)

        windows = topics.windows('SELECT coalesce(sum(n), 0)::BIGINT AS n FROM "sql-live"', 1, wait=wait)
        found, sums = [], []
        for window in windows:
            found.append(window)
            sums.append(window.result.to_arrow().to_pylist()[0]["n"])
            if not sent:
                break

        kept = topics.tables('FROM "sql-live"')["sql-live"]

    assert (len(kept.scanned), len(kept.readers)) == (1, 1)  # those of the last window
    assert sums == [0, 6, 0, 4]
    assert all(earlier.end == later.start for earlier, later in pairwise(found))


def test_following_goes_on_with_a_topic_that_is_created_a_second_time(filled: str) -> None:
    async def create_again() -> None:
        async with Admin(filled) as admin:
            await admin.topics.delete("sql-again")
            await admin.topics.create("sql-again", partitions=1)

    with SyncProducer(filled) as producer, Topics(filled) as topics:
        for number in range(3):
            producer.send("sql-again", b'{"n": %d}' % number).result(30)

        def wait(_: float) -> None:
            asyncio.run(create_again())
            with SyncProducer(filled) as later:
                later.send("sql-again", b'{"n": 7}').result(30)

        (window,) = islice(topics.windows('SELECT n FROM "sql-again"', 1, wait=wait), 1)

        assert window.result.to_arrow().to_pylist() == [{"n": 7}]


def test_records_of_aborted_transactions_are_left_out_on_request(filled: str) -> None:
    async def write() -> None:
        async with Producer(filled, transactional_id="sql") as producer:
            for number, commits in ((1, True), (2, False), (3, True)):
                await producer.begin_transaction()
                await (await producer.send("sql-paid", b'{"n": %d}' % number))
                await (producer.commit_transaction() if commits else producer.abort_transaction())

    asyncio.run(write())
    query = 'SELECT n FROM "sql-paid" ORDER BY n'
    for level, expected in (("read_committed", [1, 3]), ("read_uncommitted", [1, 2, 3])):
        with Topics(filled, isolation_level=level) as topics:  # type: ignore[arg-type]
            assert [row["n"] for row in topics.query(query).to_arrow().to_pylist()] == expected


def test_read_table_gives_arrow_polars_and_pandas_the_same(filled: str) -> None:
    pytest.importorskip("polars")
    result = {
        name: getattr(
            read_table(
                FLIGHTS, filled, start=START + timedelta(minutes=20), end="2026-01-31T08:30:00Z",
                columns=["partition", "offset", "origin", "delay", "timestamp"],
            ),
            f"to_{name}",
        )()
        for name in ("arrow", "polars", "pandas")
    }  # fmt: skip
    arrow = result["arrow"]
    assert 400 < arrow.num_rows < 600
    first, last = (START + timedelta(minutes=at) for at in (20, 30))
    assert all(first <= at.as_py() < last for at in arrow["timestamp"])
    for name in ("offset", "origin", "delay"):
        expected = arrow[name].to_pylist()
        assert result["polars"][name].to_list() == expected
        assert (
            list(result["pandas"][name].astype(object).where(result["pandas"][name].notna(), None))
            == expected
        )


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (f'SELECT * FROM "{FLIGHTS}s"', f"there is no topic '{FLIGHTS}s'; did you mean '{FLIGHTS}'?"),
        ("SELECT orgin FROM sql.flights", "orgin"),
        ("SELECT offset FROM sql.flights", 'write "offset" in quotes'),
        ("SELECT * FROM a.b.c", 'write the topic in quotes: "a.b.c"'),
        ("DELETE FROM sql.flights", "a query is one SELECT"),
        ("SELECT 1; SELECT 2", "one statement at a time"),
        ("SELECT * FROM read_csv('/etc/passwd')", "reads no files unless --allow-files"),
        ("SELECT * FROM '/etc/passwd'", "there is no topic '/etc/passwd'"),
        ("COPY (SELECT 1) TO '/tmp/out.csv'", "a query is one SELECT"),
        ("SELECT note::INTEGER FROM sql.flights", "Could not convert string 'late'"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(query: str, message: str, topics: Topics) -> None:
    with pytest.raises((QueryFailed, NoSuchTopic)) as raised:
        topics.query(query).to_arrow()
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def ottla(servers: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", "from ottla.client.cli import main; main()", "sql", "-b", servers]
    return subprocess.run([*command, *arguments], capture_output=True, timeout=120, check=False)


def test_the_command_prints_a_table_csv_json_and_parquet(filled: str, tmp_path: Path) -> None:
    query = 'SELECT "offset", origin, crew FROM sql.flights WHERE "partition" = 0 AND "offset" < 3 ORDER BY 1'
    made = {name: ottla(filled, query, "--output", name) for name in ("table", "csv", "json")}
    assert [(done.returncode, done.stderr) for done in made.values()] == [(0, b"")] * 3
    file = tmp_path / "rows.parquet"
    assert ottla(filled, query, "--to", str(file)).returncode == 0

    expected = pq.read_table(file).to_pylist()
    assert [row["offset"] for row in expected] == [0, 1, 2]
    assert [json.loads(line) for line in made["json"].stdout.splitlines()] == expected
    listed = list(csv.DictReader(io.StringIO(made["csv"].stdout.decode())))
    assert [row["origin"] for row in listed] == [row["origin"] for row in expected]
    lines = made["table"].stdout.decode().splitlines()
    assert lines[0].split() == ["offset", "origin", "crew"]
    assert lines[1].split()[:2] == ["0", expected[0]["origin"]]


def test_the_command_shows_the_columns_of_topics(filled: str) -> None:
    shown = ottla(filled, "--schema", PLANES).stdout.decode().splitlines()
    assert [line.split()[1:] for line in shown[-3:]] == [
        ["msgpack", "tail", "VARCHAR"],
        ["msgpack", "seats", "BIGINT"],
        ["msgpack", "id", "VARCHAR"],
    ]


def test_windows_of_the_command_carry_their_times(filled: str, fresh: Callable[[str], str]) -> None:
    done = ottla(
        filled, f'SELECT count(*) AS c FROM "{FLIGHTS}"', "--follow", "--every", "100ms", "--windows", "2",
        "--output", "json",
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["c"] for line in lines] == [0, 0]
    assert lines[0]["window_end"] == lines[1]["window_start"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("SELECT 1", "--output", "parquet"), "parquet needs --to FILE"),
        (("SELECT 1", "--values", "t=xml"), "values are json, msgpack, avro, text, bytes, not xml"),
        (
            ("SELECT 1", "--follow", "--every", "soon"),
            "'soon' is not a duration like 500ms, 90s, 1h30m or 2d",
        ),
        (("SELECT 1", "--to", "/no/such/folder/x.csv"), "cannot be written"),
    ],
)
def test_a_mistake_in_the_command_is_one_line(arguments: tuple[str, ...], message: str, filled: str) -> None:
    done = ottla(filled, *arguments)
    assert done.returncode == 2
    assert message in done.stderr.decode().splitlines()[-1]


def test_without_duckdb_the_command_names_what_brings_it() -> None:
    program = (
        "import sys; sys.modules['duckdb'] = None\n"
        "from ottla.client.cli import main; main(['sql', 'SELECT 1'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.stderr.decode().splitlines() == [
        "Error: SQL over topics needs duckdb: pip install 'ottla-consumer[sql]'"
    ]


def test_values_in_avro_are_columns_by_the_schemas_of_a_registry(filled: str) -> None:
    pytest.importorskip("fastavro")
    schema = {
        "type": "record", "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "seen", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }  # fmt: skip

    async def write(url: str) -> None:
        async with SchemaRegistry(url) as registry:
            serializer: Any = AvroSerializer(registry, schema)
            async with Producer(filled, value_serializer=serializer) as producer:
                for number in range(5):
                    note = "late" if number % 2 else None
                    await producer.send("sql-avro", {"id": number, "seen": START, "note": note})
                await producer.flush()

    query = 'SELECT id, seen, note FROM "sql-avro" ORDER BY id'
    with RegistryThread() as registry:
        asyncio.run(write(registry.url))
        done = ottla(filled, query, "--registry", registry.url, "--output", "json")
        shown = ottla(filled, "--schema", "sql-avro", "--registry", registry.url)
    assert done.stderr == b""
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["id"], row["note"]) for row in found] == [
        (0, None), (1, "late"), (2, None), (3, "late"), (4, None),
    ]  # fmt: skip
    assert datetime.fromisoformat(found[0]["seen"]) == START
    assert ["avro", "id", "BIGINT"] in [line.split()[1:] for line in shown.stdout.decode().splitlines()]

    gone = ottla(filled, query, "--registry", registry.url)
    assert gone.returncode == 1
    assert "schema registry" in gone.stderr.decode().splitlines()[-1]


def test_batches_are_bounded_by_what_they_become_and_not_by_compressed_bytes(filled: str) -> None:
    count, size = 3_000, 10_000

    async def write() -> None:
        async with Producer(filled, compression_type="zstd") as producer:
            await producer.send_many("sql-dense", [b"a" * size] * count)
            await producer.flush()

    asyncio.run(write())
    reader = OffsetReader(
        "sql-dense", reading_config(ConsumerConfig(client=ClientConfig(bootstrap_servers=filled)))
    )
    with Topics(filled) as topics:
        sizes = [batch.nbytes for batch in reader.batches(topics.offsets("sql-dense"), ["value"])]

    assert reader.rows_read == count
    assert max(sizes) < 1.2 * FIRST_RECORDS * size


def test_many_fields_of_wide_documents_fit_behind_a_condition_that_few_pass(filled: str) -> None:
    """DuckDB gathers such rows to 2,048, and takes four times their documents for each field it reads."""
    count, names = 20_000, [f"f{number}" for number in range(12)]

    async def write() -> None:
        async with Producer(filled, compression_type="zstd") as producer:
            documents = [
                json.dumps({**dict.fromkeys(names, number), "tail": f"N{number % 9}", "note": "x" * 1_500})
                for number in range(count)
            ]
            await producer.send_many("sql-wide", [document.encode() for document in documents])
            await producer.flush()

    asyncio.run(write())
    largest = ", ".join(f"max({name})" for name in names)
    with Topics(filled, memory="32MB") as topics:
        table = topics.query(f"SELECT {largest} FROM \"sql-wide\" WHERE tail LIKE '%7%'").to_arrow()

    assert [column[0].as_py() for column in table.columns] == [19_996] * len(names)
