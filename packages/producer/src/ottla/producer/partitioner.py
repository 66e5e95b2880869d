"""Which partition a record goes to, where it does not say.

The default is built in: keys go where Java's client sends them, the rest to a partition that is quick, until
its batch is full. All others are objects with one method, `partition`. Those with librdkafka's names choose
as it does.
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
    """Chooses partitions. One that has a method `batch_full(topic)` too is told of full batches."""

    def partition(self, topic: str, key: bytes | None, partitions: int, available: Sequence[int]) -> int:
        """Return a partition below `partitions`; `available` are those that have a leader just now."""
        ...


def partitioner(spec: str | Partitioner | PartitionerFunction | None) -> Partitioner | None:
    """Return the partitioner that a setting names, or None for the default.

    A callable gets (key, all partitions, available partitions), as in aiokafka and kafka-python. Raises
    ValueError for a name that is not known.
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
        raise ValueError(f"{spec!r} is neither callable nor has it a method `partition`")
    return ByFunction(found)


def partition_for_key(key: bytes, count: int) -> int:
    """Return the partition Kafka's Java clients choose for a key, so that all clients agree."""
    return (murmur2(key) & 0x7FFFFFFF) % count


class ByFunction:
    """A function (key, all partitions, available partitions) chooses."""

    def __init__(self, function: PartitionerFunction) -> None:
        self._function = function

    def partition(self, topic: str, key: bytes | None, partitions: int, available: Sequence[int]) -> int:
        """Ask the function. Raises ValueError where it names no partition of the topic."""
        chosen = self._function(key, range(partitions), available)
        if not 0 <= chosen < partitions:
            raise ValueError(f"the partitioner chose {chosen} for {topic!r}, which has 0 to {partitions - 1}")
        return chosen


class Random:
    """Any partition that is available, whatever the key."""

    def __init__(self, chance: Callable[[], float] = system_chance) -> None:
        self._chance = chance

    def partition(self, topic: str, key: bytes | None, partitions: int, available: Sequence[int]) -> int:
        """Draw one."""
        choices = available or range(partitions)
        return choices[int(self._chance() * len(choices))]


class ByHash:
    """Keys by a hash; records without a key anywhere, or to one partition with `keyless=None`.

    `empty_is_none`: whether an empty key counts as none.
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
        """Hash the key, if there is one."""
        if self._keyless is not None and (key is None or (self._empty_is_none and not key)):
            return self._keyless.partition(topic, key, partitions, available)
        return self._choose(key or b"", partitions)

    def batch_full(self, topic: str) -> None:
        """Pass it on."""
        full = getattr(self._keyless, "batch_full", None)
        if full is not None:
            full(topic)


class RoundRobin:
    """One partition after the other, whatever the key, of those that are available."""

    def __init__(self, chance: Callable[[], float] = system_chance) -> None:
        self._chance = chance
        self._turns: dict[str, int] = {}

    def partition(self, topic: str, key: bytes | None, partitions: int, available: Sequence[int]) -> int:
        """Take the next."""
        choices = available or range(partitions)
        # Producers that start together should not all begin with the first.
        turn = self._turns.get(topic, int(self._chance() * len(choices)))
        self._turns[topic] = turn + 1
        return choices[turn % len(choices)]


class RandomForAWhile:
    """Keyless records to one partition for some time, then to another: what Kafka 0.8 did for ten minutes."""

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
        """Keep the choice while it is young, and its partition available."""
        if key is not None:
            return partition_for_key(key, partitions)
        chosen, until_s = self._chosen.get(topic, (-1, 0.0))
        if self._clock() >= until_s or chosen >= partitions or (available and chosen not in available):
            chosen = self._random.partition(topic, key, partitions, available)
            self._chosen[topic] = (chosen, self._clock() + self._period_s)
        return chosen


class StickyPartitioner:
    """Keyed records by their key; others to one partition until its batch is full, then another (KIP-480).

    With `ignore_keys` keyed records go with the others.
    """

    def __init__(self, chance: Callable[[], float] = system_chance, *, ignore_keys: bool = False) -> None:
        self._chance = chance
        self._ignore_keys = ignore_keys
        self._stuck: dict[str, int] = {}
        self._left: dict[str, int] = {}

    def partition(self, topic: str, key: bytes | None, partitions: int, available: Sequence[int]) -> int:
        """Hash the key, or stay where the last record without one went."""
        if key is not None and not self._ignore_keys:
            return partition_for_key(key, partitions)
        stuck = self._stuck.get(topic)
        if stuck is None or stuck >= partitions or (available and stuck not in available):
            stuck = self._stuck[topic] = self._another(topic, available or range(partitions))
        return stuck

    def choose(self, topic: str, key: bytes | None, count: int, available: Sequence[int]) -> int:
        """Do as `partition`."""
        return self.partition(topic, key, count, available)

    def batch_full(self, topic: str) -> None:
        """Choose anew for the next keyless record of a topic, and not the same."""
        if topic in self._stuck:
            self._left[topic] = self._stuck.pop(topic)

    def _another(self, topic: str, choices: Sequence[int]) -> int:
        others = [each for each in choices if each != self._left.get(topic)] or choices
        return others[int(self._chance() * len(others))]


def consistent(key: bytes, count: int) -> int:
    """Choose by CRC-32, as librdkafka does by default."""
    return zlib.crc32(key) % count


def fnv1a(key: bytes, count: int) -> int:
    """Choose by FNV-1a, as Sarama and librdkafka do."""
    mixed = 0x811C9DC5
    for byte in key:
        mixed = ((mixed ^ byte) * 0x01000193) & 0xFFFFFFFF
    # Both take it for a signed number, and its absolute value.
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
