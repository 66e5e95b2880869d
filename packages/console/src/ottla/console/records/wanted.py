"""The records that an address asks for: where they begin, which of them, and how they are shown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, cast, get_args
from urllib.parse import urlencode

from ottla.console.records.filters import Filter, key_bytes, wanted_filter
from ottla.console.records.reading import ShownRecord
from ottla.console.records.values import FORMS, Form
from ottla.console.web.fields import Unclear, is_whole, time_ms, whole

Start = Literal["newest", "beginning", "offset", "time"]
KeyedBy = Literal["java", "librdkafka", "all"]
STARTS: Final[tuple[str, ...]] = get_args(Start)
KEYED_BY: Final[tuple[str, ...]] = get_args(KeyedBy)
COUNTS: Final = (50, 100, 500)
MOST_POSITIONS: Final = 4_000
"""Letters of positions in partitions: a browser sends them back in an address or in a header."""


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
    behind: tuple[tuple[int, int], ...] = ()
    """Partitions of which a search before has shown records, with the offset at which it goes on."""

    @property
    def newest_first(self) -> bool:
        """Whether the newest records come first."""
        return self.start == "newest"

    @property
    def is_search(self) -> bool:
        """Whether records are searched: with a filter, or up to a time."""
        return not self.filter.is_empty or self.until_ms is not None or bool(self.behind)

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
            "behind": positions_text(dict(other.behind)),
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
        tuple(read_positions(query.get("behind", "")).items()),
    )


class Shown:
    """The records that a search has shown: where another one goes on, so that none comes twice or never."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._rows = 0
        self._last_ms = 0
        self._at: dict[int, tuple[int, int]] = {index: (at, 0) for index, at in wanted.behind}

    def add(self, records: Iterable[ShownRecord]) -> None:
        """Take records in the order in which they are shown."""
        step = 0 if self._wanted.newest_first else 1
        for record in records:
            self._rows += 1
            self._last_ms = record.timestamp_ms
            self._at[record.partition] = record.offset + step, record.timestamp_ms

    def next_link(self) -> str:
        """Return the query that goes on behind the last row; an empty text where all was found.

        Records of other partitions come by their times, in which the search goes: those of the last
        millisecond are not shown yet, or their partition is among those that go on at an offset.
        """
        wanted, behind = self._wanted, {index: at for index, (at, _) in sorted(self._at.items())}
        if self._rows < wanted.count:
            return ""
        if len(positions_text(behind)) > MOST_POSITIONS:
            behind = {index: at for index, at in behind.items() if self._at[index][1] == self._last_ms}
        on = {"behind": tuple(behind.items())}
        if wanted.newest_first:
            return wanted.link(until=str(self._last_ms + 1), **on)
        if wanted.start == "offset":  # other partitions begin where they did: their offsets may be before it
            return wanted.link(**on)
        return wanted.link(start="time", at=str(self._last_ms), **on)


def positions_text(positions: Mapping[int, int]) -> str:
    """Return positions as `partition:offset` with commas."""
    return ",".join(f"{partition}:{offset}" for partition, offset in positions.items())


def read_positions(text: str) -> dict[int, int]:
    """Return the positions of `positions_text`; that which makes no sense counts as not given."""
    pairs = (part.partition(":") for part in text[:MOST_POSITIONS].split(","))
    return {int(index): int(at) for index, _, at in pairs if is_whole(index) and is_whole(at)}
