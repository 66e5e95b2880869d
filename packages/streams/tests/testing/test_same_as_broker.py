"""The same scenarios have the same results without a broker and on one: the two cannot drift apart."""

from __future__ import annotations

import inspect
from collections import Counter
from functools import partial
from typing import Any

import msgspec
import pytest

from ottla.admin import Admin
from ottla.admin.offsets import Offsets
from ottla.admin.topics import Topics
from ottla.consumer import Consumer, ConsumerRecord
from ottla.producer import Producer
from ottla.producer.partitioner import partition_for_key
from ottla.streams import App, Context
from ottla.streams.errors import HandlerFailed
from ottla.streams.testing.memory_consumer import MemoryConsumer
from ottla.streams.testing.memory_log import MemoryAdmin, MemoryOffsets, MemoryTopics
from ottla.streams.testing.memory_producer import MemoryProducer
from peers.stream_apps import FAST, Order, pricing, shop
from peers.stream_benches import Bench

NAMES = [f"name {number}".encode() for number in range(12)]


def order(amount: int, item: str = "tea") -> bytes:
    return msgspec.json.encode(Order(amount, item))


def facts(record: ConsumerRecord) -> tuple[Any, ...]:
    return record.partition, record.offset, record.key, record.value, record.headers


def places(partitions: int) -> dict[bytes, tuple[int, int]]:
    """Return the partition and the offset of each name, if they are sent in order."""
    ends: Counter[int] = Counter()
    found = {}
    for key in NAMES:
        partition = partition_for_key(key, partitions)
        found[key] = partition, ends[partition]
        ends[partition] += 1
    return found


def test_outputs_have_the_same_partitions_offsets_keys_values_and_headers(bench: Bench) -> None:
    bench.create(orders=4, priced=3)
    seen: list[ConsumerRecord] = []

    def make(**settings: Any) -> App:
        app = App("copying", **{**FAST, **settings})

        @app.handle("orders")
        async def copy(record: ConsumerRecord, context: Context) -> None:
            seen.append(record)
            await context.send(
                "priced", record.value, key=record.key, headers={"from": b"%d" % record.offset}
            )

        return app

    bench.start(make)
    for key in NAMES:
        bench.send("orders", b"of " + key, key, timestamp_ms=5)
        bench.wait_until(lambda: seen and seen[-1].key == key)  # noqa: B023 - it is waited for here
    copied = bench.records("priced", len(NAMES))

    assert [
        (facts(each), each.timestamp_ms) for each in sorted(seen, key=lambda each: NAMES.index(each.key))
    ] == [((*where, key, b"of " + key, ()), 5) for key, where in places(4).items()]
    assert {facts(each) for each in copied} == {
        (*where, key, b"of " + key, (("from", b"%d" % places(4)[key][1]),))
        for key, where in places(3).items()
        for key, where in places(3).items()
    }


def test_a_record_that_fails_for_good_becomes_the_same_dead_letter(bench: Bench) -> None:
    bench.create(orders=1)
    bench.start(pricing)
    bench.send("orders", order(-1), b"anna", timestamp_ms=7)
    bench.send("orders", order(2), b"anna")

    (letter,) = bench.records("orders.failed", 1)
    (priced,) = bench.records("priced", 1)

    assert (letter.key, letter.value) == (b"anna", order(-1))
    assert letter.headers == (
        ("dead-reason", b"ValueError: negative"),
        ("dead-topic", b"orders"),
        ("dead-partition", b"0"),
        ("dead-offset", b"0"),
        ("dead-timestamp", b"7"),
        ("dead-exception", b"builtins.ValueError"),
        ("dead-message", b"negative"),
        ("dead-attempts", b"3"),
        ("dead-group", b"billing"),
    )
    assert (priced.key, priced.value) == (b"anna", b'{"price":6}')
    assert bench.committed("billing", "orders", 2) == ""


def test_a_failure_that_stops_commits_nothing_past_its_record(bench: Bench) -> None:
    bench.create(orders=1)
    member = bench.start(pricing)
    for key, amount in ((b"a", 1), (b"b", 13)):
        bench.send("orders", order(amount), key)

    failure = bench.failure(member)

    assert isinstance(failure, HandlerFailed)
    assert failure.offset == 1
    assert bench.committed("billing", "orders", 1) == ""


