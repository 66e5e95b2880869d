"""Partitioners: they choose the partition of a record that names none.

The default is native, in `_accumulator.pxi`: the partition of a key is that of Java's client; records without
a key go to one partition, chosen by the length of its queue, until its batch is full (KIP-794). All others
are objects with one method, `partition`. Those with librdkafka's names choose as librdkafka does.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from ottla.client.environment import chance as system_chance
from ottla.client.environment import monotonic_s
from ottla.client.serialization import imported
from ottla.protocol.records import murmur2

TEN_MINUTES_S = 600.0

PartitionerFunction = Callable[[bytes | None, Sequence[int], Sequence[int]], int]


@runtime_checkable
class Partitioner(Protocol):
    """Chooses partitions. If it has a method `batch_full(topic)`, that is called for full batches."""

    def partition(self, topic: str, key: bytes | None, partitions: int, available: Sequence[int]) -> int:
        """Return a partition below `partitions`; `available` are those that have a leader."""
        ...


def partitioner(spec: str | Partitioner | PartitionerFunction | None) -> Partitioner | None:
    """Return the partitioner that a setting names, or None for the default.

    A callable is called with (key, all partitions, available partitions), as in aiokafka and kafka-python.
    Raises ValueError for an unknown name.
    """
    if spec is None or spec == "default":
        return None
    if isinstance(spec, str):
        if spec in NAMED:
            return NAMED[spec]()
        spec = imported(spec, ("default", *NAMED), must_be_callable=False)
    found: Any = spec() if isinstance(spec, type) else spec
    if isinstance(found, Partitioner):
        return found
    if not callable(found):
        raise ValueError(f"{spec!r} is neither callable, nor does it have a method `partition`")
    return ByFunction(found)


def partition_for_key(key: bytes, count: int) -> int:
    """Return the partition that Kafka's Java clients choose for a key."""
    return (murmur2(key) & 0x7FFFFFFF) % count


class ByFunction:
    """Calls a function (key, all partitions, available partitions)."""

    def __init__(self, function: PartitionerFunction) -> None:
        self._function = function

    def partition(self, topic: str, key: bytes | None, partitions: int, available: Sequence[int]) -> int:
        """Call the function."""
        return self._function(key, range(partitions), available)


class Random:
    """Chooses any available partition; ignores keys."""

    def __init__(self, chance: Callable[[], float] = system_chance) -> None:
        self._chance = chance

    def partition(self, topic: str, key: bytes | None, partitions: int, available: Sequence[int]) -> int:
        """Choose at random."""
        choices = available or range(partitions)
        return choices[int(self._chance() * len(choices))]


class ByHash:
    """Chooses by a hash of the key; `keyless` chooses for records without one.

    Without `keyless` these have the hash of an empty key. `empty_is_none`: an empty key counts as none.
    """

    def __init__(
        self,
        choose: Callable[[bytes, int], int],
        keyless: Partitioner | None = None,
        *,
        empty_is_none: bool = False,
    ) -> None:
        self._choose = choose
        self._keyless = keyless
        self._empty_is_none = empty_is_none

    def partition(self, topic: str, key: bytes | None, partitions: int, available: Sequence[int]) -> int:
        """Hash the key, if the record has one."""
        if self._keyless is not None and (key is None or (self._empty_is_none and not key)):
            return self._keyless.partition(topic, key, partitions, available)
        return self._choose(key or b"", partitions)

    def batch_full(self, topic: str) -> None:
        """Pass the call on to `keyless`."""
        full = getattr(self._keyless, "batch_full", None)
        if full is not None:
            full(topic)


class RoundRobin:
    """Chooses one available partition after the other; ignores keys."""

    def __init__(self, chance: Callable[[], float] = system_chance) -> None:
        self._chance = chance
        self._turns: dict[str, int] = {}

    def partition(self, topic: str, key: bytes | None, partitions: int, available: Sequence[int]) -> int:
        """Choose the next partition."""
        choices = available or range(partitions)
        # Producers that start together must not all begin with the first partition.
        turn = self._turns.get(topic, int(self._chance() * len(choices)))
        self._turns[topic] = turn + 1
        return choices[turn % len(choices)]


