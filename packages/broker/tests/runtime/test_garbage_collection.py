"""Full collections are short, early, held off while long requests are served, and never for good."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from ottla.broker.coordinators.testing import in_virtual_time
from ottla.broker.runtime.garbage_collection import (
    LONG_MS,
    LONGEST_S,
    LOOK_AGAIN_AFTER_MS,
    QUIET_S,
    Collector,
)
from ottla.broker.runtime.loop_budget import MANY, LoopBudget, Turn


class TimedCollector:
    """A collector whose collections take what the test says."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.done: list[str] = []
        self.policy = Collector(
            lambda: self.now_ms,
            freeze=lambda: self.done.append("freeze"),
            unfreeze=lambda: self.done.append("unfreeze"),
        )

    def collect(self, took_ms: float, generation: int = 2) -> None:
        self.policy("start", {"generation": generation})
        self.now_ms += took_ms
        self.policy("stop", {"generation": generation, "collected": 0, "uncollectable": 0})


@pytest.fixture
def survivors() -> Iterator[None]:
    """Leave the process's objects to its collector again."""
    yield
    gc.unfreeze()


def test_survivors_of_a_long_full_collection_are_set_aside() -> None:
    collector = TimedCollector()
    collector.collect(LONG_MS - 1)
    collector.collect(LONG_MS * 5, generation=1)
    assert collector.done == []
    collector.collect(LONG_MS + 1)
    assert collector.done == ["freeze"]


def test_after_an_hour_the_next_full_collection_looks_at_everything() -> None:
    collector = TimedCollector()
    collector.now_ms = LOOK_AGAIN_AFTER_MS
    collector.collect(LONG_MS * 2)
    assert collector.done == ["freeze", "unfreeze"]
    collector.collect(LONG_MS * 20)
    assert collector.done == ["freeze", "unfreeze", "freeze"]


@pytest.mark.usefixtures("survivors")
def test_a_real_collection_looks_at_fewer_objects_after_a_long_one() -> None:
    times_ms = iter([0.0, 0.0])
    policy = Collector(lambda: next(times_ms, 2 * LONG_MS))
    kept = [{"number": [number]} for number in range(1_000)]
    gc.callbacks.append(policy)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(policy)
    assert not any(one is kept[0] for one in gc.get_objects())


ALLOCATE = """
import gc
from ottla.broker.runtime.garbage_collection import collect_fully_early

{early}
generations = []
gc.callbacks.append(lambda phase, info: generations.append(info["generation"]))
kept = [[] for _ in range(40_000)]
print(generations.count(2))
"""


@pytest.mark.parametrize(("early", "comes"), [("", False), ("collect_fully_early()", True)])
def test_a_full_collection_comes_after_few_new_objects(early: str, *, comes: bool) -> None:
    # In a process of its own: the collector also waits until a quarter of the objects that stay are new.
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATE.format(early=early)], capture_output=True, text=True, check=True
    )
    assert (int(done.stdout) > 0) is comes


EXAMINE = """
import gc
from ottla.broker.runtime.garbage_collection import Collector

now_ms = [0.0]
policy = Collector(lambda: now_ms[0])
examined = []

def count(phase, info):
    if phase == "start" and info["generation"] == 2:
        examined.append(sum(len(gc.get_objects(generation=number)) for number in range(3)))
        now_ms[0] += examined[-1] / 5_000  # as a machine that looks at 5,000 objects in a millisecond

gc.disable()
started = [[] for _ in range({started})]
policy.end_start()
gc.callbacks.insert(0, count)
gc.callbacks.remove(policy)
gc.callbacks.insert(0, policy)  # it sees the beginning first, so that the count is time of the collection
examined.clear()
kept = [[] for _ in range(600_000)]
print(max(examined))
"""


@pytest.mark.parametrize("started", [0, 400_000])
def test_no_full_collection_looks_at_more_than_a_few_milliseconds_of_objects(started: int) -> None:
    program = EXAMINE.format(started=started)

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert int(done.stdout) <= 20_000  # 4 ms; those of 20,000 connections would be 600,000


