"""Seeded walks over everything that can happen to a group; a failing seed becomes a test of its own."""

import random

import pytest

from ottla.broker.groups.classic.events import (
    PREVIOUS_STATES,
    GroupState,
    JoinResult,
    MemberIdentity,
    Reason,
    SyncResult,
)
from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.kinds import GroupLimits, Loaded, Unloaded
from ottla.broker.groups.testing import GroupDriver
from ottla.protocol.errors import ErrorCode

STEPS = 120
PROTOCOLS = (
    (("range", b"a"),),
    (("range", b"b"), ("sticky", b"b")),
    (("sticky", b"c"), ("range", b"c")),
)


class Walk:
    """One random life of a group, with what must hold checked after every step."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        limits = GroupLimits(
            min_session_timeout_ms=100,
            initial_rebalance_delay_ms=self.random.choice([0, 3_000]),
            max_size=self.random.choice([3, 1_000]),
        )
        self.driver = GroupDriver(limits)
        self.known: list[str] = [""]
        self.waiting: set[int] = set()
        self.assignments: dict[int, dict[str, bytes]] = {}
        self.heard: dict[tuple[int, str], bytes] = {}
        self.generation = 0
        self.state = GroupState.EMPTY

    def run(self) -> None:
        for _ in range(STEPS):
            self._step()
            self._check()
        self._let_everything_end()

    def _step(self) -> None:
        chance, driver = self.random, self.driver
        driver.hold_writes = chance.random() < 0.5
        member_id = chance.choice(self.known[-8:])
        instance_id = chance.choice([None, None, None, "one", "two"])
        match chance.choice(
            ["join"] * 4 + ["sync"] * 4 + ["beat"] * 2 + ["leave", "wait", "wait", "write", "write"]
        ):
            case "join":
                token = driver.join(
                    member_id,
                    instance_id=instance_id,
                    protocols=chance.choice(PROTOCOLS),
                    session_ms=chance.choice([6_000, 10_000, 50]),
                    rebalance_ms=chance.choice([0, 5_000, 60_000]),
                    require_id=chance.random() < 0.3 and instance_id is None,
                )
                self.waiting.add(token)
            case "sync":
                self._sync(member_id)
            case "beat":
                driver.heartbeat(member_id, instance_id=instance_id)
            case "leave":
                driver.leave(MemberIdentity(member_id, instance_id))
            case "wait":
                driver.wait(chance.choice([0, 1, 1_000, 6_000, 30_000]))
            case "write" if driver.writes:
                driver.written(chance.choice([ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_COORDINATOR]))

    def _sync(self, member_id: str) -> None:
        group = self.driver.group
        if self.random.random() < 0.7 and group.leader_id:
            member_id = self.random.choice([group.leader_id, *[one.member_id for one in group.members]])
        generation = group.generation + self.random.choice([0, 0, 0, 0, -1])
        assignments = {
            one.member_id: f"{one.member_id}@{self.random.random()}".encode() for one in group.members
        }
        self.waiting.add(self.driver.sync(member_id, generation, assignments))

    def _check(self) -> None:
        group = self.driver.group
        assert group.generation >= self.generation, "a generation never falls"
        self.generation = group.generation
        self._check_answers()
        self._check_assignments()
        self._check_nobody_is_lost()
        assert (group.state is GroupState.EMPTY) <= (len(group.members) == 0)
        assert group.leader_id is None or group.leader_id in group.members
        assert sum(one.join is not None for one in group.members) == group.members.awaiting_join

    def _check_answers(self) -> None:
        for token in self.waiting & self.driver.answers.keys():
            self.waiting.discard(token)
            match self.driver.answers[token]:
                case JoinResult() as joined:
                    if joined.member_id:
                        self.known.append(joined.member_id)
                    if joined.error is ErrorCode.NONE and joined.members:
                        assert joined.member_id == joined.leader_id, "only the leader is told the members"
                case SyncResult():
                    pass

    def _check_assignments(self) -> None:
        """I12: one assignment for each group and generation, and never one that is not in the log."""
        group = self.driver.group
        for persist in self.driver.persisted:
            if persist.reason is Reason.ASSIGNED:
                assigned = {one.member_id: one.assignment for one in persist.snapshot.members}
                first = self.assignments.setdefault(persist.snapshot.generation, assigned)
                assert first == assigned
        if group.state is GroupState.STABLE:
            assigned = self.assignments[group.generation]
            present = [one.assignment for one in group.members]
            assert sorted(present) == sorted(assigned.values()), "static members may have new ids"

    def _check_nobody_is_lost(self) -> None:
        """Every request without an answer is held by a member, and something will wake the group for it."""
        group = self.driver.group
        held = {one.join for one in group.members} | {one.sync for one in group.members}
        lost = self.waiting - held
        assert not lost, f"requests {lost} were forgotten"
        if self.waiting:
            assert group.wake_at_ms is not None or self.driver.writes

    def _let_everything_end(self) -> None:
        driver = self.driver
        driver.hold_writes = False
        while driver.writes:
            driver.written()
        for _ in range(40):
            driver.wait(60_000)
        self._check()
        assert not self.waiting, "every request is answered in the end"
        assert driver.group.state is GroupState.EMPTY, "members that say nothing do not stay"


@pytest.mark.parametrize("first_seed", range(0, 400, 50))
def test_a_random_walk_breaks_no_invariant_of_a_group(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        try:
            Walk(seed).run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_a_group_read_from_the_log_equals_the_one_that_was_written() -> None:
    for seed in range(100):
        walk = Walk(seed)
        walk.run()
        for persist in walk.driver.persisted:
            again = Group.restore(persist.snapshot, GroupLimits())
            assert again.snapshot() == persist.snapshot
            again.step(Loaded(), 0, 0)
            again.step(Unloaded(), 0, 0)


def test_every_transition_of_a_random_walk_is_in_the_table() -> None:
    assert set(PREVIOUS_STATES) == set(GroupState)
    assert PREVIOUS_STATES[GroupState.STABLE] == {GroupState.COMPLETING_REBALANCE}
