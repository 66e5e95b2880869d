"""The partitions of a coordinator that this broker leads, and the partition that keeps a key.

The leader of that partition is the coordinator of the key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from operator import mul
from typing import Any, Final, Generic, TypeVar

from ottla.broker.coordinators.coordinator_state import CoordinatorState

S = TypeVar("S", bound=CoordinatorState[Any])


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
