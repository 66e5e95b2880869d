"""Which topics a consumer wants: some by name, or all whose names match. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ottla.consumer.arguments import to_topics
from ottla.protocol.topics import INTERNAL_TOPICS

Expressions = str | re.Pattern[str] | Iterable[str | re.Pattern[str]]


class TopicFilter:
    """Topics by regular expressions that match whole names: any of those allowed, none of those denied.

        TopicFilter(allow=["orders", r"payments\\..*"], deny=r".*\\.test")

    A string may hold several, separated by commas, as the old consumers took them. Raises ValueError for
    what is no regular expression.
    """

    def __init__(self, allow: Expressions = ".*", deny: Expressions = ()) -> None:
        self.allow = _compiled(allow)
        self.deny = _compiled(deny)

    def matches(self, topic: str) -> bool:
        """Say whether a topic is wanted."""
        wanted = any(each.fullmatch(topic) for each in self.allow)
        return wanted and not any(each.fullmatch(topic) for each in self.deny)

    def __repr__(self) -> str:
        allow, deny = ([each.pattern for each in listed] for listed in (self.allow, self.deny))
        return f"TopicFilter(allow={allow}, deny={deny})"


@dataclass(frozen=True, slots=True)
class Subscription:
    """What is subscribed to: names, or a filter."""

    names: frozenset[str] = frozenset()
    filter: TopicFilter | None = None

    def topics(self, known: Mapping[str, bool], *, exclude_internal: bool = True) -> frozenset[str]:
        """Return the topics that are wanted of those that are known, with whether each is internal.

        Topics that are subscribed to by name are wanted even where they are not known yet.
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
    """Read what `subscribe` is given. Raises ValueError for both or neither of topics and pattern.

    Raises TypeError and ValueError for what is no topic's name, too.
    """
    names = frozenset(to_topics(topics))
    if bool(names) == (pattern is not None):
        raise ValueError("subscribe to topics by name, or to a pattern: one of the two")
    if pattern is None:
        return Subscription(names)
    # A comma is part of a pattern here: only the lists of the old consumers are taken apart.
    return Subscription(filter=pattern if isinstance(pattern, TopicFilter) else TopicFilter([pattern]))


def _compiled(expressions: Expressions) -> tuple[re.Pattern[str], ...]:
    if isinstance(expressions, re.Pattern):
        return (expressions,)
    listed = expressions.split(",") if isinstance(expressions, str) else list(expressions)
    return tuple(_compile(each) for each in listed)


def _compile(expression: str | re.Pattern[str]) -> re.Pattern[str]:
    if isinstance(expression, re.Pattern):
        return expression
    try:
        return re.compile(expression.strip())
    except re.error as error:
        raise ValueError(f"{expression!r} is not a regular expression: {error}") from error
