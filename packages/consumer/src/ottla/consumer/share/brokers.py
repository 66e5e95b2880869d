"""The brokers that a share consumer has sessions with, and the answers that it awaits of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from ottla.consumer.share.session import SharePartition, ShareSession


class Answer:
    """The result of an acknowledgement. To await it sends the acknowledgement at once."""

    __slots__ = ("_broker", "_error", "_future", "_is_done", "_wake")

    def __init__(self, broker: Broker | None, wake: Callable[[], None]) -> None:
        self._broker = broker
        self._wake = wake
        self._is_done = False
        self._error: Exception | None = None
        self._future: asyncio.Future[None] | None = None

    def settle(self, error: Exception | None) -> None:
        """Note the broker's answer."""
        self._is_done, self._error = True, error
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def __await__(self) -> Generator[Any, None, None]:
        if not self._is_done:
            if self._broker is not None:
                self._broker.is_urgent = True
            self._wake()
            self._future = self._future or asyncio.get_running_loop().create_future()
            yield from asyncio.shield(self._future).__await__()
        if self._error is not None:
            raise self._error


class Broker:
    """The session with one broker, and the requests that are under way to it."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.session = ShareSession()
        self.is_busy = False
        self.is_urgent = False
        self.not_before_s = 0.0
        self.acknowledge_by_s: float | None = None
        self.answers: dict[tuple[SharePartition, int], Answer] = {}
