"""Dead letters of a running broker: which records go to the topic, and what happens when it takes none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.admin import GROUP, TOPIC, Admin, Change
from ottla.broker.metrics.registry import Meter
from ottla.broker.share import dead_letters
from ottla.broker.testing import BrokerThread
from ottla.consumer import Consumer, ConsumerConfig, ShareConsumer, ShareConsumerConfig
from ottla.producer import Producer
from ottla.protocol.errors import InvalidConfig, NotLeaderOrFollower

BOUND_S = 60.0
SETTINGS = {
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.heartbeat.interval.ms": "200",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "1000",
    "share.coordinator.state.topic.num.partitions": "2",
    "offsets.topic.num.partitions": "2",
    "errors.deadletterqueue.auto.create.topics.enable": "true",
    "auto.create.topics.enable": "false",  # a reader would create a topic that is not for dead letters
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path_factory.mktemp("broker"), SETTINGS) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Return a name for a topic, and for the group that reads it."""
    name: str = request.node.originalname.removeprefix("test_")[:60]
    return name


async def set_up(broker: BrokerThread, topic: str, values: list[str], **settings: str) -> None:
    """Make a topic with records, and a group of its name that reads it from its beginning."""
    async with Admin(broker.bootstrap_servers) as admin:
        await admin.topics.create(topic, partitions=1)
        await configure(admin, topic, **{"share.auto.offset.reset": "earliest"} | settings)
    async with Producer(broker.bootstrap_servers) as producer:
        for number, value in enumerate(values):
            await producer.send_and_wait(topic, value.encode(), key=f"k{number}".encode())


async def configure(admin: Admin, group: str, **settings: str) -> None:
    await admin.configs.alter(GROUP, group, settings)


def letters_to(name: str, *, copy: bool = False) -> dict[str, str]:
    return {
        "errors.deadletterqueue.topic.name": name,
        "errors.deadletterqueue.copy.record.enable": str(copy).lower(),
    }


def member(broker: BrokerThread, topic: str) -> ShareConsumer[Any, str]:
    config = ShareConsumerConfig.of(group_id=topic, value_type=str)
    return ShareConsumer(topic, bootstrap_servers=broker.bootstrap_servers, config=config)


async def reject_all(broker: BrokerThread, topic: str, count: int) -> None:
    async with member(broker, topic) as consumer, asyncio.timeout(BOUND_S):
        for _ in range(count):
            await (await consumer.getone()).reject()


async def letters(broker: BrokerThread, name: str, count: int) -> list[Any]:
    """Read the first records of a dead-letter topic, of any of its partitions."""
    config = ConsumerConfig(auto_offset_reset="earliest")
    async with (
        Consumer(name, bootstrap_servers=broker.bootstrap_servers, config=config) as consumer,
        asyncio.timeout(BOUND_S),
    ):
        return [await consumer.getone() for _ in range(count)]


async def finished(broker: BrokerThread, group: str) -> None:
    """Wait until the group has finished all records."""
    lags: list[int | None] = []
    async with Admin(broker.bootstrap_servers) as admin, asyncio.timeout(BOUND_S):
        while lags != [0]:
            lags = [found.lag for found in await admin.groups.share_offsets(group)]
            await asyncio.sleep(0.05)  # the coordinator learns it from the leader


def headers_of(record: Any) -> dict[str, str]:
    return {name: value.decode() for name, value in record.headers}


def count_of(broker: BrokerThread, name: str, group: str) -> int:
    assert broker.broker is not None
    found = broker.broker.metrics.get("kafka.server", "ShareGroupMetrics", name, group=group)
    return found.count if isinstance(found, Meter) else 0


