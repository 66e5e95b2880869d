"""Schedules of one share group: members, leaders that change, and a coordinator whose writes fail.

The product's share partition, share coordinator and records run in virtual time; the log, the members and the
network are drawn from the seed. Run `python -m simulation.share_groups --seeds 1:10000`.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from ottla.broker.config import BrokerConfig
from ottla.broker.controller.testing import LoopClock, run_in_virtual_time
from ottla.broker.coordinators.testing import MemoryStore
from ottla.broker.metrics import Metrics
from ottla.broker.runtime.background_tasks import BackgroundTasks
from ottla.broker.runtime.environment import Environment
from ottla.broker.share.coordinator import ShareCoordinator, WrittenState
from ottla.broker.share.in_flight import DeadLetters, StateBatch
from ottla.broker.share.partition import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledgement,
    Acquisition,
    LogBatch,
    ShareLimits,
    SharePartition,
    StateWrite,
)
from ottla.broker.share.state import SharePartitionKey, ShareStates, StateRecordCodec
from ottla.protocol.errors import KafkaError
from ottla.protocol.records import iter_records, split_batches
from ottla.protocol.topics import SHARE_GROUP_STATE_TOPIC, TopicPartition
from simulation.invariant_violated import InvariantViolated

KEY: Final = SharePartitionKey("group", UUID(int=1), 0)
MEMBERS: Final = ("a", "b", "c")
LOCK_MS: Final = 50
MOST_STEPS: Final = 3_000
ACCEPTED: Final = 2
FINAL: Final = (ACCEPTED, 4)
OVER: Final = (*FINAL, 3)
"""States in which no member gets a record again; a rejection whose answer was lost outlives an acceptance."""


@dataclass
class Leader:
    """One leadership of the partition, and what it has not written yet."""

    epoch: int
    state_epoch: int
    core: SharePartition
    writes: list[StateWrite] = field(default_factory=list)
    holders: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Each acquired offset's member and the end of its lock, as members know them."""
    letters: list[DeadLetters] = field(default_factory=list)
    """Records on their way to the dead-letter topic."""
    told: set[int] = field(default_factory=set)
    """Offsets whose dead letter this leader has written."""
    is_fenced: bool = False
    """Whether the coordinator has told it that another one leads."""


