"""Keys set aside: bounded in number and time."""

from __future__ import annotations

from ottla.protocol.topics import TopicPartition
from ottla.streams.failures.failure_handling import PoisonKeys

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_a_key_is_set_aside_for_its_time_and_no_longer() -> None:
    keys = PoisonKeys(10, ttl_ms=100)
    keys.add(P0, b"a", 7, now_ms=1_000)
    keys.add(P0, b"a", 9, now_ms=1_050)

    assert keys.failed_offset(P0, b"a", 1_099) == 7
    assert keys.failed_offset(P0, b"b", 1_099) is None
    assert keys.failed_offset(P1, b"a", 1_099) is None
    assert keys.failed_offset(P0, b"a", 1_100) is None
    assert len(keys) == 0


def test_above_the_limit_the_oldest_key_is_forgotten() -> None:
    keys = PoisonKeys(2, ttl_ms=100)
    for offset, key in enumerate((b"a", b"b", b"c")):
        keys.add(P0, key, offset, now_ms=offset)

    assert [keys.failed_offset(P0, key, 5) for key in (b"a", b"b", b"c")] == [None, 1, 2]


def test_records_without_a_key_set_nothing_aside() -> None:
    keys = PoisonKeys(2, ttl_ms=100)
    keys.add(P0, None, 1, now_ms=0)

    assert not keys