async def test_a_rejected_record_is_told_of_in_the_dead_letter_topic(
    broker: BrokerThread, topic: str
) -> None:
    await set_up(broker, topic, ["a", "b"], **letters_to("dlq.rejected"))

    async with member(broker, topic) as consumer, asyncio.timeout(BOUND_S):
        async with await consumer.getone():
            pass
        await (await consumer.getone()).reject()
        found = await letters(broker, "dlq.rejected", 1)
        await finished(broker, topic)

        assert count_of(broker, "DeadLetterQueueRecordCount", topic) == 1
        assert count_of(broker, "DeadLetterQueueTotalProduceRequestsPerSec", topic) == 1
        assert count_of(broker, "DeadLetterQueueFailedProduceRequestsPerSec", topic) == 0

    assert [(record.key, record.value) for record in found] == [(None, None)]
    assert [name for name, _ in found[0].headers] == [
        "__dlq.errors.topic", "__dlq.errors.partition", "__dlq.errors.offset", "__dlq.errors.group",
        "__dlq.errors.delivery.count", "__dlq.errors.message",
    ]  # fmt: skip
    assert list(headers_of(found[0]).values()) == [topic, "0", "1", topic, "1", "Offset rejected by client."]


async def test_records_whose_deliveries_run_out_are_copied_where_the_group_wants_that(
    broker: BrokerThread, topic: str
) -> None:
    limit = {"share.delivery.count.limit": "2"}
    await set_up(broker, topic, ["a", "b"], **letters_to("dlq.run.out", copy=True) | limit)

    async with member(broker, topic) as consumer, asyncio.timeout(BOUND_S):
        for _ in range(4):
            await (await consumer.getone()).release()
        found = await letters(broker, "dlq.run.out", 2)

    assert [(record.key, record.value) for record in found] == [(b"k0", b"a"), (b"k1", b"b")]
    for record in found:
        assert headers_of(record)["__dlq.errors.delivery.count"] == "2"
        assert headers_of(record)["__dlq.errors.message"] == "Offset delivery count exceeded the threshold."


async def test_a_record_gets_there_too_that_each_member_holds_until_its_lock_ends(
    broker: BrokerThread, topic: str
) -> None:
    limit = {"share.delivery.count.limit": "2"}
    await set_up(broker, topic, ["a"], **letters_to("dlq.held") | limit)

    async with (
        member(broker, topic) as one,
        member(broker, topic) as other,
        asyncio.timeout(BOUND_S),
    ):
        await one.getone()
        await other.getone()
        found = await letters(broker, "dlq.held", 1)

    assert headers_of(found[0])["__dlq.errors.delivery.count"] == "2"


async def test_a_created_topic_is_one_for_dead_letters(broker: BrokerThread, topic: str) -> None:
    await set_up(broker, topic, ["a"], **letters_to("dlq.created"))

    await reject_all(broker, topic, 1)
    await letters(broker, "dlq.created", 1)

    async with Admin(broker.bootstrap_servers) as admin:
        described = await admin.configs.describe(TOPIC, "dlq.created")
    assert {entry.name: entry.value for entry in described}["errors.deadletterqueue.group.enable"] == "true"


@pytest.mark.parametrize("name", ["orders", "dlq.other"])
async def test_a_topic_that_is_not_for_dead_letters_gets_none_and_the_group_goes_on(
    broker: BrokerThread, name: str
) -> None:
    group = f"refused-{name}"
    async with Admin(broker.bootstrap_servers) as admin:
        await admin.topics.create(name, partitions=1)
        if name == "orders":  # its name lacks the prefix
            await admin.configs.alter(TOPIC, name, {"errors.deadletterqueue.group.enable": "true"})
    await set_up(broker, group, ["a"], **letters_to(name))

    await reject_all(broker, group, 1)

    await finished(broker, group)
    assert log_end(broker, name) == 0


def log_end(broker: BrokerThread, topic: str) -> int:
    assert broker.broker is not None
    return sum(
        partition.log.log_end_offset
        for partition in broker.broker.services.replicas.leaders()
        if partition.topic_partition.topic == topic
    )


