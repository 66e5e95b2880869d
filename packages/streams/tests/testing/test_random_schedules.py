"""Random schedules of records, failures, kills and rebalances on the driver: the product's promises hold."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from random import Random
from typing import Any

import pytest

from ottla.consumer import ConsumerRecord
from ottla.streams import App, Context
from ottla.streams.testing import StreamsTest

STEPS = 40
KEYS = 7


def copying(chance: Random, **settings: Any) -> App:
    """Copies records slowly, and fails now and then."""
    app = App("copying", max_concurrency=5, retry_backoff_ms=50, retries=1_000, **settings)

    @app.handle("orders")
    async def copy(record: ConsumerRecord, context: Context) -> None:
        await asyncio.sleep(chance.random() / 10)
        await context.send("copies", record.value, key=record.key, partition=0)
        if chance.random() < 0.1:
            raise ConnectionError("not now")

    return app


def step(test: StreamsTest, chance: Random, sent: dict[bytes, list[int]]) -> None:
    """Do one thing."""
    match chance.choice(["send", "send", "send", "advance", "advance", "rebalance", "kill", "stop", "start"]):
        case "send":
            for _ in range(chance.randrange(10)):
                key = b"%d" % chance.randrange(KEYS)
                sent[key].append(len(sent[key]))
                test.send("orders", b"%d" % sent[key][-1], key=key)
        case "advance":
            test.advance(ms=chance.randrange(1_500))
        case "rebalance":
            test.rebalance()
        case "kill" if test.members:
            test.kill_member(chance.choice(test.members))
        case "stop" if test.members:
            test.stop_member(chance.choice(test.members))
        case "start" if len(test.members) < 3:
            test.start_member()


def run(seed: int, **settings: Any) -> tuple[dict[bytes, list[int]], dict[bytes, list[int]]]:
    """Return what was sent and what was copied, by key."""
    chance = Random(seed)
    sent: dict[bytes, list[int]] = defaultdict(list)
    with StreamsTest(lambda: copying(chance, **settings), partitions=3, members=2) as test:
        for _ in range(STEPS):
            step(test, chance, sent)
        if not test.members:
            test.start_member()
        test.advance(minutes=1)
    copied: dict[bytes, list[int]] = defaultdict(list)
    for record in test.records("copies"):
        copied[record.key].append(int(record.value))
    return sent, copied


@pytest.mark.parametrize("seed", range(15))
def test_exactly_once_copies_each_record_once_and_in_the_order_of_its_key(seed: int) -> None:
    sent, copied = run(seed, processing_guarantee="exactly-once")

    assert copied == sent


@pytest.mark.parametrize("seed", range(15))
def test_at_least_once_loses_nothing_and_begins_each_key_in_order(seed: int) -> None:
    sent, copied = run(seed)

    first_copies = {key: list(dict.fromkeys(values)) for key, values in copied.items()}
    assert first_copies == sent
