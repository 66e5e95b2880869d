"""Which topics a wildcard subscription takes. Pure."""

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
    """The word that stands for the kind in the group's registry."""

    def __post_init__(self) -> None:
        regex = self.expression.strip().replace(",", "|").replace(" ", "").strip("\"'")
        try:
            re.compile(regex)
        except re.error as error:
            raise ValueError(f"{regex!r} is not a regular expression: {error}") from error
        object.__setattr__(self, "regex", regex)

    def allows(self, topic: str, *, exclude_internal: bool = True) -> bool:
        """Say whether a topic is taken; Kafka's own topics are not, unless they are asked for."""
        if exclude_internal and topic in INTERNAL_TOPICS:
            return False
        return self._takes(re.fullmatch(self.regex, topic) is not None)

    def _takes(self, matches: bool) -> bool:
        raise NotImplementedError


class Whitelist(TopicFilter):
    """Take the topics whose names match."""

    pattern = "white_list"

    def _takes(self, matches: bool) -> bool:
        return matches


class Blacklist(TopicFilter):
    """Take the topics whose names do not match."""

    pattern = "black_list"

    def _takes(self, matches: bool) -> bool:
        return not matches


FILTERS: dict[str, type[TopicFilter]] = {kind.pattern: kind for kind in (Whitelist, Blacklist)}
