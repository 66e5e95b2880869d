"""Names of topics and partitions, and the rules for topic names."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

MAX_TOPIC_NAME_LENGTH = 249
GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_GROUP_STATE_TOPIC = "__share_group_state"
INTERNAL_TOPICS = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC})

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    """Group partitions by topic."""
    topics: dict[str, list[TopicPartition]] = defaultdict(list)
    for partition in partitions:
        topics[partition.topic].append(partition)
    return dict(topics)


def why_illegal_topic_name(name: str) -> str | None:
    """Return why `name` cannot be a topic name, or None when it can.

    The rules are Kafka's: ASCII letters, digits, `.`, `_` and `-`, at most 249
    characters, and neither `.` nor `..`, which are directories.
    """
    if not name:
        return "the empty string is not a legal topic name"
    if name in (".", ".."):
        return f"a topic cannot be named {name!r}"
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        return f"the name has {len(name)} characters, at most {MAX_TOPIC_NAME_LENGTH} are allowed"
    if not _LEGAL.match(name):
        return f"{name!r} has characters other than ASCII letters, digits, '.', '_' and '-'"
    return None


def collides(one: str, other: str) -> bool:
    """Return whether two topic names would share metric names, where `.` becomes `_`."""
    return one.replace(".", "_") == other.replace(".", "_")
