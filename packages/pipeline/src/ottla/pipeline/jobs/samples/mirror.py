"""Payments of a shop: with keys, timestamps and headers, some cancelled."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from ottla.producer import ProducerRecord

TOPIC = "shop-payments"
SENT = "Sent {count} payments to {topic}; {bad} of them were cancelled."
BAD_EVERY = 40

_EVERY = timedelta(seconds=20)
_CUSTOMERS = ("anna", "josef", "maija", "olga", "timo")
_WAYS = (b"card", b"cash")


def records(topic: str, count: int, seed: int = 1) -> Iterator[ProducerRecord]:
    """Yield payments; every fortieth has a null value, as a cancelled one."""
    chance = random.Random(seed)
    # Up to now, because brokers delete records older than a week.
    begin = datetime.now(UTC) - count * _EVERY
    for number in range(count):
        cents = chance.randrange(100, 5_000)
        yield ProducerRecord(
            topic,
            None if number % BAD_EVERY == BAD_EVERY - 1 else b"%d.%02d" % divmod(cents, 100),
            chance.choice(_CUSTOMERS).encode(),
            timestamp_ms=int((begin + number * _EVERY).timestamp() * 1_000),
            headers=(("way", chance.choice(_WAYS)),),
        )
