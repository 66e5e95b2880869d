from __future__ import annotations

from collections import Counter

import pytest

from ottla.client.interceptors import Interceptors
from ottla.producer import ProducerRecord
from ottla.producer.accumulator import Accumulator, Appender
from ottla.producer.append.record_appender import RecordAppender
from ottla.producer.partitioner import (
    NAMED,
    Partitioner,
    RandomForAWhile,
    RoundRobin,
    StickyPartitioner,
    fnv1a,
    partitioner,
)

KEYS = [b"", b"a", b"josef", b"21", bytes(range(64)), "žluť".encode()]


def named(name: str) -> Partitioner:
    found = partitioner(name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["consistent", "murmur2", "fnv1a", "consistent_random", "murmur2_random"])
@pytest.mark.parametrize("key", KEYS[1:], ids=["one", "name", "number", "long", "utf8"])
def test_a_key_goes_where_librdkafka_sends_it(
    name: str, key: bytes, librdkafka: dict[str, list[int]]
) -> None:
    chosen = named(name).partition("t", key, PARTITIONS, range(PARTITIONS))

    assert chosen == librdkafka[name][KEYS.index(key)]


# What librdkafka's mock cluster gives a topic.
PARTITIONS = 4


@pytest.fixture(scope="module")
def librdkafka() -> dict[str, list[int]]:
    """Where librdkafka sends keys, asked against its own mock cluster."""
    return {name: ask_librdkafka(name) for name in NAMED if name.startswith(("consist", "murmur", "fnv1a"))}


def ask_librdkafka(name: str) -> list[int]:
    import confluent_kafka

    found: dict[int, int] = {}
    producer = confluent_kafka.Producer(
        {
            "test.mock.num.brokers": 1,
            "partitioner": name,
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    for index, key in enumerate(KEYS):
        producer.produce(
            "t",
            key=key,
            value=b"",
            on_delivery=lambda error, message, index=index: found.update({index: message.partition()}),
        )
    assert producer.flush(20) == 0
    return [found[index] for index in range(len(KEYS))]


@pytest.mark.parametrize("name", ["consistent", "murmur2", "fnv1a"])
def test_a_consistent_partitioner_sends_all_records_without_a_key_to_one_partition(name: str) -> None:
    assert len({named(name).partition("t", None, 7, ()) for _ in range(20)}) == 1


@pytest.mark.parametrize("name", ["consistent_random", "murmur2_random", "fnv1a_random", "random"])
def test_a_random_partitioner_sends_records_without_a_key_to_any_available_partition(name: str) -> None:
    one = named(name)

    assert {one.partition("t", None, 7, (2, 3)) for _ in range(100)} == {2, 3}
    assert {one.partition("t", None, 2, ()) for _ in range(100)} == {0, 1}


def test_an_empty_key_is_none_only_where_librdkafka_takes_it_for_none() -> None:
    assert {named("consistent_random").partition("t", b"", 2, ()) for _ in range(100)} == {0, 1}
    assert len({named("murmur2_random").partition("t", b"", 2, ()) for _ in range(100)}) == 1


def test_hashes_beyond_the_largest_signed_number_count_by_their_absolute_value() -> None:
    # 0xE40C292C, FNV's own test value of "a", is negative as a signed number.
    assert fnv1a(b"a", 1 << 40) == (1 << 32) - 0xE40C292C


def test_round_robin_takes_turns_per_topic_whatever_the_key() -> None:
    one = RoundRobin(chance=lambda: 0.5)

    assert [one.partition("t", b"k", 4, (0, 1, 2, 3)) for _ in range(5)] == [2, 3, 0, 1, 2]
    assert one.partition("u", None, 4, (0, 1)) == 1


def test_the_old_partitioner_stays_for_ten_minutes_unless_its_partition_goes() -> None:
    now_s = 0.0
    draws = iter([0.0, 0.9, 0.5])
    one = RandomForAWhile(clock=lambda: now_s, chance=lambda: next(draws))

    first = [one.partition("t", None, 3, (0, 1, 2)) for _ in range(3)]
    now_s = 600.0
    second = one.partition("t", None, 3, (0, 1, 2))
    third = one.partition("t", None, 3, (0, 1))

    assert (first, second, third) == ([0, 0, 0], 2, 1)
    assert one.partition("t", b"21", 1000, ()) == partitioner_of_java(b"21", 1000)


def partitioner_of_java(key: bytes, count: int) -> int:
    return named("murmur2").partition("t", key, count, ())


def test_sticky_stays_until_the_batch_is_full_and_then_goes_elsewhere() -> None:
    one = StickyPartitioner(ignore_keys=True)
    seen: Counter[int] = Counter()

    for _ in range(50):
        chosen = {one.partition("t", key, 3, (0, 1, 2)) for key in (None, b"a", b"b")}
        assert len(chosen) == 1
        seen.update(chosen)
        one.batch_full("t")
        assert one.partition("t", None, 3, (0, 1, 2)) not in chosen

    assert len(seen) == 3


def test_a_function_chooses_as_in_other_clients() -> None:
    one = partitioner(lambda key, everything, available: available[-1] if key else everything[0])

    assert one is not None
    assert one.partition("t", b"k", 3, (0, 1)) == 1
    assert one.partition("t", None, 3, (0, 1)) == 0


@pytest.mark.parametrize("chosen", [9, -1])
def test_a_choice_that_is_not_a_partition_raises(chosen: int) -> None:
    accumulator = Accumulator(
        batch_size=100, linger_ms=0, buffer_memory=9_999, max_record_size=1_000, monotonic_ms=lambda: 0.0
    )
    info = accumulator.update_topic("t", 3, [0, 1, 2])
    function = partitioner(lambda key, everything, available: chosen)
    records = RecordAppender(Appender(accumulator), function, Interceptors(()))
    choose = records.choose(info)
    assert choose is not None

    for call in (lambda: records.append(info, ProducerRecord("t", b"x")), lambda: choose(None)):
        with pytest.raises(ValueError, match=f"the partitioner chose {chosen} for 't', which has 0 to 2"):
            call()


def test_the_default_is_built_in_and_objects_are_taken_as_they_are() -> None:
    mine = RoundRobin()

    assert partitioner(None) is None
    assert partitioner("default") is None
    assert partitioner(mine) is mine
    assert isinstance(partitioner("ottla.producer.partitioner:RoundRobin"), RoundRobin)
