"""Pushed metrics handed on to a collector: what waits, when a request is sent again, and what is counted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceResponse,
)

from ottla.broker.config import load_broker_config
from ottla.broker.config.metrics import headers_in
from ottla.broker.metrics import Metrics
from ottla.broker.runtime.environment import Environment
from ottla.broker.telemetry.otlp_export import (
    GIVE_UP_AFTER_MS,
    LONGEST_PAUSE_MS,
    Answer,
    HttpCollector,
    OtlpExport,
    Outbox,
    answer_of,
    pause_ms,
)
from ottla.client.config_definition import ConfigError
from peers.otlp_receiver import OtlpReceiver

TAKEN = Answer(200)
AWAY = Answer(None, "connection refused")


# ---- what waits


def test_pushes_beyond_the_bound_drop_the_oldest() -> None:
    waiting = Outbox(10)

    dropped = [waiting.offer(push) for push in (b"aaaa", b"bbbb", b"cccc", b"d" * 11)]

    assert dropped == [0, 0, 1, 1]
    assert waiting.bytes == 8
    assert waiting.take() == [b"bbbb", b"cccc"]
    assert (waiting.bytes, waiting.take()) == (0, [])


def test_pushes_go_together_up_to_a_size_and_a_large_one_alone() -> None:
    waiting = Outbox(100)
    for push in (b"a" * 4, b"b" * 4, b"c" * 20, b"d"):
        waiting.offer(push)

    taken = [waiting.take(8) for _ in range(4)]

    assert [[len(push) for push in pushes] for pushes in taken] == [[4, 4], [20], [1], []]


# ---- when a request is sent again


@pytest.mark.parametrize("status", [429, 502, 503, 504, None])
def test_a_collector_that_is_away_or_busy_is_asked_again_with_growing_pauses(status: int | None) -> None:
    pauses = [pause_ms(Answer(status), tries, 0, 1) for tries in range(1, 8)]

    assert pauses == [1_000, 2_000, 4_000, 8_000, 16_000, LONGEST_PAUSE_MS, LONGEST_PAUSE_MS]
    assert pause_ms(Answer(status), 1, 0, 0) == 500


@pytest.mark.parametrize("status", [301, 400, 401, 404, 413, 500])
def test_a_request_that_is_refused_is_not_sent_again(status: int) -> None:
    assert pause_ms(Answer(status), 1, 0, 1) is None


def test_a_collector_that_names_a_time_is_left_alone_for_that() -> None:
    assert pause_ms(Answer(429, retry_after_ms=45_000), 1, 0, 1) == 45_000
    assert pause_ms(Answer(429, retry_after_ms=1), 1, 0, 1) == 1_000


def test_a_request_is_given_up_within_the_time_for_it() -> None:
    assert pause_ms(AWAY, 20, GIVE_UP_AFTER_MS - LONGEST_PAUSE_MS, 1) == LONGEST_PAUSE_MS
    assert pause_ms(AWAY, 20, GIVE_UP_AFTER_MS - LONGEST_PAUSE_MS + 1, 1) is None
    assert pause_ms(Answer(503, retry_after_ms=1e12), 1, 0, 1) is None


# ---- answers


def test_answers_are_read_with_what_was_rejected() -> None:
    partial = ExportMetricsPartialSuccess(rejected_data_points=3, error_message="too\nold")
    content = ExportMetricsServiceResponse(partial_success=partial).SerializeToString()

    assert answer_of(200, None, content) == Answer(200, "too old", None, 3)
    assert answer_of(200, None, b"") == Answer(200)
    assert answer_of(200, None, b"\xff\xff") == Answer(200)
    assert answer_of(503, "7", b"busy\n") == Answer(503, "busy", 7_000)
    assert answer_of(429, "Fri, 27 Nov 2026 00:00:00 GMT", b"") == Answer(429)
    assert answer_of(429, "9" * 400, b"") == Answer(429)
    assert len(answer_of(400, None, b"x" * 9_000).reason) == 200


# ---- the loop


class Collector:
    """Answers as it is told, then takes everything."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.answers = list(answers)
        self.bodies: list[bytes] = []
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def post(self, body: bytes) -> Answer:
        self.bodies.append(body)
        self.asked.set()
        await self.may_answer.wait()
        return self.answers.pop(0) if self.answers else TAKEN


