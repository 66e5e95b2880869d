"""Serializers with real clients: lookups before the first record, evolution, references, rules, headers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any, Literal

import httpx
import pytest

from ottla.broker.testing import BrokerThread
from ottla.client.errors import DeadlineExceeded
from ottla.client.serialization import (
    DeserializationContext,
    PreparationNeeded,
    SentHeader,
    SerializationContext,
    SerializerUnprepared,
)
from ottla.consumer import Consumer, RecordDeserializationFailed, SyncConsumer
from ottla.producer import Producer, SerializationFailed, SyncProducer
from ottla.registry import (
    AvroDeserializer,
    AvroSerializer,
    JsonSchemaDeserializer,
    JsonSchemaSerializer,
    NoSchema,
    NotFramed,
    NotValid,
    ProtobufDeserializer,
    ProtobufSerializer,
    Reference,
    RulesNotSupported,
    Schema,
    SchemaRegistry,
    ServiceRefused,
)
from ottla.registry.testing import RegistryThread
from peers.json_service import Answer, Asked, JsonService, json_service
from peers.proto_classes import message_class

ORDER = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": ""}],
}  # fmt: skip
VISIT = {"title": "Visit", "type": "object", "properties": {"page": {"type": "string"}}, "required": ["page"]}
PAYMENT = """syntax = "proto3"; package shop;
message Other { }
message Payment { int64 cents = 1; message Card { string number = 1; } Card card = 2; }
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
async def registry(registry_url: str) -> AsyncIterator[SchemaRegistry]:
    async with SchemaRegistry(registry_url) as opened:
        yield opened


async def written(
    serializer: Any, value: Any, topic: str = "t", field: Literal["key", "value"] = "value",
    headers: list[SentHeader] | None = None,
) -> bytes:  # fmt: skip
    context = SerializationContext(topic, field, [] if headers is None else headers)
    while True:
        try:
            data: bytes = serializer.serialize(value, context)
        except PreparationNeeded as needed:
            await needed.prepare()
        else:
            return data


async def read(deserializer: Any, data: bytes, topic: str = "t", headers: Any = ()) -> Any:
    context = DeserializationContext(topic, 0, 0, "value", tuple(headers))
    while True:
        try:
            return deserializer.deserialize(data, context)
        except PreparationNeeded as needed:
            await needed.prepare()


async def test_records_are_written_and_read_by_their_schemas(
    broker: BrokerThread, registry: SchemaRegistry
) -> None:
    payment = message_class(PAYMENT, "shop.Payment")
    paid = payment(cents=3, card={"number": "4711"})
    kinds: dict[str, tuple[Any, Any, Any]] = {
        "avro": (AvroSerializer(registry, ORDER), AvroDeserializer(registry), {"id": 1, "note": "ä"}),
        "json": (JsonSchemaSerializer(registry, VISIT), JsonSchemaDeserializer(registry), {"page": "/"}),
        "proto": (ProtobufSerializer(registry), ProtobufDeserializer(registry, payment), paid),
    }
    for topic, (serializer, deserializer, value) in kinds.items():
        settings: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers}
        async with Producer(
            key_serializer=AvroSerializer(registry, '"string"', schema_id_in="header"),
            value_serializer=serializer, **settings,
        ) as producer:  # fmt: skip
            await producer.send_and_wait(topic, value, key="k", partition=0)
            await producer.send_many(topic, [value] * 3, keys=["k"] * 3, partition=0)

        async with Consumer(
            topic, auto_offset_reset="earliest", key_deserializer=AvroDeserializer(registry),
            value_deserializer=deserializer, **settings,
        ) as consumer:  # fmt: skip
            found = [await consumer.getone() for _ in range(4)]

        assert [record.value for record in found] == [value] * 4
        assert [record.key for record in found] == ["k"] * 4
        assert [name for name, _ in found[0].headers] == ["__key_schema_id"]


async def test_send_nowait_needs_a_schema_that_was_looked_up(
    broker: BrokerThread, registry: SchemaRegistry
) -> None:
    serializer = AvroSerializer(registry, ORDER)

    async with Producer(broker.bootstrap_servers, value_serializer=serializer) as producer:
        with pytest.raises(SerializerUnprepared):
            producer.send_nowait("at-once", {"id": 1})
        await serializer.prepare("at-once")
        await producer.send_nowait("at-once", {"id": 1})


