"""What of an application's gets into batches, and what is refused before it does."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from ottla.client.config import ClientConfig
from ottla.client.errors import ClientError, DeadlineExceeded
from ottla.client.serialization import SerializationFailed
from ottla.client.testing import ScriptedBroker
from ottla.producer import (
    BufferFull,
    DeliveryTimeout,
    Producer,
    ProducerConfig,
    ProducerInterceptor,
    RecordMetadata,
    RecordTooLarge,
    SyncProducer,
)
from ottla.producer.accumulator import Accumulator, Appender, TopicInfo
from ottla.producer.sync_acknowledgement import SyncAcknowledgement
from ottla.producer.thread_queue import RUN, ThreadQueue
from ottla.protocol.errors import ErrorCode, InvalidTopicException
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.records import decode_records
from peers.accepting_broker import batches, serving


def values(broker: ScriptedBroker) -> list[bytes | None]:
    return [record.value for batch in batches(broker) for record in decode_records(batch)]


@pytest.mark.parametrize("made", [bytearray(b"abc"), memoryview(b"abc"), None], ids=type)
async def test_a_serializer_may_return_whatever_holds_bytes(made: Any) -> None:
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, value_serializer=lambda _: made) as producer:
            await producer.send("t", 1, key=b"k")
            producer.send_nowait("t", 2)
            await producer.send_many("t", [3])

    assert values(broker) == 3 * [None if made is None else b"abc"]


@pytest.mark.parametrize("made", ["text", 7, [b"abc"]])
async def test_a_serializer_that_returns_no_bytes_is_found_out(made: Any) -> None:
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, key_serializer=lambda _: made) as producer:
            with pytest.raises(SerializationFailed, match="the serializer returned"):
                await producer.send("t", b"x", key=1)
            with pytest.raises(SerializationFailed, match="the serializer returned"):
                await producer.send_many("t", [b"x"], keys=[1])

    assert values(broker) == []


async def test_a_batch_that_was_sent_still_knows_its_size_and_is_not_sent_again() -> None:
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers) as producer:
            batch = producer.create_batch()
            batch.append(value=b"x")
            size = batch.size()
            await producer.send_batch(batch, "t", partition=0)

            assert (batch.record_count(), batch.size()) == (1, size)
            with pytest.raises(ValueError, match="was sent already"):
                await producer.send_batch(batch, "t", partition=0)


@pytest.mark.parametrize(("when", "error"), [(-5, ValueError), (1.5, TypeError), ("now", TypeError)])
async def test_a_batch_takes_only_times_that_can_be(when: Any, error: type[Exception]) -> None:
    async with serving(ScriptedBroker()) as broker, Producer(broker.bootstrap_servers) as producer:
        batch = producer.create_batch()
        with pytest.raises(error):
            batch.append(value=b"x", timestamp=when)
        assert batch.record_count() == 0


async def test_a_batch_for_a_partition_that_is_not_there_can_be_sent_elsewhere() -> None:
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers) as producer:
            batch = producer.create_batch()
            batch.append(value=b"x")
            with pytest.raises(ValueError, match="not 4294967296"):
                await producer.send_batch(batch, "t", partition=2**32)
            assert (await (await producer.send_batch(batch, "t", partition=0))).offset == 100


async def test_a_record_too_large_is_refused_in_a_batch_of_ones_own_too() -> None:
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, max_request_size=1_000) as producer:
            batch = producer.create_batch()
            batch.append(value=bytes(2_000))
            with pytest.raises(RecordTooLarge):
                await producer.send_batch(batch, "t", partition=0)

    assert batches(broker) == []


async def test_values_are_those_at_the_time_of_the_call() -> None:
    given: list[Any] = [{"n": number} for number in range(5)]

    def clearing(value: Any) -> bytes:
        given.clear()
        return b"%d" % value["n"]

    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, value_serializer=clearing) as producer:
            await producer.send_many("t", given)

    assert values(broker) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_partition_that_was_served_is_last_in_the_next_look() -> None:
    accumulator = Accumulator(
        batch_size=100, linger_ms=0, buffer_memory=10_000, max_record_size=1_000, monotonic_ms=lambda: 0.0
    )
    info = accumulator.update_topic("t", 3, [0, 1, 2])
    appender = Appender(accumulator)
    for partition in (0, 1, 2, 0, 1, 2):
        appender.append(info, b"k", bytes(90), partition, None, None)

    due, _ = accumulator.ready(0.0, 5)
    first = due[0]
    accumulator.drain(first)

    assert [batch.partition.partition for batch in accumulator.ready(0.0, 5)[0]] == [1, 2, 0]


async def test_headers_of_an_iterator_arrive() -> None:
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers) as producer:
            await producer.send("t", b"x", headers=iter([("h", b"1")]))
            producer.send_nowait("t", {"packed": True}, headers=iter([("h", b"2")]))

    headers = [list(record.headers) for batch in batches(broker) for record in decode_records(batch)]
    assert headers == [[("h", b"1")], [("h", b"2")]]


async def test_empty_records_of_an_unknown_topic_do_not_wait_without_bound() -> None:
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, buffer_memory=1_000) as producer:
            producer._cluster.forget("t")
            with pytest.raises(BufferFull):
                for _ in range(1_000):
                    producer.send_nowait("t")


async def test_finding_a_topic_takes_no_longer_than_send_may_block() -> None:
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, max_block_ms=50) as producer:
            broker.on(MetadataRequest, lambda _: broker.metadata("t", partitions=0))
            with pytest.raises(DeadlineExceeded, match=r"within 0\.05 s"):
                await producer.send("other", b"x")


class Hearing(ProducerInterceptor):
    """Keeps what it is told of acknowledgements."""

    def __init__(self) -> None:
        self.heard: list[tuple[int | None, type[BaseException] | None]] = []

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        self.heard.append((metadata.offset if metadata else None, type(error) if error else None))


async def test_interceptors_hear_of_records_whose_topic_is_not_found_and_of_others_once() -> None:
    hearing = Hearing()
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, max_block_ms=50, interceptors=[hearing]) as producer:
            first = producer.send_nowait("t", b"x")
            await first
            second = producer.send_nowait("t", b"y")
            await second
            lost = producer.send_nowait("other", b"z")
            with pytest.raises(DeadlineExceeded):
                await lost

    assert hearing.heard == [(100, None), (100, None), (None, DeadlineExceeded)]


@pytest.mark.parametrize(("level", "on_threads"), [(19, 1), (None, 0)])
async def test_what_takes_long_to_compress_is_compressed_on_a_thread(
    monkeypatch: pytest.MonkeyPatch, level: int | None, on_threads: int
) -> None:
    packed = []

    async def counting(pack: Callable[..., Any], *how: Any) -> None:
        packed.append(how)
        pack(*how)

    monkeypatch.setattr(asyncio, "to_thread", counting)
    config = ProducerConfig(compression_type="zstd", compression_level=level)
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, config) as producer:
            await producer.send("t", bytes(20_000))

    assert len(packed) == on_threads


async def test_to_show_an_acknowledgement_is_not_to_take_note_of_its_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(ScriptedBroker(), lambda: ErrorCode.INVALID_RECORD) as broker:
        async with Producer(broker.bootstrap_servers) as producer:
            sent = await producer.send("t", b"x")
    assert repr(sent) == "<Acknowledgement t-0 failed>"

    del sent
    gc.collect()
    assert "1 records for t-0 were not delivered" in caplog.text


class Nowhere:
    """A thread that is asked to do nothing."""

    is_here = False

    def check(self) -> None:
        pass

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        pass


@pytest.mark.parametrize("large", [{"key": bytes(2_000)}, {"value": bytearray(2_000)}], ids=["key", "value"])
def test_whatever_is_large_counts_while_it_waits_to_be_handed_over(large: dict[str, Any]) -> None:
    thread: Any = Nowhere()
    thread_queue = ThreadQueue(thread, most_bytes=1_000, max_block_ms=1)
    whole = {"value": None, "key": None, "partition": None, "timestamp_ms": None, "headers": None} | large
    thread_queue.put(SyncAcknowledgement(thread, "t", **whole))
    with pytest.raises(BufferFull):
        thread_queue.put(SyncAcknowledgement(thread, "t", **whole))


async def test_a_callback_that_raises_keeps_no_later_record_from_being_handed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def call_back(sent: SyncAcknowledgement) -> None:
        raise LookupError(f"who asked for {sent}?")

    def send(servers: str) -> int:
        producer = SyncProducer(servers).start()
        try:
            goes_on = threading.Event()
            producer._thread.post(goes_on.wait)
            for _ in range(RUN):  # so many go at a stretch: the callback is there before the last
                producer.send("t", b"before")
            refused = producer.send("t", bytes(2_000_000))
            refused.add_done_callback(call_back)
            goes_on.set()
            with pytest.raises(RecordTooLarge):
                refused.result(10)
            return producer.send("t", b"after").result(10).partition
        finally:
            producer.stop(10)

    async with serving(ScriptedBroker()) as broker:
        assert await asyncio.to_thread(send, broker.bootstrap_servers) == 0

    assert values(broker) == RUN * [b"before"] + [b"after"]
    assert "who asked for <SyncAcknowledgement t failed" in caplog.text


NO_MEMORY = """
    import resource
    from ottla.producer.accumulator import BatchBuilder, Accumulator, Appender

    LARGE = bytes(400_000_000)

    def without_memory(call):
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (size + 100_000_000, before[1]))
        try:
            call()
        except MemoryError:
            pass
        else:
            raise AssertionError("there was memory")
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)

    builder = BatchBuilder(1_000_000_000)
    builder.append(value=b"first")
    without_memory(lambda: builder.append(value=LARGE))
    builder.append(value=b"second")
    assert builder.record_count() == 2

    accumulator = Accumulator(
        batch_size=1_000_000_000, linger_ms=0, buffer_memory=2_000_000_000, max_record_size=1_000_000_000,
        monotonic_ms=lambda: 0.0,
    )
    info, appender = accumulator.update_topic("t", 2, [0, 1]), Appender(accumulator)
    appender.append(info, None, b"first", 0, None, None)
    for partition in (0, 1):
        without_memory(lambda: appender.append(info, None, LARGE, partition, None, None))
    assert [batch.partition.partition for batch in accumulator.incomplete_batches()] == [0]
    appender.append(info, None, b"second", 0, None, None)
    (batch,) = accumulator.incomplete_batches()
    accumulator.drain(batch)
    batch.pack(0, None)
    assert b"first" in batch.data and b"second" in batch.data and batch.record_count == 2
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_record_there_is_no_memory_for_harms_no_other() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(NO_MEMORY)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")


