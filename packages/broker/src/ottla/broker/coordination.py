"""Calls to ZooKeeper that wait a lost connection out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from ottla.zookeeper.errors import ZooKeeperError

_T = TypeVar("_T")

RETRY_BACKOFF_S: Final = 0.1


async def retrying(attempt: Callable[[], Awaitable[_T]]) -> _T:
    """Repeat a call while ZooKeeper cannot be reached. The bound is the caller's, or the session's end.

    Only for calls that may be made twice: a write whose answer was lost may have been done.
    """
    while True:
        try:
            return await attempt()
        except ZooKeeperError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(RETRY_BACKOFF_S)
