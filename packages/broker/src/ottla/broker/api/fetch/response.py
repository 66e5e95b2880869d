"""The Fetch response, encoded by hand so that records can be sent from the file to the socket."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from uuid import UUID

    from ottla.broker.api.current_leaders import Leadership, Node
    from ottla.broker.log.log import Slice

_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_PARTITION: Final = struct.Struct(">ihq")
_ABORTED: Final = struct.Struct(">qq")
_EPOCH_END: Final = struct.Struct(">iq")
_LEADER: Final = struct.Struct(">ii")
FIRST_FLEXIBLE: Final = 12
FIRST_BY_ID: Final = 13
"""The first version that names topics by id (KIP-516)."""
_STEP_BYTES: Final = 16_384


@dataclass(slots=True)
class FetchedPartition:
    """The response of one partition."""

    index: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: list[tuple[int, int]] | None = None
    """(producer id, first offset); None unless the reader's isolation level is read_committed."""
    preferred_read_replica: int = -1
    diverging_epoch: tuple[int, int] | None = None
    """(epoch, end offset) up to which the follower's log agrees with the leader's."""
    current_leader: Leadership | None = None
    """Told where another broker leads, or this one in a later epoch (KIP-951)."""
    records: bytes | Slice | None = None
    is_cold: bool = False
    """Whether the records have to be read from the disk before they are sent."""
    is_settled: bool = False
    """Whether another read says the same until a change wakes the partition's watchers."""

    @property
    def size(self) -> int:
        """Bytes of records."""
        records = self.records
        if records is None:
            return 0
        return len(records) if isinstance(records, bytes) else records.length

    @property
    def is_answer(self) -> bool:
        """Whether the reader hears of it at once, however few records there are."""
        return bool(self.error_code) or self.diverging_epoch is not None or self.preferred_read_replica >= 0


@dataclass(slots=True)
class FetchAnswer:
    """A whole Fetch response; `topics` has the partitions in the order of the request."""

    error_code: int = 0
    session_id: int = 0
    throttle_time_ms: int = 0
    topics: list[tuple[str | UUID, list[FetchedPartition]]] = field(default_factory=list)
    """By name, or by id since version 13."""
    nodes: list[Node] = field(default_factory=list)
    """The addresses of the brokers that lead the request's misdirected partitions."""

    @property
    def size(self) -> int:
        """Bytes of records in all partitions."""
        return sum(partition.size for _, partitions in self.topics for partition in partitions)

    def encode_parts(self, version: int) -> list[bytes | Slice]:
        """Return the body of the response, in order: bytes, and file regions for records."""
        writer = self._writer(version)
        for named, partitions in self.topics:
            writer.topic(named)
            writer.array(len(partitions))
            for partition in partitions:
                writer.partition(partition)
            writer.no_tags()
        writer.tags(self)
        return writer.finish()

    def encode_in_steps(self, version: int) -> Iterator[bytes | Slice]:
        """Yield the parts of `encode_parts`, topic by topic or partition by partition, for long responses."""
        writer = self._writer(version)
        for named, partitions in self.topics:
            writer.topic(named)
            writer.array(len(partitions))
            for partition in partitions:
                writer.partition(partition)
                if len(writer.bytes) >= _STEP_BYTES or writer.parts:
                    yield from writer.take()
            writer.no_tags()
        writer.tags(self)
        yield from writer.take()

    def _writer(self, version: int) -> _Fixed:
        writer = _Flexible(version) if version >= FIRST_FLEXIBLE else _Fixed(version)
        writer.head(self)
        writer.array(len(self.topics))
        return writer


