"""The records of a dead-letter topic, in Kafka's layout (KIP-1191), and which topic takes them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ottla.broker.share.in_flight import DeadLetters
from ottla.protocol.errors import UnsupportedCompressionType
from ottla.protocol.records import (
    BatchBuilder,
    CorruptRecords,
    DecompressedTooLarge,
    Record,
    iter_records,
    read_header,
    split_batches,
)
from ottla.protocol.topics import TopicPartition

TOPIC_HEADER: Final = "__dlq.errors.topic"
PARTITION_HEADER: Final = "__dlq.errors.partition"
OFFSET_HEADER: Final = "__dlq.errors.offset"
GROUP_HEADER: Final = "__dlq.errors.group"
DELIVERY_COUNT_HEADER: Final = "__dlq.errors.delivery.count"
REASON_HEADER: Final = "__dlq.errors.message"

RESERVED_PREFIX: Final = "__"
"""The beginning of the names of internal topics."""

Copies = Mapping[int, tuple[bytes | None, bytes | None]]
"""Key and value of records, by offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterTopic:
    """A topic as it is now, and the broker's settings for the one that a group has named."""

    name: str
    exists: bool
    is_enabled: bool
    """Whether the topic's own setting lets share groups write dead letters to it."""
    may_be_created: bool
    prefix: str

    @property
    def refusal(self) -> str | None:
        """The reason why nothing is written to it; None where it takes letters."""
        if not self.name:
            return "the group has no dead-letter topic (errors.deadletterqueue.topic.name)"
        if self.name.startswith(RESERVED_PREFIX):
            return f"the name must not begin with {RESERVED_PREFIX}"
        if self.exists and not self.is_enabled:
            return "the topic is not for dead letters (errors.deadletterqueue.group.enable)"
        if not self.exists and not self.may_be_created:
            return "there is no such topic (errors.deadletterqueue.auto.create.topics.enable)"
        if not self.name.startswith(self.prefix):
            return f"the name must begin with {self.prefix} (errors.deadletterqueue.topic.name.prefix)"
        return None


class Origin(NamedTuple):
    """The share partition that letters come from."""

    group_id: str
    topic_partition: TopicPartition


class LetterBatch(NamedTuple):
    """A batch for a dead-letter topic, and the letters that end with it."""

    records: bytes
    ended: list[DeadLetters]
    size: int
    """How many records it has."""


class Copied(NamedTuple):
    """The content of letters that a part of the log has."""

    copies: Copies
    end_offset: int
    """The letters from here on have to be looked for with another read."""


NOTHING: Final = Copied({}, 2**63 - 1)
"""Letters without their records."""


def copied(batches: bytes, letters: Sequence[DeadLetters], end_offset: int, most_bytes: int) -> Copied:
    """Find key and value of letters in a part of the log, which is below `end_offset`.

    `most_bytes` bounds what is copied together. A record that is larger is not copied, nor one of a
    compressed batch that unfolds to more. CPU-bound: for a thread.
    """
    copies: dict[int, tuple[bytes | None, bytes | None]] = {}
    size = 0
    for batch in split_batches(batches):
        for record in _wanted_of(batch, letters, most_bytes):
            key, value = record.key, record.value
            length = len(key or b"") + len(value or b"")
            if length > most_bytes:
                continue
            size += length
            if size > most_bytes:
                return Copied(copies, record.offset)
            copies[record.offset] = key, value
    return Copied(copies, end_offset)


def _wanted_of(batch: memoryview, letters: Sequence[DeadLetters], most_bytes: int) -> Iterator[Record]:
    header = read_header(batch)
    wanted = [
        range(letter.first_offset, letter.last_offset + 1)
        for letter in letters
        if letter.first_offset <= header.last_offset and letter.last_offset >= header.base_offset
    ]
    if header.is_control or not wanted:
        return
    try:
        for record in iter_records(batch, max_decompressed_bytes=most_bytes):
            if any(record.offset in offsets for offsets in wanted):
                yield record
    except (CorruptRecords, DecompressedTooLarge, UnsupportedCompressionType):
        return  # their letters have headers alone


def letter_batch(
    origin: Origin, letters: Sequence[DeadLetters], found: Copied, now_ms: int, max_bytes: int
) -> LetterBatch:
    """Return a batch of the first letters, as many as fit and were looked for; at least one.

    A letter that is too large with its record goes without it.
    """
    builder = BatchBuilder(max_bytes)
    ended: list[DeadLetters] = []
    for letter in letters:
        last = letter.first_offset - 1
        for offset in range(letter.first_offset, letter.last_offset + 1):
            if builder.record_count and offset >= found.end_offset:
                break
            headers = _headers(origin, letter, offset)
            key, value = found.copies.get(offset, (None, None))
            if builder.append(key, value, now_ms, headers) < 0:
                break
            if builder.size_in_bytes > max_bytes and (key or value):
                builder = BatchBuilder(max_bytes)
                builder.append(None, None, now_ms, headers)
            last = offset
        if last >= letter.first_offset:
            ended.append(letter._replace(last_offset=last))
        if last < letter.last_offset:
            break
    return LetterBatch(builder.build(), ended, builder.record_count)


def _headers(origin: Origin, letter: DeadLetters, offset: int) -> list[tuple[str, bytes]]:
    topic, partition = origin.topic_partition
    texts = (
        (TOPIC_HEADER, topic),
        (PARTITION_HEADER, str(partition)),
        (OFFSET_HEADER, str(offset)),
        (GROUP_HEADER, origin.group_id),
        (DELIVERY_COUNT_HEADER, str(letter.delivery_count)),
        (REASON_HEADER, letter.reason.value),
    )
    return [(name, text.encode()) for name, text in texts]


def left(letters: Sequence[DeadLetters], ended: Sequence[DeadLetters]) -> list[DeadLetters]:
    """Return the letters without the first ones, which have ended; the last of those perhaps in part."""
    if not ended:
        return list(letters)
    rest = list(letters[len(ended) - 1 :])
    first, last = rest[0], ended[-1].last_offset
    return rest[1:] if first.last_offset == last else [first._replace(first_offset=last + 1), *rest[1:]]
