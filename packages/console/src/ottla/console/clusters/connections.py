"""Connections of the console to its clusters, opened when a page first asks, and the samples of each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from ottla.admin import Admin, ClusterState, GroupListing
from ottla.admin.groups import GroupProgress, read_progress
from ottla.console.clusters.samples import FRESH_S, Sample, Sampled
from ottla.console.settings import REQUEST_TIMEOUT_MS, ClusterSettings

T = TypeVar("T")

MOST_SAMPLES: Final = 2_000
"""Questions whose answers one cluster keeps; the one that was not read for longest goes first."""


class ShownCluster:
    """One cluster: an admin client, connected with the first question, and what was asked of it."""

    def __init__(
        self, settings: ClusterSettings, tasks: asyncio.TaskGroup, stack: AsyncExitStack,
        now_s: Callable[[], float],
    ) -> None:  # fmt: skip
        self.name = settings.name
        self.bootstrap_servers = settings.bootstrap_servers
        self._settings = settings
        self._tasks = tasks
        self._stack = stack
        self._now_s = now_s
        self._admin: Admin | None = None
        self._connecting = asyncio.Lock()
        self._samples: dict[tuple[str, ...], Sampled[Any]] = {}

    async def admin(self) -> Admin:
        """Return the connected client. Raises ClientError, SettingError."""
        async with self._connecting:
            if self._admin is None:
                # Secrets of a profile may come from a command, which takes its time.
                config = await asyncio.to_thread(self._settings.config)
                bounded = replace(
                    config, request_timeout_ms=REQUEST_TIMEOUT_MS, bootstrap_timeout_ms=REQUEST_TIMEOUT_MS,
                    default_api_timeout_ms=2 * REQUEST_TIMEOUT_MS,
                )  # fmt: skip
                admin = Admin(self.bootstrap_servers, bounded)
                self._admin = await self._stack.enter_async_context(admin)
            return self._admin

    async def state(self) -> Sample[ClusterState]:
        """Return brokers, partitions and log directories."""
        return await self._sample(("state",), lambda admin: admin.cluster_state())

    async def groups(self) -> Sample[list[GroupListing]]:
        """Return all groups."""
        return await self._sample(("groups",), lambda admin: admin.groups.list())

    async def progress(self, group: str) -> Sample[GroupProgress]:
        """Return the members and the lag of a group."""
        return await self._sample(
            ("progress", group),
            lambda admin: read_progress(admin.groups, admin.offsets, admin.topics, group),
        )

    async def ask(
        self, key: tuple[str, ...], question: Callable[[Admin], Awaitable[T]], *, fresh_s: float = FRESH_S
    ) -> Sample[T]:
        """Return the answer to a question of a page, which `key` names."""
        return await self._sample(("page", *key), question, fresh_s=fresh_s)

    def forget(self) -> None:
        """Ask everything again at the next look."""
        for sampled in self._samples.values():
            sampled.forget()

    def cancel(self) -> None:
        """Give up all questions that wait for answers."""
        for sampled in self._samples.values():
            sampled.cancel()

    async def _sample(
        self, key: tuple[str, ...], question: Callable[[Admin], Awaitable[T]], *, fresh_s: float = FRESH_S
    ) -> Sample[T]:
        async def ask() -> T:
            return await question(await self.admin())

        if (sampled := self._samples.get(key)) is None:
            if len(self._samples) >= MOST_SAMPLES:
                oldest = min(self._samples, key=lambda known: self._samples[known].used_s)
                self._samples.pop(oldest).cancel()
            sampled = self._samples[key] = Sampled(ask, self._tasks, self._now_s, fresh_s=fresh_s)
        found: Sample[T] = await sampled.get()
        return found


class ShownClusters:
    """All clusters of the console; inside `async with` they can be asked."""

    def __init__(self, clusters: Iterable[ClusterSettings], now_s: Callable[[], float]) -> None:
        self._settings = tuple(clusters)
        self._now_s = now_s
        self._tasks = asyncio.TaskGroup()
        self._stack = AsyncExitStack()
        self._shown: dict[str, ShownCluster] = {}

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        await self._stack.__aenter__()
        for settings in self._settings:
            self._shown[settings.name] = ShownCluster(settings, self._tasks, self._stack, self._now_s)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A question that still connects would leave its connection open behind the stack.
        for cluster in self._shown.values():
            cluster.cancel()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            await self._stack.aclose()

    def __iter__(self) -> Iterator[ShownCluster]:
        return iter(self._shown.values())

    def get(self, name: str) -> ShownCluster | None:
        """Return a cluster; None for an unknown name."""
        return self._shown.get(name)
