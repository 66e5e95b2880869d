"""Samples: one question at a time, an older answer while a cluster is silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ottla.console.clusters.samples import PATIENCE_S, NoSample, Sampled
from ottla.console.settings import clusters_of_profiles
from ottla.console.testing import serving
from ottla.protocol.errors import InvalidRequest


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
async def tasks() -> AsyncIterator[asyncio.TaskGroup]:
    async with asyncio.TaskGroup() as group:
        yield group


async def test_many_pages_ask_a_cluster_once(tasks: asyncio.TaskGroup) -> None:
    asked, answer = 0, asyncio.Event()

    async def ask() -> str:
        nonlocal asked
        asked += 1
        await answer.wait()
        return "state"

    sampled = Sampled(ask, tasks, Clock())
    pages = [tasks.create_task(sampled.get()) for _ in range(50)]
    await asyncio.sleep(0)
    answer.set()

    assert {sample.value for sample in await asyncio.gather(*pages)} == {"state"}
    assert asked == 1


async def test_an_answer_is_shown_while_it_is_fresh_and_asked_for_again_after_a_change(
    tasks: asyncio.TaskGroup,
) -> None:
    answers, clock = iter(range(10)), Clock()

    async def ask() -> int:
        return next(answers)

    sampled = Sampled(ask, tasks, clock, fresh_s=3)
    assert (await sampled.get()).value == 0
    clock.s += 2
    assert (await sampled.get()).value == 0
    clock.s += 2
    assert (await sampled.get()).value == 1
    sampled.forget()
    assert (await sampled.get()).value == 2


async def test_a_page_waits_longer_for_an_answer_that_is_to_have_a_change(tasks: asyncio.TaskGroup) -> None:
    answers, clock, slow = iter(range(10)), Clock(), asyncio.Event()

    async def ask() -> int:
        if slow.is_set():
            await asyncio.sleep(3 * PATIENCE_S)  # as long as a slow cluster takes
        return next(answers)

    sampled = Sampled(ask, tasks, clock, fresh_s=3)
    await sampled.get()
    slow.set()
    clock.s += 4
    assert (await sampled.get()).value == 0
    sampled.forget()
    assert (await sampled.get()).value == 1


async def test_a_cluster_that_fails_does_not_empty_the_page(tasks: asyncio.TaskGroup) -> None:
    clock, is_down = Clock(), False

    async def ask() -> str:
        if is_down:
            raise InvalidRequest("broker 1\nis away")
        return "state"

    sampled = Sampled(ask, tasks, clock, fresh_s=3)
    await sampled.get()
    is_down = True
    clock.s += 60

    sample = await sampled.get()

    assert (sample.value, sample.age_s, sample.failure) == ("state", 60, "broker 1 is away")


async def test_an_answer_that_is_forgotten_and_has_no_successor_keeps_its_age(
    tasks: asyncio.TaskGroup,
) -> None:
    clock, is_down = Clock(), False

    async def ask() -> str:
        if is_down:
            raise InvalidRequest("broker 1 is away")
        return "state"

    sampled = Sampled(ask, tasks, clock, fresh_s=3)
    await sampled.get()
    is_down = True
    clock.s += 60
    sampled.forget()

    assert (await sampled.get()).age_s == 60


async def test_a_page_does_not_wait_for_a_cluster_that_hangs_while_there_is_an_older_answer(
    tasks: asyncio.TaskGroup,
) -> None:
    clock, hangs = Clock(), asyncio.Event()
    calls = 0

    async def ask() -> int:
        nonlocal calls
        calls += 1
        if calls > 1:
            await hangs.wait()
        return calls

    sampled = Sampled(ask, tasks, clock, fresh_s=3)
    await sampled.get()
    clock.s += 60
    assert (await sampled.get()).value == 1
    hangs.set()


async def test_a_fault_of_one_question_ends_no_other(tasks: asyncio.TaskGroup) -> None:
    async def ask() -> int:
        raise RuntimeError("a fault")

    async def ask_another() -> int:
        return 1

    with pytest.raises(NoSample, match="RuntimeError"):
        await Sampled(ask, tasks, Clock()).get()
    assert (await Sampled(ask_another, tasks, Clock()).get()).value == 1


async def test_without_any_answer_the_page_says_why(tasks: asyncio.TaskGroup) -> None:
    async def ask() -> int:
        raise InvalidRequest("no broker")

    with pytest.raises(NoSample, match="no broker"):
        await Sampled(ask, tasks, Clock()).get()


async def test_pages_of_a_profile_without_its_password_file_say_which_file_is_missing(tmp_path: Path) -> None:
    profiles = tmp_path / "profiles.toml"
    profiles.write_text(
        '[prod]\nbootstrap_servers = "127.0.0.1:1"\nsecurity_protocol = "SASL_PLAINTEXT"\n'
        f'sasl_mechanism = "PLAIN"\nsasl_username = "anna"\nsasl_password = {{ file = "{tmp_path}/none" }}\n'
    )
    (cluster,) = clusters_of_profiles((), profiles)
    async with serving(cluster, allows_changes=True) as console:
        answers = [
            await console.get(f"/c/prod/{page}")
            for page in (
                "",
                "topics/x/records",
                "change/create-topic",
                "topics/x/record?partition=0&offset=0",
            )
        ]

    assert [answer.status_code for answer in answers] == [503] * 4
    assert all(f"{tmp_path}/none" in answer.text for answer in answers)
