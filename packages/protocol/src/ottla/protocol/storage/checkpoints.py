"""The small text files of a log directory and of a partition.

All are written whole, beside the old file and then over it, by the caller; here are only their contents.
Topic ids are 22 characters of URL-safe base64, as Kafka writes them everywhere (KIP-516).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar
from uuid import UUID

from ottla.protocol.storage import CorruptStorage
from ottla.protocol.storage.properties import decode_properties, encode_properties
from ottla.protocol.topics import TopicPartition

__all__ = [
    "CLEANER_OFFSETS_FILE",
    "HIGH_WATERMARKS_FILE",
    "LEADER_EPOCHS_FILE",
    "LOG_START_OFFSETS_FILE",
    "META_PROPERTIES_FILE",
    "PARTITION_METADATA_FILE",
    "RECOVERY_POINTS_FILE",
    "EpochStart",
    "MetaProperties",
    "decode_leader_epochs",
    "decode_meta_properties",
    "decode_offset_checkpoint",
    "decode_partition_metadata",
    "decode_uuid",
    "encode_leader_epochs",
    "encode_meta_properties",
    "encode_offset_checkpoint",
    "encode_partition_metadata",
    "encode_uuid",
]


RECOVERY_POINTS_FILE = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS_FILE = "replication-offset-checkpoint"
LOG_START_OFFSETS_FILE = "log-start-offset-checkpoint"
CLEANER_OFFSETS_FILE = "cleaner-offset-checkpoint"
LEADER_EPOCHS_FILE = "leader-epoch-checkpoint"
META_PROPERTIES_FILE = "meta.properties"
PARTITION_METADATA_FILE = "partition.metadata"

_Entry = TypeVar("_Entry")


def _encode_lines(lines: Iterable[str]) -> bytes:
    entries = list(lines)
    return "".join(f"{line}\n" for line in ("0", str(len(entries)), *entries)).encode()


def _decode_lines(data: bytes, parse: Callable[[list[str]], _Entry]) -> list[_Entry]:
    """The entries of a checkpoint: a version, a count, and a line for each."""
    lines = _text(data).split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    if len(lines) < 2:
        raise CorruptStorage(f"a checkpoint of {len(lines)} lines, without version and count")
    version, count = _integer(lines[0]), _integer(lines[1])
    if version != 0:
        raise CorruptStorage(f"a checkpoint of version {version}, 0 is known")
    if count != len(lines) - 2:
        raise CorruptStorage(f"a checkpoint that says it has {count} entries and has {len(lines) - 2}")
    return [parse(line.split()) for line in lines[2:]]


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CorruptStorage(f"not text: {error}", error.start) from None


def _integer(text: str) -> int:
    # int() would also take underscores, blanks and other scripts' digits
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19:
        raise CorruptStorage(f"{text[:40]!r} is not a number")
    return int(text)


def encode_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """`topic partition offset` lines; topic names have no blanks."""
    return _encode_lines(f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items())


def decode_offset_checkpoint(data: bytes) -> dict[TopicPartition, int]:
    """Undo `encode_offset_checkpoint`. Raises CorruptStorage, also when lines are missing or too many."""
    return dict(_decode_lines(data, _partition_offset))


def _partition_offset(words: list[str]) -> tuple[TopicPartition, int]:
    if len(words) != 3:
        raise CorruptStorage(f"{' '.join(words)[:80]!r} is not topic, partition and offset")
    topic, partition, offset = words
    return TopicPartition(topic, _integer(partition)), _integer(offset)


class EpochStart(NamedTuple):
    """The first offset that the leader of this epoch appended (KIP-101)."""

    epoch: int
    start_offset: int


def encode_leader_epochs(epochs: Iterable[EpochStart]) -> bytes:
    """`epoch startOffset` lines, for one partition."""
    return _encode_lines(f"{epoch} {start_offset}" for epoch, start_offset in epochs)


def decode_leader_epochs(data: bytes) -> list[EpochStart]:
    """Undo `encode_leader_epochs`. Raises CorruptStorage."""
    return _decode_lines(data, _epoch_start)


def _epoch_start(words: list[str]) -> EpochStart:
    if len(words) != 2:
        raise CorruptStorage(f"{' '.join(words)[:80]!r} is not epoch and start offset")
    return EpochStart(_integer(words[0]), _integer(words[1]))


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The cluster and the broker that own a log directory. An older Kafka may have left out either."""

    cluster_id: str | None
    broker_id: int | None


def encode_meta_properties(meta: MetaProperties) -> bytes:
    """Java properties of version 0, as brokers that use ZooKeeper write them."""
    values = {"version": "0"}
    if meta.broker_id is not None:
        values["broker.id"] = str(meta.broker_id)
    if meta.cluster_id is not None:
        values["cluster.id"] = meta.cluster_id
    return encode_properties(values)


def decode_meta_properties(data: bytes) -> MetaProperties:
    """Undo `encode_meta_properties`. Raises CorruptStorage, also for version 1, which is KRaft's."""
    values = decode_properties(data)
    version = _integer(values.get("version", "").strip())
    if version != 0:
        raise CorruptStorage(f"meta.properties of version {version}, 0 is known")
    broker_id = values.get("broker.id")
    return MetaProperties(
        cluster_id=values.get("cluster.id"),
        broker_id=None if broker_id is None else _integer(broker_id.strip()),
    )


def encode_partition_metadata(topic_id: UUID) -> bytes:
    """`version: 0` and `topic_id: …` (KIP-516)."""
    return f"version: 0\ntopic_id: {encode_uuid(topic_id)}\n".encode()


def decode_partition_metadata(data: bytes) -> UUID:
    """The topic id in a partition.metadata. Raises CorruptStorage, also for the zero id."""
    fields = [line.partition(":") for line in _text(data).splitlines()]
    if [name for name, _, _ in fields] != ["version", "topic_id"]:
        raise CorruptStorage("partition.metadata needs the lines version and topic_id")
    version, topic_id = _integer(fields[0][2].strip()), decode_uuid(fields[1][2].strip())
    if version != 0:
        raise CorruptStorage(f"partition.metadata of version {version}, 0 is known")
    if topic_id.int == 0:
        raise CorruptStorage("partition.metadata with the zero topic id")
    return topic_id


def encode_uuid(value: UUID) -> str:
    """The text of a UUID."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text.rstrip("=") + "==", altchars=b"-_", validate=True)


def decode_uuid(text: str) -> UUID:
    """The UUID of a text, with or without padding. Raises CorruptStorage for anything else."""
    try:
        # the decoder would take the other alphabet's signs as well
        raw = b"" if "+" in text or "/" in text else _decode(text)
    except ValueError:
        raw = b""
    if len(raw) != 16:
        raise CorruptStorage(f"{text[:40]!r} is not a UUID in base64")
    return UUID(bytes=raw)