async def test_a_value_that_is_by_no_serializer_is_an_error_of_its_record(
    broker: BrokerThread, registry: SchemaRegistry
) -> None:
    async with Producer(broker.bootstrap_servers) as producer:
        for value in (b"plain", b"\0\0\0\xff\xff\0"):
            await producer.send_and_wait("plain", value, partition=0)

    async with Consumer(
        "plain", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest",
        value_deserializer=AvroDeserializer(registry),
    ) as consumer:  # fmt: skip
        for offset, (cause, words) in enumerate(((NotFramed, "no schema id"), (NoSchema, "40403"))):
            with pytest.raises(RecordDeserializationFailed, match=words) as failed:
                await consumer.getone()
            assert isinstance(failed.value.__cause__, cause)
            consumer.seek(failed.value.partition, offset + 1)


async def test_a_value_that_does_not_fit_its_schema_is_not_sent(registry: SchemaRegistry) -> None:
    with pytest.raises(NotValid, match=r"\$: 'page' is a required property"):
        await written(JsonSchemaSerializer(registry, VISIT), {"pages": 1})
    with pytest.raises(ValueError, match="id"):
        await written(AvroSerializer(registry, ORDER), {"note": "x"}, "unfit")
    with pytest.raises(TypeError, match="a message of Protobuf is wanted, not dict"):
        await written(ProtobufSerializer(registry), {})
    assert await written(JsonSchemaSerializer(registry, VISIT, validate=False), {"pages": 1})


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [("topic", "t1-value"), ("record", "shop.Order"), ("topic-record", "t1-shop.Order"),
     (lambda topic, field, name: f"own-{topic}-{field}-{name}", "own-t1-value-shop.Order")],
)  # fmt: skip
async def test_subjects_have_names_by_strategy(
    registry: SchemaRegistry, registry_url: str, strategy: Any, subject: str
) -> None:
    await written(AvroSerializer(registry, ORDER, subject_name_strategy=strategy), {"id": 1}, "t1")

    assert subject in await registry.client.subjects()


async def test_schemas_without_names_and_settings_without_sense_are_refused(registry: SchemaRegistry) -> None:
    unnamed = JsonSchemaSerializer(registry, {"type": "object"}, subject_name_strategy="record")
    with pytest.raises(ValueError, match="has no name"):
        await written(unnamed, {})
    with pytest.raises(ValueError, match="'topic', 'record', 'topic-record'"):
        AvroSerializer(registry, ORDER, subject_name_strategy="recrod")
    with pytest.raises(ValueError, match="'prefix' or 'header'"):
        AvroSerializer(registry, ORDER, schema_id_in="suffix")


async def test_a_schema_that_must_be_there_is_not_registered(registry: SchemaRegistry) -> None:
    serializer = AvroSerializer(registry, ORDER, auto_register_schemas=False)

    with pytest.raises(ServiceRefused, match="40401"):
        await written(serializer, {"id": 1}, "must-be-there")
    await registry.register("must-be-there-value", Schema(json.dumps(ORDER)))
    assert (await written(serializer, {"id": 1}, "must-be-there"))[0] == 0


async def test_readers_take_what_their_own_schema_or_the_latest_makes_of_old_values(
    registry: SchemaRegistry,
) -> None:
    old = {**ORDER, "fields": ORDER["fields"][:1]}
    data = await written(AvroSerializer(registry, old), {"id": 1}, "evolved")
    await registry.register("evolved-value", Schema(json.dumps(ORDER)))

    assert await read(AvroDeserializer(registry), data, "evolved") == {"id": 1}
    assert await read(AvroDeserializer(registry, ORDER), data, "evolved") == {"id": 1, "note": ""}
    latest = AvroDeserializer(registry, use_latest_version=True)
    assert await read(latest, data, "evolved") == {"id": 1, "note": ""}
    by_latest = AvroSerializer(registry, old, use_latest_version=True)
    newer = await written(by_latest, {"id": 2, "note": "n"}, "evolved")
    assert await read(AvroDeserializer(registry), newer, "evolved") == {"id": 2, "note": "n"}


