"""Followed tables and outboxes, on SQLite and without a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ottla.pipeline.jobs.database.connection import Database, DatabaseFailed, reflected
from ottla.pipeline.jobs.database.followed_tables import FollowedTable, Follower, Outbox, PendingEvents
from ottla.pipeline.jobs.database.row_values import Record

NOW = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    (tmp_path / "shop.db").touch()  # SQLite treats an empty file as an empty database
    with Database(url=f"sqlite:///{tmp_path}/shop.db").connect() as engine:
        yield engine


def do(engine: sa.Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for each in statements:
            connection.execute(sa.text(each))


def rows(engine: sa.Engine, statement: sa.Select[Any]) -> list[dict[str, Any]]:
    with engine.connect() as connection:
        return [dict(each) for each in connection.execute(statement).mappings()]


class Reader:
    """Follows a table as the pipeline does, with its state through JSON each time."""

    def __init__(self, engine: sa.Engine, declared: FollowedTable) -> None:
        self.engine, self.declared = engine, declared
        self.state: dict[str, Any] = {}

    def next(self) -> list[Record]:
        table = reflected(self.engine, self.declared.table)
        follower = Follower(self.declared, table, json.loads(json.dumps(self.state)))
        found = rows(self.engine, follower.statement(NOW))
        records = follower.records(found, "shop/orders")
        follower.advance(found)
        self.state = follower.state()
        return records


def orders(engine: sa.Engine, *ids: int) -> None:
    do(engine, *(f"INSERT INTO orders VALUES ({each}, 'tea', 1.5)" for each in ids))


@pytest.fixture
def by_number(engine: sa.Engine) -> Reader:
    do(engine, "CREATE TABLE orders (id INTEGER PRIMARY KEY, what TEXT, price NUMERIC(8, 2))")
    return Reader(engine, FollowedTable(table="orders", follow=["id"], rows_per_batch=3))


def test_each_row_comes_once_and_in_order(engine: sa.Engine, by_number: Reader) -> None:
    orders(engine, 1, 2, 3, 4, 5)
    assert [each.key for each in by_number.next()] == [b"1", b"2", b"3"]
    assert [each.key for each in by_number.next()] == [b"4", b"5"]
    assert by_number.next() == []
    orders(engine, 6)
    (record,) = by_number.next()
    assert record == Record("orders", b"6", b'{"id":6,"what":"tea","price":"1.50"}', "shop/orders/6")


def test_numbers_that_commit_late_are_found(engine: sa.Engine, by_number: Reader) -> None:
    orders(engine, 1, 4)
    by_number.next()
    orders(engine, 3, 5)
    assert [each.key for each in by_number.next()] == [b"3", b"5"]
    orders(engine, 2)
    assert [each.key for each in by_number.next()] == [b"2"]


def test_without_an_overlap_nobody_looks_back(engine: sa.Engine, by_number: Reader) -> None:
    by_number.declared = by_number.declared.model_copy(update={"overlap": 0})
    orders(engine, 1, 4)
    by_number.next()
    orders(engine, 3, 5)
    assert [each.key for each in by_number.next()] == [b"5"]


def test_columns_keys_and_conditions_are_chosen(engine: sa.Engine, by_number: Reader) -> None:
    orders(engine, 1, 2)
    by_number.declared = FollowedTable(
        table="orders",
        follow=["id"],
        key=["what"],
        columns=["what"],
        where="id > 1 OR price > 100",
        topic="sold",
    )
    (record,) = by_number.next()
    assert (record.topic, record.key, record.value) == ("sold", b"tea", b'{"what":"tea"}')


def test_a_time_and_a_number_are_followed_together(engine: sa.Engine) -> None:
    do(engine, "CREATE TABLE people (id INTEGER PRIMARY KEY, changed DATETIME)")
    times = {1: "10:00:00.000000", 2: "10:00:00.000000", 3: "10:00:00.000000", 4: "09:00:00.000000"}
    do(engine, *(f"INSERT INTO people VALUES ({one}, '2024-05-01 {at}')" for one, at in times.items()))
    declared = FollowedTable(table="people", follow=["changed", "id"], rows_per_batch=2, timestamp="changed")
    reader = Reader(engine, declared)
    assert [each.key for each in reader.next()] == [b"4", b"1"]
    found = reader.next()
    assert [each.key for each in found] == [b"2", b"3"]
    assert found[0].id == "shop/orders/2024-05-01T10:00:00/2"
    assert found[0].timestamp_ms == 1_714_557_600_000
    do(engine, "UPDATE people SET changed = '2024-05-01 11:00:00.000000' WHERE id = 1")
    assert [each.key for each in reader.next()] == [b"1"], "a row that changed comes again"


def test_a_time_may_be_text(engine: sa.Engine) -> None:
    do(
        engine,
        "CREATE TABLE notes (id INTEGER PRIMARY KEY, written TEXT)",
        "INSERT INTO notes VALUES (1, '2024-05-01T10:00:00Z'), (2, NULL), (3, 'yesterday')",
    )
    reader = Reader(
        engine, FollowedTable(table="notes", follow=["id"], rows_per_batch=2, timestamp="written")
    )

    assert [each.timestamp_ms for each in reader.next()] == [1_714_557_600_000, None]
    with pytest.raises(DatabaseFailed, match="row 3 of 'notes': timestamp = 'written' is 'yesterday'"):
        reader.next()


def test_a_time_of_another_type_is_refused(engine: sa.Engine, by_number: Reader) -> None:
    by_number.declared = by_number.declared.model_copy(update={"timestamp": "id"})
    with pytest.raises(DatabaseFailed, match="timestamp = 'id' is of type INTEGER, and must be a time"):
        by_number.next()


def test_times_that_are_too_young_wait(engine: sa.Engine) -> None:
    do(engine, "CREATE TABLE people (id INTEGER PRIMARY KEY, changed DATETIME)")
    do(engine, "INSERT INTO people VALUES (1, '2024-05-01 11:59:00.0'), (2, '2024-05-01 11:59:58.0')")
    reader = Reader(engine, FollowedTable(table="people", follow=["changed", "id"], delay=5.0))
    assert [each.key for each in reader.next()] == [b"1"]


def test_times_wait_a_little_where_nothing_is_said(engine: sa.Engine) -> None:
    do(engine, "CREATE TABLE people (id INTEGER PRIMARY KEY, changed DATETIME)")
    do(engine, "INSERT INTO people VALUES (1, '2024-05-01 11:59:54.0'), (2, '2024-05-01 11:59:56.0')")
    reader = Reader(engine, FollowedTable(table="people", follow=["changed", "id"]))
    assert [each.key for each in reader.next()] == [b"1"]


def test_a_time_alone_tells_no_rows_apart(engine: sa.Engine) -> None:
    do(engine, "CREATE TABLE people (id INTEGER PRIMARY KEY, changed DATETIME, born DATE)")
    for column in ("changed", "born"):
        with pytest.raises(DatabaseFailed, match="add a unique column"):
            Reader(engine, FollowedTable(table="people", follow=[column])).next()


def test_a_delay_needs_a_time(engine: sa.Engine, by_number: Reader) -> None:
    with pytest.raises(DatabaseFailed, match="is not a time"):
        Reader(engine, FollowedTable(table="orders", follow=["id"], delay=5.0)).next()


def test_columns_of_types_that_nobody_knows_can_be_followed(engine: sa.Engine) -> None:
    do(engine, "CREATE TABLE things (name, what TEXT)", "INSERT INTO things VALUES ('a', 'x'), ('b', 'y')")
    reader = Reader(engine, FollowedTable(table="things", follow=["name"]))
    assert [each.key for each in reader.next()] == [b"a", b"b"]
    assert reader.next() == []


def test_rows_without_a_place_are_refused(engine: sa.Engine) -> None:
    do(
        engine,
        "CREATE TABLE people (id INTEGER PRIMARY KEY, changed INTEGER)",
        "INSERT INTO people (id) VALUES (1)",
    )
    with pytest.raises(DatabaseFailed, match="null in"):
        Reader(engine, FollowedTable(table="people", follow=["changed", "id"])).next()


def test_a_place_is_one_in_the_columns_that_were_followed(engine: sa.Engine) -> None:
    do(engine, "CREATE TABLE people (id INTEGER PRIMARY KEY, number INTEGER, changed DATETIME)")
    do(engine, "INSERT INTO people VALUES (900, 7, '2024-05-01 09:00:00.0')")
    reader = Reader(engine, FollowedTable(table="people", follow=["id"]))
    reader.next()
    for follow in (["number"], ["changed", "id"]):
        reader.declared = FollowedTable(table="people", follow=follow)
        with pytest.raises(DatabaseFailed, match=r"belongs to \['id'\]: restore follow"):
            reader.next()
    reader.declared = FollowedTable(table="people", follow=["id"])
    do(engine, "INSERT INTO people VALUES (901, 1, '2024-05-01 09:00:00.0')")
    assert [each.key for each in reader.next()] == [b"901"], "and what was refused changed nothing"


def test_a_place_without_names_has_at_least_as_many_values(engine: sa.Engine) -> None:
    do(engine, "CREATE TABLE people (id INTEGER PRIMARY KEY, number INTEGER)")
    reader = Reader(engine, FollowedTable(table="people", follow=["number", "id"]))
    reader.state = {"place": [900]}
    with pytest.raises(DatabaseFailed, match="belongs to other columns"):
        reader.next()


def test_missing_names_are_reported_with_the_existing_ones(engine: sa.Engine, by_number: Reader) -> None:
    with pytest.raises(DatabaseFailed, match="no table 'order'; the tables are orders"):
        reflected(engine, "order")
    with pytest.raises(DatabaseFailed, match="no column 'number'; the columns are id, what, price"):
        Reader(engine, FollowedTable(table="orders", follow=["number"])).next()


# --- outboxes


@pytest.fixture
def outbox(engine: sa.Engine) -> Outbox:
    do(
        engine,
        "CREATE TABLE outbox (id INTEGER PRIMARY KEY, kind TEXT, owner TEXT, payload TEXT, sent_at DATETIME)",
        "INSERT INTO outbox (id, kind, owner, payload) "
        "VALUES (2, 'paid', 'anna', '{}'), (1, 'made', NULL, 'x')",
    )
    return Outbox(table="outbox", topic="shop.{kind}", key="owner", headers=["kind"])


def test_events_go_where_they_say_in_the_order_of_their_ids(engine: sa.Engine, outbox: Outbox) -> None:
    waiting = PendingEvents(outbox, reflected(engine, "outbox"))
    records = [waiting.record(each, "shop/outbox") for each in rows(engine, waiting.statement())]
    assert records == [
        Record("shop.made", None, b"x", "shop/outbox/1", None, (("kind", b"made"),)),
        Record("shop.paid", b"anna", b"{}", "shop/outbox/2", None, (("kind", b"paid"),)),
    ]
    assert records[0].all_headers() == [("kind", b"made"), ("ottla-id", b"shop/outbox/1")]


@pytest.mark.parametrize("after", ["delete", "mark"])
def test_sent_events_are_not_pending(engine: sa.Engine, outbox: Outbox, after: str) -> None:
    waiting = PendingEvents(outbox.model_copy(update={"after": after}), reflected(engine, "outbox"))
    found = rows(engine, waiting.statement())
    with engine.begin() as connection:
        connection.execute(waiting.sent(found[:1], NOW))
    assert [each["id"] for each in rows(engine, waiting.statement())] == [2]
    left = rows(engine, sa.select(waiting.left().subquery()))
    assert list(left[0].values()) == [1]
    do(engine, "INSERT INTO outbox (id, kind) VALUES (0, 'late')")
    assert [each["id"] for each in rows(engine, waiting.statement())] == [0, 2], (
        "one that commits late is found"
    )


def test_an_event_has_the_time_in_a_text(engine: sa.Engine, outbox: Outbox) -> None:
    do(engine, "UPDATE outbox SET owner = '1970-01-01T00:00:02Z' WHERE id = 1")
    waiting = PendingEvents(outbox.model_copy(update={"timestamp": "owner"}), reflected(engine, "outbox"))
    first, second = rows(engine, waiting.statement())
    assert waiting.record(first, "shop/outbox").timestamp_ms == 2_000
    with pytest.raises(DatabaseFailed, match="row 2 of 'outbox': timestamp = 'owner' is 'anna'"):
        waiting.record(second, "shop/outbox")


def test_an_event_without_what_its_topic_needs_is_named(engine: sa.Engine, outbox: Outbox) -> None:
    do(engine, "UPDATE outbox SET kind = NULL WHERE id = 1")
    waiting = PendingEvents(outbox, reflected(engine, "outbox"))
    with pytest.raises(DatabaseFailed, match="event 1 of 'outbox' has null in 'kind'"):
        waiting.record(rows(engine, waiting.statement())[0], "shop/outbox")


def test_an_event_that_can_go_nowhere_is_named(engine: sa.Engine, outbox: Outbox) -> None:
    do(engine, "UPDATE outbox SET kind = 'not a topic' WHERE id = 1")
    waiting = PendingEvents(outbox, reflected(engine, "outbox"))
    with pytest.raises(DatabaseFailed, match="event 1 of 'outbox' should be sent to"):
        waiting.record(rows(engine, waiting.statement())[0], "shop/outbox")


# --- declarations


def test_a_file_that_is_not_there_is_named_and_not_made(tmp_path: Path) -> None:
    file = tmp_path / "shpo.db"
    with (
        pytest.raises(DatabaseFailed, match=f"database {file} does not exist"),
        Database(url=f"sqlite:///{file}").connect(),
    ):
        pass
    assert not file.exists()


def test_passwords_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "p@ss/word")
    with Database(url="postgresql+psycopg://shop:${SHOP_PASSWORD}@db/shop").connect() as engine:
        assert engine.url.password == "p@ss/word"
    monkeypatch.delenv("SHOP_PASSWORD")
    with (
        pytest.raises(DatabaseFailed, match="has no variable SHOP_PASSWORD"),
        Database(url="postgresql+psycopg://shop:${SHOP_PASSWORD}@db/shop").connect(),
    ):
        pass


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("shop.db", "must be a URL"),
        ("nodb://x/y", "has no database 'nodb'"),
        ("oracle+oracledb://x/y", "pip install 'oracledb'"),
    ],
)
def test_invalid_urls_are_mistakes(url: str, said: str) -> None:
    (mistake,) = Database(url=url).inspect()
    assert said in mistake.message


@pytest.mark.parametrize("topic", ["shop {kind}", "", "{kind}/x"])
def test_invalid_topics_are_mistakes(topic: str) -> None:
    if topic:
        assert list(Outbox(table="outbox", topic=topic).inspect())
