"""Members whose coordinator assigns, alone and several in one group, with everything delivered in any order.

At no time do two members that the coordinator knows read one partition. When the storms are over, every
partition is read by one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from uuid import UUID

import pytest

from ottla.consumer.errors import Fenced, GroupFailed
from ottla.consumer.group.assigned_member import (
    LEAVING,
    LEAVING_FOR_A_WHILE,
    Answered,
    AssignedEffect,
    AssignedMember,
    AssignedSettings,
    Beat,
    LeaveGroup,
    MatchTopics,
    NameTopics,
    TopicsNamed,
)
from ottla.consumer.group.rebalance_events import (
    Adopt,
    Adopted,
    Closing,
    Fail,
    ForgetCoordinator,
    Phase,
    Polled,
    Revoke,
    Revoked,
    Subscribed,
    TimePassed,
)
from ottla.protocol.errors import ErrorCode, GroupAuthorizationFailed
from ottla.protocol.topics import TopicPartition

A, B = UUID(int=1), UUID(int=2)
NAMES = {A: "a", B: "b"}
INTERVAL_MS, MAX_POLL_MS = 5_000.0, 300_000.0


class Alone:
    """One member, and the effects that it had since the last look."""

    def __init__(self, instance_id: str | None = None) -> None:
        self.now_ms = 0.0
        self.member = AssignedMember(
            AssignedSettings(
                group_id="g", member_id="m", instance_id=instance_id, max_poll_interval_ms=MAX_POLL_MS
            ),
            0.0,
        )
        self.beat: Beat | None = None

    def after(self, *events: object) -> list[AssignedEffect]:
        effects = [effect for event in events for effect in self.member.step(event, self.now_ms)]  # type: ignore[arg-type]
        for effect in effects:
            self.beat = effect if isinstance(effect, Beat) else self.beat
        return effects

    def answer(
        self, assigned: Mapping[UUID, tuple[int, ...]] | None = None, *, code: int = 0, epoch: int = 1
    ) -> list[AssignedEffect]:
        assert self.beat is not None
        return self.after(
            Answered(self.beat.token, code, None, "m", epoch, INTERVAL_MS, assigned),
        )

    def wait(self, ms: float) -> list[AssignedEffect]:
        self.now_ms += ms
        return self.after(TimePassed())

    def settled(self, **assigned: tuple[int, ...]) -> None:
        """Join with an assignment, and adopt it."""
        self.after(TopicsNamed(NAMES), Subscribed(frozenset("ab")))
        self.answer({{"a": A, "b": B}[topic]: partitions for topic, partitions in assigned.items()})
        self.after(Adopted())
        self.answer()
        assert self.member.phase is Phase.STABLE


def of(topic: str, *numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, number) for number in numbers)


def only(kind: type, effects: list[AssignedEffect]) -> list[AssignedEffect]:
    return [effect for effect in effects if isinstance(effect, kind)]


def test_a_member_joins_with_epoch_0_and_its_whole_report() -> None:
    alone = Alone()

    (beat,) = alone.after(Subscribed(frozenset("a")))

    assert isinstance(beat, Beat)
    assert (beat.epoch, beat.before, beat.report.topics, beat.report.owned) == (0, None, ("a",), ())


def test_an_assignment_is_adopted_once_its_topics_have_names_and_reported_at_once() -> None:
    alone = Alone()
    alone.after(Subscribed(frozenset("a")))

    assert only(NameTopics, alone.answer({A: (0, 1)})) == [NameTopics(frozenset({A}))]
    adopt, beat = alone.after(TopicsNamed({A: "a"}))
    alone.after(Adopted())

    assert adopt == Adopt(of("a", 0, 1), of("a", 0, 1))
    assert isinstance(beat, Beat)
    assert (beat.epoch, beat.report.owned) == (1, ((A, (0, 1)),))
    assert alone.member.phase is Phase.STABLE


def test_a_partition_is_reported_as_owned_until_the_application_lost_it() -> None:
    alone = Alone()
    alone.settled(a=(0, 1))

    alone.wait(INTERVAL_MS)
    (revoke,) = only(Revoke, alone.answer({A: (0,)}, epoch=2))
    (during,) = only(Beat, alone.wait(INTERVAL_MS))
    alone.answer(epoch=2)
    after = alone.after(Revoked())

    assert revoke == Revoke(of("a", 1), lost=False)
    assert isinstance(during, Beat)
    assert during.report.owned == ((A, (0, 1)),)
    assert [beat.report.owned for beat in after if isinstance(beat, Beat)] == [((A, (0,)),)]


def test_what_others_get_is_revoked_before_new_partitions_are_adopted() -> None:
    alone = Alone()
    alone.settled(a=(0, 1))
    alone.wait(INTERVAL_MS)

    first = alone.answer({A: (0,), B: (0,)}, epoch=2)
    then = alone.after(Revoked())

    assert only(Adopt, first) == []
    assert only(Adopt, then) == [Adopt(of("a", 0) | of("b", 0), of("b", 0))]


@pytest.mark.parametrize("code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
def test_a_fenced_member_loses_its_partitions_and_joins_after_that(code: ErrorCode) -> None:
    alone = Alone()
    alone.settled(a=(0, 1))
    alone.wait(INTERVAL_MS)

    fenced = alone.answer(code=code)
    joining = alone.after(Revoked())

    assert fenced == [Revoke(of("a", 0, 1), lost=True)]
    (beat,) = only(Beat, joining)
    assert isinstance(beat, Beat)
    assert (beat.epoch, beat.report.owned, beat.before) == (0, (), None)


def test_a_member_that_is_fenced_again_and_again_waits_in_between() -> None:
    alone = Alone()
    alone.after(Subscribed(frozenset("a")))
    alone.answer(code=ErrorCode.FENCED_MEMBER_EPOCH)

    assert alone.answer(code=ErrorCode.FENCED_MEMBER_EPOCH) == []

    assert alone.member.wake_at_ms == pytest.approx(200.0)


def test_after_an_answer_that_did_not_arrive_the_whole_report_is_sent_to_the_coordinator_found_then() -> None:
    alone = Alone()
    alone.settled(a=(0,))
    alone.wait(INTERVAL_MS)
    assert alone.beat is not None

    assert alone.after(Answered(alone.beat.token, None)) == [ForgetCoordinator()]
    (beat,) = alone.wait(100)

    assert isinstance(beat, Beat)
    assert (beat.before, beat.report.owned) == (None, ((A, (0,)),))


@pytest.mark.parametrize(
    ("instance_id", "epoch"), [(None, LEAVING), ("desk-1", LEAVING_FOR_A_WHILE)], ids=["dynamic", "static"]
)
def test_a_member_that_closes_revokes_before_it_leaves(instance_id: str | None, epoch: int) -> None:
    alone = Alone(instance_id)
    alone.settled(a=(0,))

    assert alone.after(Closing()) == [Revoke(of("a", 0), lost=False)]
    (leave,) = alone.after(Revoked())

    assert isinstance(leave, LeaveGroup)
    assert leave.epoch == epoch
    assert alone.member.is_closed


def test_a_member_that_closes_during_an_adoption_revokes_after_it() -> None:
    alone = Alone()
    alone.after(TopicsNamed(NAMES), Subscribed(frozenset("a")))
    alone.answer({A: (0,)})

    assert alone.after(Closing()) == []
    assert only(Revoke, alone.after(Adopted())) == [Revoke(of("a", 0), lost=False)]


def test_a_member_whose_application_does_not_ask_leaves_and_joins_with_the_next_poll() -> None:
    alone = Alone()
    alone.settled(a=(0,))
    while alone.now_ms + INTERVAL_MS < MAX_POLL_MS:
        alone.wait(INTERVAL_MS)
        alone.answer()

    left = alone.wait(INTERVAL_MS)
    alone.after(Revoked())
    (beat,) = alone.after(Polled())

    assert [type(effect) for effect in left] == [LeaveGroup, Revoke]
    assert isinstance(beat, Beat)
    assert beat.epoch == 0


def test_topics_that_are_not_subscribed_to_any_more_are_revoked_at_once() -> None:
    alone = Alone()
    alone.settled(a=(0,), b=(0,))

    effects = alone.after(Subscribed(frozenset("a")))

    assert only(Revoke, effects) == [Revoke(of("b", 0), lost=False)]
    assert [beat.report.topics for beat in effects if isinstance(beat, Beat)] == [("a",)]


def test_topics_that_are_wanted_again_before_the_coordinator_knew_are_asked_for_as_a_whole() -> None:
    alone = Alone()
    alone.settled(a=(0,), b=(0,))
    alone.wait(INTERVAL_MS)  # a heartbeat is outstanding
    alone.after(Subscribed(frozenset("a")), Revoked(), Adopted())
    alone.after(Subscribed(frozenset("ab")))

    (beat,) = only(Beat, alone.answer())

    assert isinstance(beat, Beat)
    assert (beat.before, beat.report.topics, beat.report.owned) == (None, ("a", "b"), ((A, (0,)),))


def test_a_pattern_that_the_coordinator_cannot_read_is_matched_by_the_member() -> None:
    alone = Alone()
    alone.after(Subscribed(frozenset(), r"a(?=\d)"))

    assert alone.answer(code=ErrorCode.INVALID_REGULAR_EXPRESSION) == [MatchTopics()]
    alone.after(Subscribed(frozenset("a")))
    alone.wait(100)

    assert alone.beat is not None
    assert (alone.beat.report.topics, alone.beat.report.pattern) == (("a",), None)


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (ErrorCode.UNRELEASED_INSTANCE_ID, GroupFailed, "still has a member 'desk-1'"),
        (ErrorCode.FENCED_INSTANCE_ID, Fenced, "another consumer joined"),
        (ErrorCode.GROUP_ID_NOT_FOUND, GroupFailed, "is of another type"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, GroupAuthorizationFailed, ""),
        (ErrorCode.UNSUPPORTED_ASSIGNOR, GroupFailed, "refused this member"),
    ],
)
def test_an_error_that_does_not_pass_is_raised(code: ErrorCode, error: type[Exception], words: str) -> None:
    alone = Alone("desk-1")
    alone.settled(a=(0,))
    alone.wait(INTERVAL_MS)

    failed, lost = alone.answer(code=code)

    assert isinstance(failed, Fail)
    assert isinstance(failed.error, error)
    assert words in str(failed.error)
    assert lost == Revoke(of("a", 0), lost=True)


class Coordinator:
    """A group as Kafka's coordinator has it: a partition is assigned once no other member holds it."""

    def __init__(self, partitions: frozenset[TopicPartition]) -> None:
        self.partitions = partitions
        self.epochs: dict[str, int] = {}
        self.assigned: dict[str, frozenset[TopicPartition]] = {}
        self.revoking: dict[str, frozenset[TopicPartition]] = {}
        self.epoch = 0

    def beat(self, beat: Beat) -> Answered:
        name = beat.member_id
        if beat.epoch == 0:
            self.leave(name)
            self.epoch += 1
            self.epochs[name], self.assigned[name], self.revoking[name] = 0, frozenset(), frozenset()
        elif self.epochs.get(name) != beat.epoch:
            code = ErrorCode.FENCED_MEMBER_EPOCH if name in self.epochs else ErrorCode.UNKNOWN_MEMBER_ID
            return Answered(beat.token, code)
        says = beat.before is None or beat.before.owned != beat.report.owned
        owned = frozenset(TopicPartition(NAMES[key], n) for key, some in beat.report.owned for n in some)
        before = self.assigned[name]
        if not self.revoking[name] or (says and not owned & self.revoking[name]):
            self.revoking[name] = frozenset()
            self._assign(name, owned if says else None)
        is_told = beat.before is None or self.assigned[name] != before
        return Answered(
            beat.token, 0, None, name, self.epochs[name], INTERVAL_MS,
            _by_topic(self.assigned[name]) if is_told else None,
        )  # fmt: skip

    def _assign(self, name: str, owned: frozenset[TopicPartition] | None) -> None:
        kept = self.assigned[name] & self.target(name)
        gone = self.assigned[name] - kept
        self.assigned[name] = kept
        if gone and (owned is None or owned & gone):
            self.revoking[name] = gone
            return
        others = [
            held for some in (self.assigned, self.revoking) for other, held in some.items() if other != name
        ]
        self.assigned[name] = kept | (self.target(name) - frozenset().union(*others))
        self.epochs[name] = self.epoch

    def leave(self, name: str) -> None:
        if self.epochs.pop(name, None) is not None:
            del self.assigned[name], self.revoking[name]
            self.epoch += 1

    def target(self, name: str) -> frozenset[TopicPartition]:
        members = sorted(self.epochs)
        return frozenset(sorted(self.partitions)[members.index(name) :: len(members)])


