"""A streams app that writes the image of a topic exactly once; says how many records it has handled.

Every record has two outputs. The first attempt of some fails after its first output, and some become dead
letters: nothing of a failed attempt may be seen.
"""

from __future__ import annotations

import asyncio
import sys
from random import Random
from typing import Any

from ottla.consumer import ConsumerRecord
from ottla.streams.app import App
from ottla.streams.handlers.context import Context


class Refused(Exception):
    """A record that fails for good."""


def make(servers: str, source: str, target: str, group: str, *settings: str) -> App:
    given: dict[str, Any] = dict(each.split("=", 1) for each in settings)
    given = {name: int(value) if value.isdigit() else value for name, value in given.items()}
    app = App(
        group,
        servers,
        processing_guarantee="exactly-once",
        transaction_timeout_ms=10_000,
        session_timeout_ms=6_000,
        heartbeat_interval_ms=500,
        retry_backoff_ms=20,
        dead_letter_topic=f"{target}.dead",
        on_error={Refused: "dead-letter"},
        drain_timeout_ms=10_000,
        **given,
    )
    chance, handled = Random(), 0

    @app.handle(source)
    async def image(record: ConsumerRecord, context: Context) -> None:
        nonlocal handled
        number = int(record.value)
        await context.send(target, b"%d first" % number, key=record.key)
        await asyncio.sleep(chance.random() * 0.02)
        if number % 50 == 13:
            raise Refused(f"{number} is refused")
        if number % 7 == 0 and context.attempt == 1:
            raise RuntimeError(f"{number} fails at first")
        await context.send(target, b"%d second" % number, key=record.key)
        handled += 1
        print(handled, flush=True)

    return app


if __name__ == "__main__":
    make(*sys.argv[1:]).run()
