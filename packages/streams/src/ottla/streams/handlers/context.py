"""The context that a handler gets beside its records: what it may send, and what it may know."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from inspect import CORO_CREATED, getcoroutinestate
from types import CoroutineType
from typing import Any, Final, Protocol, TypeGuard

from ottla.consumer import ConsumerRecord
from ottla.producer import ProducerRecord
from ottla.protocol.topics import TopicPartition
from ottla.streams.errors import ContextMisused
from ottla.streams.seams import Work

Headers = Iterable[tuple[str, bytes | str | None]] | Mapping[str, bytes | str | None]

log = logging.getLogger("ottla.streams.handler")

KEY_HASH_BYTES: Final = 8


class Sender(Protocol):
    """Takes what handlers send: the producer, or the next transaction."""

    async def send(self, work: Work, record: ProducerRecord) -> None:
        """Take a record that a handler sends; the work is not finished before it is acknowledged."""


class Context:
    """The attempt of a handler beside its records: its facts and its sends; a parameter `Context` gets it."""

    __slots__ = ("_attempt", "_emitted", "_log", "_records", "_send", "_sends")

    def __init__(
        self,
        records: Sequence[ConsumerRecord],
        attempt: int,
        send: Callable[[ProducerRecord], Awaitable[None]] | None,
    ) -> None:
        self._records = records
        self._attempt = attempt
        self._send = send
        self._emitted: list[ProducerRecord] = []
        self._sends: list[tuple[str, Awaitable[None]]] = []
        self._log: logging.LoggerAdapter[logging.Logger] | None = None

    def __repr__(self) -> str:
        return f"<Context of {self.partition} at offset {self.record.offset}, attempt {self.attempt}>"

    @property
    def record(self) -> ConsumerRecord:
        """The record; of a batch the first."""
        return self._records[0]

    @property
    def records(self) -> Sequence[ConsumerRecord]:
        """All records of the call, in the order of their offsets."""
        return self._records

    @property
    def attempt(self) -> int:
        """1 when the records are handled first, 2 in the first retry; a restart begins with 1 again."""
        return self._attempt

    @property
    def partition(self) -> TopicPartition:
        """The partition of the records."""
        return self.record.topic_partition

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines carry `topic`, `partition`, `offset`, `attempt` and `key_hash`, never the key.

        Equal keys have equal hashes in all processes. A key that can be guessed can be confirmed by its hash.
        """
        if self._log is None:
            self._log = logging.LoggerAdapter(log, log_fields(self.record, self.attempt))
        return self._log

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> Awaitable[None]:
        """Send a record; await it in an async handler. It returns when the record is queued.

        The record of the context is finished when the sent one is acknowledged. A retry sends again: at
        least once, unless the processing guarantee is exactly-once. Keys and values are serialized as by
        `Producer.send`.
        """
        if self._send is None:
            raise ContextMisused(
                "context.send is awaited, so it is for async functions; in a plain function call context.emit"
            )
        sent = self._send(ProducerRecord(topic, value, key, partition, timestamp_ms, headers))
        self._sends.append((topic, sent))
        return sent

    def emit(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> None:
        """Send a record after the handler has returned; nothing is sent if it raises. For all handlers."""
        self._emitted.append(ProducerRecord(topic, value, key, partition, timestamp_ms, headers))

    def check_awaited(self) -> None:
        """Raise ContextMisused if the handler returned before a send began: its record would be lost."""
        forgotten = [(topic, sent) for topic, sent in self._sends if _is_unstarted(sent)]
        self._sends.clear()
        for _, sent in forgotten:
            sent.close()
        if forgotten:
            raise ContextMisused(
                f"context.send to {forgotten[0][0]!r} was not awaited for the record of topic "
                f"{self.record.topic}, partition {self.record.partition}, offset {self.record.offset}, so "
                "nothing was sent: write await context.send(...)"
            )

    def of_part(self, records: Sequence[ConsumerRecord]) -> Context:
        """Return the context of the same attempt for some of its records."""
        return Context(records, self._attempt, self._send)

    @property
    def emitted(self) -> Sequence[ProducerRecord]:
        """Records that the attempt has emitted so far, in order."""
        return self._emitted


def _is_unstarted(sent: Awaitable[None]) -> TypeGuard[CoroutineType[Any, Any, None]]:
    return isinstance(sent, CoroutineType) and getcoroutinestate(sent) == CORO_CREATED


def log_fields(record: ConsumerRecord, attempt: int) -> dict[str, object]:
    """Return the fields by which log lines name a record."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "attempt": attempt,
        "key_hash": key_hash(record.key),
    }


def key_hash(key: bytes | None) -> str | None:
    """Return 16 hexadecimal digits that are equal for equal keys; None for a record without a key."""
    return None if key is None else blake2b(key, digest_size=KEY_HASH_BYTES).hexdigest()
