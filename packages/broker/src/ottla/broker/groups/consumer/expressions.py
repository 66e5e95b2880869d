"""Subscriptions by a regular expression, as RE2 reads them: an expression of a stranger takes linear time.

The coordinator matches all topics that the member may describe, in steps of the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from ottla.broker.runtime.loop_budget import SLICE, slices
from ottla.protocol.errors import InvalidRegularExpression
from ottla.zookeeper.frozen_classes import frozen

MAX_EXPRESSION_BYTES: Final = 64 * 1024
_MAX_MEMORY_BYTES: Final = 1 << 20
"""The memory of a compiled expression: one that needs more is refused, and none takes long to compile."""


@frozen
class ResolvedExpression:
    """The topics that an expression matches, and when they were looked for."""

    topics: frozenset[str]
    version: int
    """That of the cluster's topics, which rises with every new topic."""
    at_ms: int


@frozen
class ExpressionsResolved:
    """Some expressions were resolved, all for the same version of the topics; and the last, in the end."""

    expressions: Mapping[str, ResolvedExpression]
    is_last: bool = True


def in_parts(found: Mapping[str, ResolvedExpression]) -> Iterator[ExpressionsResolved]:
    """Divide what was found by the names of topics: the record of each expression has all of its own."""
    some: dict[str, ResolvedExpression] = {}
    names = 0
    for expression, resolved in found.items():
        some[expression] = resolved
        names += 8 + len(resolved.topics)
        if names >= 8 * SLICE:
            yield ExpressionsResolved(some, is_last=False)
            some, names = {}, 0
    yield ExpressionsResolved(some)


@lru_cache(maxsize=128)
def compiled(expression: str) -> Callable[[str], Any]:
    """Return the match of whole names. Raises InvalidRegularExpression."""
    import re2

    options = re2.Options()
    options.max_mem = _MAX_MEMORY_BYTES
    options.log_errors = False
    try:
        if len(expression.encode()) > MAX_EXPRESSION_BYTES:
            raise re2.error("it is too long")
        match: Callable[[str], Any] = re2.compile(expression, options).fullmatch
    except (re2.error, UnicodeError) as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else error.args[0]
        raise InvalidRegularExpression(
            f"SubscribedTopicRegex `{expression}` is not a valid regular expression: {reason}."
        ) from None
    return match


def resolve(
    expressions: Collection[str],
    topics: Collection[str],
    may_describe: Callable[[str], bool],
    version: int,
    wall_ms: int,
) -> Generator[None, None, Mapping[str, ResolvedExpression]]:
    """Match the topics against each expression; those that may not be described are left out."""
    matched: dict[str, frozenset[str]] = {}
    same: dict[frozenset[str], frozenset[str]] = {}
    for expression in expressions:
        found: set[str] = set()
        matched[expression] = frozenset()
        try:
            match = compiled(expression)
        except InvalidRegularExpression:
            continue  # one that was stored by another version of RE2
        for some in slices(topics):
            found.update(name for name in some if match(name) and may_describe(name))
            yield
        all_found = frozenset(found)
        matched[expression] = same.setdefault(all_found, all_found)  # thousands may match everything
    return {
        expression: ResolvedExpression(all_found, version, wall_ms)
        for expression, all_found in matched.items()
    }
