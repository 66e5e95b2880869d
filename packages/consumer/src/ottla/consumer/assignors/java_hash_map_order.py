"""The iteration order of Java's HashMap, which some results of the Java client's assignors depend on.

Buckets are iterated by hash, the keys of a bucket in the order of insertion; a resize keeps that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from ottla.protocol.topics import TopicPartition

T = TypeVar("T")

FIRST_CAPACITY = 16


def string_hash(text: str) -> int:
    """Return `String.hashCode()`, as an unsigned number."""
    value = 0
    for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value


def partition_hash(partition: TopicPartition) -> int:
    """Return `TopicPartition.hashCode()`, as an unsigned number."""
    return (31 * (31 + partition.partition) + string_hash(partition.topic)) & 0xFFFFFFFF


def hash_order(keys: Iterable[T], hash_of: Callable[[T], int], most: int = 0) -> list[T]:
    """Return keys, given in the order of insertion, as a HashMap that once held `most` gives them."""
    listed = list(keys)
    capacity = FIRST_CAPACITY
    while max(len(listed), most) > capacity * 3 // 4:
        capacity *= 2

    def bucket(key: T) -> int:
        value = hash_of(key)
        return (value ^ (value >> 16)) & (capacity - 1)

    return sorted(listed, key=bucket)
