"""The partitions of a coordinator that this broker leads, their state and its record codec, by protocols.

The leader of the partition that keeps a key is the coordinator of the key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from ottla.protocol.records.compression import Buffer

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


Headers: TypeAlias = Sequence[tuple[str, Buffer | None]]


class CoordinatorState(Protocol[R_contra]):
    """The state of one partition. It changes by replaying committed records, in the order of the log.

    Records of a transaction are replayed when they are appended: they are pending until it ends.

    A coordinator may also mark what it is about to write (a pending commit, a pending transition): that mark
    is its own, and it removes the mark when the write settles.
    """

    def replay(self, record: R_contra, position: int, producer_id: int | None) -> None:
        """Apply one record of the batch at offset `position`.

        `producer_id` is set when the record belongs to a transaction that has not ended yet.
        """
        ...

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Apply the end marker of a transaction that wrote to this partition."""
        ...

    def complete_load(self) -> None:
        """Finish the load: the log has been replayed to its end."""
        ...


S = TypeVar("S", bound=CoordinatorState[Any])


class KeyValue(NamedTuple):
    """An encoded record; without a value it is a tombstone."""

    key: bytes
    value: bytes | None
    headers: Headers = ()


class RecordCodec(Protocol[R]):
    """Encodes and decodes the records of one internal topic."""

    def encode(self, record: R) -> KeyValue:
        """Return the record as the log stores it."""
        ...

    def decode(self, key: bytes, value: bytes | None, headers: Headers = ()) -> R | None:
        """Return the record, or None for a kind that this coordinator skips.

        Raises MalformedMessage or ValueError for bytes that their version does not allow.
        """
        ...


@dataclass(slots=True, eq=False)
class CoordinatorPartition(Generic[S]):
    """One partition and its state. Until it is `loaded` the state is incomplete: nothing may be answered."""

    number: int
    leader_epoch: int
    state: S
    loaded: bool = False


class CoordinatorPartitions(Generic[S]):
    """All partitions of one coordinator that this broker leads, by number."""

    def __init__(self) -> None:
        self._partitions: dict[int, CoordinatorPartition[S]] = {}

    def __iter__(self) -> Iterator[CoordinatorPartition[S]]:
        return iter(list(self._partitions.values()))

    def get(self, number: int) -> CoordinatorPartition[S] | None:
        """A partition that this broker leads, or None."""
        return self._partitions.get(number)

    def add(self, partition: CoordinatorPartition[S]) -> None:
        """Host one more partition."""
        self._partitions[partition.number] = partition

    def remove(self, number: int) -> None:
        """Stop hosting a partition."""
        self._partitions.pop(number, None)

    @property
    def is_loading(self) -> bool:
        """Whether the state of some partition is still incomplete."""
        return any(not partition.loaded for partition in self)


_HASHED_TOGETHER: Final = 64
_POWERS: Final = [pow(31, power, 1 << 32) for power in reversed(range(_HASHED_TOGETHER))]
_SHIFT: Final = pow(31, _HASHED_TOGETHER, 1 << 32)


def java_string_hash(text: str) -> int:
    """Return Java's `String.hashCode`: signed 32 bits over UTF-16 code units.

    Units are summed by 64, as an id may have 32,767.
    """
    encoded = text.encode("utf-16-le", "surrogatepass")
    units = struct.unpack(f"<{len(encoded) // 2}H", encoded)
    first = len(units) % _HASHED_TOGETHER
    value: int = sum(map(mul, units[:first], _POWERS[_HASHED_TOGETHER - first :]))
    for start in range(first, len(units), _HASHED_TOGETHER):
        together = sum(map(mul, units[start : start + _HASHED_TOGETHER], _POWERS))
        value = (value * _SHIFT + together) & 0xFFFFFFFF
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def partition_for(key: str, partitions: int) -> int:
    """Return which of `partitions` partitions keeps `key`, a group id or a transactional id."""
    value = java_string_hash(key)
    return 0 if value == -(1 << 31) else abs(value) % partitions
