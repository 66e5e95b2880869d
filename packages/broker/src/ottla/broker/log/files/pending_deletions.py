"""Files and directories that are deleted once `file.delete.delay.ms` has passed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Event
from typing import Final, NamedTuple

from ottla.broker.log.files.file_system import Files
from ottla.broker.log.hosting.directories import LogDirectory

STOP_S: Final = 30.0
"""How long a stop waits for the file that is being deleted."""


class _Pending(NamedTuple):
    due_ms: int
    paths: list[Path]
    directory: LogDirectory


class PendingDeletions:
    """Paths that are already renamed and wait for their deletion.

    `failed` is called with the directory that could not delete a path, and the error; the deletion is tried
    again unless the directory is offline then. A stop ends deletions at the next file: the next start finds
    by their names what is left of partitions, as Kafka does.
    """

    def __init__(self, files: Files, failed: Callable[[LogDirectory, OSError], None]) -> None:
        self._files = files
        self._failed = failed
        self._pending: list[_Pending] = []
        self._running: asyncio.Future[None] | None = None
        self._stopping = Event()

    def add(self, due_ms: int, paths: list[Path], directory: LogDirectory) -> None:
        """Delete `paths`, which are in `directory`, once `due_ms` has come."""
        self._pending.append(_Pending(due_ms, paths, directory))

    async def delete_due(self, now_ms: int) -> int:
        """Delete the paths that are due; returns how many."""
        due = [deletion for deletion in self._pending if deletion.due_ms <= now_ms]
        self._pending = [deletion for deletion in self._pending if deletion.due_ms > now_ms]
        for deletion in due:
            if deletion.directory.offline is None:
                try:
                    await self._on_thread(deletion.paths)
                except OSError as error:
                    self._failed(deletion.directory, error)
                    self._pending.append(deletion)
        return sum(len(deletion.paths) for deletion in due)

    async def stop(self) -> None:
        """End deletions, and wait for the thread that works on one: nothing is deleted behind this."""
        self._stopping.set()
        if self._running is not None:
            await asyncio.wait([self._running], timeout=STOP_S)

    async def _on_thread(self, paths: Iterable[Path]) -> None:
        running = asyncio.get_running_loop().run_in_executor(None, self._delete, paths)
        self._running = running
        running.add_done_callback(_read_error)
        await asyncio.shield(running)  # a cancelled wait leaves the thread at work: `stop` waits for it

    def _delete(self, paths: Iterable[Path]) -> None:
        for path in paths:
            if self._stopping.is_set():
                break
            if self._files.is_dir(path):
                self._delete_tree(path)
            else:
                self._files.unlink(path)

    def _delete_tree(self, path: Path) -> None:
        for name in self._files.list(path):
            if self._stopping.is_set():
                return
            if not self._files.is_dir(path / name):
                self._files.unlink(path / name)
        self._files.remove_tree(path)


def _read_error(running: asyncio.Future[None]) -> None:
    if not running.cancelled():
        running.exception()  # else asyncio would report it once more when the wait was cancelled
