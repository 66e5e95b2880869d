"""The sample data of each kind of pipeline: events, metrics, changes, lines, payments, and tables."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ottla.producer import ProducerRecord

BEGIN: Final = datetime(2024, 5, 1, 6, 0, tzinfo=UTC)
"""The first timestamp of events, metrics and log lines."""
_CUSTOMERS = ("anna", "josef", "maija", "olga", "timo")

# --- activity: events of a shop's users; some are late, repeated or malformed

EVENTS_BAD_EVERY, EVENTS_TWICE_EVERY, EVENTS_LATE_EVERY = 100, 40, 60
_ACTIONS = ("view", "view", "view", "search", "add", "buy")


def events(count: int, seed: int = 1) -> Iterator[tuple[str, str]]:
    """Yield users and their events as JSON; timestamps grow, except for events that are late by hours."""
    chance = random.Random(seed)
    last = ""
    for number in range(count):
        user = f"user-{chance.randrange(40)}"
        if number % EVENTS_TWICE_EVERY == EVENTS_TWICE_EVERY - 1:
            yield json.loads(last)["user"], last
        elif number % EVENTS_BAD_EVERY == EVENTS_BAD_EVERY - 2:
            yield user, '{"user": "' + user
        else:
            is_late = number > 2_000 and number % EVENTS_LATE_EVERY == EVENTS_LATE_EVERY - 1
            time = BEGIN + timedelta(seconds=number * 5) - timedelta(hours=3 if is_late else 0)
            event = {
                "id": f"{seed}-{number}",
                "user": user,
                "time": time.isoformat(),
                "action": chance.choice(_ACTIONS),
            }
            last = json.dumps(event)
            yield user, last


def _event_records(topic: str, count: int) -> Iterator[ProducerRecord]:
    """Yield events as records, by user."""
    return (ProducerRecord(topic, event.encode(), user.encode()) for user, event in events(count))


# --- alerts: metrics of web servers: one overloaded, one with unusual requests, one silent; some are late

METRICS_BAD_EVERY, METRICS_LATE_EVERY = 200, 300
LATE_BY = timedelta(minutes=20)
STEP = timedelta(seconds=10)
_HOSTS = ("web-1", "web-2", "web-3", "web-4")
_MINUTE = timedelta(minutes=1)
_BUSY = range(8, 13)
_ODD = range(14, 16)
_SILENT = range(10, 18)
"""Minutes of an hour, each for one server."""


def metrics(count: int, seed: int = 1) -> Iterator[tuple[str, str]]:
    """Yield hosts and samples as JSON; timestamps grow, except for late samples."""
    chance = random.Random(seed)
    for number, (host, sample, time) in zip(range(count), _samples(chance), strict=False):
        is_late = number > 2_000 and number % METRICS_LATE_EVERY == METRICS_LATE_EVERY - 1
        at = time - LATE_BY if is_late else time
        text = json.dumps(sample | {"time": at.isoformat()})
        yield host, text[:20] if number % METRICS_BAD_EVERY == METRICS_BAD_EVERY - 1 else text


def _samples(chance: random.Random) -> Iterator[tuple[str, dict[str, Any], datetime]]:
    time = BEGIN
    while True:
        minute = (time - BEGIN) // _MINUTE % 60
        for host in _HOSTS:
            for name, value in _values(chance, host, minute).items():
                yield host, {"name": name, "labels": {"host": host}, "value": value}, time
        time += STEP


def _values(chance: random.Random, host: str, minute: int) -> dict[str, int]:
    is_busy, is_odd = host == "web-2" and minute in _BUSY, host == "web-3" and minute in _ODD
    found = {
        "cpu": chance.randrange(92, 100) if is_busy else chance.randrange(20, 50),
        "requests": chance.randrange(290, 310) if is_odd else chance.randrange(95, 106),
    }
    return found if host == "web-4" and minute in _SILENT else found | {"heartbeat": 1}


def _metric_records(topic: str, count: int) -> Iterator[ProducerRecord]:
    """Yield samples as records, by host."""
    return (ProducerRecord(topic, sample.encode(), host.encode()) for host, sample in metrics(count))


# --- changelog: Debezium's changes of a table of customers; some are cut off

CHANGES_BAD_EVERY = 100
"""One of this many records is cut off."""
_CUSTOMER_COUNT = 300
_CUSTOMER_NAMES = ("Anna", "Josef", "Maija", "Olga", "Timo")
_CITIES = ("Turku", "Tampere", "Oulu", "Vaasa")
_GONE = 0.1
Row = dict[str, Any]


def changes(count: int, seed: int = 1) -> Iterator[tuple[str, str | None]]:
    """Yield keys and changes as JSON; a delete is followed by a tombstone, as compaction requires."""
    chance = random.Random(seed)
    there: dict[int, Row] = {}
    said = 0
    while said < count:
        for key, value in _change(chance, there):
            is_bad = said % CHANGES_BAD_EVERY == CHANGES_BAD_EVERY - 1 and value is not None
            if said < count:
                yield json.dumps({"id": key}), value[: chance.randrange(5, 60)] if is_bad and value else value
            said += 1


def _change(chance: random.Random, there: dict[int, Row]) -> Iterator[tuple[int, str | None]]:
    """Change a row and yield its change record."""
    key = chance.randrange(1, _CUSTOMER_COUNT + 1)
    before = there.get(key)
    if before is not None and chance.random() < _GONE:
        del there[key]
        yield key, _envelope("d", before, None)
        yield key, None
        return
    there[key] = _row(chance, key, before)
    yield key, _envelope("c" if before is None else "u", before, there[key])


def _row(chance: random.Random, key: int, before: Row | None) -> Row:
    if before is None:
        return {
            "id": key,
            "name": chance.choice(_CUSTOMER_NAMES),
            "city": chance.choice(_CITIES),
            "points": 0,
        }
    moved = {"city": chance.choice(_CITIES)} if chance.random() < 0.2 else {}
    return before | moved | {"points": before["points"] + chance.randrange(1, 50)}


def _envelope(operation: str, before: Row | None, after: Row | None) -> str:
    source = {"connector": "mysql", "db": "shop", "table": "customers"}
    return json.dumps({"before": before, "after": after, "source": source, "op": operation})


def _change_records(topic: str, count: int) -> Iterator[ProducerRecord]:
    """Yield changes as records."""
    for key, value in changes(count):
        yield ProducerRecord(topic, None if value is None else value.encode(), key.encode())


# --- logs: lines of a web server's log, some of them malformed

LINES_BAD_EVERY = 50
"""One of this many lines is malformed."""
_PATHS = ("/", "/cart", "/search?q=tea", "/item/17", "/static/app.css", "/login")
_AGENTS = ("Mozilla/5.0 (X11; Linux x86_64)", "curl/8.5.0", "Googlebot/2.1 (+http://www.google.com/bot.html)")
_STATUSES = (200, 200, 200, 200, 301, 304, 404, 500)


def lines(count: int, seed: int = 1) -> Iterator[str]:
    """Yield lines in nginx's default format; every `LINES_BAD_EVERY`th is cut off."""
    chance = random.Random(seed)
    for number in range(count):
        line = _line(chance, BEGIN + timedelta(seconds=number * 7))
        yield line[: chance.randrange(10, 60)] if number % LINES_BAD_EVERY == LINES_BAD_EVERY - 1 else line


