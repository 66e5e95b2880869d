from __future__ import annotations

import json
import logging
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import pytest

from ottla.client.log_formats import facts_of
from ottla.consumer import ConsumerRecord
from ottla.protocol.topics import TopicPartition
from ottla.streams.errors import DeadLetterDelayed, HandlerFailed, RecordUndecodable
from ottla.streams.handlers.arguments import arguments_of
from ottla.streams.handlers.context import Context
from ottla.streams.operating.health import HealthLimits, judge
from ottla.streams.operating.log_lines import FactsFormatter, JsonFormatter, LineLimit
from ottla.streams.operating.metrics import StreamsMetrics
from ottla.streams.operating.observer import ProcessorObserver
from ottla.streams.operating.status import app_status, processor_status
from ottla.streams.seams import DeadLetter, Retry, Skip, Stop

P0 = TopicPartition("orders", 0)


class HandlerCall:
    """Work of one record."""

    def __init__(self, offset: int, *, attempt: int = 1, started_ms: int = 0, key: bytes = b"k") -> None:
        self.context: Any = None
        self.partition = P0
        self.record = ConsumerRecord("orders", 0, offset, key=key)
        self.records = [self.record]
        self.offset = offset
        self.lane: Hashable = key
        self.attempt = attempt
        self.started_ms = started_ms


@dataclass(frozen=True)
class Plan:
    """A plan without finished offsets above the committed one."""

    offset: int
    metadata: str = ""
    partition: TopicPartition = P0
    is_complete: bool = True

    @property
    def end(self) -> int:
        return self.offset

    def covers(self, offset: int) -> bool:
        return offset < self.offset


@pytest.fixture
def observer() -> ProcessorObserver:
    """Make an observer at 10 s of its clock, with one partition."""
    made = ProcessorObserver("billing", now_ms=lambda: 10_000)
    made.on_assigned(P0, 5)
    return made


def test_handlers_are_counted_and_the_oldest_is_known(observer: ProcessorObserver) -> None:
    older, newer, done = HandlerCall(5, started_ms=4_000), HandlerCall(6, started_ms=9_000), HandlerCall(7)
    for work in (newer, older, done):
        observer.on_started(work)
    observer.on_finished(done, 30.0)

    metrics = observer.metrics
    assert (metrics.in_flight, metrics.oldest_in_flight_ms) == (2, 6_000)
    assert (metrics.record_handled_total, metrics.handler_latency_max) == (1, 30.0)
    observer.on_finished(older, 6_000)
    assert observer.oldest_in_flight_ms() == 1_000


def test_failures_are_counted_by_verdict(observer: ProcessorObserver) -> None:
    work, error = HandlerCall(5), ValueError("no")
    for verdict in (Retry(11_000), Skip(), DeadLetter()):
        observer.on_started(work)
        observer.on_failed(work, error, verdict)
        assert observer.metrics.parked == isinstance(verdict, Retry)
        work.attempt += 1
    observer.on_set_aside(work)

    found = observer.metrics.snapshot()
    names = ("handler_error_total", "retry_total", "skip_total", "dead_letter_total", "parked", "in_flight")
    assert [found[each] for each in names] == [3, 1, 1, 1, 0, 0]


def test_a_dead_letter_that_was_delayed_is_in_flight_no_longer_than_its_last_try(
    observer: ProcessorObserver, caplog: pytest.LogCaptureFixture
) -> None:
    work, delayed = HandlerCall(5), DeadLetterDelayed("dead", 1, ConnectionError("no broker"))
    observer.on_started(work)
    observer.on_failed(work, ValueError("no"), DeadLetter())
    observer.on_failed(work, delayed, Retry(11_000))
    assert (observer.in_flight(), observer.parked()) == (0, 1)
    work.attempt += 1
    observer.on_started(work)
    observer.on_set_aside(work)

    assert (observer.in_flight(), observer.parked()) == (0, 0)
    assert observer.oldest_in_flight_ms() == 0
    assert "a dead letter is sent again later" in caplog.messages


def test_a_revoked_partition_leaves_nothing_in_flight(observer: ProcessorObserver) -> None:
    running, parked = HandlerCall(5), HandlerCall(6)
    observer.on_started(running)
    observer.on_started(parked)
    observer.on_failed(parked, ValueError("no"), Retry(11_000))

    observer.on_revoked(P0, lost=True)
    observer.on_finished(running, 1.0)

    metrics = observer.metrics
    assert (metrics.in_flight, metrics.parked, metrics.lost_total, observer.partitions) == (0, 0, 1, {})


def test_commits_that_go_on_failing_make_it_unhealthy_until_they_succeed_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_ms = 1_000.0
    observer = ProcessorObserver("billing", now_ms=lambda: now_ms)
    with caplog.at_level(logging.INFO, "ottla.streams"):
        for _ in range(3):
            observer.on_commit([Plan(7)], RuntimeError("no coordinator"))
        now_ms = 100_000
        failing = judge(observer.health_facts(), HealthLimits())
        observer.on_commit([Plan(8)], None)

    assert failing.reasons == ("commits have failed for 99 s: RuntimeError: no coordinator",)
    assert judge(observer.health_facts(), HealthLimits()).is_healthy
    assert [each.getMessage() for each in caplog.records] == ["offsets are committed again"]
    assert observer.metrics.commit_error_total == 3


