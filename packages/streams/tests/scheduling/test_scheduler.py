from __future__ import annotations

import random

import pytest

from ottla.consumer import ConsumerRecord
from ottla.streams.errors import OrderFailed
from ottla.streams.scheduling.assignment import WorkItem
from ottla.streams.scheduling.intake import STEP_RECORDS, IntakeLimits
from ottla.streams.scheduling.scheduler import Order, Scheduler
from peers.lane_records import P0, P1, record, records


def scheduler(
    order: Order = "key", *, batch_size: int = 1, batch_of_any: bool = False, **limits: int
) -> Scheduler:
    found = Scheduler(order, batch_size=batch_size, batch_of_any=batch_of_any, limits=IntakeLimits(**limits))
    found.assign(P0, 0)
    return found


def take_all(one: Scheduler, now_ms: int = 0) -> list[WorkItem]:
    return list(iter(lambda: one.take(now_ms), None))


def offsets(works: list[WorkItem]) -> list[int]:
    return [work.offset for work in works]


def end(one: Scheduler, work: WorkItem) -> None:
    one.release(work)
    one.finish(work)


def test_one_record_of_a_key_runs_at_a_time() -> None:
    one = scheduler()
    one.add(P0, records("aab"))

    first, other = take_all(one)
    assert offsets([first, other]) == [0, 2]
    end(one, first)

    assert offsets(take_all(one)) == [1]


def test_records_without_a_key_run_side_by_side() -> None:
    one = scheduler()
    one.add(P0, records([None, None, None]))

    assert offsets(take_all(one)) == [0, 1, 2]


def test_with_order_by_partition_one_record_of_a_partition_runs_at_a_time() -> None:
    one = scheduler("partition")
    one.assign(P1, 0)
    one.add(P0, records("ab"))
    one.add(P1, records("ab", partition=P1))

    assert [(work.partition, work.offset) for work in take_all(one)] == [(P0, 0), (P1, 0)]


def test_without_order_all_records_run_side_by_side() -> None:
    one = scheduler("none")
    one.add(P0, records("aaa"))

    assert offsets(take_all(one)) == [0, 1, 2]


def test_a_function_says_what_keeps_its_order() -> None:
    one = scheduler(lambda each: (each.key or b"")[:1])
    one.add(P0, records(["a1", "a2", "b1"]))

    assert offsets(take_all(one)) == [0, 2]


@pytest.mark.parametrize("order", [lambda each: each.value[5], lambda _: []])
def test_a_failing_order_function_names_topic_partition_and_offset(order: Order) -> None:
    one = scheduler(order)

    with pytest.raises(OrderFailed, match="topic t, partition 0, offset 7"):
        one.add(P0, [record(7, "a")])


def test_partitions_take_turns() -> None:
    one = scheduler()
    one.assign(P1, 0)
    one.add(P0, records(str(each) for each in range(100)))
    one.add(P1, records("ab", partition=P1))

    first = [one.take(0) for _ in range(4)]

    assert [work.partition.partition for work in first if work] == [0, 1, 0, 1]


def test_a_retry_holds_up_its_key_and_no_other() -> None:
    one = scheduler()
    one.add(P0, records("aab"))
    first, other = take_all(one)

    assert one.retry(first, at_ms=100)
    end(one, other)

    assert take_all(one, now_ms=99) == []
    (again,) = take_all(one, now_ms=100)
    assert (again.offset, again.attempt) == (0, 2)
    assert take_all(one, now_ms=100) == []
    end(one, again)
    assert offsets(take_all(one)) == [1]


def test_records_that_fail_for_ever_do_not_fill_the_intake() -> None:
    """The fork's issue 487: failing records filled the limit of what is in flight."""
    one = scheduler(max_buffered_records=10, max_parked_records=1_000)
    for first in range(0, 100, 10):
        one.add(P0, records([f"bad{each}" for each in range(10)], first))
        for work in take_all(one):
            one.retry(work, 1_000_000)

    assert one.totals.buffered == 0
    assert one.totals.parked == 100
    assert one.intake() == ([], [])
    one.add(P0, records("good", 100))
    assert take_all(one)[0].record.key == b"g"


