"""Subscriptions: topics by name, or all topics that match a pattern. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ottla.consumer.argument_validation import to_topics
from ottla.protocol.topics import INTERNAL_TOPICS

Expressions = str | re.Pattern[str] | Iterable[str | re.Pattern[str]]


class TopicFilter:
    """Selects topics by regular expressions over whole names: any of `allow`, none of `deny`.

        TopicFilter(allow=["orders", r"payments\\..*"], deny=r".*\\.test")

    A string may hold several expressions, separated by commas, as in the old consumers. Raises ValueError
    for an invalid expression.
    """

    def __init__(self, allow: Expressions = ".*", deny: Expressions = ()) -> None:
        self.allow = _compiled(allow)
        self.deny = _compiled(deny)

    def matches(self, topic: str) -> bool:
        """Return whether a topic matches."""
        wanted = any(pattern.fullmatch(topic) for pattern in self.allow)
        return wanted and not any(pattern.fullmatch(topic) for pattern in self.deny)

    def __repr__(self) -> str:
        allow, deny = ([pattern.pattern for pattern in listed] for listed in (self.allow, self.deny))
        return f"TopicFilter(allow={allow}, deny={deny})"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription: names, or a filter."""

    names: frozenset[str] = frozenset()
    filter: TopicFilter | None = None

    def topics(self, known: Mapping[str, bool], *, exclude_internal: bool = True) -> frozenset[str]:
        """Return the subscribed topics, given known topics and whether each is internal.

        Topics subscribed to by name are returned even if they are not known yet.
        """
        if self.filter is None:
            return self.names
        return frozenset(
            topic
            for topic, is_internal in known.items()
            if self.filter.matches(topic)
            and not (exclude_internal and (is_internal or topic in INTERNAL_TOPICS))
        )


def subscription(
    topics: str | Iterable[str] = (), pattern: str | re.Pattern[str] | TopicFilter | None = None
) -> Subscription:
    """Return the subscription for the arguments of `subscribe`.

    Raises ValueError for both or neither of topics and pattern, TypeError and ValueError for illegal names.
    """
    names = frozenset(to_topics(topics))
    if bool(names) == (pattern is not None):
        raise ValueError("subscribe to topics by name, or to a pattern: one of the two")
    if pattern is None:
        return Subscription(names)
    # A comma is part of a pattern here: only `TopicFilter` splits strings.
    return Subscription(filter=pattern if isinstance(pattern, TopicFilter) else TopicFilter([pattern]))


def _compiled(expressions: Expressions) -> tuple[re.Pattern[str], ...]:
    if isinstance(expressions, re.Pattern):
        return (expressions,)
    listed = expressions.split(",") if isinstance(expressions, str) else list(expressions)
    return tuple(_compile(expression) for expression in listed)


def _compile(expression: str | re.Pattern[str]) -> re.Pattern[str]:
    if isinstance(expression, re.Pattern):
        return expression
    try:
        return re.compile(expression.strip())
    except re.error as error:
        raise ValueError(f"{expression!r} is not a regular expression: {error}") from error
