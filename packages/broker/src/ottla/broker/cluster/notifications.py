"""Changes in ZooKeeper that are announced by numbered notifications: ACLs, tokens and dynamic settings.

A writer changes a znode and then adds a notification. A broker first watches the notifications, then reads
everything, then reads again each znode that a notification names: a notification is a hint, the znode is the
truth.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from ottla.broker.runtime.loop_budget import slices
from ottla.zookeeper.session import EventType, NodeExists, NoNode, WatchEvent, ZooKeeperError

if TYPE_CHECKING:
    from ottla.broker.runtime.clock import Clock
    from ottla.zookeeper.session import Session

_log = logging.getLogger(__name__)

NOTIFICATION_LIFE_MS: Final = 15 * 60_000
RETRY_BACKOFF_S: Final = 0.1

ReadAll = Callable[[], Awaitable[None]]
ReadNamed = Callable[[Iterable[tuple[str, bytes]]], Awaitable[None]]
"""Takes path and data of notifications, and reads again the znodes that they name."""


class Notifications:
    """Follows the numbered notifications below some znodes: each is read once, and removed past its life."""

    def __init__(
        self,
        session: Session,
        clock: Clock,
        folders: Sequence[str],
        *,
        read_all: ReadAll,
        read_named: ReadNamed,
        about: str,
    ) -> None:
        """Both functions raise ZooKeeperError; `about` is the name of the changes in the log."""
        self._session = session
        self._clock = clock
        self._read_all = read_all
        self._read_named = read_named
        self._about = about
        self._created_ms: dict[str, dict[str, float]] = {folder: {} for folder in folders}
        """The notifications that were read and still exist, by their folder."""
        self._has_moved = asyncio.Event()
        self._is_reload_due = False

    async def load(self) -> None:
        """Watch for notifications, then read everything. Raises ZooKeeperError."""
        self._is_reload_due = False
        for folder in self._created_ms:
            await self._skip(folder)
        await self._read_all()

    async def follow(self) -> None:
        """Read changes until cancelled. After a lost connection everything is read again."""
        fails = False
        while True:
            await self._has_moved.wait()
            self._has_moved.clear()
            try:
                await (self.load() if self._is_reload_due else self._read_new())
                fails = False
            except ZooKeeperError as error:
                if not fails:
                    facts = {"changes": self._about, "reason": str(error)}
                    _log.warning("changes not read until ZooKeeper answers", extra=facts)
                fails = True
                await asyncio.sleep(RETRY_BACKOFF_S)
                self.reload_soon()

    def reload_soon(self) -> None:
        """Read everything again, as soon as `follow` runs."""
        self._is_reload_due = True
        self._has_moved.set()

    def _notified(self, event: WatchEvent) -> None:
        self._is_reload_due |= event.type is EventType.NONE
        self._has_moved.set()

    async def _names(self, folder: str) -> list[str]:
        """Watch a folder, which is created where it is missing, and list its notifications."""
        try:
            return await self._session.children(folder, self._notified)
        except NoNode:
            await quietly(self._session.create(folder, make_parents=True), NodeExists)
            return await self._session.children(folder, self._notified)

    async def _skip(self, folder: str) -> None:
        """Take the notifications that are there for read: everything is read after this."""
        known, now_ms = self._created_ms[folder], self._clock.now_ms()
        self._created_ms[folder] = {name: known.get(name, now_ms) for name in await self._names(folder)}

    async def _read_new(self) -> None:
        found: list[tuple[str, bytes]] = []
        for folder in self._created_ms:
            found += await self._new_in(folder)
        await self._read_named(found)

    async def _new_in(self, folder: str) -> list[tuple[str, bytes]]:
        """Watch a folder again, and return path and data of the new notifications."""
        names, known = await self._names(folder), self._created_ms[folder]
        found: list[tuple[str, bytes]] = []
        for some in slices([name for name in names if name not in known]):
            reads = await asyncio.gather(*(self._read(folder, name) for name in some))
            found += [read for read in reads if read is not None]
        present = set(names)
        for gone in [name for name in known if name not in present]:
            del known[gone]
        await self._remove_old(folder)
        return found

    async def _read(self, folder: str, name: str) -> tuple[str, bytes] | None:
        path = f"{folder}/{name}"
        try:
            data, stat = await self._session.get(path)
        except NoNode:
            return None
        self._created_ms[folder][name] = stat.ctime_ms
        return path, data

    async def _remove_old(self, folder: str) -> None:
        end_ms = self._clock.now_ms() - NOTIFICATION_LIFE_MS
        for name in [name for name, at_ms in self._created_ms[folder].items() if at_ms < end_ms]:
            await quietly(self._session.delete(f"{folder}/{name}"), NoNode)


async def quietly(call: Awaitable[object], ignored: type[ZooKeeperError]) -> None:
    """Await a call that may fail in one way without consequence."""
    try:
        await call
    except ignored:
        return
