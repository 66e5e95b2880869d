"""The pipeline from databases to topics, against a broker; killed on the way, too."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.consumer import ConsumerRecord, SyncConsumer
from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.declaration_files import read_job
from ottla.pipeline.jobs.run import Run
from ottla.pipeline.jobs.samples.sample_data import FILE, add_orders
from ottla.pipeline.jobs.state_files import StateFile
from peers.postgres import Postgres, missing_postgres

if TYPE_CHECKING:
    from sdk.conftest import Cluster

DECLARATION = """
kind = "tables"
name = "shop"
checkpoint = "state"
trigger = "100ms"
[database]
url = "{url}"
[target]
bootstrap_servers = "{servers}"
[[tables]]
table = "orders"
topic = "{topic}"
follow = ["id"]
rows_per_batch = {rows}
[[outboxes]]
table = "outbox"
topic = "{topic}-events"
key = "customer"
headers = ["event"]
rows_per_batch = {rows}
"""

Declare = Callable[..., Path]


@pytest.fixture
def bootstrap_servers(cluster: Cluster) -> str:
    return cluster.bootstrap_servers


@pytest.fixture
def topic(fresh: Callable[[str], str]) -> str:
    return fresh("orders")


@pytest.fixture
def declare(tmp_path: Path, bootstrap_servers: str, topic: str) -> Declare:
    """Write a declaration, and return where it is."""

    def declare(url: str = f"sqlite:///{FILE}", rows: int = 100) -> Path:
        file = tmp_path / "shop.toml"
        file.write_text(DECLARATION.format(url=url, servers=bootstrap_servers, topic=topic, rows=rows))
        return file

    return declare


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A shop's database; each `with` is a transaction."""
    from ottla.pipeline.jobs.samples import sample_data

    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        database.executescript(sample_data._TABLES)
        yield database


def once(file: Path) -> None:
    Run(read_job(file), once=True)()


def read(servers: str, topic: str) -> list[ConsumerRecord]:
    settings: dict[str, Any] = {
        "bootstrap_servers": servers,
        "auto_offset_reset": "earliest",
        "consumer_timeout_ms": 1_500,
    }
    with SyncConsumer(topic, **settings) as consumer:
        return list(consumer)


def ids(records: list[ConsumerRecord]) -> Counter[str]:
    return Counter(dict(each.headers)["ottla-id"].decode() for each in records)  # type: ignore[union-attr]


def test_rows_and_events_arrive_once(
    shop: sqlite3.Connection, declare: Declare, bootstrap_servers: str, topic: str, tmp_path: Path
) -> None:
    with shop:
        add_orders(shop, 250)
    once(declare())
    with shop:
        add_orders(shop, 30)
    once(declare())
    once(declare())
    found = read(bootstrap_servers, topic)
    assert ids(found) == Counter(f"shop/orders/{number}" for number in range(1, 281))
    assert sorted(json.loads(each.value or b"")["id"] for each in found) == list(range(1, 281))
    assert {each.key for each in found} == {b"%d" % number for number in range(1, 281)}
    events = read(bootstrap_servers, f"{topic}-events")
    assert ids(events) == Counter(f"shop/outbox/{number}" for number in range(1, 281))
    assert dict(events[0].headers)["event"] == b"ordered"
    assert shop.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
    status = StateFile(tmp_path / "state" / "status.json").read()
    assert status["state"] == "done"


def test_the_order_of_a_key_is_kept(
    shop: sqlite3.Connection, declare: Declare, bootstrap_servers: str, topic: str
) -> None:
    with shop:
        add_orders(shop, 300)
    once(declare(rows=7))
    by_customer: dict[bytes | None, list[int]] = {}
    for each in read(bootstrap_servers, f"{topic}-events"):
        by_customer.setdefault(each.key, []).append(json.loads(each.value or b"")["order"])
    assert len(by_customer) == 5
    assert all(orders == sorted(orders) for orders in by_customer.values())


def test_what_cannot_be_read_ends_in_one_line(shop: sqlite3.Connection, declare: Declare) -> None:
    with shop:
        shop.execute("DROP TABLE outbox")
    with pytest.raises(PipelineError, match="no table 'outbox'; the tables are orders"):
        once(declare())


def test_a_database_that_is_locked_fails_a_single_run_and_not_a_lasting_one(
    shop: sqlite3.Connection, declare: Declare, bootstrap_servers: str, topic: str
) -> None:
    with shop:
        add_orders(shop, 5)
    file = declare(url=f"sqlite:///{FILE}?timeout=0.05")
    shop.execute("BEGIN EXCLUSIVE")
    with pytest.raises(PipelineError, match="database is locked"):
        once(file)
    with _process(file) as running:
        time.sleep(1.0)
        shop.rollback()
        _until(lambda: len(read(bootstrap_servers, f"{topic}-events")) == 5)
        running.terminate()
        assert running.wait(30) == 0


def test_following_by_other_columns_is_refused_and_loses_nothing(
    shop: sqlite3.Connection, declare: Declare, bootstrap_servers: str, topic: str
) -> None:
    with shop:
        shop.execute("ALTER TABLE orders ADD COLUMN number INTEGER")
        add_orders(shop, 30)
        shop.execute("UPDATE orders SET number = id % 7")
    once(declare())
    file = declare()
    declared = file.read_text()
    file.write_text(declared.replace('follow = ["id"]', 'follow = ["number", "id"]'))
    with pytest.raises(PipelineError, match=r"position in the checkpoint belongs to \['id'\]"):
        once(file)
    with shop:
        add_orders(shop, 3)
    file.write_text(declared)
    once(file)
    assert ids(read(bootstrap_servers, topic)) == Counter(f"shop/orders/{number}" for number in range(1, 34))


