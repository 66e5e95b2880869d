"""Events of a shop's users; some are late, repeated or malformed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from ottla.producer import ProducerRecord

TOPIC = "activity"
SENT = "Sent {count} events of users to {topic}; some are late, repeated or cut off."
BAD_EVERY, TWICE_EVERY, LATE_EVERY = 100, 40, 60

_BEGIN = datetime(2024, 5, 1, 6, 0, tzinfo=UTC)
_ACTIONS = ("view", "view", "view", "search", "add", "buy")


def events(count: int, seed: int = 1) -> Iterator[tuple[str, str]]:
    """Yield users and their events as JSON; timestamps grow, except for events that are late by hours."""
    chance = random.Random(seed)
    last = ""
    for number in range(count):
        user = f"user-{chance.randrange(40)}"
        if number % TWICE_EVERY == TWICE_EVERY - 1:
            yield json.loads(last)["user"], last
        elif number % BAD_EVERY == BAD_EVERY - 2:
            yield user, '{"user": "' + user
        else:
            held_up = timedelta(hours=3 if number > 2_000 and number % LATE_EVERY == LATE_EVERY - 1 else 0)
            time = _BEGIN + timedelta(seconds=number * 5) - held_up
            event = {
                "id": f"{seed}-{number}",
                "user": user,
                "time": time.isoformat(),
                "action": chance.choice(_ACTIONS),
            }
            last = json.dumps(event)
            yield user, last


def records(topic: str, count: int) -> Iterator[ProducerRecord]:
    """Yield events as records, by user."""
    return (ProducerRecord(topic, event.encode(), user.encode()) for user, event in events(count))