async def test_a_latest_version_is_asked_for_again_and_outlives_a_silent_registry(registry_url: str) -> None:
    now = 0.0

    def answer(asked: Asked) -> Answer:
        found = httpx.request(asked.method, f"{registry_url}{asked.path}", json=asked.body)
        return Answer(found.json(), found.status_code)

    async with json_service(lambda asked: Answer(raw=b"") if now > 700 else answer(asked)) as service:
        async with SchemaRegistry(service.url, now_s=lambda: now) as registry:
            await registry.register("aging-value", Schema(json.dumps(ORDER)))
            serializer = AvroSerializer(registry, ORDER, use_latest_version=True)
            first = await written(serializer, {"id": 1}, "aging")
            async with SchemaRegistry(registry_url) as other:
                newer = {**ORDER, "doc": "newer"}
                await other.register("aging-value", Schema(json.dumps(newer)))
            kept = await written(serializer, {"id": 1}, "aging")
            now = 301.0
            second = await written(serializer, {"id": 1}, "aging")
            now = 702.0  # from now on the registry says nothing, which is not waited for long
            registry.config = replace(registry.config, timeout_s=0.3)
            third = await written(serializer, {"id": 1}, "aging")

    assert first == kept
    assert first[:5] != second[:5]
    assert second == third


async def test_a_version_with_properties_and_a_schema_by_its_id_are_written_with(
    registry: SchemaRegistry,
) -> None:
    for number, major in enumerate(("1", "2")):
        schema = {**ORDER, "doc": str(number)}
        found = await registry.register(
            "major-value", Schema(json.dumps(schema), metadata={"properties": {"major": major}})
        )
        data = await written(
            AvroSerializer(registry, ORDER, use_latest_with_metadata={"major": major}), {"id": 1}, "major"
        )
        assert int.from_bytes(data[1:5], "big") == found.id
        by_id = await written(AvroSerializer(registry, ORDER, use_schema_id=found.id), {"id": 1}, "by-id")
        assert by_id == data


async def test_schemas_import_others(registry: SchemaRegistry) -> None:
    item = json.dumps({"type": "record", "name": "shop.Item", "fields": [{"name": "n", "type": "int"}]})
    await registry.register("item", Schema(item))
    basket = {"type": "record", "name": "shop.Basket", "fields": [{"name": "item", "type": "shop.Item"}]}
    avro = AvroSerializer(registry, basket, references=[("shop.Item", "item", 1)])
    data = await written(avro, {"item": {"n": 7}}, "baskets")
    assert await read(AvroDeserializer(registry), data, "baskets") == {"item": {"n": 7}}

    await registry.register("page", Schema('{"type": "string", "maxLength": 3}', "JSON"))
    visit = {"type": "object", "properties": {"page": {"$ref": "page.json"}}}
    pages = JsonSchemaSerializer(registry, visit, references=[Reference("page.json", "page", 1)])
    assert await read(JsonSchemaDeserializer(registry), await written(pages, {"page": "/"}, "visits")) == {
        "page": "/"
    }
    with pytest.raises(NotValid, match="too long"):
        await written(pages, {"page": "/long"}, "visits")


async def test_messages_of_any_class_and_their_imports_are_registered(registry: SchemaRegistry) -> None:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    item = pool.AddSerializedFile(
        descriptor_pb2.FileDescriptorProto(
            name="item.proto", package="shop", syntax="proto3",
            message_type=[{"name": "Item", "field": [{"name": "n", "number": 1, "type": 5, "label": 1}]}],
        ).SerializeToString()
    )  # fmt: skip
    order = pool.AddSerializedFile(
        descriptor_pb2.FileDescriptorProto(
            name="order.proto", package="shop", syntax="proto3", dependency=["item.proto"],
            message_type=[
                {"name": "Other"},
                {"name": "Order", "field": [
                    {"name": "item", "number": 1, "type": 11, "label": 1, "type_name": ".shop.Item"}]},
            ],
        ).SerializeToString()
    )  # fmt: skip
    assert (item.name, order.name) == ("item.proto", "order.proto")
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(item={"n": 7})
    other = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Other"))()
    serializer = ProtobufSerializer(registry)

    data = await written(serializer, message, "protos")
    second = await written(serializer, other, "protos")

    assert data[5:7] == bytes([2, 2])  # one index: the second message of the file
    assert second[:5] == data[:5]
    assert second[5:] == b"\0"
    found = await read(ProtobufDeserializer(registry), data, "protos")
    assert found.item.n == 7
    assert type(found).DESCRIPTOR.full_name == "shop.Order"
    source = (await registry.schema(int.from_bytes(data[1:5], "big"))).text
    assert 'import "item.proto"' in source


