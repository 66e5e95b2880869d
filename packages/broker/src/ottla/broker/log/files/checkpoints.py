"""Small files of a log directory and of a partition: replaced atomically, ignored when damaged."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

from ottla.broker.log.files.file_system import Files, write_atomically
from ottla.protocol.storage import CorruptStorage
from ottla.protocol.storage.checkpoints import (
    LEADER_EPOCHS_FILE,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    EpochStart,
    MetaProperties,
    decode_leader_epochs,
    decode_meta_properties,
    decode_offset_checkpoint,
    decode_partition_metadata,
    encode_leader_epochs,
    encode_meta_properties,
    encode_offset_checkpoint,
    encode_partition_metadata,
)
from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)


def read_offsets(files: Files, path: Path) -> dict[TopicPartition, int] | None:
    """Read an offset checkpoint; None when it is missing or damaged. Damage is logged."""
    try:
        data = files.read(path)
        if not data.endswith(b"\n"):
            raise CorruptStorage("its last line is cut off")
        return decode_offset_checkpoint(data)
    except FileNotFoundError:
        return None
    except CorruptStorage as error:
        log.warning("damaged file ignored", extra={"path": str(path), "reason": str(error)})
        return None


def write_offsets(files: Files, path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace an offset checkpoint. Blocks for the disk."""
    write_atomically(files, path, encode_offset_checkpoint(offsets))


def read_leader_epochs(files: Files, directory: Path) -> list[EpochStart] | None:
    """Read a partition's leader epochs; None when they are missing or damaged: the log has them too."""
    path = directory / LEADER_EPOCHS_FILE
    try:
        data = files.read(path)
        if not data.endswith(b"\n"):
            raise CorruptStorage("its last line is cut off")
        return decode_leader_epochs(data)
    except FileNotFoundError:
        return None
    except CorruptStorage as error:
        log.warning(
            "leader epochs read from the log, their file is damaged",
            extra={"path": str(path), "reason": str(error)},
        )
        return None


def write_leader_epochs(
    files: Files, directory: Path, entries: tuple[EpochStart, ...], *, sync: bool
) -> None:
    """Replace a partition's leader epochs; with `sync` it blocks for the disk."""
    write_atomically(files, directory / LEADER_EPOCHS_FILE, encode_leader_epochs(entries), sync=sync)


def read_topic_id(files: Files, directory: Path) -> UUID | None:
    """Read the topic id from `partition.metadata`; None when it is missing or damaged."""
    path = directory / PARTITION_METADATA_FILE
    try:
        return decode_partition_metadata(files.read(path))
    except FileNotFoundError:
        return None
    except CorruptStorage as error:
        log.warning("damaged file ignored", extra={"path": str(path), "reason": str(error)})
        return None


def write_topic_id(files: Files, directory: Path, topic_id: UUID) -> None:
    """Write `partition.metadata`; the first flush of the log syncs the directory."""
    write_atomically(
        files, directory / PARTITION_METADATA_FILE, encode_partition_metadata(topic_id), sync=False
    )


def read_meta_properties(files: Files, directory: Path) -> MetaProperties | None:
    """Read which broker and cluster own the directory; None without an owner. Raises CorruptStorage."""
    try:
        return decode_meta_properties(files.read(directory / META_PROPERTIES_FILE))
    except FileNotFoundError:
        return None


def write_meta_properties(files: Files, directory: Path, meta: MetaProperties) -> None:
    """Write which broker and cluster own the directory. Blocks for the disk."""
    write_atomically(files, directory / META_PROPERTIES_FILE, encode_meta_properties(meta))
