"""A processor on a real broker."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest

from ottla.admin import Admin
from ottla.broker.testing import BrokerThread
from ottla.client.group_metadata import OffsetAndMetadata
from ottla.client.log_formats import facts_of
from ottla.client.settings import SettingError
from ottla.consumer import Consumer, ConsumerRecord
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition
from ottla.streams import Processor
from ottla.streams.errors import HandlerCancelled, HandlerFailed, HandlerTimedOut, OutputFailed
from ottla.streams.seams import DeadLetter, Plan, Retry, Skip, Verdict, Work
from peers.order_processors import WAIT_S, processor, until

P0 = TopicPartition("orders", 0)


async def write(broker: BrokerThread, keys: Sequence[str | None], partitions: int = 1) -> None:
    async with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        await admin.topics.create("orders", partitions=partitions)
    await append(broker, keys)


async def append(broker: BrokerThread, keys: Sequence[str | None]) -> None:
    async with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number, key in enumerate(keys):
            await producer.send("orders", str(number).encode(), key=None if key is None else key.encode())
        await producer.flush()


async def committed(broker: BrokerThread, partition: TopicPartition = P0) -> OffsetAndMetadata | None:
    async with Consumer(bootstrap_servers=broker.bootstrap_servers, group_id="g") as consumer:
        return (await consumer.committed_offsets([partition])).get(partition)


class Policy:
    """A failure policy that answers what a test wants."""

    def __init__(self, verdict: Callable[[Work, BaseException, int], Verdict]) -> None:
        self.decide = verdict
        self.set_aside_calls: list[int] = []
        self.failures_of_set_aside = 0

    async def set_aside(self, work: Work, error: BaseException) -> None:
        self.set_aside_calls.append(work.offset)
        if self.failures_of_set_aside:
            self.failures_of_set_aside -= 1
            raise ConnectionError("no broker")


async def test_each_key_is_handled_in_order_while_many_run(ottla_broker: BrokerThread) -> None:
    await write(ottla_broker, [f"key{number % 20}" for number in range(400)], partitions=3)
    seen: dict[bytes, list[int]] = defaultdict(list)
    running = most = 0

    async def handle(record: ConsumerRecord) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        seen[record.key].append(int(record.value))

    async with processor(ottla_broker, handle):
        await until(lambda: sum(map(len, seen.values())) == 400)

    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert len(seen) == 20
    assert most > 3


async def test_what_is_handled_is_committed_and_does_not_run_again(ottla_broker: BrokerThread) -> None:
    await write(ottla_broker, ["a", "b", "c"])
    seen: list[int] = []

    async def handle(record: ConsumerRecord) -> None:
        seen.append(record.offset)

    async with processor(ottla_broker, handle):
        await until(lambda: len(seen) == 3)
    await append(ottla_broker, ["d"])
    async with processor(ottla_broker, handle):
        await until(lambda: len(seen) == 4)

    assert seen == [0, 1, 2, 3]
    assert await committed(ottla_broker) == OffsetAndMetadata(4)


async def test_records_finished_out_of_order_do_not_run_again_after_a_restart(
    ottla_broker: BrokerThread,
) -> None:
    await write(ottla_broker, ["slow", *"abcdefgh"])
    first: list[int] = []
    second: list[int] = []

    async def handle(record: ConsumerRecord) -> None:
        if record.key == b"slow":
            await asyncio.sleep(1_000)
        first.append(record.offset)

    async def handle_again(record: ConsumerRecord) -> None:
        second.append(record.offset)

    async with processor(ottla_broker, handle, drain_timeout_ms=10):
        await until(lambda: len(first) == 8)
    found = await committed(ottla_broker)
    assert found is not None
    assert found.offset == 0
    assert found.metadata.startswith("ottla1.")

    await append(ottla_broker, ["last"])
    async with processor(ottla_broker, handle_again):
        await until(lambda: 9 in second)
    assert sorted(second) == [0, 9]


async def test_metadata_of_another_application_is_ignored(ottla_broker: BrokerThread) -> None:
    await write(ottla_broker, ["a", "b", "c"])
    async with Consumer(bootstrap_servers=ottla_broker.bootstrap_servers, group_id="g") as consumer:
        consumer.assign([P0])
        await consumer.commit({P0: OffsetAndMetadata(1, "a note")})
    seen: list[int] = []

    async def handle(record: ConsumerRecord) -> None:
        seen.append(record.offset)

    async with processor(ottla_broker, handle):
        await until(lambda: len(seen) == 2)

    assert seen == [1, 2]


@pytest.mark.ottla_broker(offset_metadata_max_bytes=60)
async def test_metadata_shrinks_to_the_limit_of_the_broker(ottla_broker: BrokerThread) -> None:
    """Parallel Consumer's issues 647 and 831: a refused size stopped its commits."""
    await write(ottla_broker, [f"{number}" for number in range(1_000)])
    slow = {0, *random.Random(5).sample(range(1_000), 300)}

    async def handle(record: ConsumerRecord) -> None:
        if record.offset in slow:
            await asyncio.sleep(1_000)

    one = processor(ottla_broker, handle, drain_timeout_ms=10)
    async with one:
        await until(lambda: one.scheduler.limits.commit_metadata_max_bytes < 4_096)
    found = await committed(ottla_broker)

    assert found is not None
    assert found.offset == 0
    assert len(found.metadata) <= 60
    assert found.metadata


