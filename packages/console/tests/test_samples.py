"""Samples: one question at a time, an older answer while a cluster is silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ottla.admin import (
    Broker,
    ClusterDescription,
    ClusterState,
    LogDir,
    PartitionHealth,
    ReplicaOnDisk,
)
from ottla.client.config import ClientConfig
from ottla.client.errors import ClientError, ConnectFailed
from ottla.console.clusters.connections import Connection, ShownCluster, ShownClusters
from ottla.console.clusters.samples import PATIENCE_S, NoSample, Sampled, about_bytes
from ottla.console.logins.access import Grant, Role, Viewer
from ottla.console.pages.changes import why_failed
from ottla.console.registry.processes import DecodingProcess
from ottla.console.server import ALL_COLLECTED_S, LONG_COLLECTION_S, ShortCollections
from ottla.console.settings import ClusterSettings, clusters_of_profiles
from ottla.console.testing import serving
from ottla.console.web.fields import Unclear
from ottla.protocol.errors import InvalidRequest
from ottla.protocol.topics import TopicPartition


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


async def test_an_answer_is_shown_at_once_where_a_new_one_takes_longer_than_a_page_waits(
    tasks: asyncio.TaskGroup,
) -> None:
    answers, clock, may_answer = iter(range(10)), Clock(), asyncio.Event()
    may_answer.set()

    async def ask() -> int:
        clock.s += 2 * PATIENCE_S
        await may_answer.wait()
        return next(answers)

    sampled = Sampled(ask, tasks, clock, fresh_s=3)
    await sampled.get()
    may_answer.clear()
    clock.s += 20
    page = tasks.create_task(sampled.get())
    await asyncio.sleep(0)

    assert page.done()
    assert (page.result().value, round(page.result().age_s)) == (0, 20)
    may_answer.set()
    await asyncio.sleep(0)

    assert (await sampled.get()).value == 1


async def test_that_which_pages_derive_is_kept_until_there_is_another_answer(
    tasks: asyncio.TaskGroup,
) -> None:
    derived: list[int] = []

    def derive() -> int:
        derived.append(len(derived))
        return derived[-1]

    async with ShownClusters([ClusterSettings("local", "127.0.0.1:1", ClientConfig)], Clock()) as clusters:
        (cluster,) = clusters
        first, second = ["a"], ["a"]
        found = [await cluster.derived("rows", (answer,), derive) for answer in (first, first, second)]
        some = cluster.seen_by(Viewer("anna", (Grant(Role.VIEWER, topics=("orders*",)),)), ())

        assert found == [0, 0, 1]
        assert await some.derived("rows", (first,), derive) == 2
        assert await cluster.derived("rows", (second,), derive) == 1


def test_a_long_collection_sets_its_survivors_aside_and_in_an_hour_all_are_looked_at() -> None:
    done: list[str] = []
    clock = Clock()
    collections = ShortCollections(
        clock, freeze=lambda: done.append("freeze"), unfreeze=lambda: done.append("unfreeze")
    )

    def collect(generation: int, took_s: float) -> None:
        collections("start", {"generation": generation})
        clock.s += took_s
        collections("stop", {"generation": generation})

    collect(2, LONG_COLLECTION_S / 2)
    collect(1, LONG_COLLECTION_S * 2)
    assert done == []
    collect(2, LONG_COLLECTION_S * 2)
    assert done == ["freeze"]
    clock.s += ALL_COLLECTED_S
    collect(2, LONG_COLLECTION_S * 2)
    assert done == ["freeze", "freeze", "unfreeze"]


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


# --- viewers and memory

SOME = Viewer("oskar", (Grant(Role.VIEWER, topics=("orders*",), groups=()),))
SETTINGS = ClusterSettings("local", "127.0.0.1:1", ClientConfig)


@pytest.fixture
async def connection(tasks: asyncio.TaskGroup) -> AsyncIterator[Connection]:
    async with AsyncExitStack() as stack:
        yield Connection(SETTINGS, tasks, stack, Clock(), DecodingProcess(), most_bytes=100_000)


@pytest.mark.parametrize(
    ("error", "is_shown"),
    [
        (InvalidRequest("topic payments has no leader"), False), (ValueError("group audit"), False),
        (ClientError("payments-0 is away"), False), (NoSample("payments"), False),
        (ConnectFailed("b1", 9092, "refused"), True), (TimeoutError(), True),
    ],
)  # fmt: skip
async def test_reasons_name_no_topics_to_those_who_see_a_part_of_a_cluster(
    connection: Connection, error: Exception, *, is_shown: bool
) -> None:
    is_down = False

    async def ask() -> str:
        if is_down:
            raise error
        return "state"

    whole, part = ShownCluster(connection), ShownCluster(connection, SOME)
    await whole.ask_service(("a",), ask)
    is_down = True
    connection.forget()
    shown, hidden = await whole.ask_service(("a",), ask), await part.ask_service(("a",), ask)
    with pytest.raises(NoSample) as caught:
        await part.ask_service(("never",), ask)

    assert shown.failure
    assert (hidden.failure == shown.failure) == is_shown
    assert hidden.failure == str(caught.value)
    assert is_shown or hidden.failure.startswith("the cluster did not answer as asked")


async def test_answers_take_bounded_memory_and_the_oldest_goes_first(connection: Connection) -> None:
    asked: list[int] = []

    async def read(number: int, size: int) -> None:
        async def ask() -> list[str]:
            asked.append(number)
            return ["x" * size]

        connection._now_s.s += 0.01  # type: ignore[attr-defined]
        await connection.sample_of((str(number),), ask)

    for number in (1, 2, 3, 1, 4, 1, 3, 2):
        await read(number, 30_000)
    await read(5, 10_000_000)
    await read(5, 10_000_000)

    assert asked == [1, 2, 3, 4, 2, 5]


@dataclass(frozen=True, slots=True)
class Held:
    where: TopicPartition
    text: str


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        ([Held(TopicPartition("t", number), "x" * 1_000) for number in range(10_000)], 10 << 20, 20 << 20),
        ({f"topic {number}": ["y" * 500] * 3 for number in range(1_000)}, 500 * 3_000, 3 << 20),
        (["z" * 10, "z" * 5_000_000, *["z"] * 98], 5_000_000, 6_000_000),
        (None, 0, 100),
        ([], 0, 200),
    ],
)
def test_the_memory_of_an_answer_is_reckoned_from_some_of_its_items(
    value: object, least: int, most: int
) -> None:
    assert least <= about_bytes(value) <= most


class DyingBroker:
    """An admin client of a broker that is listed still, and describes no log directories any more."""

    def __init__(self, *states: ClusterState) -> None:
        self.brokers = self
        self._states = list(states)

    async def describe(self) -> ClusterDescription:
        return ClusterDescription("id", self._states[0].brokers)

    async def cluster_state(self) -> ClusterState:
        return self._states.pop(0)


async def test_a_broker_that_dies_keeps_the_log_directories_that_it_had(connection: Connection) -> None:
    broker, where = Broker(2, "b2", 9092, None, False), TopicPartition("orders", 0)
    log_dir = LogDir(2, "/data", (ReplicaOnDisk(where, 1, 0),))
    partitions = (PartitionHealth(where, None, (2,), (2,)),)
    admin: Any = DyingBroker(
        ClusterState("id", 1, (broker,), partitions, log_dirs=(log_dir,)),
        ClusterState("id", 1, (broker,), partitions, silent={2: "no answer"}),
        ClusterState("id", 1, (), partitions),
    )
    for _ in range(3):
        await connection.read_state(admin)

    assert connection.last_seen[2].log_dirs == (log_dir,)


async def test_a_cluster_that_was_never_asked_is_waited_for_as_long_as_a_page_says(
    connection: Connection,
) -> None:
    cluster, answers = ShownCluster(connection), asyncio.Event()
    state = ClusterState("id", 1, (), ())

    async def ask() -> ClusterState:
        await answers.wait()
        return state

    connection._samples["state",] = Sampled(ask, connection._tasks, Clock())
    assert await cluster.state_within(0.01) is None
    answers.set()
    found = await cluster.state_within(30)

    assert found is not None
    assert found.value is state


@pytest.mark.parametrize(
    ("error", "is_shown"),
    [(InvalidRequest("payments-0 refused"), False), (ConnectFailed("payments", 9092, "refused"), True),
     (Unclear("no topic payments"), True)],
)  # fmt: skip
async def test_the_failure_of_a_change_names_nothing_that_its_operator_may_not_see(
    connection: Connection, error: Exception, *, is_shown: bool
) -> None:
    whole, part = ShownCluster(connection), ShownCluster(connection, SOME)

    assert "payments" in why_failed(whole, error)
    assert ("payments" in why_failed(part, error)) is is_shown
    assert is_shown or "InvalidRequest" in why_failed(part, error)
