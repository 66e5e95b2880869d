"""Which records `ottla consume` prints: topics by pattern, a range of offsets or times, an expression."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from ottla.client.expressions import NAMES, BadExpression, Undecided, expression
from ottla.protocol.records import TimestampType

if TYPE_CHECKING:
    from ottla.consumer.consumer import Consumer
    from ottla.consumer.record import ConsumerRecord
    from ottla.protocol.topics import TopicPartition

Test = Callable[["ConsumerRecord"], bool]


class Range(NamedTuple):
    """The part of a topic to print; None where it is not limited."""

    tail: int | None
    since_ms: int | None
    until_ms: int | None

    def __bool__(self) -> bool:
        """Return whether anything is limited."""
        return any(limit is not None for limit in self)

    async def seek(self, consumer: Consumer) -> dict[TopicPartition, int]:
        """Seek the assigned partitions to the start; return the offsets to stop at, if there are some.

        With only an end the start is the first record. An offset is looked up for the start alone: records
        before the first one in time are all too early, while records after the first late one may be early
        again. So the end is that of the log, and `holds` looks at each record.
        """
        partitions = consumer.assignment()
        ends = await consumer.end_offsets(partitions)
        if self.since_ms is not None:
            found = await consumer.offsets_for_times(dict.fromkeys(ends, self.since_ms))
            starts = {
                partition: end if (at := found.get(partition)) is None else at.offset
                for partition, end in ends.items()
            }
        else:
            starts = await consumer.beginning_offsets(partitions)
        for partition, first in starts.items():
            consumer.seek(
                partition, max(first, ends[partition] - self.tail) if self.tail is not None else first
            )
        return {} if self.until_ms is None else ends

    def holds(self, record: ConsumerRecord) -> bool:
        """Whether the time of a record is in the range."""
        at_ms = record.timestamp_ms
        return (self.since_ms is None or at_ms >= self.since_ms) and (
            self.until_ms is None or at_ms < self.until_ms
        )

    def ends_with(self, record: ConsumerRecord) -> bool:
        """Whether no later record of the partition is in the range: brokers wrote its times as they came."""
        return (
            self.until_ms is not None
            and record.timestamp_type == TimestampType.LOG_APPEND_TIME
            and record.timestamp_ms >= self.until_ms
        )


def record_test(text: str | None) -> Test | None:
    """Return the test of an expression: `value.amount > 100 && key.startsWith("eu-")`. Raises UsageError.

    A record for which it makes no sense, as one without the field, does not pass.
    """
    if text is None:
        return None
    try:
        found = expression(text, lambda pattern: lambda letters: re.search(pattern, letters) is not None)
    except (BadExpression, re.error) as error:
        raise click.UsageError(f"--filter: {error}; it may use {', '.join(NAMES)}") from None

    def passes(record: ConsumerRecord) -> bool:
        try:
            return found.matches({name: _FIELDS[name](record) for name in found.names})
        except (Undecided, RecursionError, ArithmeticError, TypeError, ValueError):
            return False

    return passes


def _decoded(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="backslashreplace")


_FIELDS: Final[Mapping[str, Callable[[ConsumerRecord], Any]]] = {
    "key": lambda record: _text(record.key),
    "value": lambda record: _decoded(record.value),
    "headers": lambda record: {name: _text(value) for name, value in record.headers},
    "partition": lambda record: record.partition,
    "offset": lambda record: record.offset,
    "time_ms": lambda record: record.timestamp_ms,
    "kind": lambda record: "tombstone" if record.value is None else "record",
}


def topic_pattern(topics: tuple[str, ...]) -> str | None:
    """Return the pattern of topics of which one at least begins with ^, as of kcat and rpk; else None."""
    if not any(topic.startswith("^") for topic in topics):
        return None
    parts = [f"(?:{topic})" if topic.startswith("^") else f"^{re.escape(topic)}$" for topic in topics]
    try:
        re.compile("|".join(parts))
    except re.error as error:
        raise click.UsageError(f"{' '.join(topics)!r} is no pattern: {error}") from None
    return "|".join(parts)