def _line(chance: random.Random, time: datetime) -> str:
    address = f"192.0.2.{chance.randrange(1, 255)}"
    user = chance.choice(("-", "-", "anna", "maija"))
    status, size = chance.choice(_STATUSES), chance.randrange(200, 20_000)
    return (
        f"{address} - {user} [{time:%d/%b/%Y:%H:%M:%S %z}] "
        f'"GET {chance.choice(_PATHS)} HTTP/1.1" {status} {size} "-" "{chance.choice(_AGENTS)}"'
    )


def _line_records(topic: str, count: int) -> Iterator[ProducerRecord]:
    """Yield lines as records."""
    return (ProducerRecord(topic, line.encode()) for line in lines(count))


# --- mirror: payments of a shop: with keys, timestamps and headers, some cancelled

PAYMENTS_CANCELLED_EVERY = 40
_PAYMENT_EVERY = timedelta(seconds=20)
_WAYS = (b"card", b"cash")


def payments(topic: str, count: int, seed: int = 1) -> Iterator[ProducerRecord]:
    """Yield payments; every fortieth has a null value, as a cancelled one."""
    chance = random.Random(seed)
    # Up to now, because brokers delete records older than a week.
    begin = datetime.now(UTC) - count * _PAYMENT_EVERY
    for number in range(count):
        cents = chance.randrange(100, 5_000)
        is_cancelled = number % PAYMENTS_CANCELLED_EVERY == PAYMENTS_CANCELLED_EVERY - 1
        yield ProducerRecord(
            topic,
            None if is_cancelled else b"%d.%02d" % divmod(cents, 100),
            chance.choice(_CUSTOMERS).encode(),
            timestamp_ms=int((begin + number * _PAYMENT_EVERY).timestamp() * 1_000),
            headers=(("way", chance.choice(_WAYS)),),
        )


