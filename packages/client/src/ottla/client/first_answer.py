"""Ask several servers the same, one after the other with a short stagger: the first answer wins.

A server that is silent then costs the stagger, not a timeout. RFC 8305 connects to the addresses of one host
in the same way, and with the same stagger.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from ottla.client.config import Address
from ottla.client.errors import (
    AuthenticationFailed,
    ClientClosed,
    ClientError,
    NoBrokerAvailable,
    UnsupportedByBroker,
)

T = TypeVar("T")

BOOTSTRAP_STAGGER_S: Final = 0.25
"""The stagger between servers of which none has answered yet."""
STAGGER_S: Final = 1.0
"""The stagger in a cluster that is known: a busy broker shall not be taken for a silent one at once."""

_FINAL = (AuthenticationFailed, ClientClosed, UnsupportedByBroker)


async def first_answer(
    servers: Sequence[Address],
    ask: Callable[[Address], Awaitable[T]],
    *,
    stagger_s: float,
    timeout_s: float | None = None,
) -> T:
    """Return the first answer of `ask(server)`; the next server is asked after a stagger or a failure.

    Raises NoBrokerAvailable, which names each server and its cause, when all failed or `timeout_s` is over;
    AuthenticationFailed, ClientClosed and UnsupportedByBroker at once.
    """
    race: _Race[T] = _Race(ask, deque(servers))
    try:
        async with asyncio.timeout(timeout_s):
            answer = await race.run(stagger_s)
    except TimeoutError:
        answer = None
    if answer is None:
        raise NoBrokerAvailable(race.reasons(timeout_s))
    if isinstance(answer, Exception):
        raise answer
    return answer


@dataclass(slots=True)
class _Race(Generic[T]):
    ask: Callable[[Address], Awaitable[T]]
    waiting: deque[Address]
    running: dict[asyncio.Task[T | Exception], Address] = field(default_factory=dict)
    failed: dict[Address, ClientError] = field(default_factory=dict)
    silent: list[Address] = field(default_factory=list)

    async def run(self, stagger_s: float) -> T | Exception | None:
        """Return the first answer, or an error that no other server would mend; None if all failed."""
        async with asyncio.TaskGroup() as tasks:
            try:
                return await self._first(tasks, stagger_s)
            finally:
                self.silent = list(self.running.values())
                for task in self.running:
                    task.cancel()

    def reasons(self, timeout_s: float | None) -> list[str]:
        """Return why no server answered, a line for each that was asked."""
        late = f"no answer within {timeout_s:g} s" if timeout_s is not None else "no answer"
        return [*map(str, self.failed.values()), *(f"{address}: {late}" for address in self.silent)]

    async def _first(self, tasks: asyncio.TaskGroup, stagger_s: float) -> T | Exception | None:
        while self.waiting or self.running:
            if self.waiting:
                address = self.waiting.popleft()
                self.running[tasks.create_task(self._attempt(address))] = address
            bound_s = stagger_s if self.waiting else None
            done, _ = await asyncio.wait(self.running, timeout=bound_s, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                address = self.running.pop(task)
                answer = task.result()
                if not isinstance(answer, ClientError) or isinstance(answer, _FINAL):
                    return answer
                self.failed[address] = answer
        return None

    async def _attempt(self, address: Address) -> T | Exception:
        """Return the answer or the error: raised in here, it would end the whole group of tasks."""
        try:
            return await self.ask(address)
        except Exception as error:
            return error
