"""The handlers that an app has declared, and how they share one consumer group. Pure.

All handlers are members of one group, whose offsets belong to topics and partitions. So a handler that is
added, removed or renamed leaves the offsets of all others where they are, and its own too. Members of a group
share the partitions of a topic; therefore a topic has one handler in a group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ottla.streams.config import StreamsConfig
from ottla.streams.dedupe.guard import Dedupe
from ottla.streams.errors import StreamsError
from ottla.streams.handlers.arguments import Function
from ottla.streams.language.topology import Plan

STREAMS: Final = "streams"
"""The name of all streams of an app in logs and metrics."""


class AppError(StreamsError):
    """An app was declared or used in a way that cannot work; the message says what to change."""


@dataclass(frozen=True, slots=True, eq=False)
class DeclaredHandler:
    """A handler, or all streams, as declared."""

    name: str
    function: Function | Plan
    topics: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    dedupe: Dedupe | None = None

    @property
    def title(self) -> str:
        """How errors name it."""
        return "the streams" if isinstance(self.function, Plan) else f"handler {self.name!r}"


def as_member(config: StreamsConfig, app: StreamsConfig, name: str) -> StreamsConfig:
    """Return the config of a handler by name: the `group_instance_id` of its app gets the handler's name.

    A group has one member of an id. It is the same however many handlers the app has.
    """
    instance = config.consumer.group_instance_id
    if instance is None or instance != app.consumer.group_instance_id:
        return config
    return replace(config, consumer=replace(config.consumer, group_instance_id=f"{instance}-{name}"))


def check_members(handlers: Iterable[tuple[DeclaredHandler, StreamsConfig]]) -> None:
    """Raise AppError if two handlers of a group read the same topic, or use the same transactional id."""
    readers: dict[tuple[str, str], DeclaredHandler] = {}
    writers: dict[str, DeclaredHandler] = {}
    for handler, config in handlers:
        for topic in dict.fromkeys(handler.topics):
            other = readers.setdefault((config.group_id, topic), handler)
            if other is not handler:
                raise AppError(_shared_topic(other, handler, topic, config.group_id))
        transactional_id = config.producer.transactional_id
        if (
            transactional_id is not None
            and (other := writers.setdefault(transactional_id, handler)) is not handler
        ):
            raise AppError(
                f"{other.title} and {handler.title} have the same transactional_id {transactional_id!r}, and "
                "one would fence the other: give each its own, or none at all"
            )


def _shared_topic(handler: DeclaredHandler, other: DeclaredHandler, topic: str, group_id: str) -> str:
    by_hand = handler if isinstance(other.function, Plan) else other
    return (
        f"{handler.title} and {other.title} both read {topic!r} in group {group_id!r}, so each would get a "
        f'part of its records: give {by_hand.title} a group of its own, group_id="{group_id}-{by_hand.name}"'
    )
