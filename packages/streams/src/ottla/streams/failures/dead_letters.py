"""Dead letters: records that failed for good, sent to a topic of their own with the cause.

Key, value and headers are those of the record, byte for byte; headers with the cause follow. Their names are
those of the pipelines' dead letters, and the original position identifies a dead letter, so that readers can
drop a second copy: a dead letter that was not acknowledged in time is sent again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from ottla.client.errors import AuthenticationFailed, ClientError
from ottla.consumer import ConsumerRecord
from ottla.producer import (
    ProducerClosed,
    ProducerFenced,
    ProducerRecord,
    SerializationFailed,
    TransactionError,
)
from ottla.protocol import errors
from ottla.protocol.errors import KafkaError
from ottla.streams.errors import TOO_LARGE, DeadLetterRejected, RemoteError
from ottla.streams.seams import FinalFailure

log = logging.getLogger(__name__)

Headers = tuple[tuple[str, bytes | None], ...]

MAX_MESSAGE_CHARS: Final = 1_000
"""The longest text of an exception in a header."""
MAX_SHORT_BYTES: Final = 1_024
"""The bytes of a key and of a value that are kept if the whole record is too large for the topic."""

_FOR_GOOD: Final = (
    AuthenticationFailed,
    ProducerClosed,
    ProducerFenced,
    SerializationFailed,
    TransactionError,
    errors.ClusterAuthorizationFailed,
    errors.InvalidRecord,
    errors.InvalidTopicException,
    errors.PolicyViolation,
    errors.TopicAuthorizationFailed,
    *TOO_LARGE,
)

_MAY_PASS: Final = (ClientError, KafkaError, TimeoutError)


def dead_letter(topic: str, record: ConsumerRecord, failure: FinalFailure, group_id: str) -> ProducerRecord:
    """Return the dead letter of a record: the record itself, with headers of the cause behind its own."""
    headers = (*record.headers, *cause_headers(record, failure, group_id))
    return ProducerRecord(topic, record.value, record.key, headers=headers)


def short_dead_letter(
    topic: str, record: ConsumerRecord, failure: FinalFailure, group_id: str
) -> ProducerRecord:
    """Return the dead letter of a record that is too large for the topic with the headers of the cause.

    It keeps the first KiB of the value, the key up to a KiB (a longer one not at all), and no header of the
    record; `dead-truncated` says so with the sizes in bytes. The record itself is where `dead-topic`,
    `dead-partition` and `dead-offset` say.
    """
    key, value = record.key, record.value
    sizes = f"key {_size(key)}, value {_size(value)}, {len(record.headers)} headers"
    headers = (*cause_headers(record, failure, group_id), ("dead-truncated", sizes.encode()))
    short_key = key if _size(key) <= MAX_SHORT_BYTES else None
    return ProducerRecord(
        topic, None if value is None else value[:MAX_SHORT_BYTES], short_key, headers=headers
    )


def cause_headers(record: ConsumerRecord, failure: FinalFailure, group_id: str) -> Headers:
    """Return the headers that say why and from where a record came to the dead letters."""
    error = failure.error
    kind = type(error)
    name = error.name if isinstance(error, RemoteError) else kind.__qualname__
    message = error.message if isinstance(error, RemoteError) else str(error)
    said = {
        "dead-reason": _bounded(f"{name}: {message}"),
        "dead-topic": record.topic,
        "dead-partition": record.partition,
        "dead-offset": record.offset,
        "dead-timestamp": record.timestamp_ms,
        "dead-exception": name if isinstance(error, RemoteError) else f"{kind.__module__}.{name}",
        "dead-message": _bounded(message),
        "dead-attempts": failure.attempts,
        "dead-group": group_id,
    }
    return tuple((key, str(value).encode(errors="replace")) for key, value in said.items())


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[: MAX_MESSAGE_CHARS - 1]}…"


def _size(part: bytes | None) -> int:
    return 0 if part is None else len(part)


Send = Callable[[ProducerRecord], Awaitable[object]]
"""Sends a record; returns when it is acknowledged, or kept for the next transaction."""


class DeadLetters:
    """Sends dead letters, one after the other for each work, so that they keep the order of a key."""

    def __init__(self, topic: str, group_id: str, send: Send) -> None:
        self.topic = topic
        self.sent = 0
        """The number of dead letters that were acknowledged."""
        self._group_id = group_id
        self._send = send
        self._fails = False

    async def send(self, records: Sequence[ConsumerRecord], failure: FinalFailure) -> None:
        """Send the dead letters of records; return when all are acknowledged.

        Raises DeadLetterRejected if the topic will never take one, and what the producer raised if a later
        try may succeed. Those before it are sent again then.
        """
        for record in records:
            try:
                await self._send_one(record, failure)
            except Exception as error:
                if isinstance(error, _FOR_GOOD) or not isinstance(error, _MAY_PASS):
                    raise DeadLetterRejected(
                        self.topic, record.topic_partition, record.offset, error
                    ) from error
                self._log_failing(error)
                raise
            self.sent += 1
        self._log_working()

    def made(
        self, records: Sequence[ConsumerRecord], failure: FinalFailure, *, is_short: str
    ) -> list[ProducerRecord]:
        """Return the dead letters of records, short ones if this is the topic `is_short`."""
        make = short_dead_letter if self.topic == is_short else dead_letter
        return [make(self.topic, record, failure, self._group_id) for record in records]

    async def _send_one(self, record: ConsumerRecord, failure: FinalFailure) -> None:
        try:
            await self._send(dead_letter(self.topic, record, failure, self._group_id))
        except TOO_LARGE:
            await self._send(short_dead_letter(self.topic, record, failure, self._group_id))

    def _log_failing(self, error: BaseException) -> None:
        if not self._fails:
            self._fails = True
            log.warning(
                "dead letters wait: their topic takes none now",
                extra={"topic": self.topic, "reason": f"{type(error).__name__}: {error}"},
            )

    def _log_working(self) -> None:
        if self._fails:
            self._fails = False
            log.info("dead letters go on: their topic takes them again", extra={"topic": self.topic})
