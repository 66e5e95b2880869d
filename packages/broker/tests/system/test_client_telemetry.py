"""Client telemetry over the wire: subscriptions as configurations, pushes, and the page of metrics."""

from __future__ import annotations

import socket
import ssl
import struct
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
)

from ottla.broker.testing import BrokerFailed, BrokerThread
from ottla.protocol.api import (
    ApiKey,
    RequestHeader,
    decode_response_header,
    encode_request,
    response_class,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ListConfigResourcesRequest,
)
from ottla.protocol.messages.telemetry import GetTelemetrySubscriptionsRequest, PushTelemetryRequest
from ottla.protocol.records import compress
from ottla.protocol.schema import Message
from peers.certificates import Authority, missing_openssl
from peers.otlp_receiver import OtlpReceiver

CLIENT_METRICS = 16
ZSTD = 4


class Wire:
    """A connection to a broker with a page of metrics."""

    def __init__(self, broker: BrokerThread) -> None:
        self._socket = socket.create_connection((broker.host, broker.port), timeout=20)
        self._broker = broker

    def ask(self, request: Message, version: int) -> Any:
        key = ApiKey(request.API_KEY)
        header = RequestHeader(api_key=key, api_version=version, correlation_id=7, client_id="orders-1")
        frame = encode_request(header, request)
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        with self._socket.makefile("rb") as received:
            body = received.read(struct.unpack(">i", received.read(4))[0])
        _, offset = decode_response_header(body, key, version)
        return response_class(key).decode(body[offset:], version)

    def alter(self, name: str, operation: int = 0, **config: str) -> tuple[int, str | None]:
        changes = [
            IncrementalAlterableConfig(name=key.replace("_", "."), config_operation=operation, value=value)
            for key, value in config.items()
        ]
        resource = IncrementalAlterConfigsResource(
            resource_type=CLIENT_METRICS, resource_name=name, configs=changes
        )
        (answer,) = self.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
        return answer.error_code, answer.error_message

    def page(self) -> str:
        with urllib.request.urlopen(self._broker.metrics_url, timeout=20) as answer:
            text: str = answer.read().decode()
        return text

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    with BrokerThread(tmp_path, {"metrics.port": "0"}) as broker:
        connected = Wire(broker)
        yield connected
        connected.close()


def test_a_broker_without_a_page_of_metrics_says_how_to_have_one(tmp_path: Path) -> None:
    with BrokerThread(tmp_path) as broker, pytest.raises(BrokerFailed, match=r"metrics\.port=0"):
        _ = broker.metrics_url


def metrics(value: float) -> bytes:
    name = "org.apache.kafka.producer.record.send.rate"
    metric = Metric(name=name, gauge=Gauge(data_points=[NumberDataPoint(as_double=value)]))
    scopes = [ScopeMetrics(metrics=[metric])]
    data = MetricsData(resource_metrics=[ResourceMetrics(scope_metrics=scopes)])
    return bytes(data.SerializeToString())


def test_a_client_pushes_what_a_subscription_asks_for_and_the_page_shows_it(wire: Wire) -> None:
    software = ApiVersionsRequest(client_software_name="a-client", client_software_version="1.2")
    assert wire.ask(software, 3).error_code == 0
    first = wire.ask(GetTelemetrySubscriptionsRequest(), 0)
    assert (first.error_code, first.requested_metrics, first.push_interval_ms) == (0, [], 300_000)
    assert first.client_instance_id != UUID(int=0)

    match = "client_software_name=a-.*,client_id=orders-[0-9]"
    assert wire.alter("rates", metrics="org.apache.kafka.producer", interval_ms="100", match=match) == (
        0,
        None,
    )
    asked = GetTelemetrySubscriptionsRequest(client_instance_id=first.client_instance_id)
    subscribed = wire.ask(asked, 0)

    assert subscribed.client_instance_id == first.client_instance_id
    assert subscribed.requested_metrics == ["org.apache.kafka.producer"]
    assert (subscribed.push_interval_ms, subscribed.telemetry_max_bytes) == (100, 1 << 20)
    assert subscribed.accepted_compression_types == [4, 3, 1, 2]
    push = PushTelemetryRequest(
        client_instance_id=first.client_instance_id,
        subscription_id=subscribed.subscription_id,
        compression_type=ZSTD,
        metrics=compress(ZSTD, metrics(12.5)),
        terminating=True,
    )
    assert wire.ask(push, 0).error_code == 0
    (line,) = [
        line
        for line in wire.page().splitlines()
        if line.startswith("kafka_client_producer_record_send_rate{")
    ]
    assert line.endswith(" 12.5")
    for label in ('client_id="orders-1"', 'client_software_name="a-client"', 'client_software_version="1.2"'):
        assert label in line
    assert wire.ask(push, 0).error_code == ErrorCode.INVALID_REQUEST  # it said that it terminates


