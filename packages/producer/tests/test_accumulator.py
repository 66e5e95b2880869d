from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.producer.accumulator import Accumulator, Batch
from ottla.protocol.topics import TopicPartition

ORDERS = TopicPartition("orders", 0)
OTHERS = TopicPartition("others", 0)


def add(accumulator: Accumulator, now_ms: float, partition: TopicPartition = ORDERS, size: int = 10) -> Batch:
    batch, _ = accumulator.append(partition, None, b"x" * size, 0, (), now_ms)
    return batch


def test_a_batch_waits_for_company_and_then_goes() -> None:
    accumulator = Accumulator(batch_size=1_000, linger_ms=5)
    batch = add(accumulator, now_ms=100)

    assert accumulator.ready(104) == ([], 105)
    assert accumulator.ready(105) == ([batch], None)


def test_a_full_batch_does_not_wait() -> None:
    accumulator = Accumulator(batch_size=300, linger_ms=1_000)
    first = add(accumulator, 0, size=150)
    add(accumulator, 0, size=150)

    assert accumulator.ready(0)[0] == [first]


def test_flushing_waits_for_nobody() -> None:
    accumulator = Accumulator(batch_size=1_000, linger_ms=1_000)
    batch = add(accumulator, 0)

    accumulator.flush(True)

    assert accumulator.ready(0)[0] == [batch]


def test_one_batch_of_a_partition_is_out_at_a_time() -> None:
    accumulator = Accumulator(batch_size=200, linger_ms=0)
    first, second = add(accumulator, 0, size=150), add(accumulator, 0, size=150)
    other = add(accumulator, 0, OTHERS)

    accumulator.take(first)
    assert accumulator.ready(0)[0] == [other]

    accumulator.finish(first)
    assert accumulator.ready(0)[0] == [second, other]


def test_a_batch_that_failed_goes_before_those_behind_it() -> None:
    accumulator = Accumulator(batch_size=200, linger_ms=0)
    first, _ = add(accumulator, 0, size=150), add(accumulator, 0, size=150)
    accumulator.take(first)

    accumulator.put_back(first, not_before_ms=50)

    assert accumulator.ready(49) == ([], 50)
    assert accumulator.ready(50)[0] == [first]


def test_a_batch_that_was_taken_gets_no_further_records() -> None:
    accumulator = Accumulator(batch_size=1_000, linger_ms=0)
    first = add(accumulator, 0)
    accumulator.take(first)

    assert add(accumulator, 1) is not first


def test_what_waits_too_long_is_found_but_not_while_it_is_out() -> None:
    accumulator = Accumulator(batch_size=200, linger_ms=0)
    first, second = add(accumulator, 0, size=150), add(accumulator, 10, size=150)

    assert accumulator.expired(100, timeout_ms=100) == [first]
    assert accumulator.expired(110, timeout_ms=100) == [first, second]
    accumulator.take(first)
    assert accumulator.expired(110, timeout_ms=100) == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), max_size=60), st.randoms())
def test_every_record_goes_out_once_and_in_its_partitions_order(sends: list[tuple[int, int]], chance) -> None:  # type: ignore[no-untyped-def]
    accumulator = Accumulator(batch_size=500, linger_ms=3)
    for number, (index, size) in enumerate(sends):
        target = TopicPartition("t", index)
        batch, _ = accumulator.append(target, None, b"x" * size, number, (), number)
    out: dict[TopicPartition, list[int]] = {}
    now_ms = float(len(sends) + 10)

    while not accumulator.is_empty:
        due, _ = accumulator.ready(now_ms)
        batch = chance.choice(due)
        accumulator.take(batch)
        if chance.random() < 0.3:
            accumulator.put_back(batch, now_ms)
            continue
        out.setdefault(batch.partition, []).extend(batch.timestamps)
        accumulator.finish(batch)

    assert accumulator.size_bytes == 0
    for partition, numbers in out.items():
        assert numbers == [n for n, (index, _) in enumerate(sends) if index == partition.partition]
