"""Serializers of older releases of confluent-kafka, at our registry: the bytes of ours, both ways."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

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
from ottla.registry.testing import RegistryThread
from peers.drawn_schemas import Drawn, schema_text
from peers.fetched_programs import python_environment

PROGRAM: Final = Path(__file__).parent / "python" / "confluent_kafka_registry.py"
COUNT: Final = 40
RELEASES: Final = {
    # Before 2.8 its deserializer of Protobuf needs what Google's runtime has had up to its version 4.
    "2.3.0": ("confluent-kafka[avro,json,protobuf]==2.3.0", "protobuf<5"),
    "2.6.1": ("confluent-kafka[avro,json,protobuf]==2.6.1", "protobuf<5"),
    "2.8.2": ("confluent-kafka[avro,json,protobuf]==2.8.2",),
    "2.11.1": ("confluent-kafka[avro,json,protobuf,schemaregistry]==2.11.1",),
}
WRITES_SPACES: Final = {"2.3.0", "2.6.1", "2.8.2"}
"""Releases that write JSON with spaces, as Python's own library does; later ones and ours write none."""


@pytest.fixture
def registry_url() -> Iterator[str]:
    with RegistryThread() as running:
        yield running.url


@pytest.fixture
async def registry(registry_url: str) -> AsyncIterator[SchemaRegistry]:
    async with SchemaRegistry(registry_url) as opened:
        yield opened


def ours(topic: str, registry: SchemaRegistry, place: str) -> tuple[Any, Any, Any]:
    """Return the value that the program draws for a topic, and our serializer and deserializer."""
    kind, _, number = topic.partition("-")
    drawn, own = Drawn(1_000 + int(number)), dict[str, Any](schema_id_in=place)
    if kind == "PROTOBUF":
        message = drawn.protobuf()
        reader: Any = ProtobufDeserializer(registry, type(message))
        return message, ProtobufSerializer(registry, type(message), **own), reader
    if kind == "JSON":
        schema, value = drawn.json()
        text = schema_text(schema)
        return value, JsonSchemaSerializer(registry, text, **own), JsonSchemaDeserializer(registry)
    schema, value = drawn.avro()
    return value, AvroSerializer(registry, schema_text(schema), **own), AvroDeserializer(registry)


async def written(serializer: Any, value: Any, topic: str) -> tuple[bytes, list[Any]]:
    headers: list[SentHeader] = []
    try:
        return serializer.serialize(value, SerializationContext(topic, "value", headers)), headers
    except PreparationNeeded as needed:
        await needed.prepare()
    return serializer.serialize(value, SerializationContext(topic, "value", headers)), headers


async def read(deserializer: Any, data: bytes, topic: str, headers: Any) -> Any:
    context = DeserializationContext(topic, 0, 0, "value", tuple(headers))
    try:
        return deserializer.deserialize(data, context)
    except PreparationNeeded as needed:
        await needed.prepare()
    return deserializer.deserialize(data, context)


@pytest.mark.parametrize(
    ("release", "place"), [*((release, "prefix") for release in RELEASES), ("2.11.1", "header")]
)
@pytest.mark.timeout(1_200)  # its environment may have to be fetched
async def test_releases_write_the_bytes_of_ours_and_each_reads_the_other(
    release: str, place: str, registry: SchemaRegistry, registry_url: str
) -> None:
    python = python_environment(*RELEASES[release])
    command = [str(python), str(PROGRAM), registry_url, str(COUNT), *(["--header"] * (place == "header"))]
    environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[2])}
    with subprocess.Popen(  # noqa: ASYNC220  it and this test answer each other, line by line
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        sent = 0
        while line := json.loads(program.stdout.readline() or "null"):
            topic, data = line["topic"], bytes.fromhex(line["data"])
            headers = [(name, bytes.fromhex(content)) for name, content in line["headers"]]
            value, writer, reader = ours(topic, registry, place)
            own, own_headers = await written(writer, value, topic)
            shown = data
            if topic.startswith("JSON") and release in WRITES_SPACES:
                shown = data[:5] + json.dumps(json.loads(data[5:]), separators=(",", ":")).encode()
                own = own[:5] + json.dumps(json.loads(own[5:]), separators=(",", ":")).encode()
            assert (own, own_headers) == (shown, headers), topic
            assert repr(await read(reader, data, topic, headers)) == repr(
                await read(reader, own, topic, own_headers)
            )
            if len(own) > 5:  # they take no shorter ones, not even without a prefix
                given = [(name, content.hex()) for name, content in own_headers]
                program.stdin.write(json.dumps({"topic": topic, "data": own.hex(), "headers": given}) + "\n")
                sent += 1
        program.stdin.close()
        answers = [json.loads(line) for line in program.stdout]

    assert program.returncode == 0
    assert sent > 2 * COUNT
    assert len(answers) == sent
    assert [answer for answer in answers if not answer["is_same"]] == []
