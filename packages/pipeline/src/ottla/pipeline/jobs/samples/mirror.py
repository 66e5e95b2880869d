"""Payments of a shop: with keys, timestamps and headers, some cancelled."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from ottla.producer import ProducerRecord, SyncProducer

TOPIC = "shop-payments"

_EVERY = timedelta(seconds=20)
_CUSTOMERS = ("anna", "josef", "maija", "olga", "timo")
_WAYS = (b"card", b"cash")


def payments(topic: str, count: int, seed: int = 1) -> Iterator[ProducerRecord]:
    """Yield payments; every fortieth has a null value, as a cancelled one."""
    chance = random.Random(seed)
    # Up to now, because brokers delete records older than a week.
    begin = datetime.now(UTC) - count * _EVERY
    for number in range(count):
        cents = chance.randrange(100, 5_000)
        yield ProducerRecord(
            topic,
            None if number % 40 == 39 else b"%d.%02d" % divmod(cents, 100),
            chance.choice(_CUSTOMERS).encode(),
            timestamp_ms=int((begin + number * _EVERY).timestamp() * 1_000),
            headers=(("way", chance.choice(_WAYS)),),
        )


def send(bootstrap: str, topic: str, count: int) -> str:
    """Send payments and return a one-line summary."""
    with SyncProducer(bootstrap_servers=bootstrap) as producer:
        sent = [
            producer.send(
                each.topic, each.value, each.key, timestamp_ms=each.timestamp_ms, headers=each.headers
            )
            for each in payments(topic, count)
        ]
        for each in sent:
            each.result()
    return f"Sent {count} payments to {topic}; {count // 40} of them were cancelled."