class RandomForAWhile:
    """Sends records without a key to one partition for a while, then to another (Kafka 0.8: ten minutes)."""

    def __init__(
        self,
        period_s: float = TEN_MINUTES_S,
        clock: Callable[[], float] = monotonic_s,
        chance: Callable[[], float] = system_chance,
    ) -> None:
        self._period_s = period_s
        self._clock = clock
        self._random = Random(chance)
        self._chosen: dict[str, tuple[int, float]] = {}

    def partition(self, topic: str, key: bytes | None, partitions: int, available: Sequence[int]) -> int:
        """Hash the key, or keep the last choice while it is recent and available."""
        if key is not None:
            return partition_for_key(key, partitions)
        chosen, until_s = self._chosen.get(topic, (-1, 0.0))
        if self._clock() >= until_s or chosen >= partitions or (available and chosen not in available):
            chosen = self._random.partition(topic, key, partitions, available)
            self._chosen[topic] = (chosen, self._clock() + self._period_s)
        return chosen


class StickyPartitioner:
    """Hashes keys; sends records without one to one partition until its batch is full (KIP-480).

    With `ignore_keys` every record counts as one without a key.
    """

    def __init__(self, chance: Callable[[], float] = system_chance, *, ignore_keys: bool = False) -> None:
        self._chance = chance
        self._ignore_keys = ignore_keys
        self._stuck: dict[str, int] = {}
        self._left: dict[str, int] = {}

    def partition(self, topic: str, key: bytes | None, partitions: int, available: Sequence[int]) -> int:
        """Hash the key, or return the sticky partition of the topic."""
        if key is not None and not self._ignore_keys:
            return partition_for_key(key, partitions)
        stuck = self._stuck.get(topic)
        if stuck is None or stuck >= partitions or (available and stuck not in available):
            stuck = self._stuck[topic] = self._another(topic, available or range(partitions))
        return stuck

    def choose(self, topic: str, key: bytes | None, count: int, available: Sequence[int]) -> int:
        """Return what `partition` returns."""
        return self.partition(topic, key, count, available)

    def batch_full(self, topic: str) -> None:
        """Choose another sticky partition for the next record without a key."""
        if topic in self._stuck:
            self._left[topic] = self._stuck.pop(topic)

    def _another(self, topic: str, choices: Sequence[int]) -> int:
        others = [choice for choice in choices if choice != self._left.get(topic)] or choices
        return others[int(self._chance() * len(others))]


def consistent(key: bytes, count: int) -> int:
    """Choose by CRC-32, as librdkafka does by default."""
    return zlib.crc32(key) % count


def fnv1a(key: bytes, count: int) -> int:
    """Choose by FNV-1a, as Sarama and librdkafka do."""
    mixed = 0x811C9DC5
    for byte in key:
        mixed = ((mixed ^ byte) * 0x01000193) & 0xFFFFFFFF
    # Both read it as a signed number, and use its absolute value.
    return (mixed if mixed < 0x80000000 else 0x100000000 - mixed) % count


NAMED: dict[str, Callable[[], Partitioner]] = {
    "murmur2": lambda: ByHash(partition_for_key),
    "murmur2_random": lambda: ByHash(partition_for_key, Random()),
    "consistent": lambda: ByHash(consistent),
    "consistent_random": lambda: ByHash(consistent, Random(), empty_is_none=True),
    "fnv1a": lambda: ByHash(fnv1a),
    "fnv1a_random": lambda: ByHash(fnv1a, Random()),
    "random": Random,
    "round_robin": RoundRobin,
    "sticky": lambda: StickyPartitioner(ignore_keys=True),
    "random_for_ten_minutes": RandomForAWhile,
}