class World:
    """An export that runs against a collector."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self.metrics = Metrics()
        self.export = OtlpExport(self._connect, Environment(), self.metrics, max_bytes=10, first_pause_ms=0)

    @contextlib.asynccontextmanager
    async def _connect(self) -> AsyncIterator[Collector]:
        yield self.collector

    def count(self, name: str) -> float:
        return float(self.metrics.meter("ottla.broker", "client-metrics", f"otlp-{name}").count)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.export.run())
            yield
            task.cancel()

    async def until(self, name: str, count: int) -> None:
        async with asyncio.timeout(60):
            while self.count(name) < count:  # noqa: ASYNC110 - a meter has no event
                await asyncio.sleep(0)


async def test_a_request_is_repeated_until_it_is_taken_and_failures_are_counted() -> None:
    world = World(Collector([AWAY, Answer(503)]))

    async with world.running():
        world.export.offer(b"abc")
        await world.until("sent-pushes", 1)

    assert world.collector.bodies == [b"abc"] * 3
    assert (world.count("failed-requests"), world.count("dropped-pushes")) == (2, 0)


async def test_a_refused_request_is_dropped_and_the_next_one_sent() -> None:
    world = World(Collector([Answer(400), Answer(200, "old", rejected_points=4)]))

    async with world.running():
        world.export.offer(b"bad")
        await world.until("dropped-pushes", 1)
        world.export.offer(b"good")
        await world.until("sent-pushes", 1)

    assert world.collector.bodies == [b"bad", b"good"]
    assert world.count("rejected-points") == 4


async def test_while_a_collector_is_slow_pushes_wait_within_their_bound() -> None:
    world = World(Collector([]))
    world.collector.may_answer.clear()

    async with world.running():
        world.export.offer(b"1111")
        await world.collector.asked.wait()
        for push in (b"2222", b"3333", b"4444", b"5555"):
            world.export.offer(push)
        world.collector.may_answer.set()
        await world.until("sent-pushes", 3)

    assert world.collector.bodies == [b"1111", b"44445555"]
    assert world.count("dropped-pushes") == 2


async def test_a_url_that_no_request_can_be_sent_to_is_a_failure_like_others() -> None:
    config = load_broker_config({"telemetry.otlp.endpoint": "https://\N{SNOWMAN}.com/v1/metrics"}).config

    async with HttpCollector(config) as collector:
        answer = await collector.post(b"push")

    assert (answer.status, answer.reason) == (None, "Invalid IDNA hostname: '\N{SNOWMAN}.com'")


async def test_a_secret_in_clear_goes_to_the_collector_itself_and_through_no_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with OtlpReceiver() as proxy, OtlpReceiver() as receiver:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1/metrics"))
        settings = {"telemetry.otlp.endpoint": receiver.url, "telemetry.otlp.headers": "authorization=s3cret"}
        async with HttpCollector(load_broker_config(settings).config) as collector:
            answer = await collector.post(b"")

        assert answer.is_taken
        assert proxy.received.empty()
        assert receiver.received.get(timeout=60).headers["authorization"] == "s3cret"


# ---- settings


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"telemetry.otlp.endpoint": "collector:4318"}, "must be a URL, as https://"),
        ({"telemetry.otlp.endpoint": "ftp://collector/v1/metrics"}, "must be a URL, as https://"),
        ({"telemetry.otlp.endpoint": "https://[::1/v1/metrics"}, "cannot be read"),
        ({"telemetry.otlp.endpoint": "https://collector:99999/v1/metrics"}, "cannot be read"),
        ({"telemetry.otlp.endpoint": "https://a:b@collector/v1/metrics"}, "set telemetry.otlp.headers"),
        (
            {"telemetry.otlp.endpoint": "http://collector/v1/metrics", "telemetry.otlp.headers": "a=b"},
            "must begin with https",
        ),
        (
            {
                "telemetry.otlp.endpoint": "https://collector/v1/metrics",
                "telemetry.otlp.ssl.truststore.location": "/nowhere/ca.pem",
            },
            "/nowhere/ca.pem has no certificates that can be read: No such file",
        ),
        ({"telemetry.otlp.headers": "no-value"}, "must be name=value"),
        ({"telemetry.otlp.headers": "a:b=c"}, "must be name=value"),
        ({"telemetry.otlp.headers": "a=%0d%0ab: c"}, "the value of a has letters"),
    ],
)
def test_a_collector_that_cannot_be_or_would_be_sent_a_secret_in_clear_is_refused(
    settings: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        load_broker_config(settings)


def test_headers_are_read_as_those_of_opentelemetrys_exporters_and_never_shown() -> None:
    config = load_broker_config(
        {
            "telemetry.otlp.endpoint": "http://127.0.0.1:4318/v1/metrics",
            "telemetry.otlp.headers": "Authorization=Bearer%20s3cret, x-tenant=shop",
        }
    ).config

    assert headers_in(config.telemetry_otlp_headers) == {
        "authorization": "Bearer s3cret",
        "x-tenant": "shop",
    }
    assert "s3cret" not in repr(config)
