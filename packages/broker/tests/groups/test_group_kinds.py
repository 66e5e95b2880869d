"""Groups that are not classic on the coordinator: records, answers, deadlines, and requests of others.

The module has over 500 lines because all of it is told of one kind of group, which is made here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Iterable, Mapping
from enum import Enum
from typing import Any

import pytest

from ottla.broker.coordinators.testing import MemoryStore, in_virtual_time
from ottla.broker.groups.classic.events import Heartbeat, Leave, MemberIdentity, Sync
from ottla.broker.groups.hosting.coordinator import GroupCoordinator
from ottla.broker.groups.kinds import (
    ExpiryRule,
    GroupKind,
    GroupSurroundings,
    KindRecord,
    Loaded,
    NewGroup,
    NotWritten,
    Reply,
    StepOutcome,
    TimePassed,
    Token,
    Work,
    WorkFailed,
)
from ottla.broker.groups.testing import (
    MINUTE_MS,
    PARTITIONS,
    TOPIC_0,
    TOPIC_1,
    a_join,
    leading,
    offset,
    resign,
    settle,
)
from ottla.protocol.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    GroupIdNotFound,
    GroupMaxSizeReached,
    InvalidRequest,
    KafkaError,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
)
from ottla.protocol.stored_groups import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
)
from ottla.zookeeper.frozen_classes import frozen

SESSION_MS = 10_000.0


class State(Enum):
    EMPTY = "Empty"
    FULL = "Full"


@frozen(kw_only=True)
class Enter:
    """A member enters; an empty name is refused."""

    token: Token = None
    name: str


@frozen(kw_only=True)
class Look:
    """Asks for the members, and changes nothing."""

    token: Token = None


@frozen
class Greeted:
    """A member was greeted, or another one that is named like it."""

    name: str


def greeting(name: str) -> Generator[None, None, list[str]]:
    yield
    if name == "rude":
        raise ValueError(name)
    return [name, name.upper()]


class Club:
    """A group of nothing but names, each of which leaves after its session."""

    def __init__(self, kind: GroupKind, group_id: str) -> None:
        self.kind, self.group_id = kind, group_id
        self.members: set[str] = set()
        self.sessions: dict[str, float] = {}
        self.published: list[str] = []
        self.greeted: list[str] = []
        self._due: list[str] = []

    protocol_type = "club"

    @property
    def state(self) -> State:
        return State.FULL if self.members else State.EMPTY

    @property
    def member_count(self) -> int:
        return len(self.members)

    @property
    def is_empty(self) -> bool:
        return not self.members

    is_unused = may_expire = is_empty

    @property
    def wake_at_ms(self) -> float | None:
        return min(self.sessions.values(), default=None)

    def step(self, event: Any, now_ms: float, wall_ms: int) -> StepOutcome:
        match event:
            case Enter(token=token, name=name):
                if not name:
                    raise InvalidRequest
                self.sessions[name] = now_ms + SESSION_MS
                known = sorted(self.members | {name})
                outcome = StepOutcome([self.record(name)], [Reply(token, known)])
                outcome.work.append(Work("greet", lambda: greeting(name), lambda names: map(Greeted, names)))
                return outcome
            case Greeted(name=name):
                self.greeted.append(name)
            case WorkFailed(name=name):
                self.greeted.append(f"{name} failed")
            case Look(token=token):
                return StepOutcome([], [Reply(token, sorted(self.members))])
            case TimePassed():
                self._due = [name for name, at_ms in self.sessions.items() if at_ms <= now_ms]
                for name in self._due:
                    del self.sessions[name]
                return StepOutcome([self.record(name, is_gone=True) for name in self._due])
            case NotWritten():
                self.sessions |= dict.fromkeys(self._due, now_ms + 500)
            case Loaded():
                self.sessions = dict.fromkeys(self.members, now_ms + SESSION_MS)
        return StepOutcome()

    def record(self, name: str, *, is_gone: bool = False) -> KindRecord:
        if self.kind is GroupKind.SHARE:
            key = ShareGroupMemberMetadataKey(group_id=self.group_id, member_id=name)
            return KindRecord(self.group_id, key, None if is_gone else ShareGroupMemberMetadataValue())
        consumer = ConsumerGroupMemberMetadataKey(group_id=self.group_id, member_id=name)
        return KindRecord(self.group_id, consumer, None if is_gone else ConsumerGroupMemberMetadataValue())

    def replay(self, record: KindRecord) -> None:
        key: Any = record.key
        if record.value is None:
            self.members.discard(key.member_id)
        else:
            self.members.add(key.member_id)

    def tombstones(self) -> list[KindRecord]:
        return [self.record("gone", is_gone=True)]

    def topics_changed(self, names: Iterable[str]) -> None:
        self.published += names

    def is_subscribed_to(self, topic: str) -> bool:
        return topic == "topic"

    def expiry_rule(self) -> ExpiryRule | None:
        return ExpiryRule(None) if self.is_empty else None

    def check_commit(self, member_id: str, epoch: int, *_: object, **__: object) -> ErrorCode:
        return ErrorCode.NONE if epoch == 1 else ErrorCode.STALE_MEMBER_EPOCH

    def check_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        if self.kind is GroupKind.SHARE:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NONE if member_id is None else ErrorCode.UNKNOWN_MEMBER_ID

    def check_offset_delete(self) -> ErrorCode:
        return ErrorCode.NONE


def club(kind: GroupKind) -> NewGroup:
    def make(group_id: str, _: GroupSurroundings) -> Club:
        return Club(kind, group_id)

    return make


CONSUMER, SHARE = GroupKind.CONSUMER, GroupKind.SHARE
CLUBS: Mapping[GroupKind, NewGroup] = {kind: club(kind) for kind in (CONSUMER, SHARE)}


async def enter(groups: GroupCoordinator, name: str, kind: GroupKind = CONSUMER) -> Any:
    return await groups.request("g", kind, Enter(name=name), creates=True)


async def look(groups: GroupCoordinator, kind: GroupKind = CONSUMER) -> Any:
    return await groups.request("g", kind, Look())


@in_virtual_time
async def test_an_answer_waits_until_the_records_of_its_step_are_committed() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store, kinds=CLUBS) as groups, asyncio.TaskGroup() as tasks:
        store.hold = True
        entered = tasks.create_task(enter(groups, "a"))
        await asyncio.sleep(1)
        assert not entered.done()

        store.release()

        assert await entered == ["a"]


@in_virtual_time
async def test_an_answer_without_records_waits_for_the_records_that_it_has_seen() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store, kinds=CLUBS) as groups, asyncio.TaskGroup() as tasks:
        store.hold = True
        tasks.create_task(enter(groups, "a"))
        await asyncio.sleep(1)
        looked = tasks.create_task(look(groups))
        await asyncio.sleep(1)
        assert not looked.done()

        store.release()

        assert await looked == ["a"]


@in_virtual_time
async def test_a_refusal_waits_for_the_records_that_it_has_seen() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store, kinds=CLUBS) as groups, asyncio.TaskGroup() as tasks:
        await enter(groups, "a")
        store.hold = True
        tasks.create_task(enter(groups, "b"))
        await asyncio.sleep(1)
        refused = [
            tasks.create_task(refusal(enter(groups, ""))),
            tasks.create_task(
                refusal(groups.offsets.commit("g", {TOPIC_0: offset(1)}, generation=2, version=9))
            ),
        ]
        await asyncio.sleep(1)
        assert not any(each.done() for each in refused)

        store.release()

        assert [await each for each in refused] == [ErrorCode.INVALID_REQUEST, ErrorCode.STALE_MEMBER_EPOCH]


@in_virtual_time
async def test_a_coordinator_whose_records_are_not_replicated_refuses_no_member_for_them() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store, kinds=CLUBS) as groups:
        await enter(groups, "a")
        store.hold = True
        await asyncio.sleep(SESSION_MS / 1000 + 0.1)  # "a" is removed: so it seems to one that was deposed

        refused = await asyncio.gather(
            refusal(enter(groups, "")),
            refusal(groups.offsets.commit("g", {TOPIC_0: offset(1)}, generation=2, version=9)),
        )

        assert list(refused) == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2


@in_virtual_time
async def test_answers_and_refusals_wait_until_the_records_of_a_load_are_committed() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store, kinds=CLUBS) as groups:
        await enter(groups, "a")
    store.hold = True
    async with leading(store, kinds=CLUBS) as groups, asyncio.TaskGroup() as tasks:
        looked = tasks.create_task(look(groups))
        refused = tasks.create_task(refusal(enter(groups, "")))
        await asyncio.sleep(1)
        assert not looked.done()
        assert not refused.done()

        store.release()

        assert await looked == ["a"]
        assert await refused is ErrorCode.INVALID_REQUEST
        assert await look(groups) == ["a"]


@in_virtual_time
async def test_answers_that_wait_too_long_for_the_records_of_a_load_are_to_be_asked_again() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store, kinds=CLUBS) as groups:
        await enter(groups, "a")
    store.hold = True
    async with leading(store, kinds=CLUBS) as groups, asyncio.TaskGroup() as tasks:
        assert await refusal(look(groups)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        looked = tasks.create_task(look(groups))
        await asyncio.sleep(1)
        assert not looked.done()

        store.release()

        assert await looked == ["a"]


@in_virtual_time
async def test_an_answer_waits_for_records_whose_own_step_has_waited_too_long() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store, kinds=CLUBS) as groups, asyncio.TaskGroup() as tasks:
        await enter(groups, "a")
        store.hold = True
        assert await refusal(enter(groups, "b")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        looked = tasks.create_task(look(groups))
        await asyncio.sleep(1)
        assert not looked.done()

        store.release()

        assert await looked == ["a", "b"]


@in_virtual_time
async def test_who_waits_for_the_records_of_a_load_hears_that_the_coordinator_has_moved() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store, kinds=CLUBS) as groups:
        await enter(groups, "a")
    store.hold = True
    async with leading(store, kinds=CLUBS) as groups, asyncio.TaskGroup() as tasks:
        refused = tasks.create_task(refusal(look(groups)))
        await asyncio.sleep(0.1)

        resign(groups)

        assert await refused is ErrorCode.NOT_COORDINATOR


async def refusal(request: Awaitable[Any]) -> ErrorCode:
    """Return the error of a request, or that of the only partition in its answer."""
    try:
        answer = await request
    except KafkaError as error:
        return error.code
    (code,) = answer.values()
    return ErrorCode(code)


@in_virtual_time
async def test_the_next_coordinator_has_the_group_that_the_records_make() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store, kinds=CLUBS) as groups:
        await enter(groups, "a")
        await enter(groups, "b")
        await groups.offsets.commit("g", {TOPIC_0: offset(5)}, generation=1)

    async with leading(store, kinds=CLUBS) as groups:
        assert await look(groups) == ["a", "b"]
        assert groups.offsets.fetch("g", [TOPIC_0])[1] == {TOPIC_0: offset(5)}
        await asyncio.sleep(SESSION_MS / 1000 + 0.1)
        assert await look(groups) == []


@in_virtual_time
async def test_groups_of_a_kind_that_is_not_hosted_are_skipped() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store, kinds=CLUBS) as groups:
        await enter(groups, "a")
        await groups.offsets.commit("g", {TOPIC_0: offset(5)}, generation=1)

    async with leading(store, kinds={}) as groups:
        assert [group.kind for group in groups.list_groups()[1]] == [GroupKind.CLASSIC]
        assert groups.offsets.fetch("g", [TOPIC_0])[1] == {TOPIC_0: offset(5)}


@in_virtual_time
async def test_a_group_whose_first_records_are_refused_does_not_exist() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store, kinds=CLUBS) as groups:
        for failure, answer in (
            (NotLeaderOrFollower(), NotCoordinator),
            (NotEnoughReplicas(), CoordinatorNotAvailable),
        ):
            store.fail_with = failure
            with pytest.raises(answer):
                await enter(groups, "a")

        assert groups.list_groups()[1] == []
        store.fail_with = None
        assert await enter(groups, "b") == ["b"]


@in_virtual_time
async def test_a_member_repeats_a_request_whose_records_are_not_replicated_in_time() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store, kinds=CLUBS) as groups:
        store.hold = True
        for kind in (CONSUMER, SHARE):
            with pytest.raises(CoordinatorNotAvailable):
                await groups.request(kind.name, kind, Enter(name="a"), creates=True)


@in_virtual_time
async def test_a_refused_request_leaves_no_group_behind() -> None:
    async with leading(MemoryStore(PARTITIONS), kinds=CLUBS) as groups:
        with pytest.raises(InvalidRequest):
            await enter(groups, "")

        assert groups.list_groups()[1] == []


@in_virtual_time
async def test_a_deadline_whose_records_are_refused_comes_again() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store, kinds=CLUBS) as groups:
        await enter(groups, "a")
        store.fail_with = NotEnoughReplicas()
        await asyncio.sleep(SESSION_MS / 1000 + 0.1)
        assert await look(groups) == ["a"]

        store.fail_with = None
        await asyncio.sleep(0.5)

        assert await look(groups) == []


@in_virtual_time
async def test_no_more_groups_are_made_than_the_broker_may_host() -> None:
    async with leading(MemoryStore(PARTITIONS), kinds=CLUBS, group_max_count="1") as groups:
        await groups.request("other", CONSUMER, Enter(name="a"), creates=True)

        with pytest.raises(GroupMaxSizeReached):
            await enter(groups, "a")


@in_virtual_time
async def test_long_work_comes_back_as_events_of_the_group() -> None:
    async with leading(MemoryStore(PARTITIONS), kinds=CLUBS) as groups:
        await enter(groups, "a")
        await enter(groups, "rude")
        await asyncio.sleep(0.1)

        club = groups.find("g", CONSUMER).group

        assert isinstance(club, Club)
        assert club.greeted == ["a", "A", "greet failed"]


@in_virtual_time
async def test_groups_hear_of_topics_that_are_published_or_deleted() -> None:
    async with leading(MemoryStore(PARTITIONS), kinds=CLUBS) as groups:
        await enter(groups, "a")
        groups.topics_published(["new"], [])
        groups.partitions_deleted([TOPIC_0, TOPIC_1])

        club = groups.find("g", CONSUMER).group

        assert isinstance(club, Club)
        assert club.published == ["new", "topic"]


# ---- requests of other kinds


@in_virtual_time
async def test_requests_of_another_kind_do_not_find_the_group() -> None:
    async with leading(MemoryStore(PARTITIONS), kinds=CLUBS) as groups:
        with pytest.raises(GroupIdNotFound, match="Group g not found"):
            await look(groups)
        await enter(groups, "a")

        for ask in (look(groups, SHARE), enter(groups, "a", SHARE)):
            with pytest.raises(GroupIdNotFound, match="Group g is not a share group"):
                await ask
        with pytest.raises(GroupIdNotFound, match="Group g is not a share group"):
            groups.find("g", SHARE)
        assert groups.find("g", CONSUMER).group.member_count == 1
        described = groups.describe_group("g")
        assert (described.state.value, described.problem) == ("Dead", "Group g is not a classic group.")
        assert await groups.delete_groups(["g"]) == {"g": ErrorCode.NON_EMPTY_GROUP}


@in_virtual_time
async def test_classic_members_do_not_join_a_share_group() -> None:
    async with leading(MemoryStore(PARTITIONS), kinds=CLUBS) as groups:
        for name in ("a", None):
            if name is not None:
                await enter(groups, name, SHARE)
            else:
                await asyncio.sleep(SESSION_MS / 1000 + 0.1)  # it has no member any more
                continue
            sync = await groups.sync("g", Sync(token=None, member_id="m", generation=1))
            leave = await groups.leave("g", Leave(token=None, members=(MemberIdentity("m"),)))
            beat = await groups.heartbeat("g", Heartbeat(token=None, member_id="m", generation=1))

            assert (await groups.join("g", a_join())).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            assert sync.error is beat is ErrorCode.UNKNOWN_MEMBER_ID
            assert leave.members == ((MemberIdentity("m"), ErrorCode.UNKNOWN_MEMBER_ID),)
        assert (await groups.join("g", a_join())).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@in_virtual_time
async def test_a_group_of_another_kind_takes_the_place_of_an_empty_classic_one() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store, kinds=CLUBS) as groups:
        (member,) = await settle(groups, "g", ["a"])
        await groups.offsets.commit("g", {TOPIC_0: offset(5)}, member_id=member, generation=1)
        with pytest.raises(GroupIdNotFound, match="Group g is not a consumer group"):
            await enter(groups, "b")
        await groups.leave("g", Leave(token=None, members=(MemberIdentity(member),)))

        assert await enter(groups, "b") == ["b"]
        assert [group.kind for group in groups.list_groups()[1]] == [CONSUMER]

    async with leading(store, kinds=CLUBS) as groups:
        assert await look(groups) == ["b"]
        assert groups.offsets.fetch("g", [TOPIC_0])[1] == {TOPIC_0: offset(5)}


@in_virtual_time
async def test_a_classic_group_takes_the_place_of_an_empty_consumer_group() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store, kinds=CLUBS) as groups:
        await enter(groups, "a")
        await groups.offsets.commit("g", {TOPIC_0: offset(5)}, generation=1)
        await asyncio.sleep(SESSION_MS / 1000 + 0.1)

        await settle(groups, "g", ["b"])

        assert groups.describe_group("g").state.value == "Stable"

    async with leading(store, kinds=CLUBS) as groups:
        assert groups.describe_group("g").state.value == "Stable"
        assert groups.offsets.fetch("g", [TOPIC_0])[1] == {TOPIC_0: offset(5)}


# ---- offsets


@in_virtual_time
async def test_commits_and_fetches_are_checked_by_the_group() -> None:
    async with leading(MemoryStore(PARTITIONS), kinds=CLUBS) as groups:
        await enter(groups, "a")
        committed = await groups.offsets.commit("g", {TOPIC_0: offset(1)}, generation=2, version=9)
        assert committed == {TOPIC_0: ErrorCode.STALE_MEMBER_EPOCH}
        await groups.offsets.commit("g", {TOPIC_0: offset(1)}, generation=1, version=9)

        fetched = groups.offsets.fetch("g", [TOPIC_0], member_id="a", member_epoch=3)

        assert fetched == (ErrorCode.UNKNOWN_MEMBER_ID, {})
        assert groups.offsets.fetch("g", [TOPIC_0])[1] == {TOPIC_0: offset(1)}
        error, deleted = await groups.offsets.delete("g", [TOPIC_0, TOPIC_1._replace(topic="other")])
        assert (error, list(deleted.values())) == (
            ErrorCode.NONE,
            [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE],
        )


@in_virtual_time
async def test_a_group_without_offsets_answers_a_fetch_with_none() -> None:
    async with leading(MemoryStore(PARTITIONS), kinds=CLUBS) as groups:
        await enter(groups, "a", SHARE)

        assert groups.offsets.fetch("g", [TOPIC_0]) == (ErrorCode.NONE, {TOPIC_0: None})
        assert groups.offsets.fetch("g") == (ErrorCode.NONE, {})


@in_virtual_time
async def test_a_commit_to_a_group_that_is_gone_gets_the_error_that_its_version_knows() -> None:
    async with leading(MemoryStore(PARTITIONS), kinds=CLUBS) as groups:
        for version, error in ((8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)):
            committed = await groups.offsets.commit(
                "g", {TOPIC_0: offset(1)}, member_id="m", generation=1, version=version
            )
            assert committed == {TOPIC_0: error}


@in_virtual_time
async def test_an_empty_group_expires_with_its_last_offset() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store, kinds=CLUBS) as groups:
        await enter(groups, "a")
        await groups.offsets.commit("g", {TOPIC_0: offset(1)}, generation=1)
        await asyncio.sleep(9 * MINUTE_MS / 1000)
        assert [group.state for group in groups.list_groups()[1]] == [State.EMPTY]

        await asyncio.sleep(3 * MINUTE_MS / 1000)

        assert groups.list_groups()[1] == []
    async with leading(store, kinds=CLUBS) as groups:
        assert groups.list_groups()[1] == []
