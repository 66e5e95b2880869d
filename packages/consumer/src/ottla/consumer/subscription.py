"""Subscriptions: topics by name, or those that match a pattern, and the listener of their rebalances."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ottla.consumer.argument_validation import to_topics
from ottla.consumer.errors import ListenerFailed
from ottla.protocol.topics import INTERNAL_TOPICS, TopicPartition

Expressions = str | re.Pattern[str] | Iterable[str | re.Pattern[str]]

Partitions = frozenset[TopicPartition]


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

    def re2_expression(self, *, exclude_internal: bool) -> str | None:
        """Return the one expression in RE2's syntax that matches the same topics; None where there is none.

        Brokers match an expression over whole names, without flags, and internal topics too. They may refuse
        it all the same: lookarounds and references to groups are Python's alone.
        """
        plain = all(pattern.flags == re.UNICODE.value for pattern in self.allow)
        internal = exclude_internal and any(map(self.matches, INTERNAL_TOPICS))
        if self.deny or internal or not plain:
            return None
        if len(self.allow) == 1:
            return self.allow[0].pattern
        return "|".join(f"(?:{pattern.pattern})" for pattern in self.allow)

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


class RebalanceListener:
    """Is called when partitions are assigned, revoked or lost. Methods may be plain or `async`.

    No record of these partitions is delivered while a method runs. An exception of a method is raised to the
    application by its next call to the consumer; the rebalance continues.
    """

    def on_partitions_revoked(self, revoked: Partitions) -> Awaitable[None] | None:
        """Commit for partitions before they are assigned to others. Never called without partitions."""
        return None

    def on_partitions_assigned(self, assigned: Partitions) -> Awaitable[None] | None:
        """Seek in new partitions before they are read. Called after every rebalance, even with none."""
        return None

    def on_partitions_lost(self, lost: Partitions) -> Awaitable[None] | None:
        """Partitions were lost, and others may read them already: commits for them fail."""
        return self.on_partitions_revoked(lost)


async def tell(listener: Any, what: str, partitions: Partitions, timeout_s: float) -> None:
    """Call a method of a listener, and await it if it is async. Raises ListenerFailed after the timeout.

    Any object with the methods is a listener. `on_partitions_revoked` stands in for a missing
    `on_partitions_lost`.
    """
    method = getattr(listener, f"on_partitions_{what}", None)
    if method is None and what == "lost":
        method = listener.on_partitions_revoked
    answer = method(partitions) if method is not None else None
    if not inspect.isawaitable(answer):
        return
    scope = asyncio.timeout(timeout_s)
    try:
        async with scope:
            await _uncancelled(answer, what)
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise ListenerFailed(
            f"on_partitions_{what} did not end within {timeout_s:g} s (max_poll_interval_ms)"
        ) from error


async def _uncancelled(answer: Awaitable[object], what: str) -> None:
    """Await a listener. If it was cancelled, and this task was not, it failed: nothing else reports that."""
    try:
        await answer
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise ListenerFailed(f"on_partitions_{what} was cancelled") from error