async def test_a_failure_stops_the_processor_and_names_the_record(ottla_broker: BrokerThread) -> None:
    await write(ottla_broker, ["a", "b", "c"])
    seen: list[int] = []

    async def handle(record: ConsumerRecord) -> None:
        if record.offset == 1:
            raise ValueError("no such customer")
        seen.append(record.offset)

    with pytest.raises(
        HandlerFailed, match=r"topic orders, partition 0, offset 1\): ValueError: no such customer"
    ):
        async with asyncio.timeout(WAIT_S):
            await processor(ottla_broker, handle).run()

    found = await committed(ottla_broker)
    assert found is not None
    assert found.offset == 1


async def test_a_failure_lets_other_handlers_finish(ottla_broker: BrokerThread) -> None:
    await write(ottla_broker, ["bad", "slow"])
    started, finished = asyncio.Event(), []

    async def handle(record: ConsumerRecord) -> None:
        if record.key == b"bad":
            await started.wait()
            raise ValueError
        started.set()
        await asyncio.sleep(0.1)
        finished.append(record.offset)

    with pytest.raises(HandlerFailed):
        async with asyncio.timeout(WAIT_S):
            await processor(ottla_broker, handle).run()

    assert finished == [1]


async def test_a_handler_that_hangs_is_cancelled_at_its_timeout(ottla_broker: BrokerThread) -> None:
    await write(ottla_broker, ["a"])

    async def handle(record: ConsumerRecord) -> None:
        await asyncio.sleep(1_000)

    with pytest.raises(HandlerFailed, match="offset 0") as caught:
        async with asyncio.timeout(WAIT_S):
            await processor(ottla_broker, handle, handler_timeout_ms=30).run()

    assert isinstance(caught.value.cause, HandlerTimedOut)


async def test_a_handler_that_cancels_itself_has_failed(ottla_broker: BrokerThread) -> None:
    await write(ottla_broker, ["a"])

    async def handle(record: ConsumerRecord) -> None:
        raise asyncio.CancelledError

    with pytest.raises(HandlerFailed) as caught:
        async with asyncio.timeout(WAIT_S):
            await processor(ottla_broker, handle).run()

    assert isinstance(caught.value.cause, HandlerCancelled)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
async def test_what_is_no_exception_stops_the_processor_and_is_raised(
    ottla_broker: BrokerThread, error: BaseException
) -> None:
    await write(ottla_broker, ["a", "b"])
    policy = Policy(lambda *_: Skip())

    async def handle(record: ConsumerRecord) -> None:
        if record.offset == 1:
            raise error

    one = Processor(
        handle, "orders", bootstrap_servers=ottla_broker.bootstrap_servers, group_id="g", failures=policy
    )
    raised: BaseException | None = None
    try:
        async with asyncio.timeout(WAIT_S):
            await one.run()
    except BaseException as found:
        raised = found

    assert raised is error
    assert await committed(ottla_broker) == OffsetAndMetadata(1)


async def test_a_retry_holds_up_its_key_only(ottla_broker: BrokerThread) -> None:
    await write(ottla_broker, ["bad", "bad", "good"])
    seen: list[tuple[int, int]] = []

    async def handle(work: Work) -> None:
        seen.append((work.offset, work.attempt))
        if work.offset == 0 and work.attempt < 3:
            raise ValueError

    class AttemptHandler:
        async def __call__(self, work: Work) -> None:
            await handle(work)

    policy = Policy(lambda _work, _error, now_ms: Retry(now_ms + 30))
    async with processor(ottla_broker, AttemptHandler(), failures=policy):
        await until(lambda: len(seen) == 5)

    assert seen == [(0, 1), (2, 1), (0, 2), (0, 3), (1, 1)]
    assert await committed(ottla_broker) == OffsetAndMetadata(3)


async def test_a_dead_letter_that_is_refused_is_written_again_without_another_attempt(
    ottla_broker: BrokerThread,
) -> None:
    await write(ottla_broker, ["bad", "bad", "good"])
    handled: list[int] = []

    def decide(work: Work, error: BaseException, now_ms: int) -> Verdict:
        return Retry(now_ms + 1) if isinstance(error, ConnectionError) else DeadLetter()

    async def handle(record: ConsumerRecord) -> None:
        handled.append(record.offset)
        if record.offset == 0:
            raise ValueError

    policy = Policy(decide)
    policy.failures_of_set_aside = 2
    async with processor(ottla_broker, handle, failures=policy):
        await until(lambda: len(handled) == 3)

    assert handled == [0, 2, 1]
    assert policy.set_aside_calls == [0, 0, 0]
    assert await committed(ottla_broker) == OffsetAndMetadata(3)