def _by_topic(partitions: frozenset[TopicPartition]) -> dict[UUID, tuple[int, ...]]:
    found = {
        key: tuple(sorted(each.partition for each in partitions if each.topic == topic))
        for key, topic in NAMES.items()
    }
    return {key: numbers for key, numbers in found.items() if numbers}


class Group:
    """Members and what is under way between them and their coordinator."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now_ms = 0.0
        self.coordinator = Coordinator(of("a", 0, 1, 2) | of("b", 0, 1, 2, 3))
        self.members: dict[str, AssignedMember] = {}
        self.reading: dict[str, frozenset[TopicPartition]] = {}
        self.under_way: list[tuple[str, object]] = []

    def start(self) -> None:
        name = f"m{len(self.members)}"
        self.members[name] = AssignedMember(
            AssignedSettings(group_id="g", member_id=name, max_poll_interval_ms=1e12), self.now_ms
        )
        self.reading[name] = frozenset()
        self.step(name, TopicsNamed(NAMES))
        self.step(name, Subscribed(frozenset("ab")))

    def step(self, name: str, event: object) -> None:
        for effect in self.members[name].step(event, self.now_ms):  # type: ignore[arg-type]
            if isinstance(effect, Revoke | Adopt | Beat):
                self.under_way.append((name, effect))
            elif isinstance(effect, LeaveGroup):
                self.coordinator.leave(name)
            else:
                assert isinstance(effect, ForgetCoordinator), effect

    def deliver(self) -> None:
        """Carry out one effect, or deliver one answer."""
        name, what = self.under_way.pop(self.chance.randrange(len(self.under_way)))
        if isinstance(what, Beat):
            self.under_way.append((name, self.coordinator.beat(what)))
        elif isinstance(what, Revoke):
            self.reading[name] -= what.partitions
            self.step(name, Revoked())
        elif isinstance(what, Adopt):
            self.reading[name] = what.partitions
            self.step(name, Adopted())
        else:
            self.step(name, what)
        self.check()

    def check(self) -> None:
        """No partition is read by two members that the coordinator and they themselves believe in."""
        seen: dict[TopicPartition, str] = {}
        for name, member in self.members.items():
            if name in self.coordinator.epochs and member.epoch == self.coordinator.epochs[name]:
                for partition in self.reading[name]:
                    other = seen.setdefault(partition, name)
                    assert other == name, f"{partition} is read by {other} and {name}"

    def pass_time(self, ms: float) -> None:
        self.now_ms += ms
        for name in self.members:
            self.step(name, TimePassed())

    def disturb(self) -> None:
        name = self.chance.choice(sorted(self.members))
        match self.chance.randrange(6):
            case 0 if len(self.members) < 6:
                self.start()
            case 1:  # a heartbeat, or its answer, is lost
                for index, (of_name, what) in enumerate(self.under_way):
                    if of_name == name and isinstance(what, Beat | Answered):
                        self.under_way[index] = (name, Answered(what.token, None))
                        break
            case 2:
                self.coordinator.leave(name)  # its session ended
            case 3:
                self.step(name, Subscribed(frozenset("a")))
                self.step(name, Subscribed(frozenset("ab")))
            case 4:
                self.step(name, Subscribed(None))
                self.step(name, Subscribed(frozenset("ab")))
            case _:
                self.pass_time(self.chance.choice([10.0, 500.0, INTERVAL_MS]))


@pytest.mark.parametrize("seed", range(40))
def test_members_in_storms_share_no_partition_and_converge(seed: int) -> None:
    group = Group(random.Random(seed))
    for _ in range(3):
        group.start()
    for _ in range(400):
        if group.under_way and group.chance.random() < 0.8:
            group.deliver()
        else:
            group.disturb()

    for _ in range(60):
        while group.under_way:
            group.deliver()
        group.pass_time(INTERVAL_MS)

    read = sorted(partition for some in group.reading.values() for partition in some)
    assert read == sorted(group.coordinator.partitions)
    assert all(member.phase is Phase.STABLE for member in group.members.values())
