"""How long requests share the event loop, on a clock that only their work moves."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from ottla.broker.runtime.loop_budget import (
    BACKGROUND_MS,
    LONG,
    LONG_REQUESTS_MS,
    Disconnected,
    LoopBudget,
    StepQueue,
    Turn,
    at_once,
)


class Work:
    """Work that takes a millisecond a piece, and a loop whose turns are counted."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.budget = LoopBudget(lambda: self.now_ms)
        self.is_gone = False
        self.done: list[int] = []
        self.in_this_turn = 0
        self.most_in_a_turn = 0

    def piece(self, number: int) -> int:
        self.now_ms += 1
        self.done.append(number)
        self.in_this_turn += 1
        self.most_in_a_turn = max(self.most_in_a_turn, self.in_this_turn)
        return number

    def steps(self, count: int) -> Generator[None, None, str]:
        for number in range(count):
            self.piece(number)
            yield
        return "all"

    def turn(self) -> Turn:
        return Turn(self.budget.long_requests, self)

    async def count_turns(self) -> None:
        while True:
            self.in_this_turn = 0
            await asyncio.sleep(0)


@pytest.fixture
async def work() -> Work:
    return Work()


async def watched(work: Work, *running: asyncio.Task[None]) -> None:
    counting = asyncio.create_task(work.count_turns())
    async with asyncio.timeout(30):
        await asyncio.gather(*running)
    counting.cancel()


async def test_a_list_is_worked_through_in_turns_of_ten_milliseconds(work: Work) -> None:
    async def request() -> None:
        assert [work.piece(one) async for one in work.turn().over(range(1000))] == list(range(1000))

    await watched(work, asyncio.create_task(request()))

    assert work.most_in_a_turn <= LONG_REQUESTS_MS


async def test_steps_are_run_in_turns_of_ten_milliseconds(work: Work) -> None:
    async def request() -> None:
        assert await work.turn().run(work.steps(1000)) == "all"

    await watched(work, asyncio.create_task(request()))

    assert len(work.done) == 1000
    assert work.most_in_a_turn <= LONG_REQUESTS_MS