def test_a_restart_goes_on_behind_the_commit_and_knows_its_metadata(bench: Bench) -> None:
    bench.create(orders=1)
    handled: list[tuple[int, bytes]] = []

    def make(number: int, **settings: Any) -> App:
        wanted = {**FAST, "retry_backoff_ms": 10**7, "retry_backoff_max_ms": 10**7, **settings}
        app = App("billing", **wanted)

        @app.handle("orders")
        async def note(record: ConsumerRecord) -> None:
            handled.append((number, record.key))
            if record.key == b"b" and number == 1:
                raise ConnectionError("not now")

        return app

    first = bench.start(partial(make, 1))
    for key in (b"a", b"b", b"c", b"b", b"d"):
        bench.send("orders", b"", key)
    bench.wait_until(lambda: (1, b"d") in handled)
    bench.stop(first)
    metadata = bench.committed("billing", "orders", 1)
    bench.start(partial(make, 2))
    bench.committed("billing", "orders", 5)

    assert metadata == "ottla1.AhMHoOsK"  # offsets 2 and 4
    assert handled == [(1, b"a"), (1, b"b"), (1, b"c"), (1, b"d"), (2, b"b"), (2, b"b")]


def test_streams_write_the_same_outputs_and_changelogs(bench: Bench) -> None:
    bench.create(orders=2, items=2, counts=2, labelled=2)
    bench.send("items", b"tea leaves", b"tea")
    bench.start(shop)
    for amount in (0, 1, 2):
        bench.send("orders", order(amount), b"customer %d" % amount)
        bench.records("by-item", amount)

    labelled = bench.records("labelled", 2)
    counts = bench.records("counts", 2)
    changes = bench.records("shop-by-item-count-changelog", 3)

    assert [(each.key, each.value) for each in labelled] == [
        (b"tea", b"1 tea leaves"),
        (b"tea", b"2 tea leaves"),
    ]
    assert [(each.key, each.value) for each in counts] == [(b"tea", b"1"), (b"tea", b"2")]
    assert [(each.key, each.value, each.headers) for each in changes if each.key == b"tea"] == [
        (b"tea", b"1", (("ottla-state", stamp(0)),)),
        (b"tea", b"2", (("ottla-state", stamp(1)),)),
    ]


def stamp(offset: int) -> bytes:
    """Return the header of an entry whose last applied record had an offset."""
    return offset.to_bytes(8, "big") + bytes(8) + b"\xff" * 8


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_members_share_partitions_and_nothing_runs_twice(bench: Bench, strategy: str) -> None:
    bench.create(orders=4)
    seen: Counter[tuple[int, bytes]] = Counter()
    handled_by: dict[int, set[int]] = {}

    def make(number: int, **settings: Any) -> App:
        app = App("sharing", partition_assignment_strategy=strategy, **{**FAST, **settings})

        @app.handle("orders")
        async def note(record: ConsumerRecord) -> None:
            seen[record.offset, record.key] += 1
            handled_by.setdefault(number, set()).add(record.partition)

        return app

    def send_and_wait() -> None:
        wanted = sum(seen.values()) + len(NAMES)
        for key in NAMES:
            bench.send("orders", b"", key)
        bench.wait_until(lambda: sum(seen.values()) == wanted)

    first = bench.start(partial(make, 1))
    send_and_wait()
    alone = handled_by.pop(1)
    bench.start(partial(make, 2))
    bench.wait_until(lambda: True)
    send_and_wait()
    shared = {number: len(partitions) for number, partitions in handled_by.items()}
    bench.stop(first)
    handled_by.clear()
    send_and_wait()

    assert alone == {0, 1, 2, 3}
    assert shared == {1: 2, 2: 2}
    assert handled_by == {2: {0, 1, 2, 3}}
    assert set(seen.values()) == {1}


PAIRS = [
    (MemoryConsumer, Consumer),
    (MemoryProducer, Producer),
    (MemoryAdmin, Admin),
    (MemoryTopics, Topics),
    (MemoryOffsets, Offsets),
]
OWN = {"give_up", "take", "owned", "write", "fence"}
"""Members that the fakes have for each other."""


@pytest.mark.parametrize(("fake", "real"), PAIRS, ids=lambda each: each.__name__)
def test_a_fake_takes_no_argument_that_the_real_one_does_not(fake: type, real: type) -> None:
    methods = [name for name in vars(fake) if not name.startswith("_") and name not in OWN]

    for name in methods:
        found = getattr(real, name, None)
        assert found is not None, f"{real.__name__} has no {name}"
        if callable(found) and not isinstance(found, property):
            ours, theirs = (inspect.signature(each).parameters for each in (getattr(fake, name), found))
            assert set(ours) <= set(theirs), name