RULE = {"name": "encrypt", "kind": "TRANSFORM", "type": "ENCRYPT", "mode": "WRITEREAD"}


@pytest.mark.parametrize(
    ("rules", "refuses_write", "refuses_read"),
    [
        ({"domainRules": [RULE]}, True, True), ({"domainRules": [{**RULE, "mode": "WRITE"}]}, True, False),
        ({"encodingRules": [{**RULE, "mode": "READ"}]}, False, True),
        ({"domainRules": [{**RULE, "disabled": True}]}, False, False),
        ({"migrationRules": [{**RULE, "mode": "UPGRADE"}]}, False, False),
    ],
    ids=["both", "write", "read", "disabled", "migration"],
)  # fmt: skip
async def test_rules_that_would_have_to_be_executed_are_refused(
    registry: SchemaRegistry, registry_url: str, request: pytest.FixtureRequest, rules: Any,
    refuses_write: bool, refuses_read: bool,
) -> None:  # fmt: skip
    topic = request.node.name
    async with httpx.AsyncClient(base_url=registry_url) as http:
        body = {"schema": json.dumps({**ORDER, "doc": topic}), "ruleSet": rules}
        answer = await http.post(f"/subjects/{topic}-value/versions", json=body)
    schema_id = answer.json()["id"]
    serializer = AvroSerializer(registry, ORDER, use_latest_version=True)
    data = b"\0" + schema_id.to_bytes(4, "big") + b"\2\0"

    for is_refused, done in (
        (refuses_write, written(serializer, {"id": 1}, topic)),
        (refuses_read, read(AvroDeserializer(registry), data, topic)),
    ):
        if is_refused:
            with pytest.raises(RulesNotSupported, match="encrypt"):
                await done
        else:
            await done


async def test_a_header_of_a_record_that_is_sent_again_is_replaced(registry: SchemaRegistry) -> None:
    headers: list[SentHeader] = [("__value_schema_id", b"\1" + bytes(16)), ("other", b"x")]

    serializer = AvroSerializer(registry, ORDER, schema_id_in="header")
    data = await written(serializer, {"id": 1}, "again", headers=headers)

    assert [name for name, _ in headers] == ["other", "__value_schema_id"]
    assert await read(AvroDeserializer(registry), data, headers=headers) == {"id": 1, "note": ""}


async def test_many_first_records_ask_the_registry_once(registry_url: str) -> None:
    asked: list[str] = []

    def answer(question: Asked) -> Answer:
        asked.append(question.path)
        return Answer({"id": 7})

    async with json_service(answer) as service, SchemaRegistry(service.url) as registry:
        serializer = AvroSerializer(registry, ORDER)
        await asyncio.gather(*(written(serializer, {"id": number}, "many") for number in range(20)))

    assert asked == ["/subjects/many-value/versions"]


class Flaky:
    """Answers the first questions with an error of a server, or not at all."""

    def __init__(self, *failures: Answer) -> None:
        self.failures = list(failures)

    def __call__(self, asked: Asked) -> Answer:
        return self.failures.pop(0) if self.failures else Answer({"id": 3})


async def test_questions_are_asked_again_until_their_time_is_over() -> None:
    busy = Answer({"error_code": 50001, "message": "leader is away"}, 500)
    closed = Answer(raw=b"")
    async with json_service(Flaky(busy, closed, busy)) as service:
        async with SchemaRegistry(service.url, retry_backoff_ms=1) as registry:
            assert (await registry.register("s", Schema('"string"'))).id == 3
            assert len(service.asked) == 4
            await registry.register("s", Schema('"string"'))
            assert len(service.asked) == 4  # kept

    async with json_service(Flaky(*[busy] * 99)) as service:
        # The first retry would be behind the deadline.
        late: dict[str, Any] = {"timeout_s": 15.0, "retry_backoff_ms": 20_000, "retry_backoff_max_ms": 20_000}
        async with SchemaRegistry(service.url, **late) as registry:
            with pytest.raises(DeadlineExceeded, match="leader is away"):
                await registry.register("s", Schema('"string"'))


