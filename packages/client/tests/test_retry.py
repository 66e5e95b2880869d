from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.errors import DeadlineExceeded
from ottla.client.retry import Backoff, retrying
from ottla.protocol.errors import InvalidTopicException, NotController

FAST = Backoff(initial_ms=1, max_ms=2)


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_waits_grow_and_stay_within_their_bounds(attempt: int, chance: float) -> None:
    delay_ms = Backoff(100, 1_000).delay_ms(attempt, chance)

    assert 80 <= delay_ms <= 1_200
    assert attempt < 4 or delay_ms >= 800


async def test_a_retriable_error_is_retried() -> None:
    failures = [NotController(), NotController()]

    async def call() -> str:
        if failures:
            raise failures.pop()
        return "done"

    assert await retrying("it", call, timeout_s=5, backoff=FAST) == "done"


async def test_an_error_that_is_not_retriable_is_raised_at_once() -> None:
    calls = []

    async def call() -> None:
        calls.append(1)
        raise InvalidTopicException

    with pytest.raises(InvalidTopicException):
        await retrying("it", call, timeout_s=5, backoff=FAST)
    assert len(calls) == 1


async def test_a_call_that_hangs_ends_at_the_deadline() -> None:
    with pytest.raises(DeadlineExceeded, match=r"it did not succeed within 0\.02 s"):
        await retrying("it", asyncio.Event().wait, timeout_s=0.02, backoff=FAST)


async def test_the_last_failure_is_the_cause() -> None:
    async def call() -> None:
        raise NotController

    with pytest.raises(DeadlineExceeded) as caught:
        await retrying("it", call, timeout_s=0.02, backoff=FAST)
    assert isinstance(caught.value.__cause__, NotController)
