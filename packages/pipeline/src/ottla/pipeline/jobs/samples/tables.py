"""A shop's SQLite database: orders, and an outbox with events about them."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

TOPIC = "sales"
FILE = "shop.db"

_EVERY = timedelta(seconds=40)
_CUSTOMERS = ("anna", "josef", "maija", "olga", "timo")
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
    begin = datetime.now(UTC) - count * _EVERY
    for number in range(count):
        price = f"{chance.randrange(100, 2_000) / 100:.2f}"
        when = (begin + number * _EVERY).strftime("%Y-%m-%d %H:%M:%S.%f")
        yield chance.choice(_CUSTOMERS), chance.choice(("tea", "coffee", "cake")), price, when


def send(count: int) -> str:
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
