"""The cluster in memory, and the life of a member in it, which a test can end as a crash does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ottla.producer import ProducerFenced
from ottla.streams.testing.memory_group import MemoryGroup
from ottla.streams.testing.memory_log import MemoryLog


class Fenceable(Protocol):
    """A producer with transactions."""

    def fence(self, error: ProducerFenced) -> None:
        """Another producer has its transactional id now."""


class MemoryCluster:
    """Topics, groups, and the producers of transactional ids.

    `on_group` is called with each new group, and has to serve it.
    """

    def __init__(self, log: MemoryLog, on_group: Callable[[MemoryGroup], None]) -> None:
        self.log = log
        self.groups: dict[str, MemoryGroup] = {}
        self._on_group = on_group
        self._transactional: dict[str, Fenceable] = {}

    def group(self, group_id: str) -> MemoryGroup:
        """Return a group, made when it is first asked for."""
        found = self.groups.get(group_id)
        if found is None:
            found = self.groups[group_id] = MemoryGroup(group_id, self.log)
            self._on_group(found)
        return found

    def take_transactional_id(self, transactional_id: str, producer: Fenceable) -> None:
        """Give a transactional id to a producer, and fence the one that had it."""
        before = self._transactional.get(transactional_id)
        if before is not None and before is not producer:
            before.fence(ProducerFenced(transactional_id))
        self._transactional[transactional_id] = producer


class Life:
    """How long the clients of a member work. After its end they do nothing any more, and never answer."""

    def __init__(self, number: int) -> None:
        self.is_ended = False
        self._number = number
        self._clients = 0
        self._on_end: list[Callable[[], None]] = []

    def name_client(self, kind: str) -> str:
        """Return a name for a new client."""
        self._clients += 1
        return f"member-{self._number}-{kind}-{self._clients}"

    def on_end(self, function: Callable[[], None]) -> None:
        """Call a function at the end."""
        self._on_end.append(function)

    def end(self) -> None:
        """End it, as a crash does."""
        self.is_ended = True
        for end in self._on_end:
            end()

    async def going_on(self) -> None:
        """Return at once; after the end, never."""
        if self.is_ended:
            await asyncio.get_running_loop().create_future()
