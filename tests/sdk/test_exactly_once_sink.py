"""Records of exactly-once tasks of Spark's sink, on brokers that have transactions, without Spark.

It has over 500 lines because the attempts and runs of all its tests write by the same sink.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from ottla.admin import TOPIC, Admin
from ottla.consumer import Consumer
from ottla.pipeline.errors import OptionError
from ottla.pipeline.sink.config import SinkConfig
from ottla.pipeline.sink.errors import (
    MarkersUnreadable,
    ReplayChanged,
    StaleBatch,
    TransactionFenced,
    WaitedTooLong,
)
from ottla.pipeline.sink.exactly_once import (
    abort_all,
    commit_all,
    forget_tasks,
    write_exactly_once,
)
from ottla.pipeline.sink.tasks import Columns, PendingTransaction, TaskIdentity, TaskResult
from ottla.producer import PreparedTransaction, Producer
from ottla.protocol.errors import InvalidProducerIdMapping, TopicAlreadyExists
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from sdk.conftest import Cluster


class Sink:
    """Tasks that write to one topic, with markers in another."""

    def __init__(self, servers: str, topic: str, markers: str, **options: str) -> None:
        self.servers, self.topic, self.markers = servers, topic, markers
        self.config = SinkConfig.of(
            {
                "kafka.bootstrap.servers": servers,
                "delivery": "exactly-once",
                "topic": topic,
                "markers.topic": markers,
                **options,
            }
        )

    def write(self, task: TaskIdentity, batches: Iterator[pa.RecordBatch], run: str = "run") -> TaskResult:
        return write_exactly_once(batches, Columns(("value",), self.topic), self.config, task, run)

    async def task(self, task: TaskIdentity, *values: str) -> int:
        """Do a task of a run in which no other fails."""
        return (await asyncio.to_thread(self.write, task, rows(*values))).rows

    async def replay(self, tasks: Mapping[int, str], run: str = "again") -> list[TaskResult]:
        """Do tasks of a run that the driver has not heard of yet."""
        return [
            await asyncio.to_thread(self.write, TaskIdentity("q", 0, task), rows(*letters), run)
            for task, letters in tasks.items()
        ]

    async def batch(self, tasks: Mapping[int, str], number: int = 0, dies: bool = False) -> None:
        """Do a run of a batch as Spark does it: tasks in the given order, and when all are done the driver.

        Tasks write a row for each letter. With `dies` the driver is gone before it could say anything.
        """
        done: list[TaskResult] = []
        run = secrets.token_hex(4)
        try:
            for partition, letters in tasks.items():
                task = TaskIdentity("q", number, partition)
                done.append(await asyncio.to_thread(self.write, task, rows(*letters), run))
            if not dies:
                await asyncio.to_thread(commit_all, done, self.config)
        except Exception:
            await asyncio.to_thread(abort_all, done, self.config)
            raise

    async def is_all_ended(self) -> bool:
        """Whether no transaction is open: readers of committed records come as far as all others."""
        partitions = [TopicPartition(self.topic, number) for number in range(2)]
        ends = []
        for level in ("read_committed", "read_uncommitted"):
            async with Consumer(bootstrap_servers=self.servers, isolation_level=level) as consumer:
                consumer.assign(partitions)
                ends.append(await consumer.end_offsets(partitions))
        return ends[0] == ends[1]

    async def committed(self) -> list[str]:
        """Return all values that readers of committed records see, sorted."""
        await self._ended()
        async with Consumer(
            bootstrap_servers=self.servers, isolation_level="read_committed", auto_offset_reset="earliest"
        ) as consumer:
            partitions = [TopicPartition(self.topic, number) for number in range(2)]
            consumer.assign(partitions)
            ends, found = await consumer.end_offsets(partitions), []
            while any([await consumer.position(each) < ends[each] for each in partitions]):
                batch = await consumer.fetch_arrow(timeout_ms=5_000, columns=["value"], until=ends)
                found += [value.decode() for value in batch.column("value").to_pylist()]
        return sorted(found)

    async def _ended(self) -> None:
        """Wait for the markers of ended transactions; five seconds where a test leaves one open."""
        partitions = [TopicPartition(self.topic, number) for number in range(2)]
        deadline = time.monotonic() + 5
        async with (
            Consumer(bootstrap_servers=self.servers, isolation_level="read_committed") as committed,
            Consumer(bootstrap_servers=self.servers) as written,
        ):
            # The brokers write the markers after they have answered the commit.
            while await committed.end_offsets(partitions) != await written.end_offsets(partitions):
                if time.monotonic() > deadline:
                    return
                await asyncio.sleep(0.05)


def rows(*values: str) -> Iterator[pa.RecordBatch]:
    """Give each value as a batch of its own; the empty ones before are those of Spark."""
    yield pa.record_batch({"value": pa.array([], pa.string())})
    for value in values:
        yield pa.record_batch({"value": [value]})


def careless(sink: Sink) -> Sink:
    """Give the same sink, to which it is no mistake when a batch comes again with other rows."""
    return Sink(sink.servers, sink.topic, sink.markers, failOnChangedReplay="false")


@pytest.fixture
async def make(cluster: Cluster, admin: Admin, fresh: Callable[[str], str]) -> Callable[..., Any]:
    """Make a sink with a topic of two partitions."""

    async def made(**options: str) -> Sink:
        topic = fresh("rows")
        await admin.topics.create(topic, partitions=2, replication_factor=1)
        return Sink(cluster.bootstrap_servers, topic, fresh("markers"), **options)

    return made


async def test_rows_that_come_again_are_written_once(make: Any) -> None:
    sink = await make()

    assert await sink.task(TaskIdentity("q", 0, 0), "a", "b") == 2
    assert await sink.task(TaskIdentity("q", 0, 0), "a", "b") == 2
    assert await sink.task(TaskIdentity("q", 0, 1), "c") == 1
    assert await sink.task(TaskIdentity("q", 1, 0), "d") == 1
    assert await sink.task(TaskIdentity("q", 1, 1)) == 0

    assert await sink.committed() == ["a", "b", "c", "d"]


async def test_a_batch_that_was_written_in_part_is_completed(make: Any) -> None:
    sink = await make()
    await sink.batch({1: "ab", 3: "c"}, dies=True)

    await sink.batch({0: "d", 1: "ab", 2: "", 3: "c"})
    assert await sink.committed() == ["a", "b", "c", "d"]
    await sink.batch({0: "d", 1: "ab", 2: "", 3: "c"})
    await sink.batch({0: "e", 1: "", 2: "f", 3: ""}, number=1)

    assert await sink.committed() == ["a", "b", "c", "d", "e", "f"]


async def test_a_batch_that_was_written_in_part_is_completed_though_drivers_die_while_they_do_so(
    make: Any,
) -> None:
    sink = await make()
    await sink.batch({1: "b"}, dies=True)
    for _ in range(2):
        await sink.batch({0: "a", 1: "b", 2: "c"}, dies=True)
    # Of the next one the driver comes as far as one of the two transactions.
    done = [
        await asyncio.to_thread(sink.write, TaskIdentity("q", 0, task), rows(value), "last")
        for task, value in enumerate("abc")
    ]
    await asyncio.to_thread(commit_all, [done[0], done[1]], careless(sink).config)
    assert await sink.committed() == ["a", "b"]

    await sink.batch({0: "a", 1: "b", 2: "c"})

    assert await sink.committed() == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        pytest.param({0: "ab", 1: "cd"}, {3: "d", 2: "c", 1: "b", 0: "a"}, id="more tasks"),
        pytest.param({0: "ab"}, {3: "d", 2: "c", 1: "b", 0: "a"}, id="more tasks, where one had written"),
        pytest.param({0: "a", 3: "b"}, {0: "a", 1: "bc"}, id="fewer tasks"),
        pytest.param({1: "ab"}, {0: "abc", 1: ""}, id="an empty task"),
    ],
)
async def test_a_batch_that_comes_again_cut_into_other_tasks_is_refused_and_nothing_written(
    make: Any, before: Mapping[int, str], now: Mapping[int, str]
) -> None:
    sink = await make()
    await sink.batch(before, dies=True)
    written = await sink.committed()

    with pytest.raises(ReplayChanged, match="the rows were distributed differently over the tasks"):
        await sink.batch(now)
    assert await sink.committed() == written == sorted("".join(before.values()))

    # As it was, it goes on.
    await sink.batch({**before, 4: "x"})
    assert await sink.committed() == [*written, "x"]


async def test_rows_that_are_drawn_by_chance_may_come_again_in_other_numbers(make: Any) -> None:
    sink = careless(await make())
    await sink.batch({0: "ab", 3: "c"}, dies=True)

    await sink.batch({0: "", 1: "d", 2: "e"})

    assert await sink.committed() == ["a", "b", "c", "d", "e"]


async def test_tasks_wait_for_no_others_where_changes_do_not_matter(make: Any) -> None:
    sink = careless(await make())
    await sink.batch({1: "b"}, dies=True)

    done = await sink.replay({0: "a", 1: "b", 2: "c"})

    assert [each.pending for each in done] == [None] * 3
    assert await sink.committed() == ["a", "b", "c"], "though the driver has not heard of them"


@pytest.mark.parametrize("cause", ["its time was over", "a late attempt"])
async def test_one_that_was_ended_while_it_waited_costs_its_own_rows_alone(make: Any, cause: str) -> None:
    sink = await make()
    await sink.batch({1: "b"}, dies=True)
    brief = Sink(sink.servers, sink.topic, sink.markers, **{"kafka.transaction.timeout.ms": "1000"})
    done = await (brief if cause == "its time was over" else sink).replay({0: "a"})
    if cause == "a late attempt":
        async with Producer(
            sink.servers, transactional_id=TaskIdentity("q", 0, 0).transactional_id("ottla-spark")
        ):
            pass  # it is stopped before it writes anything
    await ended(sink)
    done += await sink.replay({1: "b", 2: "c"})

    with pytest.raises(WaitedTooLong, match=r"'ottla-spark-q-0'.* while it waited for the other tasks"):
        await asyncio.to_thread(commit_all, done, sink.config)
    await asyncio.to_thread(abort_all, done, sink.config)  # as Spark does then
    assert await sink.committed() == ["b", "c"]

    await sink.batch({0: "a", 1: "b", 2: "c"})
    assert await sink.committed() == ["a", "b", "c"]


async def ended(sink: Sink) -> None:
    """Wait until no transaction is open in the topic: readers of committed records come to its end."""
    async with asyncio.timeout(60):
        while True:
            if await sink.is_all_ended():
                return
            await asyncio.sleep(0.1)


async def test_what_cannot_be_given_up_does_not_keep_others_open(make: Any) -> None:
    sink = await make()
    await sink.batch({1: "b"}, dies=True)
    done = await sink.replay({0: "a", 1: "b", 2: "c"})
    unknown = PendingTransaction(PreparedTransaction("nobody", 1, 0), 1_000)

    with pytest.raises(InvalidProducerIdMapping):
        await asyncio.to_thread(
            abort_all, [TaskResult(TaskIdentity("q", 0, 9), 1, True, unknown), *done], sink.config
        )

    assert await sink.is_all_ended()
    assert await sink.committed() == ["b"]
    await sink.batch({0: "a", 1: "b", 2: "c"})
    assert await sink.committed() == ["a", "b", "c"]


async def test_a_task_of_an_earlier_run_that_still_wrote_does_no_harm_while_the_query_is_as_it_was(
    make: Any,
) -> None:
    sink = await make()
    done: list[TaskResult] = []

    def while_it_writes() -> Iterator[pa.RecordBatch]:
        yield from rows("b")
        done.append(sink.write(TaskIdentity("q", 0, 0), rows("a"), "again"))

    await asyncio.to_thread(sink.write, TaskIdentity("q", 0, 1), while_it_writes(), "before")
    done += await sink.replay({1: "b", 2: "c"})
    await asyncio.to_thread(commit_all, done, sink.config)

    assert await sink.committed() == ["a", "b", "c"]


async def test_a_task_of_an_earlier_run_that_still_wrote_is_noticed_when_the_query_was_changed(
    make: Any,
) -> None:
    sink = await make()

    def while_it_writes() -> Iterator[pa.RecordBatch]:
        yield from rows("b", "c")
        sink.write(TaskIdentity("q", 0, 0), rows("a", "b"), "again")

    await asyncio.to_thread(sink.write, TaskIdentity("q", 0, 1), while_it_writes(), "before")

    with pytest.raises(ReplayChanged, match="with 2 rows, and was replayed with 1"):
        await sink.replay({1: "c"})


async def test_markers_are_in_a_topic_that_is_compacted(make: Any, admin: Admin) -> None:
    sink = await make()
    await sink.task(TaskIdentity("q", 0, 0), "a")

    entries = {each.name: each.value for each in await admin.configs.describe(TOPIC, sink.markers)}
    assert entries["cleanup.policy"] == "compact"
    assert len((await admin.topics.describe(sink.markers)).partitions) == 1


async def test_other_rows_than_before_are_refused_or_let_go_as_one_likes(make: Any) -> None:
    sink = await make()
    await sink.task(TaskIdentity("q", 0, 0), "a", "b")

    with pytest.raises(ReplayChanged, match="with 2 rows, and was replayed with 3"):
        await sink.task(TaskIdentity("q", 0, 0), "a", "b", "c")
    assert await careless(sink).task(TaskIdentity("q", 0, 0), "a", "b", "c") == 2

    assert await sink.committed() == ["a", "b"]


async def test_a_batch_from_before_is_refused(make: Any) -> None:
    sink = await make()
    await sink.task(TaskIdentity("q", 0, 0), "a")
    await sink.task(TaskIdentity("q", 1, 0), "b")

    for task in (0, 1):
        with pytest.raises(StaleBatch, match=r"or another markers\.topic"):
            await sink.task(TaskIdentity("q", 0, task), "a")
    assert await sink.committed() == ["a", "b"]

    another = Sink(sink.servers, sink.topic, f"{sink.markers}-2")
    await another.task(TaskIdentity("q", 0, 0), "a")
    assert await sink.committed() == ["a", "a", "b"]


async def test_what_a_task_wrote_that_failed_is_not_seen(make: Any) -> None:
    sink = await make()

    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows("a", "b")
        raise RuntimeError("the rows could not be made")

    with pytest.raises(RuntimeError):
        await asyncio.to_thread(sink.write, TaskIdentity("q", 0, 0), failing())
    assert await sink.committed() == []
    await sink.task(TaskIdentity("q", 0, 0), "a", "b")

    assert await sink.committed() == ["a", "b"]


async def test_what_a_task_left_open_that_was_killed_is_aborted_by_the_next(make: Any) -> None:
    sink = await make()
    task = TaskIdentity("q", 0, 0)
    # As of a process that is gone: it neither commits nor aborts, nor does it close its connections.
    killed = Producer(sink.servers, transactional_id=task.transactional_id("ottla-spark"))
    await killed.start()
    await killed.begin_transaction()
    await killed.send_and_wait(sink.topic, b"a")

    assert await sink.task(task, "a", "b") == 2

    assert await sink.committed() == ["a", "b"]
    await killed.stop()
    assert await sink.committed() == ["a", "b"]


async def overtaken(first: Sink, run: str, other: Callable[[], Awaitable[object]]) -> TaskResult:
    """Begin a task in the sink `first`, await the other, and return how the first one ended."""
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[pa.RecordBatch]:
        yield from rows("a")
        begun.set()
        go_on.wait(60)
        yield from rows("b")

    task = asyncio.create_task(asyncio.to_thread(first.write, TaskIdentity("q", 0, 0), slow(), run))
    await asyncio.to_thread(begun.wait, 60)
    await other()
    go_on.set()
    return await task


def in_other_process(sink: Sink, **options: str) -> Sink:
    """Return the sink as another process has it: with a client of its own."""
    return Sink(sink.servers, sink.topic, sink.markers, **{"kafka.client.id": "other", **options})


async def test_an_attempt_that_was_overtaken_is_done_with_the_other(make: Any) -> None:
    sink = await make()

    found = await overtaken(
        in_other_process(sink), "run", lambda: sink.task(TaskIdentity("q", 0, 0), "a", "b")
    )

    assert (found.rows, found.is_replay) == (2, False)
    assert await sink.committed() == ["a", "b"]


async def test_an_attempt_of_another_run_that_took_over_ends_this_one(make: Any) -> None:
    sink = await make()

    with pytest.raises(TransactionFenced, match="'ottla-spark-q-0' was ended from outside"):
        await overtaken(
            in_other_process(sink), "earlier", lambda: sink.task(TaskIdentity("q", 0, 0), "a", "b")
        )

    assert await sink.committed() == ["a", "b"]


async def test_an_attempt_is_awaited_for_the_time_of_a_transaction(make: Any) -> None:
    sink = await make()
    task = TaskIdentity("q", 0, 0)
    # It takes over, and does nothing.
    other = Producer(sink.servers, transactional_id=task.transactional_id("ottla-spark"))
    first = in_other_process(sink, **{"kafka.transaction.timeout.ms": "3000"})

    with pytest.raises(TransactionFenced, match="3000 ms"):
        await overtaken(first, "run", other.start)

    await other.stop()
    assert await sink.task(task, "a", "b") == 2
    assert await sink.committed() == ["a", "b"]


async def test_a_transaction_that_stays_open_hides_no_marker(make: Any, fresh: Callable[[str], str]) -> None:
    sink = await make()
    await sink.task(TaskIdentity("q", 0, 1), "a")
    async with Producer(sink.servers, transactional_id=fresh("killed")) as killed:
        await killed.begin_transaction()
        await killed.send_and_wait(sink.markers, b'{"batch": 0, "rows": 1, "run": "x"}', b"q/9", 0)
        await sink.task(TaskIdentity("q", 0, 0), "b")

        # In a worker that has read nothing yet.
        other = Sink(sink.servers, sink.topic, sink.markers, **{"kafka.client.id": "other"})
        assert await other.task(TaskIdentity("q", 0, 0), "b") == 1
        assert await other.task(TaskIdentity("q", 0, 1), "a") == 1
        assert await other.task(TaskIdentity("q", 0, 9), "c") == 1  # its marker was not committed
        await killed.abort_transaction()

    assert await sink.committed() == ["a", "b", "c"]


async def test_markers_are_deleted_when_nobody_will_ask(make: Any) -> None:
    sink = await make()
    task = TaskIdentity("write-1", 0, 0)
    await sink.task(task, "a")

    # In a process that has not asked for any, as Spark's when it says that all tasks are done.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        await asyncio.wrap_future(process.submit(forget_tasks, [task], sink.config))

    assert await sink.task(task, "a") == 1  # it is forgotten, and so it is written again
    assert await sink.committed() == ["a", "a"]


async def test_a_topic_that_loses_markers_is_refused(make: Any, admin: Admin) -> None:
    sink = await make()
    await admin.topics.create(
        sink.markers, partitions=1, replication_factor=1, configs={"cleanup.policy": "delete"}
    )

    with pytest.raises(MarkersUnreadable, match=r"cleanup\.policy=delete"):
        await sink.task(TaskIdentity("q", 0, 0), "a")

    assert await sink.committed() == []


async def made_again(admin: Admin, topic: str) -> None:
    """Make a topic that was deleted, as soon as the broker lets one."""
    async with asyncio.timeout(60):
        while True:
            try:
                await admin.topics.create(
                    topic, partitions=1, replication_factor=1, configs={"cleanup.policy": "compact"}
                )
                return
            except TopicAlreadyExists:
                await asyncio.sleep(0.1)


async def test_a_topic_of_markers_that_is_deleted_and_made_again_is_read_anew(
    make: Any, admin: Admin
) -> None:
    sink = await make()
    for batch in range(3):
        await sink.task(TaskIdentity("q", batch, 0), str(batch))
    await admin.topics.delete(sink.markers)

    again = Sink(sink.servers, sink.topic, sink.markers, **{"kafka.client.id": "again"})
    await made_again(admin, sink.markers)
    assert await again.task(TaskIdentity("q", 0, 0), "new") == 1
    assert await sink.task(TaskIdentity("q", 0, 0), "new") == 1

    assert await sink.committed() == ["0", "1", "2", "new"]


async def test_a_timeout_that_brokers_do_not_allow_is_named(make: Any) -> None:
    sink = await make(**{"kafka.transaction.timeout.ms": "2000000000"})

    with pytest.raises(OptionError, match=r"transaction\.max\.timeout\.ms"):
        await sink.task(TaskIdentity("q", 0, 0), "a")
