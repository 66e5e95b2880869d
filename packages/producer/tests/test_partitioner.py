from __future__ import annotations

import pytest

from ottla.producer.partitioner import StickyPartitioner, partition_for_key


# Hashes of Java's Utils.murmur2, from Kafka's own unit test of it.
@pytest.mark.parametrize(
    ("key", "murmur"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)],
)
def test_keys_go_where_the_java_client_sends_them(key: bytes, murmur: int) -> None:
    assert partition_for_key(key, 7) == (murmur & 0x7FFFFFFF) % 7


def test_records_without_a_key_stay_together_until_their_batch_is_full() -> None:
    chances = iter([0.0, 0.99])
    partitioner = StickyPartitioner(lambda: next(chances))

    first = [partitioner.choose("t", None, 4, [0, 1, 2, 3]) for _ in range(3)]
    partitioner.batch_full("t")

    assert first == [0, 0, 0]
    assert partitioner.choose("t", None, 4, [0, 1, 2, 3]) == 3


def test_records_without_a_key_avoid_partitions_without_a_leader() -> None:
    partitioner = StickyPartitioner(lambda: 0.0)
    assert partitioner.choose("t", None, 4, [0, 1]) == 0

    assert partitioner.choose("t", None, 4, [2]) == 2
