"""Spans of sends, receives and processing, as the SDK's exporter in memory sees them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from ottla.client.testing import ScriptedBroker
from ottla.client.tracing import Tracing
from ottla.consumer import ConsumerRecord
from ottla.producer import Producer, RecordTooLarge, SerializationFailed, SyncProducer
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records import Record, decode_records
from ottla.streams import App, Context
from ottla.streams.testing import StreamsTest
from peers.accepting_broker import batches, serving
from peers.scripted_topic import FAST, Log, reader, take


class Traces:
    """A provider of tracers, and the spans that ended."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("test")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def only(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture
def traces() -> Traces:
    return Traces()


def sent(broker: ScriptedBroker) -> list[Record]:
    return [record for batch in batches(broker) for record in decode_records(batch)]


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def header_of(span: ReadableSpan) -> tuple[str, bytes]:
    assert span.context is not None
    flags = span.context.trace_flags
    return "traceparent", f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{flags:02x}".encode()


async def test_a_send_is_a_span_until_its_acknowledgement_and_its_context_is_in_the_headers(
    traces: Traces,
) -> None:
    async with serving(ScriptedBroker()) as broker:
        tracing = Tracing(traces.tracer, client_id="shop")
        async with Producer(broker.bootstrap_servers, interceptors=[tracing]) as producer:
            with traces.tracer.start_as_current_span("request"):
                sending = await producer.send("t", b"x", key=b"josef", headers=[("mine", b"1")])
            assert traces.named("send t") == []
            await sending

    span, request = traces.only("send t"), traces.only("request")
    assert (span.kind, parent_of(span), span.status.status_code) == (
        SpanKind.PRODUCER, id_of(request), StatusCode.UNSET
    )  # fmt: skip
    assert dict(span.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.client.id": "shop",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "t",
        "messaging.kafka.message.key": "josef",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 100,
    }
    (record,) = sent(broker)
    assert tuple(record.headers) == (("mine", b"1"), header_of(span))


async def test_each_record_of_send_many_and_of_send_nowait_is_a_span(traces: Traces) -> None:
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, interceptors=[Tracing(traces.tracer)]) as producer:
            await (await producer.send_many("t", [b"a", None]))
            await producer.send_nowait("t", b"c")

    spans = traces.named("send t")
    assert sorted(header for record in sent(broker) for header in record.headers) == sorted(
        map(header_of, spans)
    )
    tombstones = [(span.attributes or {}).get("messaging.kafka.message.tombstone") for span in spans]
    assert tombstones.count(True) == 1


async def test_a_record_that_is_not_sent_ends_its_span_with_the_error(traces: Traces) -> None:
    settings: dict[str, Any] = {"interceptors": [Tracing(traces.tracer)], "max_request_size": 2_000}
    error = ErrorCode.INVALID_RECORD
    async with serving(ScriptedBroker(), lambda: error) as broker:
        async with Producer(broker.bootstrap_servers, **settings) as producer:
            with pytest.raises(RecordTooLarge):
                await producer.send("t", b"x" * 10_000)
            with pytest.raises(SerializationFailed):
                producer.send_nowait("t", object())
            with pytest.raises(Exception, match=r"INVALID_RECORD|record"):
                await producer.send_and_wait("t", b"x")

    spans = traces.named("send t")
    assert [span.status.status_code for span in spans] == [StatusCode.ERROR] * 3
    types = [str((span.attributes or {})["error.type"]) for span in spans]
    assert types[:2] == [
        "ottla.producer.errors.RecordTooLarge",
        "ottla.client.serialization.SerializationFailed",
    ]
    assert all(span.end_time is not None for span in spans)


async def test_records_of_a_sync_producer_have_the_context_of_the_thread_that_sends(traces: Traces) -> None:
    def send(servers: str) -> None:
        with SyncProducer(servers, interceptors=[Tracing(traces.tracer)]) as producer:
            with traces.tracer.start_as_current_span("request"):
                producer.send("t", b"x").result(60)
                producer.send_many("t", [b"y"]).result(60)

    async with serving(ScriptedBroker()) as broker:
        await asyncio.to_thread(send, broker.bootstrap_servers)

    request = traces.only("request")
    assert [parent_of(span) for span in traces.named("send t")] == [id_of(request)] * 2
    assert [tuple(record.headers) for record in sent(broker)] == [(header_of(request),)] * 2


def record_of(span: ReadableSpan | None, offset: int = 7, partition: int = 0) -> ConsumerRecord:
    headers = [] if span is None else [header_of(span)]
    return ConsumerRecord("orders", partition, offset, key=b"k", value=b"12345", headers=headers)