class _Fixed:
    """Writes versions 0 to 11."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.bytes = bytearray()
        self.parts: list[bytes | Slice] = []

    def head(self, answer: FetchAnswer) -> None:
        if self.version >= 1:
            self.bytes += _I32.pack(answer.throttle_time_ms)
        if self.version >= 7:
            self.bytes += _I16.pack(answer.error_code)
            self.bytes += _I32.pack(answer.session_id)

    def array(self, count: int | None) -> None:
        self.bytes += _I32.pack(-1 if count is None else count)

    def topic(self, named: str | UUID) -> None:
        if isinstance(named, str):
            self.string(named)
        else:
            self.bytes += named.bytes

    def string(self, text: str) -> None:
        data = text.encode()
        self.bytes += _I16.pack(len(data))
        self.bytes += data

    def partition(self, partition: FetchedPartition) -> None:
        self.bytes += _PARTITION.pack(partition.index, partition.error_code, partition.high_watermark)
        if self.version >= 4:
            self.bytes += _I64.pack(partition.last_stable_offset)
        if self.version >= 5:
            self.bytes += _I64.pack(partition.log_start_offset)
        if self.version >= 4:
            self.aborted(partition.aborted)
        if self.version >= 11:
            self.bytes += _I32.pack(partition.preferred_read_replica)
        self.records(partition)
        self.partition_tags(partition)

    def aborted(self, transactions: list[tuple[int, int]] | None) -> None:
        self.array(None if transactions is None else len(transactions))
        for transaction in transactions or ():
            self.bytes += _ABORTED.pack(*transaction)
            self.no_tags()

    def records(self, partition: FetchedPartition) -> None:
        self.length(partition.size)
        if isinstance(partition.records, bytes):
            self.bytes += partition.records
        elif partition.records is not None and partition.records.length:
            self.parts.append(bytes(self.bytes))
            self.parts.append(partition.records)
            self.bytes = bytearray()

    def length(self, size: int) -> None:
        self.bytes += _I32.pack(size)

    def partition_tags(self, partition: FetchedPartition) -> None:
        pass

    def tags(self, answer: FetchAnswer) -> None:
        pass

    def no_tags(self) -> None:
        pass

    def take(self) -> list[bytes | Slice]:
        """Return the parts that were written since the last call."""
        taken = self.finish()
        self.bytes, self.parts = bytearray(), []
        return taken

    def finish(self) -> list[bytes | Slice]:
        if self.bytes:
            self.parts.append(bytes(self.bytes))
        return self.parts


class _Flexible(_Fixed):
    """Writes versions from 12 on: compact lengths and tagged fields."""

    def varint(self, value: int) -> None:
        while value > 0x7F:
            self.bytes.append(value & 0x7F | 0x80)
            value >>= 7
        self.bytes.append(value)

    def array(self, count: int | None) -> None:
        self.varint(0 if count is None else count + 1)

    def string(self, text: str) -> None:
        data = text.encode()
        self.varint(len(data) + 1)
        self.bytes += data

    def length(self, size: int) -> None:
        self.varint(size + 1)

    def partition_tags(self, partition: FetchedPartition) -> None:
        self.bytes.append((partition.diverging_epoch is not None) + (partition.current_leader is not None))
        if partition.diverging_epoch is not None:
            self.bytes += b"\x00\x0d"  # tag 0, 13 bytes: epoch, end offset, no tags of its own
            self.bytes += _EPOCH_END.pack(*partition.diverging_epoch)
            self.bytes.append(0)
        if partition.current_leader is not None:
            self.bytes += b"\x01\x09"  # tag 1, 9 bytes: leader, epoch, no tags of its own
            self.bytes += _LEADER.pack(*partition.current_leader)
            self.bytes.append(0)

    def tags(self, answer: FetchAnswer) -> None:
        if not answer.nodes:
            self.bytes.append(0)
            return
        before, self.bytes = self.bytes, bytearray()
        self.array(len(answer.nodes))
        for node in answer.nodes:
            self.bytes += _I32.pack(node.node_id)
            self.string(node.host)
            self.bytes += _I32.pack(node.port)
            self.nullable(node.rack)
            self.no_tags()
        nodes, self.bytes = self.bytes, before
        self.bytes += b"\x01\x00"  # one field, tag 0
        self.varint(len(nodes))
        self.bytes += nodes

    def nullable(self, text: str | None) -> None:
        if text is None:
            self.bytes.append(0)
        else:
            self.string(text)

    def no_tags(self) -> None:
        self.bytes.append(0)


def failed(index: int, code: ErrorCode) -> FetchedPartition:
    """Respond with an error for a partition."""
    return FetchedPartition(index, error_code=int(code))
