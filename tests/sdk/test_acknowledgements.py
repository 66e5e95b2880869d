"""What senders hold of their records, by several waiters at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ottla.producer import Producer


async def test_a_waiter_that_gives_up_does_not_take_the_others_with_it(
    cluster: Any, fresh: Callable[[str], str]
) -> None:
    topic = fresh("waiters")
    async with Producer(cluster.bootstrap_servers, linger_ms=300) as producer:
        await producer.partitions_for(topic)
        first, second = [await producer.send(topic, b"x", partition=0) for _ in range(2)]
        many = await producer.send_many(topic, [b"a", b"b"], partition=0)

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(first, 0.01)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(many, 0.01)

        assert (await second).offset == (await first).offset + 1
        assert [each.result().offset for each in await many] == [2, 3]
