"""The registry's topic: restarts, several registries at once, fenced writers, records of Confluent's."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from ottla.admin import TOPIC, Admin
from ottla.broker.testing import BrokerThread
from ottla.client.config import ClientConfig
from ottla.consumer import Consumer
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition
from ottla.registry.server.errors import INCOMPATIBLE, Refused
from ottla.registry.server.parsing import SchemaParser
from ottla.registry.server.questions import GivenSchema
from ottla.registry.server.service import RegistryService
from ottla.registry.server.serving import RegistrySettings, opened_registry
from ottla.registry.server.state import Record, RegistryState
from ottla.registry.server.topic import NotWritten, SchemasTopic, schemas_topic


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path_factory.mktemp("broker")) as running:
        yield running


def client_of(broker: BrokerThread) -> ClientConfig:
    return ClientConfig(bootstrap_servers=broker.bootstrap_servers)


def registry(broker: BrokerThread, topic: str) -> RegistrySettings:
    return RegistrySettings(client=client_of(broker), topic=topic)


def record(*fields: str) -> GivenSchema:
    listed = [{"name": name, "type": "long"} for name in fields]
    return GivenSchema("AVRO", json.dumps({"type": "record", "name": "R", "fields": listed}))


async def register(service: RegistryService, subject: str, given: GivenSchema) -> tuple[int, int]:
    value = await service.register(subject, given, normalize=False)
    return value.id, value.version


async def test_a_registry_begins_with_that_which_the_topic_has(broker: BrokerThread) -> None:
    settings = registry(broker, "restarted")
    async with opened_registry(settings) as first:
        await first.set_level("", {"compatibility": "NONE"})
        await first.set_mode("closed", "READONLY", force=False)
        ids = [await register(first, "kept", record(*"ab"[: count + 1])) for count in range(2)]
        await register(first, "gone", record("x"))
        await first.delete_subject("gone", permanent=False)
        await first.delete_subject("gone", permanent=True)
        await first.delete_version("kept", 1, permanent=False)

    async with opened_registry(settings) as second:
        assert list(second.state.names(deleted=True)) == ["kept"]
        assert [value.version for value in second.state.versions("kept")] == [2]
        assert second.level("kept", default_to_global=True)[0] == "NONE"
        assert second.mode("closed", default_to_global=False) == "READONLY"
        assert await register(second, "kept", record("a", "b")) == ids[1]
        # Records may name the id of a schema that is gone for good: it is not given again.
        assert await register(second, "kept", record("z")) == (4, 3)

    async with Admin(broker.bootstrap_servers) as admin:
        entries = {entry.name: entry.value for entry in await admin.configs.describe(TOPIC, "restarted")}
    assert entries["cleanup.policy"] == "compact"


async def test_two_registries_of_one_topic_take_changes_and_give_each_id_once(broker: BrokerThread) -> None:
    settings = registry(broker, "shared")
    async with opened_registry(settings) as first, opened_registry(settings) as second:
        found = await asyncio.gather(
            *(register((first, second)[index % 2], f"s{index}", record(f"f{index}")) for index in range(6)),
            *(register(service, "same", record("same")) for service in (first, second)),
        )
        for service in (first, second):
            await service.catch_up()

        ids = [schema_id for schema_id, _ in found]
        assert ids[6] == ids[7]
        assert sorted({*ids}) == list(range(1, 8))
        for name in first.state.names():
            assert first.version(name, "latest") == second.version(name, "latest")


async def test_a_decision_by_an_old_state_is_decided_once_more(
    broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    settings = registry(broker, "raced")
    async with opened_registry(settings) as first, opened_registry(settings) as second:
        await register(first, "s", record("a"))
        # `second` may not have read the record yet: it leads only once it has.
        with pytest.raises(Refused) as refused:
            await register(second, "s", record("a", "b"))
        assert refused.value.code == INCOMPATIBLE

        # `first` does not know that it was fenced; its write fails, and it decides by what `second` wrote.
        await second.set_level("s", {"compatibility": "NONE"})
        assert (await register(second, "s", record("b")))[1] == 2
        assert (await register(first, "s", record("c")))[1] == 3

    gc.collect()
    assert "not delivered" not in caplog.text


class LosingTopic:
    """The topic, whose answers to writes are lost: a write may be in it nevertheless."""

    def __init__(self, topic: SchemasTopic, is_written: bool) -> None:
        self.name = topic.name
        self.writes = 0
        self._topic = topic
        self._is_written = is_written

    async def lead(self) -> None:
        await self._topic.lead()

    def was_written(self, token: str) -> bool:
        return self._topic.was_written(token)

    async def catch_up(self) -> None:
        await self._topic.catch_up()

    async def append(self, records: Sequence[Record]) -> None:
        self.writes += 1
        if self.writes > 1:
            await self._topic.append(records)
            return
        token = "never-written"
        if self._is_written:
            token = await self._topic._write(records)
        await self._topic.stop_leading()
        raise NotWritten(token, ConnectionError("the answer was lost"))


@asynccontextmanager
async def losing(
    broker: BrokerThread, is_written: bool
) -> AsyncIterator[tuple[RegistryService, LosingTopic]]:
    state = RegistryState()
    async with AsyncExitStack() as stack:
        parser = await stack.enter_async_context(SchemaParser())
        name = f"lost-{is_written}"
        opened = schemas_topic(name, client_of(broker), state.apply)
        topic = LosingTopic(await stack.enter_async_context(opened), is_written)
        yield RegistryService(state, topic, parser), topic


@pytest.mark.parametrize("is_written", [False, True])
async def test_a_write_without_an_answer_is_done_once(broker: BrokerThread, is_written: bool) -> None:
    async with losing(broker, is_written) as (service, topic):
        assert await register(service, "s", record("a")) == (1, 1)
        assert topic.writes == (1 if is_written else 2)
        assert [value.version for value in service.state.versions("s")] == [1]
        assert await service.delete_subject("s", permanent=False) == [1]


CONFLUENTS: list[tuple[object, object]] = [
    ({"keytype": "NOOP", "magic": 0}, None),
    (
        {"keytype": "SCHEMA", "subject": "orders-value", "version": 1, "magic": 1},
        {"subject": "orders-value", "version": 1, "id": 41, "md5": "x",
         "schema": '"string"', "deleted": False},
    ),
    (
        {"keytype": "SCHEMA", "subject": "pay-value", "version": 3, "magic": 1},
        {"subject": "pay-value", "version": 3, "id": 42, "schemaType": "JSON", "schema": "{}",
         "deleted": False, "references": [], "metadata": None, "ruleSet": None},
    ),
    ({"keytype": "CONFIG", "subject": None, "magic": 0}, {"compatibilityLevel": "FULL"}),
    ({"keytype": "MODE", "subject": "pay-value", "magic": 0}, {"mode": "READONLY"}),
    ({"keytype": "DELETE_SUBJECT", "subject": "orders-value", "magic": 0},
     {"subject": "orders-value", "version": 1}),
    ({"keytype": "CONTEXT", "tenant": "default", "context": ".", "magic": 0},
     {"tenant": "default", "context": "."}),
    ("nonsense", 7),
]  # fmt: skip


async def test_a_topic_of_confluents_registry_is_read_and_written_on(broker: BrokerThread) -> None:
    async with Admin(broker.bootstrap_servers) as admin:
        await admin.topics.create("theirs", partitions=1, configs={"cleanup.policy": "compact"})
    async with Producer(broker.bootstrap_servers) as producer:
        for key, value in CONFLUENTS:
            content = None if value is None else json.dumps(value).encode()
            await producer.send_and_wait("theirs", content, key=json.dumps(key).encode(), partition=0)

    async with opened_registry(registry(broker, "theirs")) as service:
        assert list(service.state.names()) == ["pay-value"]
        assert list(service.state.names(deleted=True)) == ["orders-value", "pay-value"]
        assert service.by_id(42).schema_type == "JSON"
        assert service.level("x", default_to_global=True)[0] == "FULL"
        assert await register(service, "new", record("a")) == (43, 1)
        assert await register(service, "other", GivenSchema("AVRO", '"string"')) == (41, 1)

    keys = await keys_of(broker, "theirs")
    assert {"keytype": "SCHEMA", "subject": "new", "version": 1, "magic": 1} in keys


async def keys_of(broker: BrokerThread, topic: str) -> list[object]:
    partition = TopicPartition(topic, 0)
    consumer = Consumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest")
    consumer.assign([partition])
    keys: list[object] = []
    async with consumer:
        end = (await consumer.end_offsets([partition]))[partition]
        while await consumer.position(partition) < end:
            found = await consumer.getmany(timeout_ms=200)
            keys += [json.loads(entry.key or b"null") for entry in found.get(partition, ())]
    return keys


@pytest.mark.parametrize(
    ("partitions", "policy", "words"),
    [(2, "compact", "has 2 partitions"), (1, "delete", "would lose schemas")],
)
async def test_a_topic_that_would_lose_schemas_is_refused(
    broker: BrokerThread, partitions: int, policy: str, words: str
) -> None:
    name = f"unfit-{policy}"
    async with Admin(broker.bootstrap_servers) as admin:
        await admin.topics.create(name, partitions=partitions, configs={"cleanup.policy": policy})

    with pytest.raises(Refused, match=words):
        async with opened_registry(registry(broker, name)):
            raise AssertionError("it was opened")


def test_a_registry_on_a_thread_ends_with_its_block(broker: BrokerThread, tmp_path: Path) -> None:
    from ottla.registry.testing import RegistryThread

    with RegistryThread(broker.bootstrap_servers, topic="threaded") as running:
        assert running.url.startswith("http://127.0.0.1:")
        assert "ottla-registry" in {thread.name for thread in threading.enumerate()}
    assert "ottla-registry" not in {thread.name for thread in threading.enumerate()}
