"""Debezium's changes of a table of customers, with inserts, updates and deletes; some are cut off."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from ottla.producer import ProducerRecord

TOPIC = "shop.customers"
SENT = "Sent {count} changes of customers to {topic}; some are cut off."
BAD_EVERY = 100
"""One of this many records is cut off."""

_CUSTOMERS = 300
_NAMES = ("Anna", "Josef", "Maija", "Olga", "Timo")
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
            is_bad = said % BAD_EVERY == BAD_EVERY - 1 and value is not None
            if said < count:
                yield json.dumps({"id": key}), value[: chance.randrange(5, 60)] if is_bad and value else value
            said += 1


def _change(chance: random.Random, there: dict[int, Row]) -> Iterator[tuple[int, str | None]]:
    """Change a row and yield its change record."""
    key = chance.randrange(1, _CUSTOMERS + 1)
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
        return {"id": key, "name": chance.choice(_NAMES), "city": chance.choice(_CITIES), "points": 0}
    moved = {"city": chance.choice(_CITIES)} if chance.random() < 0.2 else {}
    return before | moved | {"points": before["points"] + chance.randrange(1, 50)}


def _envelope(operation: str, before: Row | None, after: Row | None) -> str:
    source = {"connector": "mysql", "db": "shop", "table": "customers"}
    return json.dumps({"before": before, "after": after, "source": source, "op": operation})


def records(topic: str, count: int) -> Iterator[ProducerRecord]:
    """Yield changes as records."""
    for key, value in changes(count):
        yield ProducerRecord(topic, None if value is None else value.encode(), key.encode())