def test_parked_records_are_bounded_too() -> None:
    one = scheduler(max_parked_records=10)
    one.add(P0, records("a" * 5))
    one.retry(take_all(one)[0], 1_000)
    one.add(P0, records("a", 5))

    assert (one.totals.parked, one.totals.buffered) == (6, 0)
    assert one.intake() == ([P0], [])
    (again,) = take_all(one, 1_000)
    end(one, again)
    while (work := one.take(1_000)) is not None:
        end(one, work)
    assert one.intake() == ([], [P0])


def test_a_batch_has_records_of_one_key() -> None:
    one = scheduler(batch_size=3)
    one.add(P0, records("abaaabc"))

    works = take_all(one)

    assert [[each.offset for each in work.records] for work in works] == [[0, 2, 3], [1, 5], [6]]
    end(one, works[0])
    assert offsets(take_all(one)) == [4]


def test_a_batch_of_any_has_records_of_many_keys_in_order() -> None:
    one = scheduler(batch_size=4, batch_of_any=True)
    one.add(P0, records("abaac"))

    (first,) = take_all(one)

    assert [each.offset for each in first.records] == [0, 1, 2, 4]
    assert take_all(one) == []
    end(one, first)
    assert offsets(take_all(one)) == [3]


def test_a_batch_that_is_retried_stays_the_same() -> None:
    one = scheduler(batch_size=2)
    one.add(P0, records("aaa"))
    (first,) = take_all(one)
    one.retry(first, 10)

    (again,) = take_all(one, 10)

    assert [each.offset for each in again.records] == [0, 1]


def test_a_slow_partition_does_not_starve_another() -> None:
    one = scheduler(max_buffered_records=100)
    one.assign(P1, 0)
    one.add(P0, records("a" * 60))

    assert one.intake() == ([P0], [])
    one.add(P1, records("b" * 20, partition=P1))
    assert one.intake() == ([], [])
    one.add(P1, records("b" * 20, 20, P1))
    assert one.intake() == ([P1], [])


def test_a_paused_partition_resumes_when_its_records_are_handled() -> None:
    one = scheduler("none", max_buffered_records=10)
    one.add(P0, records("abcdefghij"))
    assert one.intake() == ([P0], [])
    works = take_all(one)

    for work in works[:5]:
        end(one, work)
    assert one.resume_due
    assert one.intake() == ([], [])
    for work in works[5:]:
        end(one, work)

    assert one.intake() == ([], [P0])


def test_intake_is_held_before_the_metadata_overflows_and_what_is_there_finishes() -> None:
    """Parallel Consumer's issues 647, 831 and 832: too long metadata stopped it, or it read on."""
    one = scheduler("none", max_buffered_records=1_000_000, commit_metadata_max_bytes=300)
    next_offset, most = 0, 0
    slow = None
    for _ in range(200):
        pause, _resume = one.intake()
        if pause:
            break
        one.add(P0, records([None] * 50, next_offset))
        next_offset += 50
        works = take_all(one)
        slow = slow or works[0]
        for work in works[::2]:
            if work is not slow:
                end(one, work)
        plan = one.commit_plan(P0)
        assert plan is not None
        most = max(most, len(plan.metadata))
    else:
        pytest.fail("intake was never held")

    assert most <= 300


