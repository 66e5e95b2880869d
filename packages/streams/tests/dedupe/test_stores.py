"""Every store keeps its promises to a guarded handler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ottla.streams.dedupe import Dedupe, DedupeStore, MissingIdentity
from peers.dedupe_work import Clock, Member, SomeWork, until

MakeStore = Callable[..., DedupeStore]


@pytest.fixture
def survives(kind: str) -> bool:
    """Whether marks outlive the process."""
    return kind != "memory"


async def test_a_record_is_handled_once(make_store: MakeStore) -> None:
    async with Dedupe(make_store()) as dedupe:
        member = Member(dedupe)

        for offset, identity in enumerate([b"a", b"b", b"a", b"a", b"c", b"b"]):
            await member.run(SomeWork(identity, offset=offset))

        assert member.effects.handled == [b"a", b"b", b"c"]
        assert (dedupe.statistics.handled, dedupe.statistics.duplicates) == (3, 3)


async def test_identities_of_other_partitions_are_others(make_store: MakeStore) -> None:
    async with Dedupe(make_store()) as dedupe:
        member = Member(dedupe)

        await member.run_all(SomeWork(b"a", partition=0), SomeWork(b"a", partition=1))

        assert member.effects.handled == [b"a", b"a"]


async def test_a_batch_is_handled_without_its_duplicates(make_store: MakeStore) -> None:
    async with Dedupe(make_store()) as dedupe:
        member = Member(dedupe)
        await member.run(SomeWork(b"a", b"b"))

        await member.run(SomeWork(b"b", b"c", b"c", None, b"a", b"d", offset=2))

        assert member.effects.handled == [b"a", b"b", b"c", None, b"d"]


async def test_a_crash_between_effect_and_mark_repeats_the_handler(make_store: MakeStore) -> None:
    async with Dedupe(make_store()) as dedupe:
        crashed = Member(dedupe)
        assert await crashed.attempt(SomeWork(b"a")) is None  # and nothing is settled any more

    async with Dedupe(make_store()) as dedupe:
        restarted = Member(dedupe)
        await restarted.run(SomeWork(b"a"))
        await restarted.run(SomeWork(b"a", offset=1))

    assert (crashed.effects.handled, restarted.effects.handled) == ([b"a"], [b"a"])


async def test_marks_outlive_a_restart(make_store: MakeStore, survives: bool) -> None:
    async with Dedupe(make_store()) as dedupe:
        await Member(dedupe).run_all(*(SomeWork(b"%d" % n, offset=n) for n in range(2_000)))

    async with Dedupe(make_store()) as dedupe:
        restarted = Member(dedupe)
        await restarted.run_all(*(SomeWork(b"%d" % n, offset=n) for n in range(1_990, 2_010)))

    expected = [b"%d" % n for n in range(2_000 if survives else 1_990, 2_010)]
    assert restarted.effects.handled == expected


async def test_marks_follow_a_partition_to_another_member_and_back(
    make_store: MakeStore, survives: bool
) -> None:
    if not survives:
        pytest.skip("a store in memory knows nothing of other members")
    async with Dedupe(make_store()) as first, Dedupe(make_store()) as second:
        one, other = Member(first), Member(second)
        partition = SomeWork(b"a").partition

        await one.run(SomeWork(b"a"))
        one.guard.outputs.revoked(partition)
        await other.run_all(SomeWork(b"a"), SomeWork(b"b", offset=1))
        other.guard.outputs.revoked(partition)
        await one.run_all(SomeWork(b"a"), SomeWork(b"b", offset=1), SomeWork(b"c", offset=2))

        assert (one.effects.handled, other.effects.handled) == ([b"a", b"c"], [b"b"])


async def test_the_window_ends_after_its_time(make_store: MakeStore, clock: Clock) -> None:
    async with Dedupe(make_store(ttl_ms=10_000), clock=clock) as dedupe:
        member = Member(dedupe)
        await member.run(SomeWork(b"a"))

        clock.advance(9_999)
        await member.run(SomeWork(b"a", offset=1))
        assert member.effects.handled == [b"a"]

        clock.advance(1)
        await member.run(SomeWork(b"a", offset=2))
        assert member.effects.handled == [b"a", b"a"]


async def test_the_window_ends_after_its_count(make_store: MakeStore, clock: Clock) -> None:
    async with Dedupe(make_store(ttl_ms=None, max_ids=3), clock=clock) as dedupe:
        member = Member(dedupe)
        for offset, identity in enumerate([b"a", b"b", b"c", b"b", b"d", b"b", b"a"]):
            clock.advance(1)
            await member.run(SomeWork(identity, offset=offset))

        assert member.effects.handled == [b"a", b"b", b"c", b"d", b"a"]


async def test_a_repetition_keeps_no_identity_in_the_window(make_store: MakeStore, clock: Clock) -> None:
    async with Dedupe(make_store(ttl_ms=None, max_ids=3), clock=clock) as dedupe:
        member = Member(dedupe)
        for offset, identity in enumerate([b"a", b"b", b"c", b"a", b"d", b"b", b"a"]):
            clock.advance(1)
            await member.run(SomeWork(identity, offset=offset))

        assert member.effects.handled == [b"a", b"b", b"c", b"d", b"a"]


async def test_the_second_of_two_at_once_waits_and_is_skipped(make_store: MakeStore) -> None:
    async with Dedupe(make_store()) as dedupe:
        member = Member(dedupe)
        member.effects.proceed.clear()
        both = asyncio.gather(*(member.run(SomeWork(b"a", offset=n)) for n in range(2)))
        await member.effects.started.wait()

        member.effects.proceed.set()
        await both

        assert member.effects.handled == [b"a"]
        assert dedupe.statistics.waited == 1


async def test_the_second_of_two_at_once_runs_if_the_first_fails(make_store: MakeStore) -> None:
    async with Dedupe(make_store()) as dedupe:
        member = Member(dedupe)
        member.effects.failures.append(ValueError("the first"))
        member.effects.proceed.clear()
        both = asyncio.gather(*(member.run(SomeWork(b"a", offset=n)) for n in range(2)))
        await member.effects.started.wait()

        member.effects.proceed.set()
        await both

        assert member.effects.handled == [b"a"]
        assert [str(error) for error in member.failures.asked] == ["the first"]


async def test_a_record_counts_as_finished_after_its_outputs_and_its_mark(make_store: MakeStore) -> None:
    async with Dedupe(make_store()) as dedupe:
        member, work = Member(dedupe), SomeWork(b"a")
        member.outputs.acknowledgement = asyncio.get_running_loop().create_future()
        await member.attempt(work)
        settled = member.guard.outputs.settle(work)
        assert settled is not None
        again = asyncio.ensure_future(member.attempt(SomeWork(b"a", offset=1)))
        await asyncio.sleep(0.05)
        assert not settled.done()
        assert not again.done()

        member.outputs.acknowledgement.set_result(None)
        await settled
        await again

        assert member.effects.handled == [b"a"]


async def test_a_record_whose_outputs_failed_has_no_mark(make_store: MakeStore) -> None:
    async with Dedupe(make_store()) as dedupe:
        member, work = Member(dedupe), SomeWork(b"a")
        member.outputs.acknowledgement = asyncio.get_running_loop().create_future()
        await member.attempt(work)
        settled = member.guard.outputs.settle(work)
        assert settled is not None

        member.outputs.acknowledgement.set_exception(OSError("not written"))
        with pytest.raises(OSError, match="not written"):
            await settled
        member.outputs.acknowledgement = None
        await member.run(SomeWork(b"a"))

        assert member.effects.handled == [b"a", b"a"]


async def test_marked_before_the_handler_a_crash_loses_the_record(
    make_store: MakeStore, survives: bool
) -> None:
    async with Dedupe(make_store(), mark="before") as dedupe:
        crashed = Member(dedupe)
        crashed.effects.proceed.clear()
        running = asyncio.ensure_future(crashed.guard.handler(SomeWork(b"a")))
        await crashed.effects.started.wait()
        running.cancel()
        await asyncio.wait([running])

    async with Dedupe(make_store(), mark="before") as dedupe:
        restarted = Member(dedupe)
        await restarted.run(SomeWork(b"a"))

    assert restarted.effects.handled == ([] if survives else [b"a"])


async def test_marked_before_the_handler_a_failed_record_is_retried(make_store: MakeStore) -> None:
    from peers.dedupe_work import Retry

    async with Dedupe(make_store(), mark="before") as dedupe:
        member, work = Member(dedupe, verdict=Retry(0)), SomeWork(b"a")
        member.effects.failures.append(ValueError("once"))

        await member.run(work)
        await member.run(work)
        await member.run(SomeWork(b"a", offset=1))

        assert member.effects.handled == [b"a"]


async def test_records_without_identity_are_handled_each_time_or_fail(make_store: MakeStore) -> None:
    async with Dedupe(make_store()) as lenient:
        member = Member(lenient)
        await member.run_all(SomeWork(None), SomeWork(None, offset=1))
        assert member.effects.handled == [None, None]
        assert lenient.statistics.missing == 2

    async with Dedupe(make_store(), missing="fail") as strict:
        member = Member(strict)
        await member.run(SomeWork(None, offset=7))
        assert member.effects.handled == []
        (error,) = member.failures.asked
        assert isinstance(error, MissingIdentity)
        assert "orders-0 offset 7 has no header 'message-id'" in str(error)


async def test_random_schedules_of_members_crashes_and_copies_handle_each_identity_once(
    make_store: MakeStore, survives: bool
) -> None:
    """Members take over in turn; each stops at a moment when nothing is between effect and mark."""
    if not survives:
        pytest.skip("a store in memory knows nothing of other members")
    import random

    chance = random.Random(5)
    handled: list[Any] = []
    for round_ in range(6):
        async with Dedupe(make_store()) as dedupe:
            member = Member(dedupe)
            works = [SomeWork(b"%d" % chance.randrange(round_ * 20 + 30), offset=n) for n in range(200)]
            await member.run_all(*works)
            await until(lambda: not dedupe.in_flight)
        handled += member.effects.handled

    assert len(handled) == len(set(handled)) > 100