async def test_slow_handlers_hold_intake_within_its_bound(ottla_broker: BrokerThread) -> None:
    await write(ottla_broker, [None] * 5_000)
    gate = asyncio.Event()
    seen = most = 0

    async def handle(record: ConsumerRecord) -> None:
        nonlocal seen, most
        most = max(most, one.scheduler.totals.buffered)
        await gate.wait()
        seen += 1

    one = processor(ottla_broker, handle, max_buffered_records=600, max_concurrency=10)
    async with one:
        await until(lambda: one.consumer.paused())
        await asyncio.sleep(0.1)  # that nothing more is taken in cannot be waited for
        gate.set()
        await until(lambda: seen == 5_000)

    assert most <= 600 + 256


async def test_outputs_that_are_not_acknowledged_stop_the_processor(ottla_broker: BrokerThread) -> None:
    await write(ottla_broker, ["a", "b"])

    class Refusing:
        def settle(self, work: Work) -> asyncio.Future[None] | None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if work.offset == 1:
                future.set_exception(ConnectionError("gone"))
            else:
                future.set_result(None)
            return future

        def discard(self, work: Work) -> None: ...

        def revoked(self, partition: TopicPartition) -> None: ...

    async def handle(record: ConsumerRecord) -> None: ...

    with pytest.raises(OutputFailed, match="offset 1"):
        async with asyncio.timeout(WAIT_S):
            await processor(ottla_broker, handle, outputs=Refusing()).run()

    assert await committed(ottla_broker) == OffsetAndMetadata(1)


async def test_a_refused_commit_names_the_record_and_is_repeated(
    ottla_broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    """Parallel Consumer's issues 629 and 857."""
    await write(ottla_broker, ["a"])
    refusals = 2

    class Sometimes:
        interval_ms = 10
        is_pending = False

        def __init__(self, consumer: Consumer) -> None:
            self._consumer = consumer

        async def commit(self, plans: Sequence[Plan]) -> Sequence[Plan]:
            nonlocal refusals
            if refusals:
                refusals -= 1
                raise TimeoutError("the coordinator is gone")
            await self._consumer.commit({plan.partition: plan.offset for plan in plans})
            return plans

    async def handle(record: ConsumerRecord) -> None: ...

    async with processor(ottla_broker, handle, commits=Sometimes):
        await until(lambda: not refusals)

    assert await committed(ottla_broker) == OffsetAndMetadata(1)
    (line,) = (line for line in caplog.records if line.getMessage() == "offsets are not committed")
    assert facts_of(line) == {"offsets": "orders-0@1", "reason": "TimeoutError: the coordinator is gone"}


async def test_a_thread_that_is_over_its_time_out_and_stops_is_followed_by_no_record_of_its_key(
    ottla_broker: BrokerThread,
) -> None:
    """With a retry, a skip or a dead letter it may be: nothing can end a thread (write-handlers.md)."""
    await write(ottla_broker, ["a", "a"])
    started: list[int] = []
    go_on = threading.Event()

    def handle(record: ConsumerRecord) -> None:
        started.append(record.offset)
        go_on.wait(WAIT_S)

    one = processor(ottla_broker, handle, handler_timeout_ms=50, on_error={HandlerTimedOut: "stop"})
    with pytest.raises(HandlerFailed):
        async with asyncio.timeout(WAIT_S), one:
            try:
                await one.wait()
            finally:
                go_on.set()

    assert started == [0]


async def test_a_processor_without_a_group_is_refused() -> None:
    async def handle(record: ConsumerRecord) -> None: ...

    with pytest.raises(SettingError, match="group_id is needed"):
        Processor(handle, "orders")


async def test_a_processor_that_cannot_subscribe_leaves_nothing_behind(ottla_broker: BrokerThread) -> None:
    async def handle(record: ConsumerRecord) -> None: ...

    before = asyncio.all_tasks()
    with pytest.raises(ValueError, match="topic"):
        async with Processor(handle, group_id="g", bootstrap_servers=ottla_broker.bootstrap_servers):
            pass

    await until(lambda: asyncio.all_tasks() <= before)


async def test_an_error_of_the_block_is_raised(ottla_broker: BrokerThread) -> None:
    await write(ottla_broker, ["a"])

    async def handle(record: ConsumerRecord) -> None: ...

    with pytest.raises(LookupError, match="mine"):
        async with processor(ottla_broker, handle):
            raise LookupError("mine")


async def test_stop_ends_run(ottla_broker: BrokerThread) -> None:
    await write(ottla_broker, ["a"])

    async def handle(record: ConsumerRecord) -> None:
        one.stop()

    one = processor(ottla_broker, handle)
    async with asyncio.timeout(WAIT_S):
        await one.run()

    assert await committed(ottla_broker) == OffsetAndMetadata(1)
