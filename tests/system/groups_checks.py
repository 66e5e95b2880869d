"""Compare what members of share groups and of consumer groups have journalled with the log. Pure."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from chaos_log import Log

_MOST_LINES: Final = 3
Place = tuple[int, int]
"""A partition and an offset."""


class Line(NamedTuple):
    """A line of a member's journal; `groups_member.py` lists them."""

    at_us: int
    member: str
    word: str
    facts: tuple[str, ...]

    @property
    def place(self) -> Place:
        return int(self.facts[0]), int(self.facts[1])


def read_journals(journals: Iterable[Path]) -> list[Line]:
    """Return the lines of members, in the order of their times; one that a kill has torn is left out."""
    lines = []
    for journal in journals:
        for text in journal.read_text().split("\n")[:-1]:
            at_us, word, *facts = text.split(" ")
            lines.append(Line(int(at_us), journal.stem, word, tuple(facts)))
    return sorted(lines, key=lambda line: line.at_us)


def misread(log: Log, lines: Iterable[Line]) -> list[str]:
    """Return records that members were given and the log does not have at that place."""
    wrong = []
    for line in lines:
        if line.word not in ("read", "given"):
            continue
        partition, offset = line.place
        record, there = (line.facts[-2], int(line.facts[-1])), log[partition].get(offset)
        if record != there:
            wrong.append(f"{line.member} read {record} at {partition}/{offset}, where there is {there}")
    return wrong[:_MOST_LINES]


# --- consumer groups


@dataclass
class _Partition:
    """How far a group is in a partition: the first offset never read, and the greatest confirmed commit."""

    unread: int = 0
    committed: int = 0


@dataclass
class _Ownership:
    """A partition that a member has: the commit it must not begin before, and the offset it reads next."""

    floor: int
    following: int | None = None


class OrderedReads:
    """Follows a consumer group through its journals: offsets are read in order, from commits on.

    A member reads each partition that it has without a gap, from the offset on that was committed when it was
    assigned, or from a later one. It never begins behind records that no member has read. So the first
    deliveries of a partition are in the log's order, none is skipped, and only what was not committed is
    read twice.
    """

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.reads = 0
        self._partitions: dict[int, _Partition] = defaultdict(_Partition)
        self._owned: dict[str, dict[int, _Ownership]] = defaultdict(dict)

    @property
    def distinct(self) -> int:
        """How many records were read at least once."""
        return sum(each.unread for each in self._partitions.values())

    def follow(self, line: Line) -> None:
        """Take one line; lines come in the order of their times."""
        owned = self._owned[line.member]
        match line.word:
            case "began" | "failed" | "left":
                owned.clear()
            case "assigned":
                partition = int(line.facts[0])
                owned[partition] = _Ownership(self._partitions[partition].committed)
            case "revoked" | "lost":
                owned.pop(int(line.facts[0]), None)
            case "read":
                self._read(line, owned)
            case "committed":
                partition, offset = line.place
                state = self._partitions[partition]
                state.committed = max(state.committed, offset)

    def _read(self, line: Line, owned: Mapping[int, _Ownership]) -> None:
        partition, offset = line.place
        self.reads += 1
        state, ownership = self._partitions[partition], owned.get(partition)
        if ownership is None:
            self._complain(line, "was not assigned to it")
            ownership = _Ownership(0)
        if ownership.following is None:
            if offset < ownership.floor:
                self._complain(line, f"was committed before, up to {ownership.floor}: read AGAIN")
        elif offset != ownership.following:
            self._complain(line, f"does not follow its last one, which was {ownership.following - 1}")
        if offset > state.unread:
            self._complain(line, f"is behind {state.unread}, which no member has read: SKIPPED")
        ownership.following = offset + 1
        state.unread = max(state.unread, offset + 1)

    def _complain(self, line: Line, what: str) -> None:
        partition, offset = line.place
        self.wrong.append(f"{line.member} read {partition}/{offset} at {line.at_us} us, which {what}")

    def finish(self, ends: Mapping[int, int], committed: Mapping[int, int]) -> list[str]:
        """Return what was wrong, with partitions that were not read or committed up to their ends."""
        for partition, end in ends.items():
            state = self._partitions[partition]
            if state.unread != end:
                self.wrong.append(f"partition {partition} was read up to {state.unread} of {end}")
            if end and (offset := committed.get(partition)) != end:
                self.wrong.append(f"partition {partition} is committed up to {offset} of {end}")
        return self.wrong[:_MOST_LINES]


# --- share groups


@dataclass
class Delivery:
    """A record that a member was given: its delivery count, and what became of it."""

    at_us: int
    member: str
    count: int
    released: bool = False
    answer: str = ""
    """`confirmed`, the name of an error, or an empty text while no answer came."""
    answered_us: int = 0

    def __str__(self) -> str:
        fate = "released" if self.released else self.answer or "unanswered"
        return f"{self.member} delivery {self.count} at {self.at_us} us: {fate}"


