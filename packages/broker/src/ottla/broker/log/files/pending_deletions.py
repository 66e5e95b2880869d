"""Files and directories that are deleted once `file.delete.delay.ms` has passed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from ottla.broker.log.files.file_system import Files
from ottla.broker.log.hosting.directories import LogDirectory


class _Pending(NamedTuple):
    due_ms: int
    paths: list[Path]
    directory: LogDirectory


class PendingDeletions:
    """Paths that are already renamed and wait for their deletion.

    `failed` is called with the directory that could not delete a path, and the error; the deletion is tried
    again unless the directory is offline then.
    """

    def __init__(self, files: Files, failed: Callable[[LogDirectory, OSError], None]) -> None:
        self._files = files
        self._failed = failed
        self._pending: list[_Pending] = []

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
                    await asyncio.to_thread(self._delete, deletion.paths)
                except OSError as error:
                    self._failed(deletion.directory, error)
                    self._pending.append(deletion)
        return sum(len(deletion.paths) for deletion in due)

    def _delete(self, paths: Iterable[Path]) -> None:
        for path in paths:
            if self._files.is_dir(path):
                self._files.remove_tree(path)
            else:
                self._files.unlink(path)
