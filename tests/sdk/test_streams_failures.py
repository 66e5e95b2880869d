"""Failures in a processor on a broker: retries, dead letters, keys set aside, handlers that hang or exit."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from ottla.admin import TOPIC, Admin
from ottla.consumer import Consumer, ConsumerRecord
from ottla.producer import Producer
from ottla.streams.errors import (
    DeadLetterRejected,
    HandlerFailed,
    HandlerTimedOut,
    RecordUndecodable,
    WorkerProcessDied,
)
from ottla.streams.handlers.context import Context
from ottla.streams.processing.processor import Processor
from peers.stream_handlers import work

if TYPE_CHECKING:
    from sdk.conftest import Cluster

Fresh = Callable[[str], str]
BOUND_S = 60.0


class Order(msgspec.Struct):
    """The value of a record."""

    id: int


class Topics:
    """A topic, its dead letters, and a group, of one test."""

    def __init__(self, cluster: Cluster, fresh: Fresh, producer: Producer) -> None:
        self.cluster = cluster
        self.name, self.failed, self.group = fresh("orders"), fresh("orders.failed"), fresh("billing")
        self.producer = producer

    async def write(self, *records: tuple[bytes | None, bytes | None]) -> None:
        """Write records of key and value."""
        for key, value in records:
            await self.producer.send(self.name, value, key, headers=[("own", b"\xff")])
        await self.producer.flush()

    def processor(self, handler: Callable[..., Any], **settings: Any) -> Processor:
        """Make a processor with dead letters and short waits."""
        given: dict[str, Any] = {
            "dead_letter_topic": self.failed,
            "retry_backoff_ms": 10,
            "retry_backoff_max_ms": 50,
            "retries": 2,
            "commit_interval_ms": 50,
            "group_id": self.group,
            **settings,
        }
        return Processor(handler, self.name, bootstrap_servers=self.cluster.bootstrap_servers, **given)

    async def dead_letters(self, count: int) -> list[ConsumerRecord]:
        """Read so many dead letters."""
        async with Consumer(
            self.failed, bootstrap_servers=self.cluster.bootstrap_servers, auto_offset_reset="earliest"
        ) as consumer:
            async with asyncio.timeout(BOUND_S):
                return [await anext(consumer) for _ in range(count)]

    async def committed(self) -> int | None:
        """Return the committed offset of partition 0."""
        async with Consumer(
            group_id=self.group, bootstrap_servers=self.cluster.bootstrap_servers
        ) as consumer:
            from ottla.protocol.topics import TopicPartition

            partition = TopicPartition(self.name, 0)
            consumer.assign([partition])
            return await consumer.committed(partition)


@pytest.fixture
async def topics(cluster: Cluster, fresh: Fresh, admin: Admin) -> AsyncIterator[Topics]:
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        made = Topics(cluster, fresh, producer)
        for name in (made.name, made.failed):
            await admin.topics.create(name, partitions=1)
        yield made


async def handled(processor: Processor, enough: asyncio.Event) -> None:
    """Run a processor until enough is handled, then drain it."""
    async with asyncio.timeout(BOUND_S):
        async with processor:
            waiting = asyncio.get_running_loop().create_task(enough.wait())
            stopped = asyncio.get_running_loop().create_task(processor.wait())
            await asyncio.wait({waiting, stopped}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            stopped.cancel()


async def test_a_retry_holds_up_its_key_only_and_keeps_its_order(topics: Topics) -> None:
    await topics.write(*((key, b"%d" % n) for n in range(5) for key in (b"bad", b"good")))
    seen: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    enough = asyncio.Event()

    async def handle(value: int, context: Context) -> None:
        key = context.record.key
        if key == b"bad" and value == 0 and len(seen[b"good"]) < 5:
            raise ConnectionError("not before the others")
        seen[key].append((value, context.attempt))
        if sum(map(len, seen.values())) == 10:
            enough.set()

    await handled(topics.processor(handle, retries=1_000), enough)

    assert [value for value, _ in seen[b"bad"]] == [0, 1, 2, 3, 4]
    assert [value for value, _ in seen[b"good"]] == [0, 1, 2, 3, 4]
    assert seen[b"bad"][0][1] > 1
    assert all(attempt == 1 for _, attempt in seen[b"bad"][1:])
    assert await topics.committed() == 10


async def test_a_record_goes_to_the_dead_letters_after_its_last_retry_with_its_cause(topics: Topics) -> None:
    await topics.write((b"\x00k", b"\xffvalue"), (b"\x00k", b"next"))
    attempts: list[int] = []
    enough = asyncio.Event()

    async def handle(value: bytes, context: Context) -> None:
        if value == b"next":
            enough.set()
            return
        attempts.append(context.attempt)
        raise LookupError("no such customer")

    await handled(topics.processor(handle), enough)
    (letter,) = await topics.dead_letters(1)

    assert attempts == [1, 2, 3]
    assert (letter.key, letter.value, letter.headers[0]) == (b"\x00k", b"\xffvalue", ("own", b"\xff"))
    headers = dict(letter.headers)
    assert headers["dead-reason"] == b"LookupError: no such customer"
    assert headers["dead-topic"] == topics.name.encode()
    assert (headers["dead-partition"], headers["dead-offset"]) == (b"0", b"0")
    assert (headers["dead-attempts"], headers["dead-group"]) == (b"3", topics.group.encode())
    assert await topics.committed() == 2


async def test_other_clients_read_the_cause_of_a_dead_letter(topics: Topics) -> None:
    from aiokafka import AIOKafkaConsumer

    await topics.write((b"k", b"value"))

    async def handle(value: bytes) -> None:
        raise LookupError("no such customer")

    async with topics.processor(handle, retries=0):
        async with AIOKafkaConsumer(
            topics.failed, bootstrap_servers=topics.cluster.bootstrap_servers, auto_offset_reset="earliest"
        ) as consumer:
            async with asyncio.timeout(BOUND_S):
                letter = await consumer.getone()

    assert (letter.key, letter.value) == (b"k", b"value")
    assert dict(letter.headers)["dead-exception"] == b"builtins.LookupError"
    assert dict(letter.headers)["dead-message"] == b"no such customer"


async def test_records_of_a_poison_key_follow_it_in_order_and_other_keys_go_on(topics: Topics) -> None:
    await topics.write(*((key, b"%d" % n) for n in range(4) for key in (b"bad", b"good")), (b"end", b"9"))
    called: dict[bytes, list[int]] = defaultdict(list)

    async def handle(value: int, context: Context) -> None:
        called[context.record.key].append(value)
        if context.record.key == b"bad" and value == 1:
            raise ValueError("poison")

    async with topics.processor(handle, retries=0, poison_keys="set-aside"):
        letters = await topics.dead_letters(3)

    assert called == {b"bad": [0, 1], b"good": [0, 1, 2, 3], b"end": [9]}
    assert [each.value for each in letters] == [b"1", b"2", b"3"]
    reasons = [dict(each.headers)["dead-exception"] for each in letters]
    assert reasons == [b"builtins.ValueError", *[b"ottla.streams.errors.KeySetAside"] * 2]


async def test_a_record_that_cannot_be_decoded_is_not_retried_and_names_the_cause(topics: Topics) -> None:
    await topics.write((b"a", b'{"id": "seven"}'), (b"a", None), (b"a", b'{"id": 7}'))
    orders: list[int] = []

    async def handle(order: Order) -> None:
        orders.append(order.id)

    async with topics.processor(handle, on_error={Exception: "retry"}):
        letters = await topics.dead_letters(2)

    reasons = [bytes(dict(each.headers)["dead-reason"] or b"") for each in letters]
    assert all(reason.startswith(b"RecordUndecodable") for reason in reasons)
    assert b"Expected `int`, got `str`" in reasons[0]
    assert b"tombstone" in reasons[1]
    assert [dict(each.headers)["dead-attempts"] for each in letters] == [b"1", b"1"]
    assert orders == [7]


async def test_without_a_dead_letter_topic_the_processor_stops_and_commits_nothing_past_it(
    topics: Topics,
) -> None:
    await topics.write((b"a", b'{"id": 1}'), (b"a", b"no JSON"), (b"a", b'{"id": 3}'))
    orders: list[int] = []

    async def handle(order: Order) -> None:
        orders.append(order.id)

    with pytest.raises(HandlerFailed, match=rf"topic {topics.name}, partition 0, offset 1\)") as raised:
        await handled(topics.processor(handle, dead_letter_topic=None), asyncio.Event())

    assert isinstance(raised.value.__cause__, RecordUndecodable)
    assert orders == [1]
    assert await topics.committed() == 1


async def test_records_that_fail_for_ever_do_not_stop_intake(topics: Topics) -> None:
    # Parallel Consumer's fork, issue 487: they filled the in-flight limit until nothing new was taken.
    failing = 500
    await topics.write(*((b"bad-%d" % n, b"bad") for n in range(failing)))
    await topics.write(*((b"good-%d" % n, b"good") for n in range(failing)))
    good = 0
    enough = asyncio.Event()

    async def handle(value: str) -> None:
        nonlocal good
        if value == "bad":
            raise ConnectionError("for ever")
        good += 1
        if good == failing:
            enough.set()

    processor = topics.processor(handle, retries=1_000_000, max_buffered_records=100, drain_timeout_ms=500)
    await handled(processor, enough)

    assert good == failing


async def test_a_handler_that_hangs_fails_by_its_time_out_and_the_next_record_of_its_key_follows(
    topics: Topics,
) -> None:
    await topics.write((b"k", b"hang"), (b"k", b"next"))
    enough = asyncio.Event()

    async def handle(value: str) -> None:
        if value == "hang":
            await asyncio.Event().wait()
        enough.set()

    processor = topics.processor(handle, handler_timeout_ms=100, on_error={HandlerTimedOut: "dead-letter"})
    await handled(processor, enough)
    (letter,) = await topics.dead_letters(1)

    assert dict(letter.headers)["dead-exception"] == b"ottla.streams.errors.HandlerTimedOut"


async def test_a_handler_that_cancels_itself_is_a_failure_of_its_record(topics: Topics) -> None:
    await topics.write((b"k", b"cancel"), (b"k", b"next"))
    enough = asyncio.Event()
    attempts: list[int] = []

    async def handle(value: str, context: Context) -> None:
        if value == "cancel":
            attempts.append(context.attempt)
            raise asyncio.CancelledError
        enough.set()

    await handled(topics.processor(handle), enough)
    (letter,) = await topics.dead_letters(1)

    assert attempts == [1, 2, 3]
    assert dict(letter.headers)["dead-exception"] == b"ottla.streams.errors.HandlerCancelled"


@pytest.mark.parametrize("place", ["loop", "thread"])
async def test_a_handler_that_exits_stops_the_processor(topics: Topics, place: str) -> None:
    await topics.write((b"a", b"1"), (b"a", b"2"))

    def exits(value: int) -> None:
        if value == 2:
            sys.exit(5)

    async def exits_on_loop(value: int) -> None:
        exits(value)

    with pytest.raises(SystemExit) as raised:
        await handled(topics.processor(exits if place == "thread" else exits_on_loop), asyncio.Event())

    assert raised.value.code == 5
    assert await topics.committed() == 1


async def test_plain_functions_run_on_threads_each_key_in_order_and_emit(topics: Topics) -> None:
    await topics.write(*((b"k%d" % (n % 5), b"%d" % n) for n in range(100)))
    seen: dict[bytes, list[int]] = defaultdict(list)
    threads: set[int] = set()
    enough = asyncio.Event()
    loop = asyncio.get_running_loop()

    def handle(value: int, context: Context) -> None:
        threads.add(threading.get_ident())
        seen[context.record.key].append(value)
        context.emit(topics.failed, str(value), key=context.record.key)
        if sum(map(len, seen.values())) == 100:
            loop.call_soon_threadsafe(enough.set)

    await handled(topics.processor(handle, max_threads=4, dead_letter_topic=None), enough)
    sent = await topics.dead_letters(100)

    assert all(values == sorted(values) for values in seen.values())
    assert len(threads) <= 4
    assert threading.get_ident() not in threads
    assert sorted(int(each.value) for each in sent) == list(range(100))
    assert await topics.committed() == 100


async def test_processes_that_die_or_hang_fail_their_own_records_only(topics: Topics) -> None:
    jobs = ["emit"] * 10 + ["exit", "hang", "kill", "fail"] + ["emit"] * 10
    values = [b'{"do": "%s", "file": "/dev/null"}' % job.encode() for job in jobs]
    await topics.write(*((b"%d" % n, value) for n, value in enumerate(values)))

    async with topics.processor(
        work, run_on="processes", max_processes=2, handler_timeout_ms=5_000, retries=0
    ):
        letters = await topics.dead_letters(4)
        async with Consumer(
            "done", bootstrap_servers=topics.cluster.bootstrap_servers, auto_offset_reset="earliest"
        ) as consumer:
            async with asyncio.timeout(BOUND_S):
                done = [await anext(consumer) for _ in range(20)]

    reasons = {each.key: bytes(dict(each.headers)["dead-exception"] or b"") for each in letters}
    assert reasons == {
        b"10": f"{WorkerProcessDied.__module__}.WorkerProcessDied".encode(),
        b"11": b"ottla.streams.errors.HandlerTimedOut",
        b"12": b"ottla.streams.errors.WorkerProcessDied",
        b"13": b"builtins.ValueError",
    }
    assert {each.key for each in done} == {b"%d" % n for n in (*range(10), *range(14, 24))}


async def test_a_dead_letter_topic_with_a_lower_limit_gets_the_record_cut_short(
    topics: Topics, admin: Admin
) -> None:
    await admin.topics.create(f"{topics.failed}.small", partitions=1, configs={"max.message.bytes": "3000"})
    topics.failed = f"{topics.failed}.small"
    await topics.write((b"k", bytes(range(256)) * 20))

    async def handle(value: bytes) -> None:
        raise ValueError("no")

    async with topics.processor(handle, retries=0):
        (letter,) = await topics.dead_letters(1)

    assert letter.value == (bytes(range(256)) * 20)[:1_024]
    assert dict(letter.headers)["dead-truncated"] == b"key 1, value 5120, 1 headers"


async def test_a_dead_letter_topic_that_takes_nothing_stops_the_processor_in_one_line(
    topics: Topics, admin: Admin
) -> None:
    await admin.topics.create(f"{topics.failed}.tiny", partitions=1, configs={"max.message.bytes": "100"})
    await topics.write((b"k", b"value"))

    async def handle(value: bytes) -> None:
        raise ValueError("no")

    processor = topics.processor(handle, retries=0, dead_letter_topic=f"{topics.failed}.tiny")
    with pytest.raises(HandlerFailed, match="check dead_letter_topic, its limits and ACLs") as raised:
        await handled(processor, asyncio.Event())

    assert isinstance(raised.value.__cause__, DeadLetterRejected)
    assert "\n" not in str(raised.value)


async def test_a_dead_letter_that_is_not_acknowledged_holds_up_its_key_only_until_it_is(
    topics: Topics, admin: Admin
) -> None:
    unready = {"min.insync.replicas": "2"}
    topics.failed = f"{topics.failed}.unready"
    await admin.topics.create(topics.failed, partitions=1, configs=unready)
    await topics.write((b"bad", b"first"), *((b"good", b"%d" % n) for n in range(20)), (b"bad", b"second"))
    seen: list[bytes] = []
    goods, enough = asyncio.Event(), asyncio.Event()

    async def handle(value: bytes) -> None:
        if value == b"first":
            raise ValueError("no")
        seen.append(value)
        if len(seen) == 20:
            goods.set()
        if value == b"second":
            enough.set()

    processor = topics.processor(
        handle, retries=0, delivery_timeout_ms=300, request_timeout_ms=200, linger_ms=0
    )
    async with asyncio.timeout(BOUND_S):
        async with processor:
            await goods.wait()
            assert not enough.is_set()
            await admin.configs.alter(TOPIC, topics.failed, {"min.insync.replicas": "1"})
            await enough.wait()

    letters = await topics.dead_letters(1)
    assert [each.value for each in letters] == [b"first"]
    assert seen[-1] == b"second"
    assert await topics.committed() == 22


@pytest.mark.parametrize("is_batch", [False, True], ids=["record", "batch"])
async def test_a_record_whose_output_is_too_large_for_its_topic_is_a_dead_letter(
    topics: Topics, admin: Admin, fresh: Fresh, is_batch: bool
) -> None:
    """It stopped the processor at each restart."""
    target = fresh("invoices")
    await admin.topics.create(target, partitions=1, configs={"max.message.bytes": "1000"})
    await topics.write((b"a", b"1"), (b"a", b"2"), (b"b", b"3"))
    seen: list[int] = []
    enough = asyncio.Event()

    async def handle(records: list[ConsumerRecord], context: Context) -> None:
        for record in records:
            size = 2_000 if record.offset == 1 else 10
            await context.send(target, b"%d" % record.offset + bytes(size), key=record.key)
            seen.append(record.offset)
        if len(seen) == 3:
            enough.set()

    size = 3 if is_batch else 1
    await handled(topics.processor(handle, batch_size=size, batch_of="any"), enough)

    assert sorted(seen) == [0, 1, 2]
    letters = await topics.dead_letters(3 if is_batch else 1)
    assert (letters[0].key, letters[-1].value) == (b"a", b"3" if is_batch else b"2")
    reason = dict(letters[0].headers)["dead-reason"] or b""
    assert reason.startswith(b"OutputFailed: the outputs of a record were not acknowledged")
    assert b"MessageTooLarge" in reason
    assert target.encode() in reason
    assert await topics.committed() == 3