def test_log_lines_name_the_record_and_hide_its_key(
    observer: ProcessorObserver, caplog: pytest.LogCaptureFixture
) -> None:
    work = HandlerCall(7, key=b"secret-customer")
    observer.on_failed(work, ValueError("no"), DeadLetter())
    observer.on_failed(work, ValueError("no"), Stop())
    first, second = [each for each in caplog.records if "handler failed" in each.getMessage()]

    line, text = json.loads(JsonFormatter().format(first)), FactsFormatter().format(first)

    facts = {name: line[name] for name in ("group", "topic", "partition", "offset", "attempt", "level")}
    assert facts == {
        "group": "billing", "topic": "orders", "partition": 0, "offset": 7, "attempt": 1, "level": "warning",
    }  # fmt: skip
    assert line["event"] == "the handler failed, the record becomes a dead letter"
    assert len(line["key_hash"]) == 16
    assert "topic=orders partition=0 offset=7" in text
    assert "secret" not in text + json.dumps(line)
    assert second.levelname == "ERROR"


def test_an_outage_logs_one_line_per_second_and_exception_type_and_counts_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_ms = 0.0
    observer = ProcessorObserver("billing", now_ms=lambda: now_ms)
    with caplog.at_level(logging.INFO, "ottla.streams"):
        for offset in range(2_500):
            now_ms = float(offset)
            error = OSError("down") if offset % 2 else ValueError("no")
            observer.on_failed(HandlerCall(offset), error, DeadLetter())
            observer.on_set_aside(HandlerCall(offset))

    def lines(name: str) -> list[tuple[int, int]]:
        """Return the offset of each line about something, and how many were left out before it."""
        chosen = [vars(each) for each in caplog.records if name in FactsFormatter().format(each)]
        return [(each["offset"], each.get("left_out", 0)) for each in chosen]

    assert lines("OSError") == [(1, 0), (1_001, 499), (2_001, 499)]
    assert lines("ValueError") == [(0, 0), (1_000, 499), (2_000, 499)]
    assert lines("dead letter written") == [(0, 0), (1_000, 999), (2_000, 999)]
    assert len(caplog.records) == 9


def test_the_subjects_of_limited_lines_are_bounded() -> None:
    limit = LineLimit(lambda: 0.0)

    assert [limit.admit(f"Error{number}") for number in range(5_000)] == [0] * 5_000
    assert limit.admit("Error4999") is None
    assert limit.admit("Error0") == 0  # forgotten


def test_the_status_names_the_oldest_record_of_each_partition(observer: ProcessorObserver) -> None:
    observer.on_started(HandlerCall(9, started_ms=8_000))
    observer.on_commit([Plan(6, "abc")], None)
    observer.on_paused(P0, paused=True)

    health = judge(observer.health_facts(), HealthLimits())
    status = app_status(
        "app", 10_000, [processor_status("charge", "billing", observer, health, now_ms=10_000)]
    )

    (processor,) = status["processors"]
    (partition,) = processor["partitions"]
    assert (partition["offset"], partition["metadata_bytes"], partition["paused"]) == (6, 3, True)
    assert (partition["oldest"]["offset"], partition["oldest"]["age_ms"]) == (9, 2_000)
    assert processor["paused_partitions"] == 1
    json.dumps(status)


def test_every_sample_is_announced() -> None:
    metrics = StreamsMetrics()

    assert {each.description for each in metrics.samples()} <= set(StreamsMetrics.all_descriptions())
    assert metrics.snapshot()["in_flight"] == 0


def test_what_only_grows_is_exported_as_a_counter() -> None:
    kinds = {each.name: each.kind for each in StreamsMetrics.all_descriptions()}

    totals = ("dedupe_hit_total", "late_total", "keyless_total", "valueless_total", "retry_total")
    assert {kinds[each] for each in totals} == {"counter"}
    assert {kinds[each] for each in ("lanes", "handler_latency_avg", "records_lag_max")} == {"gauge"}


def test_a_record_that_cannot_be_decoded_has_one_line_that_says_where_it_goes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    observer = ProcessorObserver("billing", now_ms=lambda: 10_000, dead_letter_topic="orders.failed")
    error = RecordUndecodable(P0, 7, ValueError("no JSON"), "as Order from JSON")

    observer.on_failed(HandlerCall(7), error, DeadLetter())
    observer.on_failed(HandlerCall(7), error, Skip())
    observer.on_failed(HandlerCall(7), error, Stop())  # raised by the processor

    assert caplog.messages == [
        "a record cannot be decoded, it becomes a dead letter",
        "a record cannot be decoded, it is skipped",
    ]
    assert facts_of(caplog.records[0])["dead_letter_topic"] == "orders.failed"
    assert str(error) == (
        "the value of a record cannot be decoded as Order from JSON (topic orders, partition 0, offset 7): "
        "ValueError: no JSON"
    )
    assert str(HandlerFailed(P0, 7, error)) == (
        f"{error}; to go on after such records set dead_letter_topic, or "
        "on_error={RecordUndecodable: 'skip'}"
    )


def test_the_traceback_of_a_failure_begins_in_the_handler(
    observer: ProcessorObserver, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(record: ConsumerRecord) -> None:
        raise KeyError("no customer")

    call = arguments_of(handle).call_of(handle)
    with pytest.raises(KeyError) as raised:
        call([ConsumerRecord("orders", 0, 1)], Context((), 1, None))
    frames = raised.value.__traceback__
    assert frames is not None
    error = raised.value.with_traceback(frames.tb_next)  # as a worker catches it
    observer.on_failed(HandlerCall(1), error, Stop())

    assert "arguments.py" not in caplog.text
    assert 'raise KeyError("no customer")' in caplog.text
