"""Serializes drawn values with an installed release of confluent-kafka, and reads those of others.

python confluent_kafka_registry.py URL COUNT < LINES: it prints a JSON line for each kind and number with the
bytes and headers that it writes. Lines that it reads have bytes and headers of others: it prints the values.
"""

from __future__ import annotations

import inspect
import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

warnings.simplefilter("ignore")

from confluent_kafka.schema_registry import (  # noqa: E402
    SchemaRegistryClient,
    avro,
    json_schema,
    protobuf,
)
from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: E402

from peers.drawn_schemas import Drawn, schema_text  # noqa: E402

KINDS = ("AVRO", "JSON", "PROTOBUF")


def pair(kind: str, seed: int, client: Any, by_header: bool) -> tuple[Any, Any, Any]:
    """Return a drawn value, a serializer and a deserializer."""
    conf: dict[str, Any] = {}
    if by_header:
        from confluent_kafka.schema_registry import header_schema_id_serializer

        conf["schema.id.serializer"] = header_schema_id_serializer
    drawn = Drawn(seed)
    if kind == "PROTOBUF":
        message, own = drawn.protobuf(), {"use.deprecated.format": False}
        reads = protobuf.ProtobufDeserializer
        has_client = "schema_registry_client" in inspect.signature(reads.__init__).parameters
        reader = reads(type(message), own, client) if has_client else reads(type(message), own)
        return message, protobuf.ProtobufSerializer(type(message), client, {**conf, **own}), reader
    if kind == "JSON":
        schema, value = drawn.json()
        text = schema_text(schema)
        reader = json_schema.JSONDeserializer(text)
        return value, json_schema.JSONSerializer(text, client, conf=conf), reader
    schema, value = drawn.avro()
    text = schema_text(schema)
    return value, avro.AvroSerializer(client, text, conf=conf), avro.AvroDeserializer(client)


def context(topic: str, headers: Any) -> Any:
    """Return the context of a value; old releases have no headers in it."""
    return SerializationContext(topic, MessageField.VALUE, headers)


def main(url: str, count: int, by_header: bool, written: Callable[[dict[str, Any]], None]) -> None:
    client = SchemaRegistryClient({"url": url})
    pairs = {}
    for kind in KINDS:
        for number in range(count):
            topic, seed = f"{kind}-{number}", 1_000 + number
            value, writer, reader = pairs[topic] = pair(kind, seed, client, by_header)
            headers: list[Any] = []
            data = writer(value, context(topic, headers))
            own = [(name, content.hex()) for name, content in headers]
            written({"topic": topic, "data": data.hex(), "headers": own})
    written({})
    for line in sys.stdin:
        given = json.loads(line)
        value, _, reader = pairs[given["topic"]]
        headers = [(name, bytes.fromhex(content)) for name, content in given["headers"]]
        read = reader(bytes.fromhex(given["data"]), context(given["topic"], headers))
        written({"topic": given["topic"], "is_same": read == value, "read": repr(read), "value": repr(value)})


if __name__ == "__main__":
    main(
        sys.argv[1], int(sys.argv[2]), "--header" in sys.argv,
        lambda line: print(json.dumps(line), flush=True),
    )  # fmt: skip
