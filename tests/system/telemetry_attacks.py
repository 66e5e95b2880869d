"""Attacks by clients that push metrics: bombs, and names that never end, of 10,000 instances."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections import Counter
from typing import Any, Final
from uuid import UUID

from connections import resident_bytes
from group_attacks import BOUND_S, LINKS, Crowd, crowd
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from ottla.broker.testing import BrokerProcess
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from ottla.protocol.messages.telemetry import GetTelemetrySubscriptionsRequest, PushTelemetryRequest
from ottla.protocol.records import compress

INSTANCES: Final = 10_000
VALUES: Final = 1_000
GZIP, SNAPPY, LZ4, ZSTD = range(1, 5)
CLIENT_METRICS: Final = 16
BOMB: Final = bytes(64 << 20)


async def subscribe(members: Crowd) -> None:
    """Ask all clients for all metrics."""
    changes = [
        IncrementalAlterableConfig(name=name, config_operation=0, value=value)
        for name, value in (("metrics", "*"), ("interval.ms", "100"))
    ]
    resource = IncrementalAlterConfigsResource(
        resource_type=CLIENT_METRICS, resource_name="all", configs=changes
    )
    answer = await members.ask(IncrementalAlterConfigsRequest(resources=[resource]))
    assert answer.responses[0].error_code == 0, answer.responses[0].error_message


async def push(members: Crowd, number: int, data: bytes, compression: int, link: int) -> ErrorCode:
    """Push as one instance, which asks for its subscription before."""
    instance = UUID(int=1 << 64 | number)
    asked = GetTelemetrySubscriptionsRequest(client_instance_id=instance)
    subscribed: Any = await members.ask(asked, link=link)
    request = PushTelemetryRequest(
        client_instance_id=instance, subscription_id=subscribed.subscription_id,
        compression_type=compression, metrics=data,
    )  # fmt: skip
    return ErrorCode((await members.ask(request, link=link)).error_code)


def pushed(*points: NumberDataPoint, name: str = "org.apache.kafka.a.b", attributes: Any = ()) -> bytes:
    scopes = [ScopeMetrics(metrics=[Metric(name=name, gauge=Gauge(data_points=points))])]
    of_resource = ResourceMetrics(resource=Resource(attributes=attributes), scope_metrics=scopes)
    return bytes(MetricsData(resource_metrics=[of_resource]).SerializeToString())


def attribute(key: str, text: str = "x") -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=text))


def page_of(broker: BrokerProcess) -> str:
    """Ask for the page of metrics; return its size, or the status if it was not made in time."""
    try:
        with urllib.request.urlopen(broker.metrics_url, timeout=BOUND_S) as answer:
            return f"a page of {len(answer.read()) >> 20} MiB"
    except urllib.error.HTTPError as refusal:
        return f"no page ({refusal.code})"


@crowd("metrics of 10,000 clients: each has new names with each push", metrics_port="0")
async def endless_names(members: Crowd) -> None:
    await subscribe(members)

    points = [
        NumberDataPoint(as_int=index, attributes=[attribute("a", f"#####-{index}")])
        for index in range(VALUES)
    ]
    template = pushed(*points)

    async def one(number: int, link: int) -> ErrorCode:
        data = template.replace(b"#####", b"%05d" % number)
        return await push(members, number % (INSTANCES // 2), data, 0, link)

    found = Counter((await members.each(range(INSTANCES), one)).values())
    assert found.keys() <= {ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED}, found
    page = await asyncio.to_thread(page_of, members.broker)
    print(f"    {found[ErrorCode.NONE]:,} pushes: {resident_bytes(members.broker.pid) >> 20} MiB, {page}")


@crowd("metrics that expand a thousand times, in each compression and without one", metrics_port="0")
async def bombs(members: Crowd) -> None:
    await subscribe(members)
    nested = AnyValue(array_value=ArrayValue(values=[AnyValue() for _ in range(250_000)]))
    for _ in range(40):
        nested = AnyValue(array_value=ArrayValue(values=[nested]))
    many = [attribute(f"{number:x}") for number in range(60_000)]
    kinds = [
        *((compress(kind, BOMB), kind, ErrorCode.TELEMETRY_TOO_LARGE) for kind in (GZIP, SNAPPY, LZ4, ZSTD)),
        (bytes((1 << 20) + 1), 0, ErrorCode.TELEMETRY_TOO_LARGE),
        (b"\xff" * 1_000, 0, ErrorCode.INVALID_RECORD),
        (bytes([10, 0]) * 500_000, 0, ErrorCode.NONE),
        (pushed(attributes=[KeyValue(key="list", value=nested)]), 0, ErrorCode.NONE),
        (pushed(*(NumberDataPoint(as_int=one) for one in range(1_000)), attributes=many), 0, ErrorCode.NONE),
    ]

    async def one(number: int, link: int) -> None:
        data, compression, expected = kinds[number % len(kinds)]
        assert await push(members, number, data, compression, link) is expected, (compression, len(data))

    await members.each(range(10 * LINKS), one)
