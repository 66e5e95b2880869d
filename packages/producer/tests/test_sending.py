"""Records that `send` accepts and rejects, and their acknowledgements."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from ottla.client.config import ClientConfig
from ottla.client.errors import DeadlineExceeded
from ottla.client.serialization import SerializationFailed
from ottla.client.testing import ScriptedBroker
from ottla.producer import (
    BufferFull,
    DeliveryTimeout,
    Producer,
    ProducerConfig,
    RecordRefused,
    SyncProducer,
)
from ottla.protocol.errors import ErrorCode, InvalidRecord, InvalidTopicException
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    ProduceRequest,
    ProduceResponse,
)
from ottla.protocol.records import decode_records
from peers.accepting_broker import acknowledged, batches, serving


def values(broker: ScriptedBroker) -> list[bytes | None]:
    return [record.value for batch in batches(broker) for record in decode_records(batch)]


@pytest.mark.parametrize("made", [bytearray(b"abc"), memoryview(b"abc"), None], ids=type)
async def test_a_serializer_may_return_any_bytes_like_object_or_none(made: Any) -> None:
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, value_serializer=lambda _: made) as producer:
            await producer.send("t", 1, key=b"k")
            producer.send_nowait("t", 2)
            await producer.send_many("t", [3])

    assert values(broker) == 3 * [None if made is None else b"abc"]


@pytest.mark.parametrize("made", ["text", 7, [b"abc"]])
async def test_a_serializer_that_returns_another_type_raises(made: Any) -> None:
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, key_serializer=lambda _: made) as producer:
            with pytest.raises(SerializationFailed, match="the serializer returned"):
                await producer.send("t", b"x", key=1)
            with pytest.raises(SerializationFailed, match="the serializer returned"):
                await producer.send_many("t", [b"x"], keys=[1])

    assert values(broker) == []


async def test_values_are_those_at_the_time_of_the_call() -> None:
    given: list[Any] = [{"n": number} for number in range(5)]

    def clearing(value: Any) -> bytes:
        given.clear()
        return b"%d" % value["n"]

    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, value_serializer=clearing) as producer:
            await producer.send_many("t", given)

    assert values(broker) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_serializer_sees_bytes_in_send_many_as_in_send() -> None:
    settings: dict[str, Any] = {"key_serializer": bytes.upper, "value_serializer": bytes.swapcase}
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, **settings) as producer:
            await producer.send("t", b"Tea", key=b"k")
            await producer.send_many("t", [b"Coffee", None], keys=[b"k", b"k"])

    records = [record for batch in batches(broker) for record in decode_records(batch)]
    assert [(record.key, record.value) for record in records] == [
        (b"K", b"tEA"), (b"K", b"cOFFEE"), (b"K", None)
    ]  # fmt: skip


async def test_send_many_calls_no_python_code_for_each_key_or_value_of_bytes() -> None:
    given, calls = [b"%d" % number for number in range(5_000)], 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += 1

    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, linger_ms=60_000, batch_size=1_000_000) as producer:
            await producer.partitions_for("t")
            sys.setprofile(count)
            try:
                await producer.send_many("t", given, keys=given)
            finally:
                sys.setprofile(None)

    assert sorted(values(broker), key=lambda value: int(value or b"")) == given
    assert calls < len(given) / 5


async def test_keys_of_send_many_choose_the_partitions_that_keys_of_send_choose() -> None:
    keys: list[Any] = [b"a", "b", bytearray(b"c"), b"d", None, "e"]
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers) as producer:
            many = await (await producer.send_many("t", [b"x"] * len(keys), keys=keys))
            one_by_one = [await producer.send("t", b"x", key=key) for key in keys]

    chosen = [many[index].topic_partition for index, key in enumerate(keys) if key is not None]
    assert chosen == [sent.topic_partition for sent in one_by_one if sent is not one_by_one[4]]


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


@pytest.mark.parametrize(("level", "on_threads"), [(19, 1), (None, 0)])
async def test_a_batch_that_compresses_slowly_is_packed_on_a_thread(
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


async def test_printing_an_acknowledgement_does_not_mark_its_error_as_seen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(ScriptedBroker(), lambda: ErrorCode.INVALID_RECORD) as broker:
        async with Producer(broker.bootstrap_servers) as producer:
            sent = await producer.send("t", b"x")
    assert repr(sent) == "<Acknowledgement t-0 failed>"

    del sent
    gc.collect()
    assert "1 record for t-0 was not delivered" in caplog.text


def refusing(request: ProduceRequest, *indexes: int) -> ProduceResponse:
    answer = acknowledged(request, ErrorCode.INVALID_RECORD)
    partition = answer.responses[0].partition_responses[0]
    partition.error_message = "records have no key"
    partition.record_errors = [
        BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message="needs a key")
        for index in indexes
    ]
    return answer


async def test_a_refused_record_names_itself_and_the_others_of_its_batch_say_that_they_are_innocent() -> None:
    async with serving(ScriptedBroker()) as broker:
        broker.on(ProduceRequest, lambda request: refusing(request, 1, 2))
        async with Producer(broker.bootstrap_servers, linger_ms=50) as producer:
            sent = [producer.send_nowait("t", b"%d" % number) for number in range(3)]
            with pytest.raises(InvalidRecord):
                await sent[0]

    errors = [one.exception() for one in sent]
    because = "refused with its batch, because of record 1 of its batch: needs a key (and 1 more)"
    assert [str(error) for error in errors] == [
        because, "record 1 of its batch: needs a key", "record 2 of its batch: needs a key",
    ]  # fmt: skip
    for index, error in enumerate(errors):
        assert isinstance(error, RecordRefused)
        assert error.batch_index == index
        assert error.record_errors == {1: "needs a key", 2: "needs a key"}


async def test_many_records_of_which_one_is_refused_fail_with_what_is_wrong_with_it() -> None:
    async with serving(ScriptedBroker()) as broker:
        broker.on(ProduceRequest, lambda request: refusing(request, 1))
        async with Producer(broker.bootstrap_servers) as producer:
            sent = await producer.send_many("t", [b"a", b"b"])
            with pytest.raises(RecordRefused, match=r"^record 1 of its batch: needs a key$") as refused:
                await sent

    assert refused.value.batch_index is None


async def test_idle_topics_are_not_refreshed() -> None:
    client = ClientConfig(metadata_max_age_ms=50)
    async with serving(ScriptedBroker()) as broker:
        broker.on(
            MetadataRequest,
            lambda request: broker.metadata(*(topic.name or "" for topic in request.topics or ())),
        )
        config = ProducerConfig(client=client, metadata_max_idle_ms=200)
        async with Producer(broker.bootstrap_servers, config) as producer:
            await producer.send_and_wait("t", b"x")
            async with asyncio.timeout(60):
                while "t" in producer._accumulator.topics:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            asked = len(broker.seen(MetadataRequest))
            await asyncio.sleep(0.2)
            assert len(broker.seen(MetadataRequest)) == asked
            await producer.send_and_wait("t", b"y")

    assert values(broker) == [b"x", b"y"]


@pytest.mark.parametrize("topic", ["", "a b", ".", "..", 250 * "a"])
async def test_an_illegal_topic_name_is_rejected_without_a_request(topic: str) -> None:
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers) as producer:
            with pytest.raises(InvalidTopicException):
                await producer.send(topic, b"x")
            with pytest.raises(InvalidTopicException):
                producer.send_nowait(topic, b"x")
            with pytest.raises(InvalidTopicException):
                await producer.send_many(topic, [b"x"])


@pytest.mark.parametrize("topic", [None, 5])
async def test_a_topic_that_is_not_text_is_rejected(topic: Any) -> None:
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
async def test_every_call_rejects_an_invalid_timestamp_at_once(
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


async def test_rows_from_before_1970_are_rejected() -> None:
    rows = pa.table({"value": [b"x", b"y"], "timestamp": pa.array([7, -7], pa.int64())})

    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers) as producer:
            with pytest.raises(ValueError, match="timestamp of row 1 is before 1970: -7 ms"):
                await producer.send_arrow("t", rows)

    assert values(broker) == [b"x"]


async def test_a_flush_that_times_out_names_the_records_that_are_not_acknowledged() -> None:
    broker = serving(ScriptedBroker(), lambda: ErrorCode.LEADER_NOT_AVAILABLE)
    async with broker, Producer(broker.bootstrap_servers, delivery_timeout_ms=1_000) as producer:
        sent = await producer.send_many("t", [b"a", b"b"])
        with pytest.raises(TimeoutError, match=r"not acknowledged after 0.1 s: 2 of 't'$"):
            await producer.flush(0.1)
        with pytest.raises(DeliveryTimeout):
            await sent


async def test_producers_and_acknowledgements_print_their_state() -> None:
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
