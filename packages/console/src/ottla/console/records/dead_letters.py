"""Dead letters: records with headers that say where they come from and why they failed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ottla.console.records.reading import ShownRecord

PREFIX: Final = "dead-"
LIKELY: Final = ("dead", "dlq", "dlt", "failed")
"""Parts of names that topics of dead letters have by custom."""
_ADDED: Final = frozenset({
    "dead-reason", "dead-topic", "dead-partition", "dead-offset", "dead-timestamp", "dead-exception",
    "dead-message", "dead-attempts", "dead-group", "dead-pipeline", "dead-truncated",
})  # fmt: skip
"""The headers that `ottla.streams` and pipelines add behind those of the record."""
_ORIGINS: Final = frozenset({
    "dead-topic", "__connect.errors.topic", "__streams.errors.topic", "kafka_dlt-original-topic",
    "kafka_original-topic",
})  # fmt: skip
CAUSES: Final = frozenset({
    "dead-reason", "dead-exception", "dead-message",
    "__connect.errors.exception.message", "__connect.errors.exception.stacktrace",
    "__streams.errors.exception", "__streams.errors.message", "__streams.errors.stacktrace",
    *(
        f"kafka_{prefix}exception-{part}"
        for prefix in ("", "dlt-", "dlt-key-")
        for part in ("cause-fqcn", "fqcn", "message", "stacktrace")
    ),
})  # fmt: skip
"""Headers with the words of a failure: of Ottla, Kafka Connect, Kafka Streams and Spring."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter: the record, its cause, and the record as it was before it failed."""

    record: ShownRecord
    reason: str
    exception: str
    attempts: str
    owner: str
    """The group or the pipeline that gave it up."""
    topic: str
    partition: int | None
    offset: int | None
    truncated: str
    """The sizes of the record, where the dead letter holds its beginning only."""

    @property
    def original(self) -> ShownRecord:
        """The record without the headers of its cause, as it is sent again."""
        headers = tuple(header for header in self.record.headers if header[0] not in _ADDED)
        return replace(self.record, headers=headers)

    @property
    def origin(self) -> str:
        """Where the record came from."""
        return f"{self.topic}-{self.partition} at {self.offset}" if self.partition is not None else self.topic


def origins_of(headers: Sequence[tuple[str, bytes | None]]) -> set[str]:
    """Return the topics that a dead letter comes from: one that failed again has several."""
    return {(value or b"").decode(errors="replace") for name, value in headers if name in _ORIGINS}


def dead_letter(record: ShownRecord) -> DeadLetter | None:
    """Return the dead letter that a record is; None for one without a cause.

    A record that was sent again and failed again has the headers twice: the last ones are those of its cause.
    """
    said = {name: (value or b"").decode(errors="replace") for name, value in record.headers if name in _ADDED}
    if "dead-topic" not in said and "dead-reason" not in said:
        return None
    return DeadLetter(
        record, said.get("dead-reason", ""), said.get("dead-exception", ""), said.get("dead-attempts", ""),
        said.get("dead-group") or said.get("dead-pipeline", ""), said.get("dead-topic", ""),
        _whole(said.get("dead-partition", "")), _whole(said.get("dead-offset", "")),
        said.get("dead-truncated", ""),
    )  # fmt: skip


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def likely_topics(topics: Iterable[str], named: Iterable[str]) -> list[str]:
    """Return the topics that apps name for dead letters, and those with a name that such topics have."""
    there = set(topics)
    likely = {topic for topic in there if any(part in topic.lower() for part in LIKELY)}
    return sorted((likely | set(named)) & there)
