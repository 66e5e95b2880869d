from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from ottla.protocol.topics import TopicPartition
from ottla.streams.exactly_once.buffered_outputs import BufferedOutputs, Output

P0, P1 = TopicPartition("in", 0), TopicPartition("in", 1)


@dataclass(frozen=True)
class Plan:
    """A commit of an offset and of finished records above it."""

    offset: int
    above: frozenset[int] = frozenset()
    is_complete: bool = True
    partition: TopicPartition = P0

    @property
    def metadata(self) -> str:
        return ",".join(str(each) for each in sorted(self.above))

    @property
    def end(self) -> int:
        return max(self.above, default=self.offset - 1) + 1

    def covers(self, offset: int) -> bool:
        return offset < self.offset or offset in self.above


def out(text: str) -> Output:
    return Output("out", text.encode())


def texts(buffer: BufferedOutputs, plans: dict[TopicPartition, Plan]) -> list[str] | None:
    """Open the next transaction and return its outputs."""
    opened = buffer.next_transaction(plans)
    if opened is None:
        return None
    return [(each.value or b"").decode() for work in opened.works for each in work.outputs]


def cut(offset: int, *above: int) -> Plan:
    """Make a plan whose metadata leaves finished offsets out."""
    return Plan(offset, frozenset(above), is_complete=False)


def started(*partitions: TopicPartition) -> BufferedOutputs:
    """Make a buffer that has committed the offset 0 of its partitions."""
    buffer = BufferedOutputs()
    buffer.next_transaction(dict.fromkeys(partitions, Plan(0)))
    buffer.committed()
    return buffer


def test_outputs_are_in_a_transaction_only_with_the_offsets_of_their_records() -> None:
    buffer = started(P0)
    buffer.finish(P0, (1,), (out("one"),))
    buffer.finish(P0, (7,), (out("seven"),))

    assert texts(buffer, {P0: Plan(0, frozenset({1}))}) == ["one"]
    buffer.committed()
    assert texts(buffer, {P0: Plan(0, frozenset({1, 7}))}) == ["seven"]
    buffer.committed()
    assert texts(buffer, {P0: Plan(0, frozenset({1, 7}))}) is None


def test_an_offset_that_moved_without_outputs_is_committed_too() -> None:
    buffer = started(P0)

    assert texts(buffer, {P0: Plan(0)}) is None
    assert texts(buffer, {P0: Plan(5)}) == []


def test_an_aborted_transaction_is_repeated_with_the_same_outputs_before_later_ones() -> None:
    buffer = started(P0)
    buffer.finish(P0, (0,), (out("a"),))
    assert texts(buffer, {P0: Plan(1)}) == ["a"]
    buffer.finish(P0, (1,), (out("b"),))

    buffer.aborted()

    assert texts(buffer, {P0: Plan(2)}) == ["a", "b"]


def test_a_batch_that_the_plan_covers_in_part_holds_its_partition_back_and_no_other() -> None:
    buffer = started(P0, P1)
    buffer.finish(P0, (2, 9), (out("batch"),))
    buffer.finish(P0, (3,), (out("single"),))
    buffer.finish(P1, (0,), (out("other"),))

    assert texts(buffer, {P0: cut(0, 2, 3), P1: Plan(1)}) == ["other"]
    buffer.committed()
    assert texts(buffer, {P0: Plan(10), P1: Plan(1)}) == ["batch", "single"]


def test_a_plan_that_covers_less_than_the_last_commit_is_not_committed() -> None:
    buffer = started(P0)
    buffer.finish(P0, (9,), (out("nine"),))
    assert texts(buffer, {P0: Plan(0, frozenset({9}))}) == ["nine"]
    buffer.committed()
    buffer.finish(P0, (2,), (out("two"),))
    buffer.finish(P0, (4,), (out("four"),))

    assert texts(buffer, {P0: cut(0, 2, 4)}) is None
    assert texts(buffer, {P0: Plan(10)}) == ["two", "four"]


def test_the_first_commit_of_an_assignment_gives_up_nothing_that_another_member_committed() -> None:
    buffer = BufferedOutputs()
    buffer.finish(P0, (5,), (out("five"),))

    assert texts(buffer, {P0: cut(3, 5)}) is None
    assert texts(buffer, {P0: Plan(3, frozenset({5, 9}))}) == ["five"]


