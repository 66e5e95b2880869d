"""Orders of Java's collections, on which decisions of Kafka's coordinator depend where it breaks ties."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from ottla.broker.coordinators.coordinator_partitions import java_string_hash

T = TypeVar("T")

DEFAULT_CAPACITY: Final = 16


def hash_map_order(keys: Iterable[str], capacity: int = DEFAULT_CAPACITY) -> list[str]:
    """Return keys, given in the order in which they were put, in the order in which a `HashMap` iterates.

    A bucket that has become a tree, which takes eight collisions, is not considered.
    """
    inserted = list(keys)
    return _by_bucket(inserted, _buckets(len(inserted), capacity))


def computed_map_order(keys: Iterable[str], capacity: int) -> list[str]:
    """Return keys that `computeIfAbsent` has put: it puts them first in their bucket, and grows later."""
    inserted = list(keys)
    return _by_bucket(inserted[::-1], _buckets(len(inserted) - 1, capacity))


def _buckets(size: int, capacity: int) -> int:
    buckets = 1
    while buckets < capacity or size * 4 > buckets * 3:
        buckets *= 2
    return buckets


def _by_bucket(keys: list[str], buckets: int) -> list[str]:
    return sorted(keys, key=lambda key: _spread(java_string_hash(key)) & (buckets - 1))


def _spread(value: int) -> int:
    unsigned = value & 0xFFFFFFFF
    return unsigned ^ (unsigned >> 16)


class BinaryHeap(Generic[T]):
    """The heap of Java's `PriorityQueue`: of equal elements it takes the one that Java takes.

    `heapq` of the standard library sifts otherwise. The priority of an element is given with it.
    """

    __slots__ = ("_elements", "_priorities")

    def __init__(self) -> None:
        self._elements: list[T] = []
        self._priorities: list[float] = []

    def __bool__(self) -> bool:
        return bool(self._elements)

    def add(self, element: T, priority: float) -> None:
        """Add an element."""
        elements, priorities = self._elements, self._priorities
        place = len(elements)
        elements.append(element)
        priorities.append(priority)
        while place > 0:
            parent = (place - 1) >> 1
            if priority >= priorities[parent]:
                break
            elements[place], priorities[place] = elements[parent], priorities[parent]
            place = parent
        elements[place], priorities[place] = element, priority

    def poll(self) -> T:
        """Remove and return an element of the lowest priority. Raises IndexError when there is none."""
        elements, priorities = self._elements, self._priorities
        last, priority = elements.pop(), priorities.pop()
        size = len(elements)
        if not size:
            return last
        first, place = elements[0], 0
        while place < size >> 1:
            child = 2 * place + 1
            if child + 1 < size and priorities[child] > priorities[child + 1]:
                child += 1
            if priority <= priorities[child]:
                break
            elements[place], priorities[place] = elements[child], priorities[child]
            place = child
        elements[place], priorities[place] = last, priority
        return first
