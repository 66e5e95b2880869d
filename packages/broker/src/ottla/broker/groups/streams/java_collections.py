"""Orders of Java's collections, on which decisions of Kafka's coordinator depend where it breaks ties."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Final, Generic, TypeVar

from ottla.broker.coordinators.coordinator_partitions import java_string_hash
from ottla.broker.runtime.loop_budget import at_once, slices

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

DEFAULT_CAPACITY: Final = 16


def hash_map_order(keys: Iterable[str], capacity: int = DEFAULT_CAPACITY) -> list[str]:
    """Return keys, given in the order in which they were put, in the order in which a `HashMap` iterates.

    A bucket that has become a tree, which takes eight collisions, is not considered.
    """
    return at_once(hash_map_order_of_many(keys, capacity))


def hash_map_order_of_many(
    keys: Iterable[str], capacity: int = DEFAULT_CAPACITY
) -> Generator[None, None, list[str]]:
    """Return the same as `hash_map_order`, in steps."""
    inserted = list(keys)
    return (yield from _by_bucket(inserted, _buckets(len(inserted), capacity)))


def computed_map_order(keys: Iterable[str], capacity: int) -> Generator[None, None, list[str]]:
    """Return keys that `computeIfAbsent` has put: it puts them first in their bucket, and grows later.

    It is done in steps.
    """
    inserted = list(keys)
    return (yield from _by_bucket(inserted[::-1], _buckets(len(inserted) - 1, capacity)))


def _buckets(size: int, capacity: int) -> int:
    buckets = 1
    while buckets < capacity or size * 4 > buckets * 3:
        buckets *= 2
    return buckets


def _by_bucket(keys: list[str], buckets: int) -> Generator[None, None, list[str]]:
    if len(keys) < 2:
        return keys
    bucket_of: list[int] = []
    for some in slices(keys):
        bucket_of += [_spread(java_string_hash(key)) & (buckets - 1) for key in some]
        yield
    return [keys[index] for index in sorted(range(len(keys)), key=bucket_of.__getitem__)]


def _spread(value: int) -> int:
    unsigned = value & 0xFFFFFFFF
    return unsigned ^ (unsigned >> 16)


class HashMap(Generic[K, V]):
    """A `HashMap` of Java, whose iteration has Java's order while keys come and go.

    A bucket that has become a tree, which takes eight collisions, is not considered.
    """

    __slots__ = ("_buckets", "_capacity", "_hash_of", "_values")

    def __init__(self, hash_of: Callable[[K], int], capacity: int = DEFAULT_CAPACITY) -> None:
        """`hash_of` is the `hashCode` of a key."""
        self._hash_of = hash_of
        self._capacity = _buckets(0, capacity)
        self._buckets: list[list[K]] = [[] for _ in range(self._capacity)]
        self._values: dict[K, V] = {}

    def __iter__(self) -> Iterator[K]:
        return (key for bucket in self._buckets for key in bucket)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def __getitem__(self, key: K) -> V:
        return self._values[key]

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over keys and values."""
        return ((key, self._values[key]) for key in self)

    def put(self, key: K, value: V) -> None:
        """Set the value of a key: a new one comes last in its bucket."""
        if key not in self._values:
            self._bucket_of(key).append(key)
        self._values[key] = value
        if self._is_beyond_load:
            self._grow()

    def compute_if_absent(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key: a new one comes first in its bucket, and the table grows before it."""
        if self._is_beyond_load:
            self._grow()
        if key not in self._values:
            self._bucket_of(key).insert(0, key)
            self._values[key] = make()
        return self._values[key]

    def remove(self, key: K) -> None:
        """Remove a key, if it is there."""
        if key in self._values:
            del self._values[key]
            self._bucket_of(key).remove(key)

    @property
    def _is_beyond_load(self) -> bool:
        return len(self._values) * 4 > self._capacity * 3

    def _bucket_of(self, key: K) -> list[K]:
        return self._buckets[_spread(self._hash_of(key)) & (self._capacity - 1)]

    def _grow(self) -> None:
        keys = list(self)
        self._capacity *= 2
        self._buckets = [[] for _ in range(self._capacity)]
        for key in keys:
            self._bucket_of(key).append(key)


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