async def test_a_batch_of_ones_own_is_refused_where_an_interceptor_would_not_see_its_records() -> None:
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, interceptors=[Hearing()]) as producer:
            batch = producer.create_batch()
            batch.append(value=b"x")
            with pytest.raises(ClientError, match="send_batch takes no interceptors"):
                await producer.send_batch(batch, "t", partition=0)
            with pytest.raises(ClientError, match=r"send_arrow takes no interceptors.*: use send_many"):
                await producer.send_arrow("t", pa.table({"value": [b"x"]}))


async def test_an_interceptor_that_returns_no_record_is_logged_and_the_record_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Mistaken:
        def on_send(self, record: Any) -> Any:
            return record.value.upper()

    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, interceptors=[Mistaken()]) as producer:
            await producer.send_and_wait("t", b"x")

    assert values(broker) == [b"x"]
    assert "it returned bytes, not ProducerRecord" in caplog.text


def test_a_topic_is_forgotten_once_nothing_was_sent_to_it_for_long_enough() -> None:
    now = [0.0]
    accumulator = Accumulator(
        batch_size=100, linger_ms=0, buffer_memory=9_999, max_record_size=1_000, monotonic_ms=lambda: now[0]
    )
    appender = Appender(accumulator)
    topics = {topic: accumulator.update_topic(topic, 1, [0]) for topic in ("idle", "used", "waiting")}

    def send(topic: str) -> None:
        appender.append(topics[topic], None, b"x", 0, None, None)

    send("waiting")
    now[0] = 6.0
    send("used")
    (used,) = (batch for batch in accumulator.incomplete_batches() if batch.partition.topic == "used")
    accumulator.finish(used)

    assert appender.forget_idle(0.0 - 1) == []
    assert appender.forget_idle(5.0) == ["idle"]
    assert appender.forget_idle(7.0) == ["used"]
    assert list(accumulator.topics) == ["waiting"]


