"""Marks in the transaction of the effect, and the SQL scenario: insert, update and delete of one row."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from ottla.consumer import ConsumerRecord
from ottla.streams.dedupe import DedupeMisconfigured, MissingIdentity, SqlMarks, by_key
from peers.postgres import Postgres, missing_postgres


def record(identity: bytes | None, topic: str = "rows", offset: int = 0) -> ConsumerRecord:
    headers = [] if identity is None else [("message-id", identity)]
    return ConsumerRecord(topic, 0, offset, headers=headers)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as one:
        yield one


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    if (missing := missing_postgres()) is not None:
        pytest.skip(missing)
    with Postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server


def test_a_record_is_new_once_the_transaction_of_its_effect_is_committed(
    connection: sqlite3.Connection,
) -> None:
    marks = SqlMarks()
    with connection:
        marks.create_table(connection)

    with pytest.raises(ZeroDivisionError), connection:
        assert marks.first_time(connection, record(b"a"))
        raise ZeroDivisionError
    with connection:
        assert marks.first_time(connection, record(b"a"))
        assert not marks.first_time(connection, record(b"a", offset=1))
    assert not marks.first_time(connection, record(b"a", offset=2))


def test_identities_of_other_topics_are_others_and_text_is_an_identity(
    connection: sqlite3.Connection,
) -> None:
    marks = SqlMarks("orders_done")
    marks.create_table(connection)

    assert marks.first_time(connection, record(b"a"))
    assert marks.first_time(connection, record(b"a", topic="other"))
    assert marks.first_time(connection, "a")
    assert not marks.first_time(connection, b"a")


def test_old_marks_are_forgotten(connection: sqlite3.Connection) -> None:
    marks = SqlMarks()
    marks.create_table(connection)
    marks.first_time(connection, "a")

    assert marks.forget(connection, before_ms=1) == 0
    assert marks.forget(connection, before_ms=1 << 60) == 1
    assert marks.first_time(connection, "a")


def test_a_record_without_identity_and_a_wrong_table_are_reported(connection: sqlite3.Connection) -> None:
    with pytest.raises(MissingIdentity, match="rows-0 offset 7 has no header 'message-id'"):
        SqlMarks().first_time(connection, record(None, offset=7))
    with pytest.raises(DedupeMisconfigured, match="table must be a plain name"):
        SqlMarks("marks; DROP TABLE x")
    with pytest.raises(DedupeMisconfigured, match="knows connections of sqlite3 and psycopg"):
        SqlMarks().first_time(object(), record(b"a"))  # type: ignore[arg-type]


async def test_marks_in_postgresql_with_both_kinds_of_connections(postgres: Postgres) -> None:
    marks = SqlMarks("both_kinds", identity=by_key())
    one = ConsumerRecord("rows", 0, 0, key=b"k")
    with psycopg.connect(postgres.dsn) as connection:
        marks.create_table(connection)
        connection.commit()
        assert marks.first_time(connection, one)
        connection.rollback()

    async with await psycopg.AsyncConnection.connect(postgres.dsn) as asynchronous:
        await marks.create_table_async(asynchronous)
        assert await marks.first_time_async(asynchronous, one)
        assert not await marks.first_time_async(asynchronous, one)


def test_a_second_transaction_waits_for_the_first_and_takes_over_if_it_is_rolled_back(
    postgres: Postgres,
) -> None:
    import threading

    marks, answers = SqlMarks("waiting"), list[bool]()
    with psycopg.connect(postgres.dsn) as first, psycopg.connect(postgres.dsn) as second:
        marks.create_table(first)
        first.commit()
        assert marks.first_time(first, "a")
        waiting = threading.Thread(target=lambda: answers.append(marks.first_time(second, "a")))
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()

        first.rollback()
        waiting.join(30)

        assert answers == [True]


# --- the SQL scenario: one topic with inserts, updates and deletes of rows, copies among them, and kills

ROWS = 20
PROGRAM = """
import os, sqlite3, sys
from ottla.consumer import ConsumerRecord
from ottla.streams.dedupe import SqlMarks

database, start, crash_after, *changes = sys.argv[1:]
if database.startswith("host="):
    import psycopg
    connection, place = psycopg.connect(database), "%s"
else:
    connection, place = sqlite3.connect(database), "?"
marks = SqlMarks("row_marks")
with connection.cursor() if place == "%s" else connection as cursor:
    marks.create_table(connection)
    cursor.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, amount INTEGER)")
connection.commit()
for number, change in enumerate(changes):
    identity, verb, row, amount = change.split(":")
    record = ConsumerRecord("rows", 0, number, headers=[("message-id", identity.encode())])
    cursor = connection.cursor()
    if marks.first_time(connection, record):
        if verb == "insert":
            cursor.execute(f"INSERT INTO rows VALUES ({place}, {place})", (int(row), int(amount)))
        elif verb == "update":
            change = f"UPDATE rows SET amount = amount + {place} WHERE id = {place}"
            cursor.execute(change, (int(amount), int(row)))
        else:
            cursor.execute(f"DELETE FROM rows WHERE id = {place}", (int(row),))
    if number == int(crash_after) and int(start) % 2:
        os._exit(9)  # between effect and commit
    connection.commit()
    if number == int(crash_after):
        os._exit(9)  # between commit and the next record
"""


def changes_of(chance: random.Random) -> tuple[list[str], dict[int, int]]:
    """Return changes of rows in order, and the rows that they leave."""
    changes, rows = [], dict[int, int]()
    for number in range(150):
        row, amount = chance.randrange(ROWS), chance.randrange(1, 9)
        if row not in rows:
            verb = "insert"
            rows[row] = amount
        elif chance.random() < 0.6:
            verb = "update"
            rows[row] += amount
        else:
            verb = "delete"
            del rows[row]
        changes.append(f"id-{number}:{verb}:{row}:{amount}")
    return changes, rows


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@pytest.mark.parametrize("seed", range(2))
def test_insert_update_and_delete_end_right_whatever_is_repeated_and_killed(
    kind: str, seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The consumer is killed again and again, goes back behind its commit, and reads copies of records."""
    chance = random.Random(seed)
    changes, expected = changes_of(chance)
    if kind == "sqlite":
        database = str(tmp_path / "shop.db")
    else:
        database = request.getfixturevalue("postgres").dsn
        with psycopg.connect(database) as connection:
            connection.execute("DROP TABLE IF EXISTS rows, row_marks")
    position = attempts = 0
    while position < len(changes):
        crash_after = chance.randrange(5, 80)
        read = [*changes[position:], *chance.sample(changes, 10)]  # copies, long after the original, too
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, database, str(attempts), str(crash_after), *read],
            timeout=60, check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode in (0, 9), done.stderr
        attempts += 1
        # The committed offset before a kill is behind the handled records.
        position = len(changes) if done.returncode == 0 else position + chance.randrange(crash_after)

    assert rows_in(database) == expected
    assert attempts > 3


def rows_in(database: str) -> dict[int, int]:
    if database.startswith("host="):
        with psycopg.connect(database) as connection:
            return dict(connection.execute("SELECT id, amount FROM rows").fetchall())
    with closing(sqlite3.connect(database)) as connection:
        return dict(connection.execute("SELECT id, amount FROM rows").fetchall())
