"""The guard: its prefilter, claims between members, transactions, and settings that do not fit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from ottla.protocol.topics import TopicPartition
from ottla.streams import Processor
from ottla.streams.dedupe import (
    Claim,
    Dedupe,
    DedupeMisconfigured,
    DedupeStore,
    MemoryStore,
    RedisStore,
    Scope,
    SqliteStore,
    TopicStore,
)
from ottla.streams.seams import Plan
from peers.dedupe_work import Clock, Member, SomeWork, until

MakeStore = Callable[..., DedupeStore]


class CountingStore(MemoryStore):
    """A store that counts questions, and holds its list of identities back until `fill` is set."""

    is_remote = True

    def __init__(self, **limits: Any) -> None:
        super().__init__(**limits)
        self.questions = 0
        self.fill = asyncio.Event()

    async def seen(self, scope: Scope, identities: Collection[bytes]) -> set[bytes]:
        self.questions += len(identities)
        return await super().seen(scope, identities)

    async def identities(self, scope: Scope) -> AsyncIterator[Sequence[bytes]]:
        await self.fill.wait()
        async for part in super().identities(scope):
            yield part


async def test_a_new_identity_costs_no_question_once_the_prefilter_is_filled() -> None:
    store = CountingStore()
    async with Dedupe(store) as dedupe:
        member = Member(dedupe)
        await member.run_all(*(SomeWork(b"%d" % n, offset=n) for n in range(10)))
        assert store.questions == 10

        store.fill.set()
        await until(lambda: dedupe.is_prefiltered(TopicPartition("orders", 0)))
        await member.run_all(*(SomeWork(b"%d" % n, offset=n) for n in range(10, 1_010)))
        assert store.questions < 10 + 50

        questions = store.questions
        await member.run_all(*(SomeWork(b"%d" % n, offset=2_000 + n) for n in range(1_010)))
        assert len(member.effects.handled) == 1_010
        assert store.questions == questions + 1_010


async def test_marks_made_while_the_prefilter_is_filled_are_in_it() -> None:
    store = CountingStore()
    await store.mark(Scope("orders", 0), [b"before"])
    async with Dedupe(store) as dedupe:
        member = Member(dedupe)
        await member.run(SomeWork(b"meanwhile"))
        store.fill.set()
        await until(lambda: dedupe.is_prefiltered(TopicPartition("orders", 0)))

        await member.run_all(SomeWork(b"before", offset=1), SomeWork(b"meanwhile", offset=2))

        assert member.effects.handled == [b"meanwhile"]


async def test_a_partition_that_comes_back_is_asked_for_again() -> None:
    store = CountingStore()
    store.fill.set()
    async with Dedupe(store) as dedupe:
        member, partition = Member(dedupe), TopicPartition("orders", 0)
        await member.run(SomeWork(b"a"))
        await until(lambda: dedupe.is_prefiltered(partition))
        member.guard.outputs.revoked(partition)
        await store.mark(Scope("orders", 0), [b"b"])  # by the other member

        await member.run(SomeWork(b"b"))

        assert member.effects.handled == [b"a"]


async def test_a_mark_that_ends_after_its_partition_came_back_is_in_the_new_prefilter() -> None:
    class SlowMarks(CountingStore):
        proceed = asyncio.Event()

        async def mark(self, scope: Scope, identities: Collection[bytes]) -> None:
            await self.proceed.wait()
            await super().mark(scope, identities)

    store = SlowMarks()
    store.fill.set()
    async with Dedupe(store) as dedupe:
        member, partition = Member(dedupe), TopicPartition("orders", 0)
        marking = asyncio.ensure_future(member.run(SomeWork(b"a")))
        await until(lambda: bool(member.effects.handled))
        member.guard.outputs.revoked(partition)
        store.proceed.set()
        other = asyncio.ensure_future(member.run(SomeWork(b"x", offset=1)))
        await until(lambda: dedupe.is_prefiltered(partition))
        await asyncio.gather(marking, other)

        await member.run(SomeWork(b"a", offset=2))

        assert member.effects.handled == [b"a", b"x"]


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("kind", ["sqlite", "redis"], indirect=True)
class TestClaims:
    """Identities that are unique in a topic, whose partitions several members have."""

    async def test_one_of_two_members_handles_an_identity_and_the_other_waits(
        self, make_store: MakeStore
    ) -> None:
        async with (
            Dedupe(make_store(), scope="topic") as first,
            Dedupe(make_store(), scope="topic") as second,
        ):
            one, other = Member(first), Member(second)
            one.effects.proceed.clear()
            handling = asyncio.ensure_future(one.run(SomeWork(b"a", partition=0)))
            await one.effects.started.wait()
            waiting = asyncio.ensure_future(other.run(SomeWork(b"a", partition=1)))
            await asyncio.sleep(0.1)
            assert not waiting.done()

            one.effects.proceed.set()
            await asyncio.gather(handling, waiting)

            assert (one.effects.handled, other.effects.handled) == ([b"a"], [])

    async def test_the_other_member_handles_it_if_the_first_one_fails(self, make_store: MakeStore) -> None:
        async with (
            Dedupe(make_store(), scope="topic") as first,
            Dedupe(make_store(), scope="topic") as second,
        ):
            one, other = Member(first), Member(second)
            one.effects.failures.append(ValueError("no"))

            await one.run(SomeWork(b"a", partition=0))
            await other.run(SomeWork(b"a", partition=1))

            assert (one.effects.handled, other.effects.handled) == ([], [b"a"])

    async def test_batches_of_two_members_in_opposite_order_do_not_block_each_other(
        self, make_store: MakeStore
    ) -> None:
        async with (
            Dedupe(make_store(), scope="topic") as first,
            Dedupe(make_store(), scope="topic") as second,
        ):
            one, other = Member(first), Member(second)
            names = [b"%d" % n for n in range(20)]

            await asyncio.gather(one.run(SomeWork(*names)), other.run(SomeWork(*names[::-1], partition=1)))

            assert sorted([*one.effects.handled, *other.effects.handled]) == sorted(names)  # type: ignore[type-var]

    async def test_claims_of_a_dead_member_end_with_their_lease(
        self, make_store: MakeStore, clock: Clock
    ) -> None:
        scope = Scope("orders")
        async with make_store() as store:
            assert await store.claim(scope, b"a", "dead", 300) is Claim.NEW
            assert await store.claim(scope, b"a", "dead", 300) is Claim.NEW
            assert await store.claim(scope, b"a", "alive", 300) is Claim.TAKEN

            clock.advance(301)
            await asyncio.sleep(0.35)

            assert await store.claim(scope, b"a", "alive", 300) is Claim.NEW
            await store.release(scope, b"a", "dead")
            assert await store.claim(scope, b"a", "third", 300) is Claim.TAKEN
            await store.mark(scope, [b"a"])
            assert await store.claim(scope, b"a", "third", 300) is Claim.DONE

    async def test_claims_of_a_living_member_are_renewed(self, make_store: MakeStore) -> None:
        async with Dedupe(make_store(), scope="topic", claim_lease_ms=200) as dedupe:
            member = Member(dedupe)
            member.effects.proceed.clear()
            handling = asyncio.ensure_future(member.run(SomeWork(b"a")))
            await member.effects.started.wait()
            await asyncio.sleep(0.5)

            async with make_store() as store:
                assert await store.claim(Scope("orders"), b"a", "other", 200) is Claim.TAKEN
            member.effects.proceed.set()
            await handling


class SomePlan:
    """A plan that covers offsets below one."""

    metadata = ""
    is_complete = True

    def __init__(self, offset: int) -> None:
        self.partition = TopicPartition("orders", 0)
        self.offset = self.end = offset

    def covers(self, offset: int) -> bool:
        return offset < self.offset


class SomeCommits:
    """Commits that succeed, keep their plans back, or fail once."""

    interval_ms = 100
    is_pending = False

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self.keeps_back = False

    async def commit(self, plans: Sequence[Plan]) -> Sequence[Plan]:
        if self.failures:
            raise self.failures.pop()
        return () if self.keeps_back else plans


async def test_with_transactions_a_record_is_marked_after_the_commit_that_covers_it() -> None:
    store = MemoryStore()
    async with Dedupe(store) as dedupe:
        member, inner = Member(dedupe), SomeCommits()
        commits = member.guard.after(lambda _: inner)(None)
        await member.run_all(SomeWork(b"a"), SomeWork(b"b", offset=1))

        inner.failures.append(OSError("aborted"))
        with pytest.raises(OSError, match="aborted"):
            await commits.commit([SomePlan(2)])
        assert await store.seen(Scope("orders", 0), [b"a", b"b"]) == set()

        await commits.commit([SomePlan(1)])
        await until(lambda: dedupe.in_flight == 1)
        assert await store.seen(Scope("orders", 0), [b"a", b"b"]) == {b"a"}

        member.guard.outputs.revoked(TopicPartition("orders", 0))
        assert dedupe.in_flight == 0


async def test_with_transactions_a_record_is_not_marked_whose_plan_is_kept_back() -> None:
    """Its mark would let the next member skip it, and its outputs, in no transaction, would be lost."""
    store = MemoryStore()
    async with Dedupe(store) as dedupe:
        member, inner = Member(dedupe), SomeCommits()
        commits = member.guard.after(lambda _: inner)(None)
        await member.run(SomeWork(b"a"))
        inner.keeps_back = True

        assert not await commits.commit([SomePlan(1)])

        assert dedupe.in_flight == 1
        assert await store.seen(Scope("orders", 0), [b"a"]) == set()


async def test_abandoned_work_gives_its_identity_back() -> None:
    async with Dedupe(MemoryStore()) as dedupe:
        member, work = Member(dedupe), SomeWork(b"a")
        await member.attempt(work)
        member.guard.outputs.discard(work)

        await member.run(SomeWork(b"a"))

        assert member.effects.handled == [b"a", b"a"]
        assert dedupe.in_flight == 0


def processor(dedupe: Any) -> Processor:
    return Processor(ignore, "orders", group_id="shop", dedupe=dedupe)


async def ignore(value: bytes) -> None:
    pass


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dedupe(MemoryStore(), scope="group"), "scope must be 'partition' or 'topic', not 'group'"),  # type: ignore[arg-type]
        (lambda: Dedupe(MemoryStore(), mark="never"), "mark must be 'after' or 'before', not 'never'"),  # type: ignore[arg-type]
        (lambda: Dedupe(MemoryStore(), missing="skip"), "missing must be 'handle' or 'fail', not 'skip'"),  # type: ignore[arg-type]
        (
            lambda: Dedupe(TopicStore("127.0.0.1:1", name="shop"), scope="topic"),
            "TopicStore knows one partition at a time: use scope='partition'",
        ),
        (lambda: Dedupe("marks.db"), r"such as Dedupe\(SqliteStore\('marks.db'\)\), not 'marks.db'"),  # type: ignore[arg-type]
        (lambda: processor(dedupe="sqlite"), r"dedupe= needs a Dedupe around a store.* not 'sqlite'"),
        (lambda: processor(dedupe=MemoryStore()), "dedupe= needs a Dedupe around a store.*MemoryStore"),
        (lambda: RedisStore("redis://x", name=""), "name must be that of the application, without braces"),
        (lambda: SqliteStore(Path("x"), synchronous="off"), "synchronous must be 'full' or 'normal'"),  # type: ignore[arg-type]
    ],
)
def test_a_mistake_in_the_settings_is_one_line(make: Callable[[], object], message: str) -> None:
    with pytest.raises(DedupeMisconfigured, match=message):
        make()
