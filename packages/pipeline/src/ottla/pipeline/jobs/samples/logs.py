"""Lines of a web server's log, some of them malformed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from ottla.producer import ProducerRecord

TOPIC = "access-logs"
SENT = "Sent {count} lines of a web server to {topic}; {bad} of them are cut off."
BAD_EVERY = 50
"""One of this many lines is malformed."""

_BEGIN = datetime(2024, 5, 1, 6, 0, tzinfo=UTC)
_PATHS = ("/", "/cart", "/search?q=tea", "/item/17", "/static/app.css", "/login")
_AGENTS = ("Mozilla/5.0 (X11; Linux x86_64)", "curl/8.5.0", "Googlebot/2.1 (+http://www.google.com/bot.html)")
_STATUSES = (200, 200, 200, 200, 301, 304, 404, 500)


def lines(count: int, seed: int = 1) -> Iterator[str]:
    """Yield lines in nginx's default format; every `BAD_EVERY`th is cut off."""
    chance = random.Random(seed)
    for number in range(count):
        line = _line(chance, _BEGIN + timedelta(seconds=number * 7))
        yield line[: chance.randrange(10, 60)] if number % BAD_EVERY == BAD_EVERY - 1 else line


def _line(chance: random.Random, time: datetime) -> str:
    address = f"192.0.2.{chance.randrange(1, 255)}"
    user = chance.choice(("-", "-", "anna", "maija"))
    status, size = chance.choice(_STATUSES), chance.randrange(200, 20_000)
    return (
        f"{address} - {user} [{time:%d/%b/%Y:%H:%M:%S %z}] "
        f'"GET {chance.choice(_PATHS)} HTTP/1.1" {status} {size} "-" "{chance.choice(_AGENTS)}"'
    )


def records(topic: str, count: int) -> Iterator[ProducerRecord]:
    """Yield lines as records."""
    return (ProducerRecord(topic, line.encode()) for line in lines(count))