@pytest.mark.usefixtures("survivors")
def test_what_was_set_aside_goes_with_its_last_reference() -> None:
    class Session:
        pass

    session = Session()
    gone = weakref.ref(session)
    gc.freeze()
    del session
    assert gone() is None


@pytest.fixture
def thresholds() -> Iterator[None]:
    """Those of a new process, also after other tests in this one."""
    found = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*found)


@pytest.mark.usefixtures("thresholds")
@in_virtual_time
async def test_they_are_possible_again_a_second_after_the_last_step() -> None:
    before, collector = gc.get_threshold(), no_clock()

    for _ in range(5):
        collector.hold_off()
        assert gc.get_threshold()[:2] == before[:2]
        assert gc.get_threshold()[2] > 1_000_000
        await asyncio.sleep(QUIET_S * 0.9)
    await asyncio.sleep(2 * QUIET_S)

    assert gc.get_threshold() == before
    assert not collector.is_held_off


@pytest.mark.usefixtures("thresholds")
@in_virtual_time
async def test_an_endless_attack_does_not_hold_them_off_for_ever() -> None:
    before, collector, possible = gc.get_threshold(), no_clock(), 0

    for _ in range(int(4 * LONGEST_S / 0.5)):
        possible += not collector.is_held_off
        collector.hold_off()
        await asyncio.sleep(0.5)
    await asyncio.sleep(LONGEST_S)

    assert possible >= 3
    assert gc.get_threshold() == before


@pytest.mark.usefixtures("thresholds")
@in_virtual_time
async def test_a_request_that_rests_holds_them_off() -> None:
    before, budget = gc.get_threshold(), LoopBudget(lambda: 0.0)

    await budget.long_requests.next_turn(has_many=True)

    assert gc.get_threshold()[2] > before[2]
    await asyncio.sleep(2 * QUIET_S)
    assert gc.get_threshold() == before


@pytest.mark.usefixtures("thresholds")
@in_virtual_time
async def test_only_a_request_of_thousands_of_elements_holds_them_off() -> None:
    before, budget = gc.get_threshold(), LoopBudget(ticking())
    few, many = Turn(budget.long_requests), Turn(budget.long_requests)

    async for _ in few.over(range(MANY)):
        assert gc.get_threshold() == before
    await few.rest()
    assert gc.get_threshold() == before
    async for _ in many.over(range(MANY + 1)):
        pass
    await many.rest()

    assert gc.get_threshold()[2] > before[2]
    await asyncio.sleep(2 * QUIET_S)


@pytest.mark.usefixtures("thresholds")
@in_virtual_time
async def test_two_brokers_of_a_process_do_not_keep_each_others_thresholds() -> None:
    before, first, second = gc.get_threshold(), no_clock(), no_clock()

    first.hold_off()
    second.hold_off()
    second.allow()
    assert gc.get_threshold() != before

    first.allow()
    assert gc.get_threshold() == before


@pytest.mark.usefixtures("thresholds")
@in_virtual_time
async def test_a_broker_that_stops_leaves_the_process_as_it_was() -> None:
    before, budget = gc.get_threshold(), LoopBudget(lambda: 0.0)
    await budget.long_requests.next_turn(has_many=True)

    budget.close()

    assert gc.get_threshold() == before


@pytest.mark.usefixtures("thresholds")
@in_virtual_time
async def test_background_work_that_rests_does_not_hold_them_off() -> None:
    before, budget = gc.get_threshold(), LoopBudget(lambda: 0.0)

    await budget.background.next_turn(has_many=True)

    assert gc.get_threshold() == before


def ticking() -> Callable[[], float]:
    """Return a clock that is a millisecond later whenever it is read."""
    ticks = count()
    return lambda: float(next(ticks))


def no_clock() -> Collector:
    return Collector(lambda: 0.0)
