"""A store in a SQLite file, on a thread of its own: the event loop never waits for the disk."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

from ottla.streams.dedupe.batching import Batcher
from ottla.streams.dedupe.errors import DedupeMisconfigured
from ottla.streams.dedupe.store import Claim, Scope
from ottla.streams.dedupe.stores.sqlite_file import FileSettings, MarksFile, Operation
from ottla.streams.dedupe.window import DAY_MS, WindowLimits
from ottla.streams.environment import now_ms

PART_LENGTH: Final = 1_000


class SqliteStore:
    """Remembers identities in a file on this machine, by default for a day; the durable default.

    Members on one machine may share the file. Marks of concurrent handlers are committed together, with one
    fsync (`synchronous="full"`, which survives a power failure) or without (`"normal"`, which survives the
    end of the process). `max_bytes` limits the file, 0 does not. While the file is locked for longer than
    `busy_timeout_ms`, full, gone or damaged, calls raise StoreUnavailable.
    """

    claims = True
    has_topic_scope = True
    is_remote = True

    def __init__(
        self,
        path: str | Path,
        *,
        ttl_ms: int | None = DAY_MS,
        max_ids: int | None = None,
        max_bytes: int = 0,
        synchronous: Literal["full", "normal"] = "full",
        busy_timeout_ms: int = 1_000,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        if synchronous not in ("full", "normal"):
            raise DedupeMisconfigured(f"synchronous must be 'full' or 'normal', not {synchronous!r}")
        self._limits = WindowLimits(ttl_ms, max_ids)
        settings = FileSettings(max_bytes, synchronous, busy_timeout_ms)
        # Absolute, because the file may be opened again after the working directory has changed.
        self._file = MarksFile(Path(os.path.abspath(path)), self._limits, settings)
        self._clock = clock
        self._thread: ThreadPoolExecutor | None = None
        self._batcher: Batcher[Operation, Any] | None = None
        self._open = AsyncExitStack()

    @property
    def limits(self) -> WindowLimits:
        """The window in which the store remembers."""
        return self._limits

    def __str__(self) -> str:
        return str(self._file)

    async def __aenter__(self) -> Self:
        self._file.check_folder()
        self._thread = ThreadPoolExecutor(1, "ottla-dedupe-sqlite")
        self._open.callback(self._thread.shutdown)
        self._open.push_async_callback(self._on_thread, self._file.close)
        self._batcher = await self._open.enter_async_context(Batcher(self._run))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.__aexit__(None, None, None)

    async def assign(self, scope: Scope) -> None:
        """Do nothing: what other members marked is in the file, if they share it."""

    def revoke(self, scope: Scope) -> None:
        """Do nothing: marks are in the file."""

    async def seen(self, scope: Scope, identities: Collection[bytes]) -> set[bytes]:
        """Return those of the identities that were marked within the window."""
        found: set[bytes] = await self._submit(MarksFile.seen, scope, identities, self._clock(), writes=False)
        return found

    async def mark(self, scope: Scope, identities: Collection[bytes]) -> None:
        """Remember identities, all or none, and end the claims on them."""
        await self._submit(MarksFile.mark, scope, identities, self._clock())

    async def claim(self, scope: Scope, identity: bytes, owner: str, lease_ms: int) -> Claim:
        """Mark an identity as being handled by `owner`, unless it is marked or claimed by another one."""
        found: Claim = await self._submit(MarksFile.claim, scope, identity, owner, self._clock(), lease_ms)
        return found

    async def release(self, scope: Scope, identity: bytes, owner: str) -> None:
        """End a claim of `owner` without a mark."""
        await self._submit(MarksFile.release, scope, identity, owner)

    async def identities(self, scope: Scope) -> AsyncIterator[Sequence[bytes]]:
        """Yield all identities within the window, in parts."""
        part: list[bytes] = []
        after: bytes | None = None
        while part or after is None:
            part = await self._submit(MarksFile.part, scope, after, PART_LENGTH, self._clock(), writes=False)
            yield part
            after = part[-1] if part else b""

    async def _submit(
        self, method: Callable[..., Any], scope: Scope, *arguments: object, writes: bool = True
    ) -> Any:
        assert self._batcher is not None, "use the store in `async with`"
        call = partial(_call, method, str(scope), arguments)
        return await self._batcher.submit(Operation(call, writes))

    async def _run(self, operations: list[Operation]) -> Sequence[Any]:
        results: Sequence[Any] = await self._on_thread(self._file.run, operations)
        return results

    async def _on_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


def _call(method: Callable[..., Any], scope: str, arguments: tuple[object, ...], file: MarksFile) -> Any:
    return method(file, scope, *arguments)
