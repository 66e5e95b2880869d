"""The console and a schema registry by other hands, with values of Confluent's own serializers."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
import warnings
from collections.abc import AsyncIterator, Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess
from ottla.client.config import ClientConfig
from ottla.console.clusters.services import Service
from ottla.console.settings import ClusterSettings
from ottla.console.testing import ORIGIN, serving
from ottla.producer import Producer
from ottla.registry.framing import framed
from peers.apicurio import apicurio_registry
from peers.proto_classes import message_class

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of libraries that the serializers use
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.schema_registry.serde import SchemaId
    from confluent_kafka.serialization import MessageField, SerializationContext

HTML = {"origin": ORIGIN, "content-type": "application/x-www-form-urlencoded"}
AVRO = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "lines", "type": {"type": "array", "items": "string"}},
    ],
}  # fmt: skip
PROTO = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Other { string unused = 1; }
message Payment {
  int64 cents = 1;
  google.protobuf.Timestamp at = 2;
  message Card { string number = 1; }
  Card card = 3;
}
"""
JSON = {
    "$schema": "http://json-schema.org/draft-07/schema#", "title": "Visit", "type": "object",
    "properties": {"page": {"type": "string"}}, "required": ["page"],
}  # fmt: skip


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with apicurio_registry(tmp_path_factory.mktemp("registry")) as url:
        yield url


@pytest.fixture
async def console(broker: BrokerProcess, registry: str, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    service = Service("schema registry", (registry,))
    cluster = ClusterSettings("local", broker.bootstrap_servers, ClientConfig, service)
    async with serving(cluster, allows_changes=True, audit=tmp_path / "audit.jsonl") as client:
        yield client


async def write(broker: BrokerProcess, topic: str, value: bytes, **more: Any) -> None:
    async with Admin(broker.bootstrap_servers) as admin:
        await admin.topics.create(topic)
    async with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        await producer.send_and_wait(topic, value, **more)


async def shown(console: httpx.AsyncClient, topic: str) -> Any:
    """Return the value of the first record of a topic, as JSON."""
    page = (await console.get(f"/c/local/topics/{topic}/record?partition=0&offset=0")).text
    parts = re.findall(r'<pre class="whole">(.*?)</pre>', page, re.DOTALL)
    return json.loads(unescape(parts[1]))


def context(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


@pytest.mark.java
@pytest.mark.timeout(400)
async def test_values_of_confluents_serializers_are_shown(
    console: httpx.AsyncClient, broker: BrokerProcess, registry: str
) -> None:
    def serialized() -> dict[str, bytes]:
        with SchemaRegistryClient({"url": registry}) as client:
            payment = message_class(PROTO, "shop.Payment")
            paid = payment(cents=2**62 + 1, card={"number": "4711"})
            paid.at.FromJsonString("2026-01-01T00:00:00Z")
            order = {"id": 2**62 + 1, "at": 1_767_225_600_000, "lines": ["a", "ü"]}
            avro = AvroSerializer(client, json.dumps(AVRO))
            proto = ProtobufSerializer(payment, client, {"use.deprecated.format": False})
            visit = JSONSerializer(json.dumps(JSON), client)
            return {
                "orders": avro(order, context("orders")) or b"",
                "payments": proto(paid, context("payments")) or b"",
                "visits": visit({"page": "/"}, context("visits")) or b"",
            }

    values = await asyncio.to_thread(serialized)
    for topic, value in values.items():
        await write(broker, topic, value)

    assert await shown(console, "orders") == {
        "id": 2**62 + 1, "at": "2026-01-01T00:00:00+00:00", "lines": ["a", "ü"],
    }  # fmt: skip
    assert await shown(console, "payments") == {
        "cents": str(2**62 + 1), "at": "2026-01-01T00:00:00Z", "card": {"number": "4711"},
    }  # fmt: skip
    assert await shown(console, "visits") == {"page": "/"}


@pytest.mark.java
@pytest.mark.timeout(400)
async def test_subjects_are_checked_registered_compared_and_deleted(console: httpx.AsyncClient) -> None:
    async def post(path: str, **form: str) -> str:
        page = (await console.get("/c/local/change/set-compatibility?level=FULL")).text
        token = re.search(r'name="token" value="(\w+)"', page)
        assert token is not None
        content = urlencode({**form, "token": token[1]})
        return (await console.post(f"/c/local/{path}", content=content, headers=HTML)).text

    def order(*fields: str) -> str:
        listed = [{"name": name, "type": "string", "default": ""} for name in fields]
        return json.dumps({"type": "record", "name": "O", "fields": listed})

    bad = json.dumps({"type": "record", "name": "O", "fields": [{"name": "id", "type": "int"}]})
    name = {"subject": "checked-value", "kind": "AVRO"}
    first = await post("change/register-schema", **name, schema=order("id"))
    level = await post("change/set-compatibility", subject="checked-value", level="BACKWARD")
    checked = await post("registry/check", **name, schema=bad)
    refused = await post("change/register-schema", **name, schema=bad)
    second = await post("change/register-schema", **name, schema=order("id", "note"))
    compared = (await console.get("/c/local/registry/subject?name=checked-value&against=1")).text
    listed = (await console.get("/c/local/registry?q=checked")).text
    gone = await post("change/delete-subject", subject="checked-value", typed="checked-value")

    assert "The schema has the id" in first
    assert "The compatibility level of subject checked-value is BACKWARD." in level
    assert "Not compatible" in checked
    assert "INT not compatible with writer type: STRING" in checked
    assert "INT not compatible with writer type: STRING" in refused
    assert "The schema has the id" in second
    assert "<ins>+" in compared
    assert "note" in compared
    assert "checked-value" in listed
    assert "Deleted subject checked-value." in gone


def test_the_header_of_confluents_library_names_the_schema_and_the_message() -> None:
    guid = uuid.uuid4()
    header = SchemaId("PROTOBUF", guid=str(guid), message_indexes=[1, 0]).guid_to_bytes()
    before = SchemaId("PROTOBUF", schema_id=7, message_indexes=[1, 0]).id_to_bytes()

    by_header = framed(b"value", "value", [("__value_schema_id", header)])
    by_prefix = framed(before + b"value", "value")

    assert by_header is not None
    assert by_prefix is not None
    assert (by_header.schema, by_header.message()) == (str(guid), ((1, 0), b"value"))
    assert (by_prefix.schema, by_prefix.message()) == (7, ((1, 0), b"value"))