async def test_a_group_without_a_dead_letter_topic_archives_at_once(broker: BrokerThread, topic: str) -> None:
    await set_up(broker, topic, ["a"])

    await reject_all(broker, topic, 1)

    await finished(broker, topic)
    assert count_of(broker, "DeadLetterQueueTotalProduceRequestsPerSec", topic) == 0


async def test_a_record_that_does_not_fit_with_its_headers_goes_without_key_and_value(
    broker: BrokerThread, topic: str
) -> None:
    async with Admin(broker.bootstrap_servers) as admin:
        settings = {"errors.deadletterqueue.group.enable": "true", "max.message.bytes": "1000"}
        await admin.topics.create("dlq.small", partitions=1, configs=settings)
    values = ["x" * 900, "y" * 600, "z" * 600]
    await set_up(broker, topic, values, **letters_to("dlq.small", copy=True))

    await reject_all(broker, topic, 3)

    found = await letters(broker, "dlq.small", 3)
    assert [record.value and record.value[:1] for record in found] == [None, b"y", b"z"]
    assert [headers_of(record)["__dlq.errors.offset"] for record in found] == ["0", "1", "2"]


async def test_a_letter_arrives_also_where_its_leader_starts_again_before_it_is_written(
    broker: BrokerThread, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def never(*_: object) -> None:
        loop.call_soon_threadsafe(reached.set)
        await asyncio.Event().wait()

    await set_up(broker, topic, ["a", "b"], **letters_to("dlq.restarted"))
    with monkeypatch.context() as patched:
        patched.setattr(dead_letters.DeadLetterTopics, "_produce", never)
        async with member(broker, topic) as consumer, asyncio.timeout(BOUND_S):
            await (await consumer.getone()).reject()
            await consumer.commit()
            await reached.wait()
        await asyncio.to_thread(broker.restart)

    async with member(broker, topic) as again, asyncio.timeout(BOUND_S):
        record = await again.getone()
        found = await letters(broker, "dlq.restarted", 1)

    assert record.value == "b"
    assert headers_of(found[0])["__dlq.errors.message"] == "Offset rejected by client."


async def test_a_letter_is_given_up_after_some_attempts_and_the_group_goes_on(
    broker: BrokerThread, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = []

    async def fails(*_: object) -> None:
        attempts.append(1)
        raise NotLeaderOrFollower

    monkeypatch.setattr(dead_letters.DeadLetterTopics, "_produce", fails)
    monkeypatch.setattr(dead_letters, "FIRST_PAUSE_MS", 1)
    await set_up(broker, topic, ["a"], **letters_to("dlq.away"))

    async with member(broker, topic) as consumer, asyncio.timeout(BOUND_S):
        await (await consumer.getone()).reject()
        await finished(broker, topic)

        assert count_of(broker, "DeadLetterQueueFailedProduceRequestsPerSec", topic) == 1
    assert len(attempts) == dead_letters.ATTEMPTS


async def test_share_groups_have_no_dead_letters_at_level_1_and_have_them_again_at_level_2(
    broker: BrokerThread, topic: str
) -> None:
    async with Admin(broker.bootstrap_servers) as admin:
        await admin.features.update({"share.version": 1}, Change.SAFE_DOWNGRADE)
    await set_up(broker, topic, ["a"], **letters_to("dlq.levels"))
    await reject_all(broker, topic, 1)
    await finished(broker, topic)

    async with Admin(broker.bootstrap_servers) as admin:
        await admin.features.update({"share.version": 2})
    async with Producer(broker.bootstrap_servers) as producer:
        await producer.send_and_wait(topic, b"b")
    await reject_all(broker, topic, 1)

    found = await letters(broker, "dlq.levels", 1)
    assert headers_of(found[0])["__dlq.errors.offset"] == "1"


async def test_a_name_of_an_internal_topic_is_refused(broker: BrokerThread) -> None:
    async with Admin(broker.bootstrap_servers) as admin:
        with pytest.raises(InvalidConfig, match="must not start with __"):
            await configure(admin, "internal", **letters_to("__dlq"))