def test_who_holds_the_route_of_a_forgotten_topic_holds_the_one_that_others_get() -> None:
    accumulator = Accumulator(
        batch_size=100, linger_ms=0, buffer_memory=9_999, max_record_size=1_000, monotonic_ms=lambda: 0.0
    )
    held: TopicInfo | None = accumulator.update_topic("t", 1, [0])
    accumulator.forget_idle(1.0)

    again = accumulator.update_topic("t", 2, [0, 1])

    assert again is held
    assert (list(accumulator.topics), again.count) == (["t"], 2)
    del again
    held = None
    accumulator.forget_idle(1.0)
    assert accumulator.update_topic("t", 1, [0]).count == 1


async def test_topics_that_are_not_used_any_more_are_not_asked_after() -> None:
    client = ClientConfig(metadata_max_age_ms=50)
    async with serving(ScriptedBroker()) as broker:
        broker.on(
            MetadataRequest,
            lambda request: broker.metadata(*(topic.name or "" for topic in request.topics or ())),
        )
        config = ProducerConfig(client=client, metadata_max_idle_ms=200)
        async with Producer(broker.bootstrap_servers, config) as producer:
            await producer.send_and_wait("t", b"x")
            async with asyncio.timeout(10):
                while "t" in producer._accumulator.topics:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            asked = len(broker.seen(MetadataRequest))
            await asyncio.sleep(0.2)
            assert len(broker.seen(MetadataRequest)) == asked
            await producer.send_and_wait("t", b"y")

    assert values(broker) == [b"x", b"y"]