class Held:
    """An element that takes a hundredth of a millisecond to free."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __del__(self) -> None:
        self._work.in_this_turn += 1
        self._work.most_in_a_turn = max(self._work.most_in_a_turn, self._work.in_this_turn)
        self._work.now_ms += 0.01


async def test_a_long_list_is_freed_in_turns_of_ten_milliseconds(work: Work) -> None:
    held = [Held(work) for _ in range(10_000)]

    await watched(work, asyncio.create_task(work.turn().drop(held)))

    assert held == []
    assert work.most_in_a_turn <= 100 * LONG_REQUESTS_MS + LONG


async def test_a_short_list_is_not_interrupted(work: Work) -> None:
    turn = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(turn.set_result, None)

    assert [one async for one in work.turn().over(range(1000))] == list(range(1000))

    assert not turn.done()


async def test_many_long_requests_take_ten_milliseconds_of_a_turn_together(work: Work) -> None:
    async def request() -> None:
        async for one in work.turn().over(range(30)):
            work.piece(one)

    await watched(work, *(asyncio.create_task(request()) for _ in range(50)))

    assert len(work.done) == 50 * 30
    assert work.most_in_a_turn <= LONG_REQUESTS_MS + 1


async def test_requests_that_are_each_short_share_a_turn_too(work: Work) -> None:
    async def request() -> None:
        await work.turn().run(work.steps(5))

    await watched(work, *(asyncio.create_task(request()) for _ in range(50)))

    assert len(work.done) == 250
    assert work.most_in_a_turn <= LONG_REQUESTS_MS + 5


async def test_work_for_a_client_that_has_gone_ends(work: Work) -> None:
    async def request() -> None:
        async for one in work.turn().over(range(1000)):
            work.piece(one)
            work.is_gone = one >= 100

    with pytest.raises(Disconnected):
        await request()

    assert 100 <= len(work.done) <= 100 + LONG_REQUESTS_MS


async def test_work_that_must_not_stay_half_done_goes_on_without_its_client(
    work: Work,
) -> None:
    work.is_gone = True

    async def request() -> None:
        async for one in work.turn().over(range(1000), to_the_end=True):
            work.piece(one)

    await watched(work, asyncio.create_task(request()))

    assert len(work.done) == 1000
    assert work.most_in_a_turn <= LONG_REQUESTS_MS


async def test_a_request_that_is_cancelled_while_it_waits_does_not_hold_up_the_next(work: Work) -> None:
    async def request(number: int) -> None:
        async for _ in work.turn().over(range(50)):
            work.piece(number)

    cancelled = asyncio.create_task(request(1))
    going_on = asyncio.create_task(request(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    cancelled.cancel()
    await watched(work, going_on)

    assert work.done.count(2) == 50
    assert work.done.count(1) < 50


async def test_the_brokers_own_work_takes_four_milliseconds_of_a_turn_together(work: Work) -> None:
    async def load() -> None:
        async for number in work.budget.turn().over(range(30)):
            work.piece(number)

    await watched(work, *(asyncio.create_task(load()) for _ in range(50)))

    assert len(work.done) == 50 * 30
    assert work.most_in_a_turn <= BACKGROUND_MS + 1


async def test_work_that_is_alone_goes_on_in_each_turn(work: Work) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def load() -> None:
        async for number in work.budget.turn().over(range(400)):
            work.piece(number)

    counting = asyncio.create_task(count())
    await load()
    counting.cancel()

    assert turns <= 400 / BACKGROUND_MS + 2


async def test_pieces_of_work_have_their_turns_in_order(work: Work) -> None:
    async def load(number: int) -> None:
        async for _ in work.budget.turn().over(range(40)):
            work.piece(number)

    await watched(work, *(asyncio.create_task(load(number)) for number in range(5)))

    behind = [max(work.done[: 4 * end].count(number) for number in range(5)) for end in range(1, 40)]
    least = [min(work.done[: 4 * end].count(number) for number in range(5)) for end in range(1, 40)]
    assert max(most - few for most, few in zip(behind, least, strict=True)) <= 3 * BACKGROUND_MS


async def test_long_requests_and_the_brokers_own_work_have_a_share_each(work: Work) -> None:
    async def request() -> None:
        async for number in work.turn().over(range(100)):
            work.piece(number)

    async def load() -> None:
        async for number in work.budget.turn().over(range(100)):
            work.piece(number)

    await watched(work, asyncio.create_task(request()), asyncio.create_task(load()))

    assert BACKGROUND_MS + 1 < work.most_in_a_turn <= LONG_REQUESTS_MS + BACKGROUND_MS + 1


async def test_steps_of_a_queue_are_called_in_order_and_a_few_in_a_turn(work: Work) -> None:
    queue = StepQueue(work.budget.closed_connections, 0.5)
    called: list[int] = []
    for number in range(20):
        queue.put(lambda number=number: called.append(number))  # type: ignore[misc]
    sizes = []
    while len(called) < 20:
        await asyncio.sleep(0)
        sizes.append(len(called))

    assert called == list(range(20))
    assert sizes == [6, 12, 18, 20]


async def test_a_step_that_finds_time_is_called_at_once(work: Work) -> None:
    queue = StepQueue(work.budget.closed_connections, 1.0)
    called: list[int] = []
    for number in range(5):
        queue.call(lambda number=number: called.append(number))  # type: ignore[misc]

    assert called == [0, 1, 2]
    for _ in range(3):
        await asyncio.sleep(0)
    assert called == [0, 1, 2, 3, 4]
    queue.call(lambda: called.append(5))
    assert called[-1] == 5


def test_steps_run_at_once_give_the_same(work: Work) -> None:
    assert at_once(Work().steps(1000)) == "all"