def _process(file: Path) -> subprocess.Popen[bytes]:
    command = Path(sys.executable).with_name("ottla")
    return subprocess.Popen([command, "pipeline", "run", str(file), "--quiet"])


def _until(is_so: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.05)


def _kill_and_finish(file: Path, shop: sqlite3.Connection, servers: str, topic: str, rounds: int) -> None:
    """Kill runs while rows are added, finish, and hold what arrived against what was there."""
    total = 0
    for number in range(rounds):
        with shop:
            add_orders(shop, 400)
        total += 400
        with _process(file) as running:
            wanted = total - 400 + 37 * (number % 7 + 1)
            _until(lambda wanted=wanted: _position(file) >= wanted)  # type: ignore[misc]
            running.kill()
    once(file)
    for found, table in ((read(servers, topic), "orders"), (read(servers, f"{topic}-events"), "outbox")):
        assert set(ids(found)) == {f"shop/{table}/{number}" for number in range(1, total + 1)}
        copies: dict[str, set[bytes | None]] = {}
        for each in found:
            name = dict(each.headers)["ottla-id"] or b""
            copies.setdefault(name.decode(), set()).add(each.value)
        assert all(len(values) == 1 for values in copies.values()), "a second copy says the same"
        # What may come twice is at most a batch for each time that it was killed.
        assert len(found) - total <= rounds * 20


def _position(file: Path) -> int:
    position = StateFile(file.parent / "state" / "places" / "orders.json").read()
    return int(position["place"][0]) if position else 0


def test_killed_on_the_way_nothing_is_lost_and_copies_are_known(
    shop: sqlite3.Connection, declare: Declare, bootstrap_servers: str, topic: str
) -> None:
    _kill_and_finish(declare(rows=20), shop, bootstrap_servers, topic, rounds=2)


@pytest.mark.slow
def test_killed_ten_times(
    shop: sqlite3.Connection, declare: Declare, bootstrap_servers: str, topic: str
) -> None:
    _kill_and_finish(declare(rows=20), shop, bootstrap_servers, topic, rounds=10)


# --- PostgreSQL


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A real server; skipped where the machine has none."""
    if missing := missing_postgres():
        pytest.skip(missing)
    with Postgres(tmp_path_factory.mktemp("postgres")) as running:
        yield running


def test_postgresql_rows_that_commit_late_are_not_lost(
    postgres: Postgres, declare: Declare, bootstrap_servers: str, topic: str
) -> None:
    import psycopg

    with psycopg.connect(postgres.dsn, autocommit=True) as first, psycopg.connect(postgres.dsn) as second:
        first.execute("DROP TABLE IF EXISTS orders, outbox")  # of the cluster before
        first.execute(
            "CREATE TABLE orders (id BIGSERIAL PRIMARY KEY, what TEXT, price NUMERIC(8, 2), tags TEXT[], "
            "more JSONB, at TIMESTAMPTZ DEFAULT now(), number UUID DEFAULT gen_random_uuid())"
        )
        first.execute("CREATE TABLE outbox (id UUID PRIMARY KEY, customer TEXT, event TEXT, payload JSONB)")
        # The second transaction takes number 1, and commits after the first one took 2.
        second.execute("INSERT INTO orders (what, price) VALUES ('tea', 1.50)")
        first.execute("INSERT INTO orders (what, tags, more) VALUES ('cake', '{a,b}', '{\"sweet\": true}')")
        second.execute("INSERT INTO outbox VALUES (gen_random_uuid(), 'anna', 'made', '{\"n\": 1}')")
        file = declare(url=postgres.url)
        once(file)
        assert [json.loads(each.value or b"")["what"] for each in read(bootstrap_servers, topic)] == ["cake"]
        second.commit()
        once(file)
        once(file)
        rows = {
            row["id"]: row
            for each in read(bootstrap_servers, topic)
            if (row := json.loads(each.value or b""))
        }
        assert {number: row["what"] for number, row in rows.items()} == {1: "tea", 2: "cake"}
        assert (rows[1]["price"], rows[2]["tags"], rows[2]["more"]) == ("1.50", ["a", "b"], {"sweet": True})
        (event,) = read(bootstrap_servers, f"{topic}-events")
        assert (event.key, event.value) == (b"anna", b'{"n":1}')
        assert first.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
        first.execute("DROP TABLE orders, outbox")


def test_postgresql_may_go_away_and_come_back(
    postgres: Postgres, declare: Declare, bootstrap_servers: str, topic: str
) -> None:
    import psycopg

    with psycopg.connect(postgres.dsn, autocommit=True) as shop:
        shop.execute("DROP TABLE IF EXISTS orders")
        shop.execute("CREATE TABLE orders (id BIGSERIAL PRIMARY KEY, what TEXT)")
        shop.execute("CREATE TABLE outbox (id BIGSERIAL, customer TEXT, event TEXT, payload JSONB)")
        shop.execute("INSERT INTO orders (what) VALUES ('tea')")
    with _process(declare(url=postgres.url)) as running:
        _until(lambda: len(read(bootstrap_servers, topic)) == 1)
        postgres.restart()
        with psycopg.connect(postgres.dsn, autocommit=True) as shop:
            shop.execute("INSERT INTO orders (what) VALUES ('cake')")
        _until(lambda: len(read(bootstrap_servers, topic)) == 2)
        running.terminate()
        assert running.wait(30) == 0
