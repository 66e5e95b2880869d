"""Topic filters of wildcard subscriptions. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

from ottla.protocol.topics import INTERNAL_TOPICS


@dataclass(frozen=True)
class TopicFilter:
    """A regular expression over whole topic names; `,` means `|` in it, spaces and quotes are dropped."""

    expression: str
    regex: str = field(init=False)
    pattern: ClassVar[str]
    """The word for this kind of filter in the group's znodes."""

    def __post_init__(self) -> None:
        regex = self.expression.strip().replace(",", "|").replace(" ", "").strip("\"'")
        try:
            re.compile(regex)
        except re.error as error:
            raise ValueError(f"{regex!r} is not a regular expression: {error}") from error
        object.__setattr__(self, "regex", regex)

    def allows(self, topic: str, *, exclude_internal: bool = True) -> bool:
        """Return whether a topic matches; Kafka's internal topics do not, unless included."""
        if exclude_internal and topic in INTERNAL_TOPICS:
            return False
        return self._accepts(re.fullmatch(self.regex, topic) is not None)

    def _accepts(self, matches: bool) -> bool:
        raise NotImplementedError


class Whitelist(TopicFilter):
    """Matches the topics whose names match the expression."""

    pattern = "white_list"

    def _accepts(self, matches: bool) -> bool:
        return matches


class Blacklist(TopicFilter):
    """Matches the topics whose names do not match the expression."""

    pattern = "black_list"

    def _accepts(self, matches: bool) -> bool:
        return not matches


FILTERS: dict[str, type[TopicFilter]] = {kind.pattern: kind for kind in (Whitelist, Blacklist)}