def test_processing_a_record_is_a_child_of_its_sender_and_of_a_batch_has_links(traces: Traces) -> None:
    tracing = Tracing(traces.tracer, group_id="billing")
    first, second = (traces.tracer.start_span(name) for name in ("first", "second"))
    assert isinstance(first, ReadableSpan)
    assert isinstance(second, ReadableSpan)

    with traces.tracer.start_as_current_span("unrelated"), tracing.process(record_of(first)):
        traces.tracer.start_span("inside").end()
    with tracing.process([record_of(first), record_of(None, 8), record_of(second, 9)]):
        pass

    single, batch = traces.named("process orders")
    assert (single.kind, parent_of(single)) == (SpanKind.CONSUMER, id_of(first))
    assert [link.context.span_id for link in single.links] == [id_of(first)]
    assert parent_of(traces.only("inside")) == id_of(single)
    assert dict(single.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.consumer.group.name": "billing",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 7,
        "messaging.message.body.size": 5,
        "messaging.kafka.message.key": "k",
    }
    assert parent_of(batch) is None
    assert [link.context.span_id for link in batch.links] == [id_of(first), id_of(second)]
    assert (batch.attributes or {})["messaging.batch.message_count"] == 3


def test_an_error_of_processing_is_recorded_and_raised(traces: Traces) -> None:
    with pytest.raises(ZeroDivisionError), Tracing(traces.tracer).process(record_of(None)):
        raise ZeroDivisionError("no price")

    span = traces.only("process orders")
    assert (span.status.status_code, (span.attributes or {}).get("error.type")) == (
        StatusCode.ERROR,
        "ZeroDivisionError",
    )
    assert [event.name for event in span.events] == ["exception"]


def test_links_are_bounded_and_headers_of_others_do_no_harm(traces: Traces) -> None:
    tracing = Tracing(traces.tracer)
    sender = traces.tracer.start_span("sender")
    assert isinstance(sender, ReadableSpan)
    strange = [
        ConsumerRecord("orders", 0, 1, headers=[("traceparent", value)])
        for value in (None, b"\xff", b"00-zz-zz-01", b"")
    ]

    with tracing.process([*strange, *(record_of(sender, offset) for offset in range(1_000))]):
        pass

    assert len(traces.only("process orders").links) == 128


async def test_delivered_records_are_spans(traces: Traces) -> None:
    async with ScriptedBroker() as broker:
        Log(broker).add(b"a", b"b", b"c")
        for tracing in (Tracing(traces.tracer), Tracing(traces.tracer, receives=False)):
            async with reader(broker, replace(FAST, interceptors=[tracing])) as consumer:
                await take(consumer, 1)
                await consumer.getmany(timeout_ms=None)

    spans = traces.named("receive t")
    assert [span.kind for span in spans] == [SpanKind.CLIENT] * 2
    counts = [(span.attributes or {}).get("messaging.batch.message_count") for span in spans]
    assert counts == [None, 2]


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_trace_goes_through_handlers_of_streams(traces: Traces, guarantee: str, kind: str) -> None:
    app = App("app")
    tracing = Tracing(traces.tracer, group_id="app")
    settings: dict[str, Any] = {"processing_guarantee": guarantee, "interceptors": [tracing]}

    async def relay(value: bytes, context: Context) -> None:
        await context.send("out", value.upper())

    def relay_on_a_thread(value: bytes, context: Context) -> None:
        traces.tracer.start_span("on a thread").end()
        context.emit("out", value.upper())

    app.handle("orders", **settings)(relay if kind == "async" else relay_on_a_thread)
    with traces.tracer.start_as_current_span("request") as request:
        assert isinstance(request, ReadableSpan)
        header = header_of(request)
    with StreamsTest(app) as test:
        test.send("orders", b"x", headers=[header])
        test.advance(seconds=10)
        (written,) = test.records("out")

    process, send = traces.only("process orders"), traces.only("send out")
    assert parent_of(process) == id_of(request)
    assert parent_of(send) == id_of(process)
    assert send.start_time is not None
    assert written.headers == (header_of(send if guarantee == "at-least-once" else process),)
    if kind == "plain":
        assert parent_of(traces.only("on a thread")) == id_of(process)


def test_a_handler_that_fails_ends_its_span_with_the_error(traces: Traces) -> None:
    app = App("app")

    async def fail(value: bytes) -> None:
        raise ValueError("no")

    app.handle("orders", retries=1, dead_letter_topic="failed", interceptors=[Tracing(traces.tracer)])(fail)
    with StreamsTest(app) as test:
        test.send("orders", b"x")
        test.advance(minutes=10)

    assert [span.status.status_code for span in traces.named("process orders")] == [StatusCode.ERROR] * 2
