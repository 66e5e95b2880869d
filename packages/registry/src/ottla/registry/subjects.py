"""Names of subjects: how a serializer finds that of a record. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

Field = Literal["key", "value"]
SubjectNameStrategy = Callable[[str, Field, str | None], str]
"""A function of the topic, of key or value, and of the name of the record; it returns the subject."""
StrategyName = Literal["topic", "record", "topic-record"]


def topic_subject(topic: str, field: Field, record_name: str | None) -> str:
    """Return `TOPIC-key` or `TOPIC-value`: a topic has records of one type."""
    return f"{topic}-{field}"


def record_subject(topic: str, field: Field, record_name: str | None) -> str:
    """Return the full name of the record: a type has one subject in all topics. Raises ValueError."""
    return _named(record_name)


def topic_record_subject(topic: str, field: Field, record_name: str | None) -> str:
    """Return `TOPIC-NAME`: a topic has records of several types. Raises ValueError."""
    return f"{topic}-{_named(record_name)}"


STRATEGIES: Final[dict[str, SubjectNameStrategy]] = {
    "topic": topic_subject, "record": record_subject, "topic-record": topic_record_subject,
}  # fmt: skip


def subject_strategy(spec: StrategyName | SubjectNameStrategy) -> SubjectNameStrategy:
    """Return the strategy that a setting names. Raises ValueError."""
    if callable(spec):
        return spec
    if spec not in STRATEGIES:
        known = ", ".join(map(repr, STRATEGIES))
        raise ValueError(f"subject_name_strategy is one of {known}, or a function, not {spec!r}")
    return STRATEGIES[spec]


def _named(record_name: str | None) -> str:
    if not record_name:
        raise ValueError("the schema has no name: subject_name_strategy='topic' needs none")
    return record_name
