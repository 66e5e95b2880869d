"""Keys and values as tests give them, and records as tests read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ottla.consumer import ConsumerRecord
from ottla.streams.errors import RecordUndecodable, StreamsError
from ottla.streams.handlers.arguments import value_decoder


class DriverMisused(StreamsError):
    """A StreamsTest was used in a way that cannot work; the message says what to change."""


@dataclass(frozen=True)
class DeadLetter:
    """A record that failed for good, and why."""

    record: ConsumerRecord
    """The dead letter itself: key, value and headers of the original, and headers of the cause."""
    topic: str
    """Where the original is."""
    partition: int
    offset: int
    exception: str
    """The type of the exception, with its module: "builtins.ValueError"."""
    message: str
    attempts: int

    @property
    def key(self) -> bytes | None:
        """The key of the record."""
        key: bytes | None = self.record.key
        return key

    @property
    def value(self) -> bytes | None:
        """The value of the record."""
        value: bytes | None = self.record.value
        return value


def to_bytes(given: Any) -> bytes | None:
    """Return a value as it is written: bytes and None as they are, all else as JSON."""
    return given if given is None or isinstance(given, bytes) else msgspec.json.encode(given)


def key_bytes(given: bytes | str | None) -> bytes | None:
    """Return a key as it is written: text as UTF-8."""
    return given.encode() if isinstance(given, str) else given


def decoded(records: Iterable[ConsumerRecord], of: Any) -> list[Any]:
    """Return values as a type, as handlers get them. Raises DriverMisused for one that cannot be decoded."""
    decode = value_decoder(of)
    try:
        return [None if record.value is None else decode(record) for record in records]
    except RecordUndecodable as error:
        raise DriverMisused(
            f"{error}; say what the values are: of=bytes, of=str or a type of yours"
        ) from None


def dead_letters(records: Sequence[ConsumerRecord]) -> list[DeadLetter]:
    """Return what the headers of dead letters say."""
    return [_dead_letter(record) for record in records]


def _dead_letter(record: ConsumerRecord) -> DeadLetter:
    said = {name: (value or b"").decode() for name, value in record.headers if name.startswith("dead-")}
    return DeadLetter(
        record,
        said["dead-topic"],
        int(said["dead-partition"]),
        int(said["dead-offset"]),
        said["dead-exception"],
        said["dead-message"],
        int(said["dead-attempts"]),
    )
