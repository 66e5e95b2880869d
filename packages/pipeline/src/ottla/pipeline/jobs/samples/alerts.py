"""Metrics of web servers: one overloaded, one with unusual requests, one silent; some are late."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from ottla.producer import ProducerRecord

TOPIC = "metrics"
SENT = "Sent {count} samples of web servers to {topic}; some are late or cut off."
BAD_EVERY, LATE_EVERY = 200, 300
LATE_BY = timedelta(minutes=20)
STEP = timedelta(seconds=10)

BEGIN = datetime(2024, 5, 1, 6, 0, tzinfo=UTC)
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
        is_late = number > 2_000 and number % LATE_EVERY == LATE_EVERY - 1
        at = time - LATE_BY if is_late else time
        text = json.dumps(sample | {"time": at.isoformat()})
        yield host, text[:20] if number % BAD_EVERY == BAD_EVERY - 1 else text


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


def records(topic: str, count: int) -> Iterator[ProducerRecord]:
    """Yield samples as records, by host."""
    return (ProducerRecord(topic, sample.encode(), host.encode()) for host, sample in metrics(count))
