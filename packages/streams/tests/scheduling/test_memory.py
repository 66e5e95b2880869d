"""Work is hidden from the collector of cycles: what it refers to must be freed without it."""

from __future__ import annotations

import gc
import weakref

import pytest

from ottla.consumer import ConsumerRecord
from ottla.streams.scheduling.assignment import WorkItem
from ottla.streams.scheduling.intake import IntakeLimits
from ottla.streams.scheduling.scheduler import Scheduler
from peers.lane_records import P0, records


class Lane:
    """A lane that can be watched."""


class Attached:
    """State that a handler attaches to its work, and that refers to the work."""

    def __init__(self, work: WorkItem) -> None:
        self.work = work


def scheduler(lane: Lane) -> Scheduler:
    def order(_: ConsumerRecord) -> Lane:
        return lane

    found = Scheduler(order, limits=IntakeLimits())
    found.assign(P0, 0)
    return found


def take(one: Scheduler) -> WorkItem:
    work = one.take(0)
    assert work is not None
    return work


def test_an_abandoned_scheduler_frees_what_waits_is_parked_and_runs() -> None:
    lane = Lane()
    one = scheduler(lane)
    one.add(P0, records("aaaa"))
    one.retry(take(one), 1_000)
    watched = weakref.ref(lane)

    del one, lane
    gc.collect()

    assert watched() is None


@pytest.mark.parametrize("step", ["finish", "drop"])
def test_work_that_ended_gives_up_what_refers_to_it(step: str) -> None:
    one = scheduler(Lane())
    one.add(P0, records("a"))
    work = take(one)
    work.context = Attached(work)
    work.set_aside_for = ValueError()
    watched = weakref.ref(work.context)

    if step == "finish":
        one.release(work)
    getattr(one, step)(work)
    del work
    gc.collect()

    assert watched() is None


@pytest.mark.parametrize("is_due", [False, True])
@pytest.mark.parametrize("step", ["revoke", "unassign"])
def test_work_that_waits_for_a_retry_is_freed_with_its_partition(step: str, is_due: bool) -> None:
    one = scheduler(Lane())
    one.add(P0, records("a"))
    work = take(one)
    work.context = Attached(work)
    work.set_aside_for = ValueError()
    watched = weakref.ref(work.context)
    one.retry(work, 1_000)
    if is_due:
        one.unpark(1_000)

    getattr(one, step)(P0)
    del work
    gc.collect()

    assert watched() is None


def test_a_long_queue_is_freed_one_by_one() -> None:
    lane = Lane()
    one = scheduler(lane)
    one.add(P0, records("a" * 300_000))
    watched = weakref.ref(lane)

    del one, lane
    gc.collect()

    assert watched() is None


def test_numbers_that_are_not_started_are_refused() -> None:
    one = scheduler(Lane())
    one.add(P0, records("a"))
    frontier = take(one).assignment.frontier

    with pytest.raises(IndexError, match="record number 7"):
        frontier.finish(7)