@pytest.mark.parametrize("limit", [120, 300, 4_096])
def test_the_metadata_names_all_finished_records_whatever_the_last_step_of_intake_adds(limit: int) -> None:
    """Otherwise the next owner would handle them again, though the partition was drained and committed."""
    one = scheduler("none", max_buffered_records=1_000_000, commit_metadata_max_bytes=limit)
    next_offset = 0
    works: list[WorkItem] = []
    while not one.intake()[0]:
        one.add(P0, records([None] * STEP_RECORDS, next_offset))
        next_offset += STEP_RECORDS
        works += take_all(one)

    for work in random.Random(limit).sample(works[1:], len(works) // 2):  # at random: it cannot be deflated
        end(one, work)

    plan = one.commit_plan(P0)
    assert plan is not None
    assert plan.is_complete


def test_metadata_that_does_not_fit_shrinks_and_stays_true() -> None:
    one = scheduler("none", commit_metadata_max_bytes=40)
    one.add(P0, records([None] * 2_000))
    works = take_all(one)
    generator = random.Random(4)
    running = works[:1] + [work for work in works[1:] if generator.random() < 0.5]
    for work in works:
        if work not in running:
            end(one, work)

    plan = one.commit_plan(P0)

    assert plan is not None
    assert len(plan.metadata) <= 40
    assert not plan.is_complete
    again = Scheduler("none")
    again.assign(P0, plan.offset, plan.metadata)
    again.add(P0, records([None] * 2_000))
    started = set(offsets(take_all(again)))
    assert started == {each for each in range(2_000) if not plan.covers(each)}
    assert started >= set(offsets(running))


def test_the_last_record_does_not_run_again_after_a_restart() -> None:
    """Parallel Consumer's issue 48."""
    one = scheduler()
    one.add(P0, records("ab"))
    for work in take_all(one):
        end(one, work)

    (plan,) = one.due_commits()

    assert (plan.offset, plan.metadata) == (2, "")


def test_foreign_metadata_loses_no_record() -> None:
    """Parallel Consumer's issue 875: the record after undecodable metadata counted as done."""
    one = scheduler()
    one.unassign(P0)
    one.assign(P0, 5, "a note of another application")
    one.add(P0, records("abc", 5))

    assert offsets(take_all(one)) == [5, 6, 7]


def test_a_refused_commit_counts_as_none() -> None:
    """Parallel Consumer's issue 857."""
    one = scheduler()
    one.add(P0, records("a"))
    end(one, take_all(one)[0])
    (plan,) = one.due_commits()

    (again,) = one.due_commits()
    assert again.offset == plan.offset
    one.committed(again)
    assert one.due_commits() == []


def test_a_commit_of_an_earlier_assignment_counts_for_none() -> None:
    one = scheduler()
    one.add(P0, records("a"))
    end(one, take_all(one)[0])
    (plan,) = one.due_commits()
    one.unassign(P0)
    one.assign(P0, None)
    one.add(P0, records("a"))
    end(one, take_all(one)[0])

    one.committed(plan)

    assert [each.offset for each in one.due_commits()] == [1]


def test_a_completion_after_the_partition_was_given_up_changes_nothing() -> None:
    one = scheduler("none")
    one.add(P0, records("a"))
    (stale,) = take_all(one)
    one.unassign(P0)
    one.assign(P0, 0)
    one.add(P0, records("a"))

    one.release(stale)
    one.finish(stale)

    plan = one.commit_plan(P0)
    assert plan is not None
    assert plan.offset == 0


def test_a_partition_that_comes_back_waits_for_the_handlers_of_its_earlier_assignment() -> None:
    """Faust's issues 221 and 236: after a rebalance the same key ran twice at once, and out of order."""
    one = scheduler()
    one.add(P0, records("a"))
    (running,) = take_all(one)
    one.unassign(P0)
    one.assign(P0, 0)
    one.add(P0, records("a"))

    assert take_all(one) == []
    one.drop(running)

    assert offsets(take_all(one)) == [0]


def test_a_partition_that_drains_gives_out_nothing_and_finishes_what_runs() -> None:
    one = scheduler()
    one.add(P0, records("aab"))
    first, _other = take_all(one)
    one.retry(_other, 5)

    one.revoke(P0)
    one.add(P0, records("c", 3))

    assert take_all(one, 10) == []
    assert not one.is_drained(P0)
    end(one, first)
    assert one.is_drained(P0)
    (plan,) = one.due_commits()
    assert plan.offset == 1
    assert (one.totals.buffered, one.totals.parked) == (0, 0)


def test_a_topic_made_anew_begins_again() -> None:
    one = scheduler()
    one.add(P0, records("abc", 50))
    for work in take_all(one):
        end(one, work)

    one.add(P0, records("ab"))

    assert offsets(take_all(one)) == [0, 1]
    plan = one.commit_plan(P0)
    assert plan is not None
    assert plan.offset == 0


def test_concurrency_is_not_bound_to_partitions() -> None:
    """FastStream's issue 2017."""
    one = scheduler()
    one.add(P0, records([f"key{each}" for each in range(1_000)]))

    assert len(take_all(one)) == 1_000


def test_bytes_are_bounded_as_records_are() -> None:
    one = scheduler(max_buffered_bytes=20_000)
    big: list[ConsumerRecord] = [record(each, f"{each}", value=b"x" * 5_000) for each in range(3)]

    one.add(P0, big)

    assert one.intake() == ([P0], [])
