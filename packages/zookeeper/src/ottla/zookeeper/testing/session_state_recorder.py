"""Record the states of a session, and wait for one."""

from __future__ import annotations

import asyncio

from ottla.zookeeper.session import Session, SessionState, StateChange


class States:
    """The states that a session entered since this object was made, in order."""

    def __init__(self, session: Session) -> None:
        self.seen: list[SessionState] = []
        self._came = asyncio.Event()
        self.stop = session.listen(self._add)

    async def until(self, state: SessionState, timeout_s: float = 30.0) -> None:
        """Return once `state` was seen; raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while state not in self.seen:
                self._came.clear()
                await self._came.wait()

    def _add(self, change: StateChange) -> None:
        self.seen.append(change.state)
        self._came.set()
