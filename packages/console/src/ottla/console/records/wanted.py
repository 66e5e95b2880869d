"""The records that an address asks for: where they begin, which of them, and how they are shown. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, cast, get_args
from urllib.parse import urlencode

from ottla.console.records.filters import Filter, key_bytes, wanted_filter
from ottla.console.records.values import FORMS, Form
from ottla.console.web.fields import Unclear, time_ms, whole

Start = Literal["newest", "beginning", "offset", "time"]
KeyedBy = Literal["java", "librdkafka", "all"]
STARTS: Final[tuple[str, ...]] = get_args(Start)
KEYED_BY: Final[tuple[str, ...]] = get_args(KeyedBy)
COUNTS: Final = (50, 100, 500)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records an address asks for; `partition` None means all, times are in ms since 1970.

    With `until` records at that time and later are left out. `keyed_by` says in which partition the filter's
    key is: that of Java's clients, that of librdkafka, or any. `counts_all` goes on counting behind `count`.
    """

    start: Start = "newest"
    partition: int | None = None
    offset: int = 0
    time_ms: int = 0
    at: str = ""
    count: int = COUNTS[0]
    form: Form = "auto"
    until: str = ""
    until_ms: int | None = None
    filter: Filter = field(default_factory=Filter)
    keyed_by: KeyedBy = "java"
    counts_all: bool = False
    is_tail: bool = False

    @property
    def newest_first(self) -> bool:
        """Whether the newest records come first."""
        return self.start == "newest"

    @property
    def is_search(self) -> bool:
        """Whether records are searched: with a filter, or up to a time."""
        return not self.filter.is_empty or self.until_ms is not None

    def link(self, **changes: object) -> str:
        """Return the query that asks for the same with changes."""
        other = replace(self, **changes)  # type: ignore[arg-type]
        parts = {
            "from": other.start, "partition": "" if other.partition is None else str(other.partition),
            "offset": str(other.offset) if other.start == "offset" else "",
            "at": other.at if other.start == "time" else "", "count": str(other.count), "form": other.form,
            "until": other.until, **other.filter.parts(),
            "keyed": other.keyed_by if other.filter.key and other.keyed_by != "java" else "",
            "all": "1" if other.counts_all else "", "tail": "1" if other.is_tail else "",
        }  # fmt: skip
        return "?" + urlencode({name: value for name, value in parts.items() if value})

    def partitions(self, known: Sequence[int], topic: str) -> list[int]:
        """Return the partitions that are read: one, that of the key, or all. Raises Unclear."""
        if self.partition is not None:
            if self.partition not in known:
                raise Unclear(f"topic {topic} has no partition {self.partition}, only 0 to {max(known)}")
            return [self.partition]
        if not self.filter.key or self.keyed_by == "all":
            return list(known)
        from ottla.producer.partitioner import partition_for_key, partitioner  # a search does without it

        key = key_bytes(self.filter.key)
        if self.keyed_by == "java":
            return [partition_for_key(key, len(known))]
        chosen = partitioner("consistent_random")
        assert chosen is not None
        return [chosen.partition(topic, key, len(known), known)]


def wanted_records(query: Mapping[str, str]) -> Wanted:
    """Return the records that an address asks for. Raises Unclear."""
    start = query.get("from") or "newest"
    if start not in STARTS:
        raise Unclear(f"{start!r} is no place to begin: newest, beginning, offset or time")
    count, form, at = query.get("count", ""), query.get("form", "auto"), query.get("at", "").strip()
    until, keyed_by = query.get("until", "").strip(), query.get("keyed") or "java"
    if keyed_by not in KEYED_BY:
        raise Unclear(f"a key is in the partition of one of {', '.join(KEYED_BY)}, not of {keyed_by!r}")
    return Wanted(
        cast("Start", start),
        whole(query.get("partition", ""), "the partition") if query.get("partition") else None,
        whole(query.get("offset", "") or "0", "the offset"),
        time_ms(at) if start == "time" else 0,
        at,
        int(count) if count in map(str, COUNTS) else COUNTS[0],
        cast("Form", form if form in FORMS else "auto"),
        until,
        time_ms(until) if until else None,
        wanted_filter(query),
        cast("KeyedBy", keyed_by),
        query.get("all") == "1",
        query.get("tail") == "1",
    )