@dataclass
class ShareLimits:
    """The settings of the share group, and the times of faults, in which leaders change."""

    deliveries: int
    lock_us: int
    windows_us: Sequence[tuple[int, int]] = field(default_factory=tuple)

    def is_explained(self, since_us: int, until_us: int) -> bool:
        """Whether a fault was under way at a time."""
        return any(begun <= until_us and since_us <= over for begun, over in self.windows_us)


def deliveries(lines: Iterable[Line]) -> dict[Place, list[Delivery]]:
    """Return the deliveries of each record, with their answers. Lines come in the order of their times."""
    found: dict[Place, list[Delivery]] = defaultdict(list)
    last: dict[tuple[str, Place], Delivery] = {}
    for line in lines:
        if line.word == "given":
            delivery = Delivery(line.at_us, line.member, int(line.facts[2]))
            found[line.place].append(delivery)
            last[line.member, line.place] = delivery
        elif line.word in ("released", "confirmed", "refused"):
            delivery = last[line.member, line.place]
            if line.word == "released":
                delivery.released = True
            else:
                delivery.answer = "confirmed" if line.word == "confirmed" else line.facts[2]
                delivery.answered_us = line.at_us
    return found


def misshared(log: Log, found: Mapping[Place, Sequence[Delivery]], limits: ShareLimits) -> list[str]:
    """Return records that no member accepted, or that were delivered though they must not be.

    All deliveries have come to their ends. An acknowledgement whose answer was lost may be taken or not; as
    long as the limit of deliveries was not reached, the group is past the record only if it was taken.
    """
    wrong: dict[str, list[str]] = defaultdict(list)
    for place in ((partition, offset) for partition in log for offset in log[partition]):
        given = found.get(place, ())
        for complaint in _complaints(given, limits):
            history = "; ".join(map(str, given))
            wrong[complaint].append(f"{place[0]}/{place[1]} {complaint} ({history})")
    return [f"{lines[0]}; {len(lines)} in all" for lines in wrong.values()]


def _complaints(given: Sequence[Delivery], limits: ShareLimits) -> Iterable[str]:
    if not given:
        yield "was given to no member: LOST"
        return
    confirmed = [each for each in given if each.answer == "confirmed"]
    if not confirmed and all(each.released for each in given):
        yield "was released and not given again: LOST"
    elif not confirmed and any(each.count >= limits.deliveries for each in given):
        yield "was never accepted, and given as often as allowed: LOST"
    if any(each.count > limits.deliveries for each in given):
        yield f"was delivered more often than {limits.deliveries} times"
    if _after_acceptance(given, confirmed, limits):
        yield "was given again AFTER it was accepted"
        return
    by_count = sorted(given, key=lambda each: (each.count, each.at_us))
    for before, after in itertools.pairwise(by_count):
        is_same = before.count == after.count
        if is_same and not limits.is_explained(before.at_us - limits.lock_us, after.at_us):
            yield "was given twice by one leader with the same delivery count"
            return


def _after_acceptance(given: Sequence[Delivery], confirmed: Sequence[Delivery], limits: ShareLimits) -> bool:
    """Whether a record was given again though it was accepted.

    What is given late may have been acquired before: it waits in a member's buffer, or in an answer of a
    leader that waits for the coordinator, for as long as a lock lasts. Locks are not persisted, and so end
    when the leader changes. An acknowledgement below the start offset is taken, and changes nothing.
    """
    return any(
        again is not accepted
        and again.at_us > accepted.answered_us
        and _cannot_be_late(again, accepted, limits)
        for accepted in confirmed
        for again in given
    )


def _cannot_be_late(again: Delivery, accepted: Delivery, limits: ShareLimits) -> bool:
    if again.at_us > accepted.answered_us + 2 * limits.lock_us:
        return True
    return again.count > accepted.count and not limits.is_explained(
        accepted.at_us - limits.lock_us, again.at_us
    )


def fates(found: Mapping[Place, Sequence[Delivery]]) -> str:
    """Describe how many records were accepted, and how often records were given again."""
    total = sum(map(len, found.values()))
    confirmed = sum(any(each.answer == "confirmed" for each in given) for given in found.values())
    released = sum(each.released for given in found.values() for each in given)
    most = max((each.count for given in found.values() for each in given), default=0)
    late = sum(
        any(again.at_us > each.answered_us and again.count > each.count for again in given)
        for given in found.values()
        for each in given
        if each.answer == "confirmed"
    )
    return (
        f"{confirmed:,} records confirmed, {len(found) - confirmed:,} whose answer was lost; "
        f"{total:,} deliveries, {released:,} released, the greatest delivery count {most}; "
        f"{late} given late, after they were accepted"
    )


def errors(lines: Iterable[Line], word: str) -> str:
    """Count the errors in the lines with a word, for each kind of client."""
    found = Counter(
        f"{line.member.partition('-')[0]} {' '.join(line.facts) if word == 'failed' else line.facts[-1]}"[:90]
        for line in lines
        if line.word == word
    )
    return ", ".join(f"{what} {count}" for what, count in found.most_common(8)) or "never"