async def test_a_refusal_is_not_asked_again_and_the_next_address_is() -> None:
    refuse = Answer({"error_code": 42201, "message": "bad"}, 422)
    async with json_service(Flaky(refuse)) as second:
        urls = [f"http://127.0.0.1:{_closed_port(second)}", second.url]
        async with SchemaRegistry(urls) as registry:
            with pytest.raises(ServiceRefused, match="bad"):
                await registry.register("s", Schema("{"))
            assert len(second.asked) == 1


def _closed_port(service: JsonService) -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    assert port != service.port
    return port


@pytest.mark.parametrize(
    ("login", "header"),
    [
        ({"username": "anna", "password": "hunter2"}, "Basic YW5uYTpodW50ZXIy"),
        ({"token": "hunter2"}, "Bearer hunter2"),
    ],
)
async def test_logins_are_sent_and_shown_nowhere(
    login: Any, header: str, caplog: pytest.LogCaptureFixture
) -> None:
    refuse = Answer({"error_code": 401, "message": "Unauthorized"}, 401)
    async with json_service(lambda asked: refuse) as service:
        async with SchemaRegistry(service.url, **login) as registry:
            with pytest.raises(ServiceRefused) as refused:
                await registry.latest("s")
            shown = f"{refused.value} {registry.config!r} {registry} {caplog.text}"

    assert service.asked[0].headers["authorization"] == header
    assert "hunter2" not in shown


def test_settings_without_sense_are_refused() -> None:
    for settings, words in (
        ({"url": "ftp://x"}, "is no address"), ({"url": "http://a:b@c"}, "has a login in it"),
        ({"url": "http://x", "timeout_s": 0}, "timeout_s must be above 0"),
        ({"url": "http://x", "username": "a", "token": "b"}, "give one of them"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            SchemaRegistry(**settings)


async def test_an_error_of_the_registry_is_that_of_the_record(
    broker: BrokerThread, registry: SchemaRegistry
) -> None:
    await registry.register("refused-value", Schema('"int"'))

    async with Producer(
        broker.bootstrap_servers, value_serializer=AvroSerializer(registry, ORDER)
    ) as producer:
        with pytest.raises(SerializationFailed, match="incompatible"):
            await producer.send("refused", {"id": 1})


def test_the_plugin_gives_a_registry_whose_schemas_are_in_the_broker(
    ottla_broker: BrokerThread, ottla_registry: RegistryThread
) -> None:
    with httpx.Client(base_url=ottla_registry.url) as http:
        assert http.post("/subjects/s/versions", json={"schema": '"int"'}).json()["id"] == 1

    with RegistryThread(ottla_broker.bootstrap_servers) as other, httpx.Client(base_url=other.url) as http:
        assert http.get("/subjects").json() == ["s"]


def test_clients_without_a_loop_of_their_own_use_a_registry_too(
    broker: BrokerThread, registry_url: str
) -> None:
    serializer = AvroSerializer(SchemaRegistry(registry_url), ORDER)
    servers = broker.bootstrap_servers
    with SyncProducer(servers, value_serializer=serializer) as producer:
        producer.send("sync", {"id": 1}, partition=0).result(30)

    deserializer = AvroDeserializer(SchemaRegistry(registry_url))
    with SyncConsumer(
        "sync", bootstrap_servers=servers, auto_offset_reset="earliest", value_deserializer=deserializer
    ) as consumer:
        assert next(iter(consumer)).value == {"id": 1, "note": ""}


async def test_a_wrong_address_shows_in_the_log_before_the_retries_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = "http://127.0.0.1:1"
    async with SchemaRegistry(url, timeout_s=1.0, retry_backoff_ms=10) as registry:
        for _ in range(2):
            with pytest.raises(DeadlineExceeded):
                await registry.schema(1)

    (logged,) = [found for found in caplog.records if "gives no answer" in found.message]
    assert f"{url} cannot be reached" in logged.__dict__["reason"]
