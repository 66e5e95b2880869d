"""A program of the stream language that counts exactly once; says how many records it has handled."""

from __future__ import annotations

import asyncio
import sys
from random import Random

from ottla.streams.app import App


def make(servers: str, name: str, source: str, between: str, target: str, state_dir: str) -> App:
    app = App(
        name,
        servers,
        processing_guarantee="exactly-once",
        group_instance_id="one",
        transaction_timeout_ms=10_000,
        session_timeout_ms=6_000,
        heartbeat_interval_ms=500,
        drain_timeout_ms=10_000,
        state_dir=state_dir,
    )
    chance, handled = Random(), 0

    async def slowly(value: bytes) -> bytes:
        nonlocal handled
        await asyncio.sleep(chance.random() * 0.02)
        handled += 1
        print(handled, flush=True)
        return value

    records = app.stream(source, key=str, value=bytes).map_values(slowly)
    records.count(name="by-key", store="sqlite").map_values(lambda count: f"key {count}").to(target)
    by_digit = records.key_by(lambda value: value[-1:].decode()).through(between, key=str, value=bytes)
    by_digit.count(name="by-digit").map_values(lambda count: f"digit {count}").to(target)
    return app


if __name__ == "__main__":
    make(*sys.argv[1:]).run()
