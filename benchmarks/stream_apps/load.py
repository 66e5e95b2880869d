"""The loads of stream applications: topics filled beforehand, and records sent at a steady rate.

Keys come in turns, so that every key has as much to do as any other. A record says how long its handler
takes, and its number within its key, so that applications can check the order.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from ottla.producer import Producer

CHUNK = 10_000
VALUE_BYTES = 100
TICK_S = 0.005


@dataclass(frozen=True)
class Load:
    """Records by number: `first` of no work for each key, then records whose handlers take some time.

    Every `slow_every`th handler takes `slow_us`, all others `handler_us`; 0 means none is slow.
    """

    keys: int
    handler_us: int
    slow_us: int = 0
    slow_every: int = 0
    first: int = 0

    def record(self, number: int, sent_us: int = 0) -> tuple[bytes, bytes]:
        """Return the key and the value of a record that is sent at a time."""
        turn, key = divmod(number, self.keys)
        head = b"%010d %09d %016d " % (turn, self._handler_us(number), sent_us)
        return b"customer-%07d" % key, head.ljust(VALUE_BYTES, b"v")

    def _handler_us(self, number: int) -> int:
        if number < self.first:
            return 0
        # A multiplicative hash: slow records are spread over keys, and the same in each run.
        is_slow = self.slow_every and number * 2_654_435_761 % 2**32 % self.slow_every == 0
        return self.slow_us if is_slow else self.handler_us

    @property
    def mean_s(self) -> float:
        """The mean time of a handler."""
        share = 1 / self.slow_every if self.slow_every else 0.0
        return (self.handler_us * (1 - share) + self.slow_us * share) / 1e6

    @property
    def ideal_per_s(self) -> float:
        """The rate at which all keys are at work all the time."""
        return self.keys / self.mean_s if self.mean_s else 0.0


def _producer(servers: str) -> Producer:
    return Producer(bootstrap_servers=servers, linger_ms=2)


async def fill(servers: str, topic: str, load: Load, total: int) -> None:
    """Write the first `total` records of a load."""
    async with _producer(servers) as producer:
        for begin in range(0, total, CHUNK):
            await _send(producer, topic, load, range(begin, min(begin + CHUNK, total)))
        await producer.flush()


async def send_steadily(servers: str, topic: str, load: Load, total: int, per_s: float) -> None:
    """Send records from `load.first` to `total` at a steady rate, each with the time of its sending."""
    async with _producer(servers) as producer:
        sent, begun = load.first, time.monotonic()
        while sent < total:
            await asyncio.sleep(TICK_S)
            due = min(total, load.first + int((time.monotonic() - begun) * per_s))
            if due > sent:
                await _send(producer, topic, load, range(sent, due))
                sent = due
        await producer.flush()


async def _send(producer: Producer, topic: str, load: Load, numbers: range) -> None:
    sent_us = time.time_ns() // 1_000
    records = [load.record(number, sent_us) for number in numbers]
    await producer.send_many(topic, [value for _, value in records], keys=[key for key, _ in records])
