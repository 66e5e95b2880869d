"""Values that name their schema in a registry, on real Spark: as columns of a read, and in a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from ottla.broker.testing import BrokerProcess
from ottla.producer import Producer
from ottla.registry import AvroSerializer, ProtobufSerializer, SchemaRegistry
from ottla.registry.testing import RegistryThread
from peers.pipelines import SPARK, Pipeline
from peers.proto_classes import message_class
from peers.topics import Sent, Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
LATER = {**ORDER, "fields": [
    {"name": "id", "type": "long"}, {"name": "price", "type": ["null", PRICE], "default": None},
    {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
]}  # fmt: skip
VISIT = 'syntax = "proto3"; message Visit { string page = 1; repeated int32 clicks = 2; }'


@pytest.fixture(scope="module")
def registry_url(broker: BrokerProcess) -> Iterator[str]:
    with RegistryThread(broker.bootstrap_servers) as registry:
        yield registry.url


async def send(servers: str, url: str, topic: str) -> None:
    """Send an order of each version, and a visit of Protobuf."""
    visit = message_class(VISIT, "Visit")
    orders = ((ORDER, {"id": 1}), (LATER, {"id": 2, "price": Decimal("1.50"), "at": 1_700_000_000_000}))
    async with SchemaRegistry(url) as registry:
        for schema, order in orders:
            serializer = AvroSerializer(registry, schema)
            async with Producer(bootstrap_servers=servers, value_serializer=serializer) as producer:
                await producer.send_and_wait(topic, order)
        visits = ProtobufSerializer(registry, visit, schema_id_in="header")
        async with Producer(bootstrap_servers=servers, value_serializer=visits) as producer:
            await producer.send_and_wait(f"{topic}-visits", visit(page="/", clicks=[1, 2]))


async def test_values_of_a_registry_are_columns(
    spark: SparkSession, broker: BrokerProcess, registry_url: str, fresh: Callable[[str], str]
) -> None:
    topic = fresh("orders")
    await send(broker.bootstrap_servers, registry_url, topic)
    reader = spark.read.format("ottla").options(**{
        "kafka.bootstrap.servers": broker.bootstrap_servers, "value.format": "registry",
        "value.registry": registry_url,
    })  # fmt: skip

    orders = reader.option("subscribe", topic).load().orderBy("offset")
    visits = reader.option("subscribe", f"{topic}-visits").load()

    assert orders.schema["value"].dataType.simpleString() == (
        "struct<id:bigint,price:decimal(9,2),at:timestamp>"
    )
    found = orders.selectExpr(
        "value.id", "value.price", "unix_millis(value.at) AS at", "value_error"
    ).collect()
    assert [tuple(row) for row in found] == [
        (1, None, None, None), (2, Decimal("1.50"), 1_700_000_000_000, None),
    ]  # fmt: skip
    assert [tuple(row) for row in visits.select("value.*").collect()] == [("/", [1, 2])]
    assert "headers" not in visits.columns


async def test_a_pipeline_decodes_the_values_of_a_registry(
    broker: BrokerProcess, topics: Topics, registry_url: str, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    topic = fresh("orders")
    await send(broker.bootstrap_servers, registry_url, topic)
    topics.send(topic, [Sent(value=b"no value of a registry"), Sent(value=b"\0\0\0\0\1")])
    declared = tmp_path / "orders.toml"
    declared.write_text(f"""
kind = "logs"
name = "orders"
checkpoint = "state"
[source]
bootstrap_servers = "{broker.bootstrap_servers}"
topics = "{topic}"
[parse]
format = "registry"
registry = "{registry_url}"
fields.id = "BIGINT"
fields.price = "DECIMAL(9, 2)"
fields.at = "TIMESTAMP"
required = "id"
[lake]
path = "lake"
partition_by = "day"
[dead_letters]
topic = "{topics.create(fresh("dead"))}"
{SPARK}
""")

    status = Pipeline(declared, tmp_path / "state").once()

    assert status["queries"]["main"]["counts"] == {"good": 2, "dead": 2}
    rows = pq.read_table(tmp_path / "lake").sort_by("id").to_pylist()
    assert [(row["id"], row["price"]) for row in rows] == [(1, None), (2, Decimal("1.50"))]
    assert str(rows[1]["day"]) == "2023-11-14"