def test_outputs_of_a_lost_partition_are_forgotten_also_when_their_transaction_aborts() -> None:
    buffer = started(P0, P1)
    buffer.finish(P0, (0,), (out("lost"),))
    buffer.finish(P1, (0,), (out("kept"),))
    assert texts(buffer, {P0: Plan(1), P1: Plan(1)}) == ["lost", "kept"]
    buffer.finish(P0, (1,), (out("lost too"),))

    buffer.drop({P0})
    buffer.finish(P0, (0,), (out("again"),))
    buffer.aborted()

    assert texts(buffer, {P0: Plan(1), P1: Plan(1)}) == ["kept", "again"]


def test_buffered_bytes_are_those_of_outputs_that_are_not_committed() -> None:
    buffer = started(P0, P1)
    each = out("x" * 100).size_bytes
    buffer.finish(P0, (0,), (out("x" * 100),) * 2)
    buffer.finish(P1, (0,), (out("x" * 100),))
    assert (buffer.size_bytes, len(buffer)) == (3 * each, 2)

    texts(buffer, {P0: Plan(1), P1: Plan(1)})
    buffer.drop({P1})
    assert buffer.size_bytes == 3 * each
    buffer.aborted()
    assert buffer.size_bytes == 2 * each
    texts(buffer, {P0: Plan(1)})
    buffer.committed()
    assert (buffer.size_bytes, len(buffer)) == (0, 0)


@dataclass
class World:
    """A topic, what its group committed, the committed outputs, and one member that may be killed."""

    random: Random
    records: int
    keys: int
    metadata_limit: int
    offset: int = 0
    above: frozenset[int] = frozenset()
    visible: list[tuple[int, int]] = field(default_factory=list)

    def run(self) -> None:
        """Run members until one commits the last record."""
        while self.offset < self.records:
            Member(self).live()


class Member:
    """Handles records of each key in order, in works of one to three, and commits in transactions."""

    def __init__(self, world: World) -> None:
        self.world, self.random = world, world.random
        self.buffer = BufferedOutputs()
        self.finished = set(range(world.offset)) | world.above
        self.lanes: dict[int, list[int]] = {}
        for offset in range(world.records):
            if offset not in self.finished:
                self.lanes.setdefault(offset % world.keys, []).append(offset)
        self.running: dict[int, list[int]] = {}

    def live(self) -> None:
        """Act by chance until everything is committed, or a crash."""
        actions = (self._start, self._start, self._finish, self._finish, self._transact)
        while self.world.offset < self.world.records:
            if self.random.random() < 0.01:
                return
            self.random.choice(actions)()

    def _start(self) -> None:
        free = [key for key in self.lanes if key not in self.running]
        if free:
            key = self.random.choice(free)
            count = self.random.choice((1, 1, 2, 3))
            self.running[key] = self.lanes[key][:count]
            self.lanes[key] = self.lanes[key][count:]
            if not self.lanes[key]:
                del self.lanes[key]

    def _finish(self) -> None:
        if not self.running:
            return
        offsets = self.running.pop(self.random.choice(list(self.running)))
        outputs = tuple(out(f"{each % self.world.keys} {each}") for each in offsets)
        self.finished.update(offsets)
        self.buffer.finish(P0, tuple(offsets), outputs)

    def _transact(self) -> None:
        transaction = self.buffer.next_transaction({P0: self._plan()})
        if transaction is None:
            return
        for _ in range(self.random.randrange(3)):  # handlers go on meanwhile
            self._finish()
        if self.random.random() < 0.3:
            self.buffer.aborted()
            return
        for work in transaction.works:
            for each in work.outputs:
                key, offset = (each.value or b"").split()
                self.world.visible.append((int(key), int(offset)))
        plan = transaction.plans[P0]
        assert isinstance(plan, Plan)
        self.world.offset, self.world.above = plan.offset, plan.above
        self.buffer.committed()

    def _plan(self) -> Plan:
        """Return what is finished, as far as the metadata's limit of single offsets allows."""
        offset = next(each for each in range(self.world.records + 1) if each not in self.finished)
        above = sorted(each for each in self.finished if each > offset)
        kept = above[: self.world.metadata_limit]
        return Plan(offset, frozenset(kept), is_complete=len(kept) == len(above))


@pytest.mark.parametrize("seed", range(200))
def test_committed_outputs_are_the_image_of_the_input_in_the_order_of_each_key(seed: int) -> None:
    random = Random(seed)
    world = World(
        random,
        records=random.randrange(1, 120),
        keys=random.randrange(1, 20),
        metadata_limit=random.randrange(0, 12),
    )

    world.run()

    assert sorted(offset for _, offset in world.visible) == list(range(world.records))
    for key in range(world.keys):
        of_key = [offset for each, offset in world.visible if each == key]
        assert of_key == sorted(of_key)