def push_once(wire: Wire) -> None:
    """Subscribe to all metrics and push one."""
    wire.alter("all", metrics="*", interval_ms="100")
    subscribed = wire.ask(GetTelemetrySubscriptionsRequest(), 0)
    push = PushTelemetryRequest(
        client_instance_id=subscribed.client_instance_id,
        subscription_id=subscribed.subscription_id,
        compression_type=ZSTD,
        metrics=compress(ZSTD, metrics(12.5)),
    )
    assert wire.ask(push, 0).error_code == 0


def test_a_collector_of_opentelemetry_is_handed_what_a_client_pushes(tmp_path: Path) -> None:
    """The collector is busy at first: the request is sent again."""
    with OtlpReceiver(503) as collector:
        settings = {
            "telemetry.otlp.endpoint": collector.url,
            "telemetry.otlp.headers": "authorization=Bearer%20s3cret",
        }
        with BrokerThread(tmp_path, settings) as broker:
            wire = Wire(broker)
            push_once(wire)
            received = collector.received.get(timeout=60)
            wire.close()

    assert collector.refused == 1
    assert received.headers["authorization"] == "Bearer s3cret"
    ((attributes, names),) = received.resources
    assert names == ["org.apache.kafka.producer.record.send.rate"]
    assert (attributes["client_id"], attributes["client_source_address"]) == ("orders-1", "127.0.0.1")
    assert attributes["broker_id"] == str(broker.broker.broker_id if broker.broker else None)
    assert UUID(attributes["client_instance_id"]).version == 4


def test_a_collector_is_trusted_by_the_authorities_that_are_configured(tmp_path: Path) -> None:
    if missing := missing_openssl():
        pytest.skip(missing)
    authority = Authority(tmp_path)
    certificate, key = authority.sign("collector")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with OtlpReceiver(tls=tls) as collector:
        settings = {
            "telemetry.otlp.endpoint": collector.url,
            "telemetry.otlp.ssl.truststore.location": str(authority.cafile),
        }
        with BrokerThread(tmp_path / "data", settings) as broker:
            wire = Wire(broker)
            push_once(wire)
            received = collector.received.get(timeout=60)
            wire.close()

    assert len(received.resources) == 1


def test_bombs_and_nonsense_have_kafkas_errors(wire: Wire) -> None:
    wire.alter("all", metrics="*", interval_ms="100")
    subscribed = wire.ask(GetTelemetrySubscriptionsRequest(), 0)

    def pushed(data: bytes, compression_type: int = 0, subscription_id: int | None = None) -> int:
        push = PushTelemetryRequest(
            client_instance_id=subscribed.client_instance_id,
            subscription_id=subscribed.subscription_id if subscription_id is None else subscription_id,
            compression_type=compression_type,
            metrics=data,
        )
        while (code := wire.ask(push, 0).error_code) == ErrorCode.THROTTLING_QUOTA_EXCEEDED:
            pass
        return int(code)

    assert pushed(compress(ZSTD, bytes(100 << 20)), ZSTD) == ErrorCode.TELEMETRY_TOO_LARGE
    assert pushed(bytes((1 << 20) + 1)) == ErrorCode.TELEMETRY_TOO_LARGE
    assert pushed(b"\xff" * 20) == ErrorCode.INVALID_RECORD
    assert pushed(metrics(1), 9) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert pushed(metrics(1), 0, 5) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID


def test_subscriptions_are_described_listed_and_gone_without_keys(wire: Wire) -> None:
    assert wire.alter("s", metrics="org.a", interval_ms="500") == (0, None)
    assert wire.alter("s", 2, metrics="org.b") == (0, None)
    assert wire.alter("s", interval_ms="5")[0] == ErrorCode.INVALID_REQUEST
    assert wire.alter("s", retention_ms="5")[0] == ErrorCode.INVALID_REQUEST
    assert wire.alter("", metrics="*")[0] == ErrorCode.INVALID_REQUEST

    asked = [
        DescribeConfigsResource(resource_type=CLIENT_METRICS, resource_name="s", configuration_keys=None)
    ]
    (described,) = wire.ask(DescribeConfigsRequest(resources=asked), 4).results
    assert {(one.name, one.value, one.config_source, one.config_type) for one in described.configs} == {
        ("metrics", "org.a,org.b", 7, 7),
        ("interval.ms", "500", 7, 3),
        ("match", "", 5, 7),
    }

    def listed() -> list[str]:
        return [one.resource_name for one in wire.ask(ListConfigResourcesRequest(), 0).config_resources]

    assert listed() == ["s"]
    assert wire.alter("s", 1, metrics="", interval_ms="") == (0, None)
    assert listed() == []
