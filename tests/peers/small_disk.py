"""A disk of a few megabytes, for tests of what runs out of space; only root may mount one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_BALLAST = "ballast"
_PIECE = 64 * 1024


class SmallDisk:
    """A mounted file system with little space."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, spare: int = 0) -> None:
        """Take all space that is left, but `spare` bytes."""
        with (self.folder / _BALLAST).open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(_PIECE))
            except OSError:
                os.truncate(file.fileno(), max(0, file.tell() - spare))

    def free(self) -> None:
        """Give the space back."""
        (self.folder / _BALLAST).unlink()


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[SmallDisk]:
    """Mount an empty disk of so many mebibytes at a new folder; skip the test where this is not allowed."""
    folder.mkdir()
    mounted = _run("mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=0755", "ottla-test", str(folder))
    if mounted is not None:
        pytest.skip(f"a small disk cannot be mounted, which takes root: {mounted}")
    try:
        yield SmallDisk(folder)
    finally:
        # Lazily: a process that was killed may not have closed its files yet.
        _run("umount", "--lazy", str(folder))


def _run(*command: str) -> str | None:
    """Run a command; return what it said if it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.strip()