class Schedule:
    """One schedule: `run` draws steps until every record is finished. Raises InvariantViolated."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = chance = random.Random(seed)
        self.limits = ShareLimits(
            max_record_locks=chance.choice([8, 30, 200]),
            delivery_count_limit=chance.choice([1, 2, 3, 5]),
            record_lock_duration_ms=LOCK_MS,
            dead_letters=chance.random() < 0.5,
        )
        self.log = list(_draw_log(chance))
        self.end = self.log[-1].last_offset + 1
        self.aborted = [batch for batch in self.log if chance.random() < 0.1]
        self.log_start = 0
        self.finished: set[int] = set()
        """Offsets that a committed write has finished, and those that members never get."""
        self.accepted: set[int] = set()
        self.dead: set[int] = set()
        """Offsets that are in the dead-letter topic."""
        self.stored_as_accepted: set[int] = set()
        self.exhausted: set[int] = set()
        """Offsets that were delivered as often as the limit allows."""
        self.now_ms = 0.0
        self.store = MemoryStore(1, topic=SHARE_GROUP_STATE_TOPIC)
        self.coordinator: ShareCoordinator

    def fail(self, reason: str) -> InvariantViolated:
        return InvariantViolated(f"seed {self.seed}: {reason}")

    async def run(self) -> int:
        """Run the schedule; return how many steps it took."""
        environment = Environment(LoopClock())
        config = BrokerConfig(
            share_coordinator_snapshot_update_records_per_snapshot=self.chance.choice([0, 3, 50])
        )
        async with BackgroundTasks(Metrics(), environment.clock) as tasks:
            self.coordinator = ShareCoordinator(
                config=config, environment=environment, store=self.store, metrics=Metrics(), tasks=tasks,
                partition_count=lambda _: 1, delete_before=lambda *_: None,
            )  # fmt: skip
            self.coordinator.start([(TopicPartition(SHARE_GROUP_STATE_TOPIC, 0), 0)])
            await self.coordinator.initialize(KEY, 1, 0)
            return await self._steps()

    async def _steps(self) -> int:
        leaders = [await self._elect(0)]
        for step in range(MOST_STEPS):
            if leaders[-1].core.start_offset >= self.end and not leaders[-1].writes:
                await self._check_end(leaders[-1])
                return step
            self.now_ms += self.chance.choice([0, 1, 3, 20])
            leader = leaders[-1] if len(leaders) == 1 or self.chance.random() < 0.8 else leaders[-2]
            await self._step(leader, leader is leaders[-1])
            if self.chance.random() < 0.004:
                leaders = [leaders[-1], await self._elect(leaders[-1].epoch + 1)]
            if self.chance.random() < 0.01:
                self._move_log_start(leaders)
        raise self.fail("not everything was finished")

    async def _elect(self, epoch: int) -> Leader:
        state = await self.coordinator.read(KEY, epoch)
        core = SharePartition(max(state.start_offset, 0), state.batches, self.limits)
        core.log_start_moved(self.log_start)
        leader = Leader(epoch, state.state_epoch, core)
        self._check_load(leader)
        self._take_letters(leader)
        return leader

    async def _step(self, leader: Leader, is_present: bool) -> None:
        self._expire(leader)
        member = self.chance.choice(MEMBERS)
        match self.chance.randint(0, 5):
            case 0:
                self._fetch(leader, member, is_present)
            case 1 | 2:
                self._acknowledge(leader, member)
            case 3:
                self._put(leader, leader.core.release(member))
                self._forget(leader, member)
            case 4:
                await self._write(leader)
            case 5:
                self._write_letter(leader)
        self._check(leader, is_present)

    # ---- steps

    def _expire(self, leader: Leader) -> None:
        leader.holders = {offset: held for offset, held in leader.holders.items() if held[1] > self.now_ms}
        if leader.core.next_deadline_ms <= self.now_ms:
            self._put(leader, leader.core.expire(self.now_ms))

    def _fetch(self, leader: Leader, member: str, is_present: bool) -> None:
        core = leader.core
        offset = core.next_fetch_offset()
        read = [
            batch for batch in self.log if batch.last_offset >= offset and batch.last_offset >= self.log_start
        ]
        asked = Acquisition(
            member, offset, self.chance.randint(1, 9), self.chance.randint(1, 20), self.chance.random() < 0.5
        )
        aborted = [(batch.base_offset, batch.last_offset) for batch in self.aborted]
        for first, last, count in core.acquire(
            asked, read[: self.chance.randint(1, 8)], self.now_ms, aborted
        ):
            if not 0 < count <= self.limits.delivery_count_limit:
                raise self.fail(f"offset {first} delivered {count} times")
            for number in range(first, last + 1):
                self._delivered(leader, member, number, is_present)
                if count == self.limits.delivery_count_limit:
                    self.exhausted.add(number)

    def _delivered(self, leader: Leader, member: str, offset: int, is_present: bool) -> None:
        if offset in leader.holders:
            raise self.fail(f"offset {offset} acquired by {member} and {leader.holders[offset][0]} at once")
        if is_present and offset in self.accepted:
            raise self.fail(f"offset {offset} delivered after it was accepted")
        if offset in leader.told:
            raise self.fail(f"offset {offset} delivered after its dead letter was written")
        if any(batch.base_offset <= offset <= batch.last_offset for batch in self.aborted):
            raise self.fail(f"offset {offset} of an aborted transaction delivered")
        leader.holders[offset] = member, self.now_ms + LOCK_MS

    def _acknowledge(self, leader: Leader, member: str) -> None:
        mine = sorted(offset for offset, (holder, _) in leader.holders.items() if holder == member)
        if not mine:
            return
        first = last = self.chance.choice(mine)
        while (
            last + 1 in leader.holders
            and leader.holders[last + 1][0] == member
            and self.chance.random() < 0.8
        ):
            last += 1
        kinds = [
            self.chance.choice([ACCEPT, ACCEPT, ACCEPT, RELEASE, REJECT, RENEW])
            for _ in range(first, last + 1)
        ]
        try:
            write = leader.core.acknowledge(member, [Acknowledgement(first, last, kinds)], self.now_ms)
        except KafkaError as error:
            raise self.fail(
                f"acknowledgement of {first} to {last} by their holder refused: {error}"
            ) from error
        for offset, kind in zip(range(first, last + 1), kinds, strict=True):
            if kind == RENEW and offset >= leader.core.start_offset:
                leader.holders[offset] = member, self.now_ms + LOCK_MS
            else:
                leader.holders.pop(offset)
        self._put(leader, write)

    def _forget(self, leader: Leader, member: str) -> None:
        leader.holders = {offset: held for offset, held in leader.holders.items() if held[0] != member}

    def _put(self, leader: Leader, write: StateWrite | None) -> None:
        if write is not None:
            leader.writes.append(write)

    async def _write(self, leader: Leader) -> None:
        """Persist the oldest writes, as one or more; some are lost, some repeated, some without an answer."""
        writes = leader.writes[: self.chance.randint(1, 3)]
        if not writes:
            return
        del leader.writes[: len(writes)]
        batches = [batch for write in writes for batch in write.batches]
        fate = self.chance.random()
        failed = fate < 0.1
        if not failed:
            failed = not await self._persist(leader, batches)
        if not failed and fate < 0.2:
            await self._persist(leader, batches)
        failed = failed or fate > 0.95  # it was persisted, and the answer is lost
        for batch in batches if not failed else ():
            if batch.delivery_state == ACCEPTED:
                self.accepted.update(range(batch.first_offset, batch.last_offset + 1))
        for write in writes:
            if not write.number:
                continue
            runs = leader.core._writes.get(write.number, [])
            offsets = [(run.first, run.last, run.owner_before, run.locked_until_ms) for run in runs]
            leader.core.persisted(write.number, self.now_ms, failed=failed)
            for first, last, owner, until_ms in offsets if failed else ():
                for offset in range(max(first, leader.core.start_offset), last + 1):
                    if until_ms > self.now_ms:
                        leader.holders[offset] = owner, until_ms
        self._take_letters(leader)

    def _take_letters(self, leader: Leader) -> None:
        """Take new dead letters, as a leader does with the outcome of a write unless another one leads."""
        letters = leader.core.take_letters()
        if not leader.is_fenced:
            leader.letters += letters

    def _write_letter(self, leader: Leader) -> None:
        """Write a dead letter, or the first of several; some leaders do not hear of it and repeat it."""
        if leader.is_fenced or not leader.letters:
            return
        letters = leader.letters.pop(self.chance.randrange(len(leader.letters)))
        last = self.chance.randint(letters.first_offset, letters.last_offset)
        if last < letters.last_offset:
            leader.letters.append(letters._replace(first_offset=last + 1))
        ended = letters._replace(last_offset=last)
        offsets = range(ended.first_offset, ended.last_offset + 1)
        self.dead.update(offsets)
        leader.told.update(offsets)
        if self.chance.random() < 0.1:
            leader.letters.append(ended)
            return
        self._put(leader, leader.core.buried(ended))

    async def _persist(self, leader: Leader, batches: list[StateBatch]) -> bool:
        core = leader.core
        written = WrittenState(
            leader.state_epoch, leader.epoch, core.start_offset, core.delivery_complete_count, batches
        )
        try:
            await self.coordinator.write(KEY, written)
        except KafkaError:
            leader.is_fenced = True
            return False
        for batch in batches:
            if batch.delivery_state == ACCEPTED:
                self.stored_as_accepted.update(range(batch.first_offset, batch.last_offset + 1))
            if batch.delivery_state in FINAL:
                offsets = range(batch.first_offset, batch.last_offset + 1)
                self.finished.update(offsets)
        return True

    def _move_log_start(self, leaders: list[Leader]) -> None:
        self.log_start = min(self.end, self.log_start + self.chance.randint(0, 6))
        for leader in leaders:
            leader.core.log_start_moved(self.log_start)
            leader.holders = {
                offset: held for offset, held in leader.holders.items() if offset >= leader.core.start_offset
            }

    # ---- invariants

    def _may_be_over(self, offset: int) -> bool:
        """Whether no member has to get an offset any more."""
        if offset in self.finished or offset in self.exhausted or offset < self.log_start:
            return True
        return offset in self.dead or self._is_for_nobody(offset)

    def _is_for_nobody(self, offset: int) -> bool:
        batch = next((batch for batch in self.log if batch.base_offset <= offset <= batch.last_offset), None)
        return batch is None or batch in self.aborted

    def _check(self, leader: Leader, is_present: bool) -> None:
        core, position = leader.core, leader.core.start_offset
        for run in core.runs():
            if run.first < position:
                raise self.fail(f"offset {run.first} is in flight twice")
            position = run.last + 1
        if position > core.next_offset:
            raise self.fail("records are in flight behind the end")
        held = {
            offset: run.member_id
            for run in core.runs()
            if run.is_acquired
            for offset in range(run.first, run.last + 1)
        }
        known = {offset: member for offset, (member, _) in leader.holders.items()}
        if held != known:
            raise self.fail(f"members hold {known}, and the leader knows of {held}")
        if core.held_by("a") != sum(member == "a" for member in held.values()):
            raise self.fail("the count of a member's records is wrong")
        if is_present:
            self._check_start(leader)

    def _check_start(self, leader: Leader) -> None:
        expired = {
            offset
            for write in leader.writes
            if not write.number
            for batch in write.batches
            if batch.delivery_state in FINAL
            for offset in range(batch.first_offset, batch.last_offset + 1)
        }
        for offset in range(max(0, leader.core.start_offset - 40), leader.core.start_offset):
            if not self._may_be_over(offset) and offset not in expired:
                raise self.fail(f"the start offset passed {offset}, which is not finished")

    def _check_load(self, leader: Leader) -> None:
        """Check that a new leader has what was persisted, and that a replay of the records makes it too."""
        states = ShareStates(0)
        for data in self.store.batches[0]:
            for batch in split_batches(data):
                for record in iter_records(batch):
                    decoded = StateRecordCodec.decode(record.key or b"", record.value)
                    if decoded is not None:
                        states.replay(decoded, 0, None)
        persisted = states.states[KEY]
        for offset in range(max(persisted.start_offset, self.log_start)):
            if not self._may_be_over(offset):
                raise self.fail(f"offset {offset} was lost: a new leader begins behind it")
        held = {
            offset: batch.delivery_state
            for batch in persisted.batches
            for offset in range(batch.first_offset, batch.last_offset + 1)
        }
        for run in leader.core.runs():
            for offset in range(run.first, run.last + 1):
                if held.get(offset, 0) != run.state:
                    raise self.fail(
                        f"offset {offset} is {run.state.name} after a load, and {held.get(offset)} stored"
                    )
        for offset in self.accepted:
            if offset >= leader.core.start_offset and held.get(offset) not in OVER:
                raise self.fail(f"offset {offset} was accepted, and a new leader does not know it")

    async def _check_end(self, leader: Leader) -> None:
        missing = [offset for offset in range(self.end) if not self._may_be_over(offset)]
        if missing:
            raise self.fail(f"offsets {missing[:5]} were lost")
        self._check_dead_letters()
        await self._persist(leader, [])
        again = await self._elect(leader.epoch + 1)
        if again.core.start_offset != leader.core.start_offset or again.core.in_flight:
            raise self.fail("a new leader delivers what is finished")

    def _check_dead_letters(self) -> None:
        """Check that each record that was not accepted is in the dead-letter topic of its group."""
        if not self.limits.dead_letters:
            if self.dead:
                raise self.fail("there are dead letters without a topic for them")
            return
        missing = [
            offset
            for offset in range(self.log_start, self.end)
            if offset not in self.stored_as_accepted
            and offset not in self.dead
            and not self._is_for_nobody(offset)
        ]
        if missing:
            raise self.fail(f"offsets {missing[:5]} ended without a dead letter")


def _draw_log(chance: random.Random) -> Iterator[LogBatch]:
    """Draw the batches of a log; compaction has removed some offsets between them."""
    offset = 0
    for _ in range(25):
        last = offset + chance.randint(0, 7)
        if chance.random() > 0.08:
            yield LogBatch(offset, last)
        offset = last + 1
    yield LogBatch(offset, offset + 2)


def run_seeds(seeds: range) -> int:
    """Run the schedules of the seeds; return their steps. Raises InvariantViolated."""

    async def run() -> int:
        return sum([await Schedule(seed).run() for seed in seeds])

    return run_in_virtual_time(run())


def main(arguments: list[str]) -> int:
    """Run the seeds that are asked for; print what was run, or the first violation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1:10000", help="the first and the last seed")
    first, last = map(int, parser.parse_args(arguments).seeds.split(":"))
    try:
        steps = run_seeds(range(first, last + 1))
    except InvariantViolated as error:
        print(error)
        return 1
    print(f"{last - first + 1} schedules of share groups, {steps} steps, no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
