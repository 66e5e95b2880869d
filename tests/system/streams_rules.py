"""The rules that the events of a group keep under all kills. Pure: events go in, violations come out.

The rules, for the order of events in the journal:

1. A record of a key is started only if all earlier records of the key have finished, in whichever members.
   So the handled sequence of a key, repetitions removed, is the produced one.
2. Within one assignment of a partition a key's records start one after the other, each once; again only
   after a failed attempt of that record. Nothing goes back.
3. Two attempts of one key never run at the same time, unless the member of the one is dead or has lost the
   partition.
4. A record that finished starts again only if the member that finished it was killed, or lost the partition:
   members that leave or drain cause no repetition.
5. A record that a commit named as finished when it was read is not started again.
6. Handlers of a partition have ended when it is revoked.
7. A partition has one owner. The next may have it before the last one knows only if that one then loses it
   (its session ended), or leaves before it learns of it, after it stood still. What such a member still
   handles is counted, not judged.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from streams_journal import Event, Kind

Ranges = Sequence[tuple[int, int]]
_MOST = 40
_STALE_NS = 15_000_000_000


@dataclass(eq=False)
class Assignment:
    """One time that a member has a partition."""

    member: int
    serial: int
    """Its place among all assignments, from 1 on."""
    last: dict[int, int] = field(default_factory=dict)
    """The number of the last record of each key that was started."""
    failed: set[int] = field(default_factory=set)
    """The keys whose last attempt failed."""


@dataclass(eq=False)
class Partition:
    """The state of a partition, as its events tell it."""

    number: int
    finished_by: array[int] = field(default_factory=lambda: array("I"))
    """The assignment in which each offset finished last; 0: in none."""
    finished_ns: array[int] = field(default_factory=lambda: array("Q"))
    """When each offset finished last."""
    frontier: int = 0
    """All offsets below have finished."""
    known: tuple[int, Ranges] = (0, ())
    """The offsets that the last commit read named as finished."""
    owner: Assignment | None = None
    overtaken: dict[int, Assignment] = field(default_factory=dict)
    """Members that do not know yet that others have the partition."""
    gone: dict[int, int] = field(default_factory=dict)
    """When the assignments ended that a kill ended, or a loss (0): what finished in them may repeat."""

    def is_finished(self, offset: int) -> bool:
        """Return whether a record has finished at least once."""
        return offset < len(self.finished_by) and self.finished_by[offset] != 0

    def is_known(self, offset: int) -> bool:
        """Return whether a commit that was read names the record as finished."""
        committed, ranges = self.known
        return offset < committed or any(first <= offset < end for first, end in ranges)

    def finish(self, offset: int, assignment: int, time_ns: int) -> None:
        """Note when and in which assignment a record finished."""
        if (missing := offset + 1 - len(self.finished_by)) > 0:
            self.finished_by.extend([0] * missing)
            self.finished_ns.extend([0] * missing)
        self.finished_ns[offset] = time_ns
        self.finished_by[offset] = assignment
        while self.is_finished(self.frontier):
            self.frontier += 1


@dataclass
class Counts:
    """How often what happened."""

    started: int = 0
    finished: int = 0
    failed: int = 0
    set_aside: int = 0
    repeated: int = 0
    window_ms: int = 0
    """The longest time from the end of a record to the kill because of which it was repeated."""
    late: int = 0
    """Attempts of members that others had overtaken."""
    killed: int = 0
    left: int = 0
    lost: int = 0
    assigned: int = 0


class Rules:
    """Judges events in their order, and the commits that were read between them."""

    def __init__(self, partitions: int, keys: int) -> None:
        self.partitions = [Partition(number) for number in range(partitions)]
        self.done = array("I", [0] * keys)
        """How many records of each key have finished, from the first on."""
        self.handled = 0
        """How many records have finished at least once."""
        self.counts = Counts()
        self.wrong: list[str] = []
        self._running: dict[int, list[Event]] = {}
        """By key: one attempt, or the records of the key in one batch."""
        self._stood_still: dict[int, int] = {}
        """When members were paused last."""
        self._judges = {
            Kind.STARTED: self._started,
            Kind.FINISHED: self._finished,
            Kind.SET_ASIDE: self._set_aside,
            Kind.FAILED: self._failed,
            Kind.ASSIGNED: self._assigned,
            Kind.REVOKED: self._revoked,
            Kind.LOST: self._lost,
            Kind.KILLED: self._killed,
            Kind.LEFT: self._left,
            Kind.PAUSED: self._paused,
        }

    def feed(self, events: Iterable[Event]) -> None:
        """Judge further events."""
        judges = self._judges
        for event in events:
            judges[Kind(event.kind)](event)

    def violated(self, rule: str) -> None:
        """Note a violation; the first ones are enough."""
        if len(self.wrong) < _MOST:
            self.wrong.append(rule)

    # --- records

    def _started(self, event: Event) -> None:
        self.counts.started += 1
        partition = self.partitions[event.partition]
        owner = partition.owner
        if owner is None or owner.member != event.member:
            if event.member in partition.overtaken:
                self.counts.late += 1
            else:
                self.violated(f"7: {_name(event)} started, but the member does not own the partition")
            return
        self._judge_exclusive(event)
        self._judge_order(event, owner)
        if partition.is_finished(event.offset):
            self._judge_repetition(event, partition)
        self._running.setdefault(event.key, []).append(event)

    def _judge_exclusive(self, event: Event) -> None:
        for other in self._running.get(event.key, ()):
            if (other.member, other.attempt) != (event.member, event.attempt):
                self.violated(f"3: {_name(event)} started while {_name(other)} ran")

    def _judge_order(self, event: Event, owner: Assignment) -> None:
        done, last = self.done[event.key], owner.last.get(event.key)
        before = {each.number for each in self._running.get(event.key, ())}  # of its batch
        if not before.issuperset(range(done, event.number)):
            self.violated(f"1: {_name(event)} started, but {done} of its key is not finished")
        if last is not None:
            expected = last if event.key in owner.failed else last + 1
            if event.number != expected:
                self.violated(f"2: {_name(event)} started after {last} of its key, not {expected}")
        owner.last[event.key] = event.number
        owner.failed.discard(event.key)

    def _judge_repetition(self, event: Event, partition: Partition) -> None:
        self.counts.repeated += 1
        ended_ns = partition.gone.get(partition.finished_by[event.offset])
        if ended_ns:
            window_ms = (ended_ns - partition.finished_ns[event.offset]) // 1_000_000
            self.counts.window_ms = max(self.counts.window_ms, window_ms)
        elif ended_ns is None:
            self.violated(f"4: {_name(event)} started again, though who finished it was not killed")
        if partition.is_known(event.offset):
            self.violated(f"5: {_name(event)} started again, though a commit named it as finished")

    def _finished(self, event: Event) -> None:
        self.counts.finished += 1
        self._end(event)

    def _set_aside(self, event: Event) -> None:
        self.counts.set_aside += 1
        owner = self.partitions[event.partition].owner
        if owner is not None and owner.member == event.member:
            self._running[event.key] = [event]  # its failed attempt is over, and was the last one
        self._end(event)

    def _end(self, event: Event) -> None:
        if not self._take(event):
            self.counts.late += 1  # of a member that has lost the partition
            return
        partition = self.partitions[event.partition]
        assert partition.owner is not None, "what runs is forgotten when its partition is given up"
        partition.finish(event.offset, partition.owner.serial, event.time_ns)
        partition.owner.failed.discard(event.key)
        if event.number == self.done[event.key]:
            self.done[event.key] += 1
            self.handled += 1

    def _failed(self, event: Event) -> None:
        self.counts.failed += 1
        owner = self.partitions[event.partition].owner
        if self._take(event) and owner is not None:
            is_first = event.key not in owner.failed
            owner.failed.add(event.key)
            owner.last[event.key] = event.number if is_first else min(event.number, owner.last[event.key])

    def _take(self, event: Event) -> bool:
        """Remove what an event ends from what runs; return false if it does not run."""
        running = self._running.get(event.key, [])
        for each in running:
            if (each.member, each.offset) == (event.member, event.offset):
                running.remove(each)
                if not running:
                    del self._running[event.key]
                return True
        return False

    # --- partitions

    def _assigned(self, event: Event) -> None:
        self.counts.assigned += 1
        partition = self.partitions[event.partition]
        if partition.owner is not None and self._is_stale(event, partition.owner.member):
            partition.overtaken[event.member] = Assignment(event.member, self.counts.assigned)
            return
        if partition.owner is not None:
            partition.overtaken[partition.owner.member] = partition.owner
            partition.gone[partition.owner.serial] = 0
            self._forget(partition.owner.member, event.partition)
        partition.owner = Assignment(event.member, self.counts.assigned)
        if event.offset < partition.known[0]:
            self.violated(
                f"5: member {event.member} begins partition {event.partition} at {event.offset}, "
                f"behind the commit {partition.known[0]}"
            )

    def _revoked(self, event: Event) -> None:
        partition = self.partitions[event.partition]
        if event.member in partition.overtaken and event.member not in self._stood_still:
            self.violated(f"7: partition {event.partition} had two owners, {event.member} among them")
        for each in self._of(event.member, event.partition):
            self.violated(f"6: {_name(each)} ran when its partition was revoked")
        self._forget(event.member, event.partition)
        self._end_ownership(partition, event.member)

    def _lost(self, event: Event) -> None:
        self.counts.lost += 1
        self._give_up(self.partitions[event.partition], event.member, 0)

    def _killed(self, event: Event) -> None:
        self.counts.killed += 1
        ended_ns = 0 if event.member in self._stood_still else event.time_ns
        for partition in self.partitions:
            self._give_up(partition, event.member, ended_ns)

    def _paused(self, event: Event) -> None:
        self._stood_still[event.member] = event.time_ns

    def _is_stale(self, event: Event, owner: int) -> bool:
        """Return whether a member that stood still goes on with an assignment though it is over."""

        def stood_still(member: int) -> bool:
            return event.time_ns - self._stood_still.get(member, -_STALE_NS) < _STALE_NS

        return stood_still(event.member) and not stood_still(owner)

    def _left(self, event: Event) -> None:
        self.counts.left += 1
        for partition in self.partitions:
            if partition.owner is not None and partition.owner.member == event.member:
                self.violated(f"6: member {event.member} left with partition {partition.number}")
                self._forget(event.member, partition.number)
                partition.owner = None

    def _give_up(self, partition: Partition, member: int, ended_ns: int) -> None:
        if partition.owner is not None and partition.owner.member == member:
            partition.gone[partition.owner.serial] = ended_ns
        self._forget(member, partition.number)
        self._end_ownership(partition, member)

    def _end_ownership(self, partition: Partition, member: int) -> None:
        partition.overtaken.pop(member, None)
        if partition.owner is not None and partition.owner.member == member:
            partition.owner = None

    def _of(self, member: int, partition: int) -> list[Event]:
        every = (each for running in self._running.values() for each in running)
        return [each for each in every if each.member == member and each.partition == partition]

    def _forget(self, member: int, partition: int) -> None:
        for each in self._of(member, partition):
            self._take(each)

    # --- commits

    def commit_read(self, number: int, offset: int, ranges: Ranges) -> None:
        """Judge a commit; the events up to a moment after it was read have been fed."""
        partition = self.partitions[number]
        if offset > partition.frontier:
            self.violated(
                f"c: partition {number} is committed at {offset}, but {partition.frontier} is not finished"
            )
        for first, end in ranges:
            for each in range(first, end):
                if not partition.is_finished(each):
                    self.violated(f"c: partition {number}: the commit at {offset} names {each}, unfinished")
        if offset < partition.known[0]:
            self.violated(f"c: partition {number}: the commit went from {partition.known[0]} to {offset}")
        partition.known = (offset, ranges)

    def judge_end(self, ends: Sequence[int], produced: Sequence[int]) -> None:
        """Judge the end: every record has finished, and every commit is at the end of its partition."""
        for partition, end in zip(self.partitions, ends, strict=True):
            if partition.frontier != end:
                self.violated(
                    f"b: partition {partition.number} ends at {end}, but {partition.frontier} is not finished"
                )
            if partition.known != (end, ()) and end:
                self.violated(
                    f"b: partition {partition.number} ends at {end}, but is committed at {partition.known}"
                )
            if partition.overtaken:
                self.violated(f"7: {sorted(partition.overtaken)} were never told of a lost partition")
        if short := [key for key, count in enumerate(produced) if self.done[key] != count]:
            self.violated(f"b: records of {len(short)} keys were not handled, {short[:3]} among them")


def _name(event: Event) -> str:
    return (
        f"record {event.number} of key {event.key} (partition {event.partition}, offset {event.offset}, "
        f"member {event.member})"
    )