@pytest.mark.parametrize("topic", ["", "a b", ".", "..", 250 * "a"])
async def test_a_name_that_no_topic_can_have_is_refused_without_asking(topic: str) -> None:
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers) as producer:
            with pytest.raises(InvalidTopicException):
                await producer.send(topic, b"x")
            with pytest.raises(InvalidTopicException):
                producer.send_nowait(topic, b"x")
            with pytest.raises(InvalidTopicException):
                await producer.send_many(topic, [b"x"])


@pytest.mark.parametrize("topic", [None, 5])
async def test_a_topic_that_is_no_text_is_refused(topic: Any) -> None:
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers) as producer:
            with pytest.raises(TypeError):
                await producer.send(topic, b"x")
            with pytest.raises(TypeError):
                producer.send_nowait(topic, b"x")


@pytest.mark.parametrize("values", ["text", b"text"])
async def test_one_value_is_not_taken_for_many(values: Any) -> None:
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers) as producer:
            with pytest.raises(TypeError, match="values must be a list of values, not"):
                await producer.send_many("t", values)


@pytest.mark.parametrize(
    ("stamp", "refusal"),
    [
        (-5, (ValueError, "it cannot be -5; None stands for now")),
        (2**63, (ValueError, "too large for a timestamp")),
        (1.5, (TypeError, "a whole number of milliseconds since 1970, not 1.5")),
        ("1", (TypeError, "a whole number of milliseconds")),
    ],
)
async def test_what_is_no_time_is_refused_at_once_by_every_call(
    stamp: Any, refusal: tuple[type[Exception], str]
) -> None:
    kind, words = refusal
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, linger_ms=0) as producer:
            with pytest.raises(kind, match=words):
                producer.send_nowait("not-known-yet", b"x", timestamp_ms=stamp)
            with pytest.raises(kind, match=words):
                await producer.send("not-known-yet", b"x", timestamp_ms=stamp)
            await producer.send("t", b"x", timestamp_ms=5)
            for value in (b"plain", {"a": "dictionary"}):
                with pytest.raises(kind, match=words):
                    await producer.send("t", value, timestamp_ms=stamp)
                with pytest.raises(kind, match=words):
                    producer.send_nowait("t", value, timestamp_ms=stamp)
            with pytest.raises(kind, match=words):
                await producer.send_many("t", [b"y", b"z"], timestamps_ms=[6, stamp])

    assert values(broker) == [b"x", b"y"]


