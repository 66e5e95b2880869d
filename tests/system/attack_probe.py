"""A well-behaved client beside an attack: what it notices is what the attack costs others.

It runs in a process of its own, so that it does not wait for the attacker. One connection sends ApiVersions
every 5 ms: its longest answer is the longest stall of the broker's event loop, and a little more. Another
produces a record every 5 ms with acks=all. Both times are printed as JSON when the input ends.

python tests/system/attack_probe.py PORT < /dev/zero
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Awaitable, Callable

from connections import Client, create_topic, produce

from ottla.protocol.api import ApiKey
from ottla.protocol.messages.api_versions import ApiVersionsRequest

INTERVAL_S = 0.005
READY = "ready"


async def timed(call: Callable[[], Awaitable[object]], times_ms: list[float]) -> None:
    """Await `call()` again and again until cancelled; each time is appended."""
    while True:
        begun = time.perf_counter()
        try:
            await call()
        finally:  # also what did not end: an attack that stops the broker for good is the longest stall
            times_ms.append((time.perf_counter() - begun) * 1_000)
        await asyncio.sleep(INTERVAL_S)


async def probe(port: int) -> dict[str, list[float]]:
    """Measure until standard input ends."""
    await create_topic(port)
    asking, producing = Client(port), Client(port)
    await asyncio.gather(asking.open(), producing.open())
    body = ApiVersionsRequest().encode(0)
    times: dict[str, list[float]] = {"answers_ms": [], "produce_ms": []}
    await produce(producing, 0)  # the first append makes the log's files
    print(READY, flush=True)
    tasks = [
        asyncio.ensure_future(
            timed(lambda: asking.ask(ApiKey.API_VERSIONS, 0, body, False), times["answers_ms"])
        ),
        asyncio.ensure_future(timed(lambda: produce(producing, 0), times["produce_ms"])),
    ]
    ended = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait([ended, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    return times


if __name__ == "__main__":
    print(json.dumps(asyncio.run(probe(int(sys.argv[1])))), flush=True)
