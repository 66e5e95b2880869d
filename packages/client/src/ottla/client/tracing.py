"""Spans of clients with OpenTelemetry. Needs its API (`pip install ottla-client[opentelemetry]`).

The conventions are those for messaging with Kafka: a span `send` for each record that is sent, which ends
with its acknowledgement; a span `receive` for the records that a consumer delivers; a span `process` around
their handling. The context travels in the headers of records, by default as `traceparent` of the W3C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, Setter, TextMapPropagator
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

MOST_LINKS = 128
"""The links of one span: as many as SDKs keep by default."""
MOST_KEY_CHARS = 256

Attributes = dict[str, str | int | bool]
Headers = list[tuple[str, Any]]
End = Callable[[Any, BaseException | None], None]
"""Ends the span of a record that was sent, with its metadata or its error."""


class ReadRecord(Protocol):
    """A record as a consumer delivers it."""

    @property
    def topic(self) -> str:
        """The topic."""

    @property
    def partition(self) -> int:
        """The partition."""

    @property
    def offset(self) -> int:
        """The offset."""

    @property
    def key(self) -> Any:
        """The key."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """The headers."""

    @property
    def serialized_value_size(self) -> int:
        """The size of the value in bytes; -1 for None."""


class Tracing:
    """Makes spans: an interceptor of producers, of consumers, and of stream apps.

        tracing = Tracing(group_id="billing")
        async with Consumer("orders", group_id="billing", interceptors=[tracing]) as consumer:
            async for record in consumer:
                with tracing.process(record):
                    ...

    Without a tracer, the one of the global provider is used. A client without this interceptor costs nothing.
    `receives=False` leaves out the spans `receive`, one for each record of an iteration.
    """

    def __init__(
        self,
        tracer: Tracer | None = None,
        *,
        client_id: str | None = None,
        group_id: str | None = None,
        propagator: TextMapPropagator | None = None,
        receives: bool = True,
    ) -> None:
        self._tracer = trace.get_tracer("ottla.client") if tracer is None else tracer
        self._propagator = propagator
        self._client: Attributes = {"messaging.system": "kafka"}
        self._reader: Attributes = {}
        if client_id is not None:
            self._client["messaging.client.id"] = client_id
        if group_id is not None:
            self._reader["messaging.consumer.group.name"] = group_id
        self.on_consume = self._received if receives else None

    # --- producers

    def on_create(self, record: Any) -> Any:
        """Write the current context into a record that is sent later, or by another thread."""
        if not trace.get_current_span().get_span_context().is_valid:
            return record
        return self._with_context(record, None)

    def on_begin(self, record: Any) -> tuple[Any, End]:
        """Begin the span of a record that is sent; the function ends it.

        A record that has a context already, of `on_create` or of another library, keeps it: its span becomes
        a child of that, unless there is a current span.
        """
        created = self._context_of(_pairs(record.headers))
        is_created = _is_valid(created)
        parent = None if trace.get_current_span().get_span_context().is_valid else created
        span = self._tracer.start_span(
            f"send {record.topic}",
            parent,
            SpanKind.CLIENT if is_created else SpanKind.PRODUCER,
            self._sent_attributes(record),
            [Link(trace.get_current_span(created).get_span_context())] if is_created else [],
        )
        if not is_created:
            record = self._with_context(record, trace.set_span_in_context(span))
        return record, lambda metadata, error: _end(span, metadata, error)

    def _sent_attributes(self, record: Any) -> Attributes:
        found = self._attributes("send", record.topic)
        if record.partition is not None:
            found["messaging.destination.partition.id"] = str(record.partition)
        return (
            found
            | _key(record.key)
            | ({"messaging.kafka.message.tombstone": True} if record.value is None else {})
        )

    def _with_context(self, record: Any, context: Context | None) -> Any:
        headers: Headers = _pairs(record.headers)
        self._injector.inject(headers, context, _SETTER)
        return record._replace(headers=headers)

    # --- consumers

    def _received(self, records: Sequence[ReadRecord]) -> None:
        """Make the span of delivered records, with links to the contexts of their senders."""
        if not records:
            return
        topic = records[0].topic
        attributes = self._attributes("receive", topic) | self._reader | _place(records)
        links = self._links(records)
        self._tracer.start_span(
            f"receive {topic}", kind=SpanKind.CLIENT, attributes=attributes, links=links
        ).end()

    def on_process(self, records: Sequence[ReadRecord]) -> Any:
        """Return the context manager of the span around the handling of records."""
        return self.process(records)

    @contextmanager
    def process(self, records: ReadRecord | Sequence[ReadRecord]) -> Iterator[Span]:
        """Make the span around the handling of a record, or of a batch, and the current one.

        The parent is the context in which a record was sent; spans of a batch have links to those. Spans that
        begin inside, and records that are sent, belong to it. An exception is recorded, and is raised.
        """
        batch: Sequence[ReadRecord] = records if isinstance(records, Sequence) else (records,)
        parent = self._context_of(batch[0].headers) if len(batch) == 1 else None
        attributes = self._attributes("process", batch[0].topic) | self._reader | _place(batch)
        with self._tracer.start_as_current_span(
            f"process {batch[0].topic}", parent, SpanKind.CONSUMER, attributes, self._links(batch)
        ) as span:
            try:
                yield span
            except BaseException as error:
                span.set_attribute("error.type", _name(error))
                raise

    def _links(self, records: Iterable[ReadRecord]) -> list[Link]:
        found: list[Link] = []
        for record in records:
            if len(found) == MOST_LINKS:
                break
            sender = trace.get_current_span(self._context_of(record.headers)).get_span_context()
            if sender.is_valid:
                found.append(Link(sender))
        return found

    # --- both

    def _attributes(self, operation: str, topic: str) -> Attributes:
        return {
            **self._client,
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.destination.name": topic,
        }

    @property
    def _injector(self) -> TextMapPropagator:
        return propagate.get_global_textmap() if self._propagator is None else self._propagator

    def _context_of(self, headers: Sequence[tuple[str, Any]]) -> Context:
        """Return the context in headers, and nothing of the current one."""
        return self._injector.extract(headers, Context(), _GETTER)


def _is_valid(context: Context) -> bool:
    return trace.get_current_span(context).get_span_context().is_valid


def _pairs(headers: Any) -> Headers:
    return list(headers.items() if isinstance(headers, Mapping) else headers)


def _place(records: Sequence[ReadRecord]) -> Attributes:
    """Return where records are: partition and offset of one, the number of several and their partition."""
    first = records[0]
    found: Attributes = {}
    if all(record.partition == first.partition for record in records):
        found["messaging.destination.partition.id"] = str(first.partition)
    if len(records) > 1:
        return found | {"messaging.batch.message_count": len(records)}
    found["messaging.kafka.offset"] = first.offset
    if first.serialized_value_size >= 0:
        found["messaging.message.body.size"] = first.serialized_value_size
    else:
        found["messaging.kafka.message.tombstone"] = True
    return found | _key(first.key)


def _key(key: Any) -> Attributes:
    """Return the key as the attribute that it is, if it is text."""
    try:
        text = key.decode() if isinstance(key, bytes) else key
    except UnicodeDecodeError:
        return {}
    return {"messaging.kafka.message.key": text[:MOST_KEY_CHARS]} if isinstance(text, str) else {}


def _end(span: Span, metadata: Any, error: BaseException | None) -> None:
    if error is not None:
        span.set_attribute("error.type", _name(error))
        span.set_status(Status(StatusCode.ERROR, str(error)))
    elif metadata is not None:
        span.set_attribute("messaging.destination.partition.id", str(metadata.partition))
        if metadata.offset >= 0:
            span.set_attribute("messaging.kafka.offset", metadata.offset)
    span.end()


def _name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class _HeaderSetter(Setter[Headers]):
    """Sets a header of a record, in place of one of the same name."""

    def set(self, carrier: Headers, key: str, value: str) -> None:
        carrier[:] = [header for header in carrier if header[0] != key]
        carrier.append((key, value.encode()))


class _HeaderGetter(Getter[Sequence[tuple[str, Any]]]):
    """Gets headers of a record as text; those that are none are left out."""

    def get(self, carrier: Sequence[tuple[str, Any]], key: str) -> list[str] | None:
        found = [value for name, value in carrier if name == key and value is not None]
        return [
            value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in found
        ] or None

    def keys(self, carrier: Sequence[tuple[str, Any]]) -> list[str]:
        return [name for name, _ in carrier]


_SETTER, _GETTER = _HeaderSetter(), _HeaderGetter()
