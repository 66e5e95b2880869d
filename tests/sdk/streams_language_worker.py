"""A program of the stream language that counts, and sums counts up; says how many records it has handled."""

from __future__ import annotations

import asyncio
import sys
from random import Random

from ottla.streams.app import App


def make(
    servers: str, name: str, source: str, between: str, target: str, state_dir: str, instance: str = "one"
) -> App:
    app = App(
        name,
        servers,
        processing_guarantee="exactly-once",
        group_instance_id=instance,
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
    counts = records.count(name="by-key", store="sqlite")
    counts.map_values(lambda count: f"key {count}").to(target)
    sums = counts.aggregate(int, lambda total, count: total + count, name="sums")
    sums.map_values(lambda total: f"sum {total}").to(target)
    by_digit = records.key_by(lambda value: value[-1:].decode()).through(between, key=str, value=bytes)
    by_digit.count(name="by-digit").map_values(lambda count: f"digit {count}").to(target)
    return app


if __name__ == "__main__":
    make(*sys.argv[1:]).run()