# --- tables: a shop's SQLite database: orders, and an outbox with events about them

FILE = "shop.db"
_ORDER_EVERY = timedelta(seconds=40)
_TABLES = """
CREATE TABLE IF NOT EXISTS orders (
    id INTEGER PRIMARY KEY AUTOINCREMENT, customer TEXT, what TEXT, price NUMERIC(8, 2), ordered_at TIMESTAMP
);
CREATE TABLE IF NOT EXISTS outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT, about TEXT, event TEXT, customer TEXT, payload TEXT
);
"""
Order = tuple[str, str, str, str]


def orders(count: int, seed: int = 1) -> Iterator[Order]:
    """Yield orders: customer, product, price and time."""
    chance = random.Random(seed)
    # Up to now, because brokers delete records older than a week.
    begin = datetime.now(UTC) - count * _ORDER_EVERY
    for number in range(count):
        price = f"{chance.randrange(100, 2_000) / 100:.2f}"
        when = (begin + number * _ORDER_EVERY).strftime("%Y-%m-%d %H:%M:%S.%f")
        yield chance.choice(_CUSTOMERS), chance.choice(("tea", "coffee", "cake")), price, when


def send_tables(count: int) -> str:
    """Write orders and events into a database in this folder, and return a one-line summary."""
    with closing(sqlite3.connect(FILE)) as database, database:
        database.executescript(_TABLES)
        add_orders(database, count)
    return f"Wrote {count} orders, and an event about each, to {FILE} in this folder."


def add_orders(database: sqlite3.Connection, count: int) -> None:
    """Add orders, and their events to the outbox in the same transaction."""
    for customer, what, price, when in orders(count):
        new = database.execute(
            "INSERT INTO orders (customer, what, price, ordered_at) VALUES (?, ?, ?, ?)",
            (customer, what, price, when),
        )
        payload = json.dumps({"order": new.lastrowid, "what": what, "price": price})
        database.execute(
            "INSERT INTO outbox (about, event, customer, payload) VALUES ('orders', 'ordered', ?, ?)",
            (customer, payload),
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """Records of a kind: their usual topic, their makers, and a summary of what was sent."""

    topic: str
    records: Callable[[str, int], Iterator[ProducerRecord]]
    bad_every: int
    """One of this many records is malformed or cancelled."""
    summary: str
    """With the fields count, topic and bad."""


SAMPLES: Final = {
    "activity": Sample(
        "activity",
        _event_records,
        EVENTS_BAD_EVERY,
        "Sent {count} events of users to {topic}; some are late, repeated or cut off.",
    ),
    "alerts": Sample(
        "metrics",
        _metric_records,
        METRICS_BAD_EVERY,
        "Sent {count} samples of web servers to {topic}; some are late or cut off.",
    ),
    "changelog": Sample(
        "shop.customers",
        _change_records,
        CHANGES_BAD_EVERY,
        "Sent {count} changes of customers to {topic}; some are cut off.",
    ),
    "logs": Sample(
        "access-logs",
        _line_records,
        LINES_BAD_EVERY,
        "Sent {count} lines of a web server to {topic}; {bad} of them are cut off.",
    ),
    "mirror": Sample(
        "shop-payments",
        payments,
        PAYMENTS_CANCELLED_EVERY,
        "Sent {count} payments to {topic}; {bad} of them were cancelled.",
    ),
}
"""Of the kinds whose pipelines read a topic."""
