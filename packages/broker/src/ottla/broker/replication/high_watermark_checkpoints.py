"""High watermarks on disk: one `replication-offset-checkpoint` in every log directory."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from ottla.broker.log.files.file_system import Files, write_atomically
from ottla.protocol.storage.checkpoints import (
    HIGH_WATERMARKS_FILE,
    decode_offset_checkpoint,
    encode_offset_checkpoint,
)

if TYPE_CHECKING:
    from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)


def read_high_watermarks(files: Files, directories: Iterable[Path]) -> dict[TopicPartition, int]:
    """Read all checkpoints; a missing or unreadable file counts as empty."""
    saved: dict[TopicPartition, int] = {}
    for directory in directories:
        try:
            saved.update(decode_offset_checkpoint(files.read(directory / HIGH_WATERMARKS_FILE)))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            path = directory / HIGH_WATERMARKS_FILE
            log.warning("checkpoint ignored", extra={"path": str(path), "reason": str(error)})
    return saved


class HighWatermarkCheckpoints:
    """Writes the files of one broker: one thread at a time, and the newest content stays.

    A pass that was cancelled leaves its thread behind, which may still write when the broker's stop does.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._lock = Lock()
        self._begun = 0
        self._written = 0
        self._content: dict[Path, Mapping[TopicPartition, int]] = {}
        """The content of the files that were written."""

    def begin(self) -> int:
        """The number of a content that is read now, for `write`; called where the content is read."""
        self._begun += 1
        return self._begun

    def write(self, number: int, by_directory: Mapping[Path, Mapping[TopicPartition, int]]) -> None:
        """Replace atomically each file whose content has changed, unless a newer one was written. Blocks."""
        with self._lock:
            if number < self._written:
                return
            for directory, offsets in by_directory.items():
                if self._content.get(directory) == offsets:
                    continue
                self._content.pop(directory, None)  # unknown, until it is written
                content = encode_offset_checkpoint(offsets)
                write_atomically(self._files, directory / HIGH_WATERMARKS_FILE, content)
                self._content[directory] = offsets
            self._written = number