async def test_rows_from_before_1970_are_refused() -> None:
    rows = pa.table({"value": [b"x", b"y"], "timestamp": pa.array([7, -7], pa.int64())})

    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers) as producer:
            with pytest.raises(ValueError, match="timestamp of row 1 is before 1970: -7 ms"):
                await producer.send_arrow("t", rows)

    assert values(broker) == [b"x"]


async def test_many_are_shown_to_interceptors_one_by_one() -> None:
    class Marking(Hearing):
        def on_send(self, record: Any) -> Any:
            return record._replace(value=record.value + b"!")

    hearing = Marking()
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, interceptors=[hearing]) as producer:
            sent = await producer.send_many("t", [b"a", b"b"], headers=iter([("h", b"1")]))
            await sent

    records = [record for batch in batches(broker) for record in decode_records(batch)]
    assert [record.value for record in records] == [b"a!", b"b!"]
    assert [len(record.headers) for record in records] == [1, 1]
    assert [each.offset for each in sent] == [100, 101]
    assert len(hearing.heard) == 2


class ByLength:
    """Counts what it is asked, and chooses partition 0."""

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []

    def partition(self, topic: str, key: bytes | None, partitions: int, available: Any) -> int:
        self.keys.append(key)
        return 0


async def test_a_partitioner_of_ones_own_is_asked_for_many_records_that_name_no_partition() -> None:
    asked = ByLength()
    named = pa.table({"value": [b"x", b"y", b"z"], "key": [b"k", None, b"l"], "partition": [None, None, 0]})

    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, partitioner=asked) as producer:
            await producer.send_many("t", [b"a"], keys=[b"not asked"], partition=0)
            await producer.send_many("t", [b"b", b"c"], keys=[b"1", None])
            await producer.send_arrow("t", named)

    assert asked.keys == [b"1", None, b"k", None]
    assert values(broker) == [b"a", b"b", b"c", b"x", b"y", b"z"]


async def test_a_partitioner_hears_of_batches_that_rows_have_filled() -> None:
    class Told(ByLength):
        full = 0

        def batch_full(self, topic: str) -> None:
            self.full += 1

    told = Told()
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, partitioner=told, batch_size=1_000) as producer:
            await producer.send_arrow("t", pa.table({"value": [bytes(400)] * 6}))

    assert told.full > 1


async def test_a_flush_that_takes_too_long_says_what_is_not_acknowledged() -> None:
    broker = serving(ScriptedBroker(), lambda: ErrorCode.LEADER_NOT_AVAILABLE)
    async with broker, Producer(broker.bootstrap_servers, delivery_timeout_ms=1_000) as producer:
        sent = await producer.send_many("t", [b"a", b"b"])
        with pytest.raises(TimeoutError, match=r"not acknowledged after 0.1 s: 2 of 't'$"):
            await producer.flush(0.1)
        with pytest.raises(DeliveryTimeout):
            await sent


async def test_what_a_program_prints_says_what_it_is_and_how_it_is_with_it() -> None:
    async with serving(ScriptedBroker()) as broker:
        producer = SyncProducer(broker.bootstrap_servers)
        shown = await asyncio.to_thread(what_is_shown, producer)

    assert shown == [
        "<SyncAcknowledgement t-0 offset 100>",
        "<SyncAcknowledgements of 2 records done>",
        "<SyncAcknowledgement t failed: a timestamp counts milliseconds since 1970: it cannot be -1; "
        "None stands for now>",
    ]
    assert repr(producer) == f"<SyncProducer of {broker.bootstrap_servers}>"
    assert repr(Producer("h:1")) == "<Producer of h:1, not open>"


def what_is_shown(producer: SyncProducer) -> list[str]:
    with producer:
        sent, refused = producer.send("t", b"x"), producer.send("t", b"x", timestamp_ms=-1)
        sent.result(10)
        many = producer.send_many("t", [b"y", b"z"])
        many.result(10)
        return [repr(each) for each in (sent, many, refused)]
