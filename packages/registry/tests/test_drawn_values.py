"""Schemas and values drawn at random: our serializers and Confluent's write the same, and read each other's.

`nox -s drawn_schemas` draws ten thousand; a change must pass a slice of them.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, Literal

import pytest

from ottla.client.serialization import (
    DeserializationContext,
    PreparationNeeded,
    SentHeader,
    SerializationContext,
)
from ottla.registry import (
    AvroDeserializer,
    AvroSerializer,
    JsonSchemaDeserializer,
    JsonSchemaSerializer,
    ProtobufDeserializer,
    ProtobufSerializer,
    SchemaRegistry,
)
from peers.drawn_schemas import Drawn, schema_text

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of libraries that the serializers use
    from confluent_kafka.schema_registry import (
        SchemaRegistryClient,
        header_schema_id_serializer,
        prefix_schema_id_serializer,
    )
    from confluent_kafka.schema_registry import avro as their_avro
    from confluent_kafka.schema_registry import json_schema as their_json
    from confluent_kafka.schema_registry import protobuf as their_protobuf
    from confluent_kafka.serialization import MessageField
    from confluent_kafka.serialization import SerializationContext as TheirContext

DRAWN: Final = int(os.environ.get("OTTLA_DRAWN_SCHEMAS", "36"))
"""Schemas of all kinds together, each with a value."""
SEED: Final = 20_260_101
Kind = Literal["AVRO", "JSON", "PROTOBUF"]


@pytest.fixture
async def registry(registry_url: str) -> AsyncIterator[SchemaRegistry]:
    async with SchemaRegistry(registry_url) as opened:
        yield opened


@pytest.fixture
def theirs(registry_url: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry_url}) as client:
        yield client


async def serialized(serializer: Any, value: Any, topic: str) -> tuple[bytes, list[SentHeader]]:
    headers: list[SentHeader] = []
    context = SerializationContext(topic, "value", headers)
    try:
        data = serializer.serialize(value, context)
    except PreparationNeeded as needed:
        await needed.prepare()
        data = serializer.serialize(value, context)
    return data, headers


async def deserialized(deserializer: Any, data: bytes, topic: str, headers: Any) -> Any:
    context = DeserializationContext(topic, 0, 0, "value", tuple(headers))
    try:
        return deserializer.deserialize(data, context)
    except PreparationNeeded as needed:
        await needed.prepare()
        return deserializer.deserialize(data, context)


def pair(
    kind: Kind, drawn: Drawn, registry: SchemaRegistry, theirs: SchemaRegistryClient, *, by_header: bool
) -> tuple[Any, Any, Any, Any, Any]:
    """Return a value, our serializer and deserializer, and theirs."""
    own: dict[str, Any] = {"schema_id_in": "header" if by_header else "prefix"}
    name = header_schema_id_serializer if by_header else prefix_schema_id_serializer
    conf = {"schema.id.serializer": name}
    if kind == "PROTOBUF":
        message = drawn.protobuf()
        conf |= {"use.deprecated.format": False}
        return (
            message, ProtobufSerializer(registry, type(message), **own),
            ProtobufDeserializer(registry, type(message)),
            their_protobuf.ProtobufSerializer(type(message), theirs, conf),
            their_protobuf.ProtobufDeserializer(type(message), {"use.deprecated.format": False}, theirs),
        )  # fmt: skip
    if kind == "JSON":
        schema, value = drawn.json()
        text = schema_text(schema)
        return (
            value, JsonSchemaSerializer(registry, text, **own), JsonSchemaDeserializer(registry),
            their_json.JSONSerializer(text, theirs, conf=conf),
            their_json.JSONDeserializer(None, schema_registry_client=theirs),
        )  # fmt: skip
    schema, value = drawn.avro()
    text = schema_text(schema)
    return (
        value, AvroSerializer(registry, text, **own), AvroDeserializer(registry),
        their_avro.AvroSerializer(theirs, text, conf=conf), their_avro.AvroDeserializer(theirs),
    )  # fmt: skip


@pytest.mark.parametrize("by_header", [False, True], ids=["prefix", "header"])
@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
@pytest.mark.timeout(3_000 if DRAWN > 1_000 else 120)
async def test_drawn_values_have_the_bytes_of_confluents_serializers_both_ways(
    kind: Kind, by_header: bool, registry: SchemaRegistry, theirs: SchemaRegistryClient
) -> None:
    for number in range(DRAWN // 6 + 1):
        seed = SEED + number * 2 + by_header
        value, writer, reader, their_writer, their_reader = pair(
            kind, Drawn(seed), registry, theirs, by_header=by_header
        )
        topic = f"{kind}-{by_header}-{number}"

        def theirs_of(
            writer: Any = their_writer, value: Any = value, topic: str = topic
        ) -> tuple[bytes, list[Any]]:
            headers: list[Any] = []
            return writer(value, TheirContext(topic, MessageField.VALUE, headers)), headers

        ours = (data, headers) = await serialized(writer, value, topic)
        written = await asyncio.to_thread(theirs_of)
        assert ours == written, f"seed {seed}"

        read = await deserialized(reader, data, topic, headers)
        if len(data) <= 5:  # theirs takes no shorter ones, not even without a prefix
            continue
        context = TheirContext(topic, MessageField.VALUE, list(headers))
        assert read == await asyncio.to_thread(their_reader, data, context), f"seed {seed}"
