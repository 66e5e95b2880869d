"""Retries: exponential backoff with jitter, bounded by a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from ottla.client.environment import chance
from ottla.client.errors import ClientError, DeadlineExceeded
from ottla.protocol.errors import KafkaError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Backoff:
    """The wait before each further attempt (KIP-144, KIP-580)."""

    initial_ms: float = 100
    max_ms: float = 1_000
    jitter: float = 0.2

    def delay_ms(self, attempt: int, chance: float) -> float:
        """Return the wait after failed attempt `attempt`, counted from 0; `chance` is within [0, 1)."""
        # 2.0 ** 1024 overflows a float, and the maximum is reached long before.
        grown = min(self.initial_ms * 2.0 ** min(attempt, 60), self.max_ms)
        return float(grown * (1 - self.jitter + 2 * self.jitter * chance))


def is_retriable(error: BaseException) -> bool:
    """Return whether the same request may succeed later."""
    return isinstance(error, (ClientError, KafkaError)) and error.retriable


async def retrying(
    what: str,
    call: Callable[[], Awaitable[T]],
    *,
    timeout_s: float,
    backoff: Backoff,
    before_retry: Callable[[BaseException], Awaitable[None]] | None = None,
) -> T:
    """Await `call()` until it succeeds, raises an error that is not retriable, or `timeout_s` have passed.

    `before_retry` is called with each retriable error, for instance to refresh metadata. Raises the error of
    `call` when it is not retriable, and `DeadlineExceeded` from the last error otherwise.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    attempt = 0
    last: BaseException | None = None
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                return await call()
        except TimeoutError as error:
            raise DeadlineExceeded(what, timeout_s, last) from (last or error)
        except (ClientError, KafkaError) as error:
            if not error.retriable:
                raise
            last = error
        delay_s = backoff.delay_ms(attempt, chance()) / 1_000
        if loop.time() + delay_s >= deadline:
            raise DeadlineExceeded(what, timeout_s, last) from last
        await asyncio.sleep(delay_s)
        attempt += 1
        if before_retry is not None:
            await before_retry(last)
