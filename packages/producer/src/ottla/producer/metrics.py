"""The metrics of a producer: Kafka's `producer-metrics` and `producer-topic-metrics`, in snake case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from ottla.client.metrics import Description, Metrics, Sample, average, counter, gauge, total


def _none() -> int:
    return 0


@dataclass(slots=True)
class ProducerTopicMetrics(Metrics):
    """The metrics of one topic."""

    record_send_total: int = counter("Records that were sent; each repetition counts.")
    record_error_total: int = counter("Records that failed.")
    record_retry_total: int = counter("Records that were sent again.")
    byte_total: int = counter("Bytes of batches that were sent, compressed.")


@dataclass(slots=True)
class ProducerMetrics(Metrics):
    """The metrics of a producer. Attributes can be read at any time; `samples` yields all for exporters."""

    prefix = "producer"
    derived: ClassVar = {
        "batch_size_avg": "Bytes of a batch, on average.",
        "records_per_batch_avg": "Records of a batch, on average.",
        "records_per_request_avg": "Records of a request, on average.",
        "record_queue_time_avg": "Milliseconds a batch waited before it was sent, on average.",
        "request_latency_avg": "Milliseconds from request to response, on average.",
        "produce_throttle_time_avg": "Milliseconds a broker throttled a request for a quota, on average.",
        "buffer_total_bytes": "Bytes of records that may wait, `buffer_memory`.",
        "buffer_available_bytes": "Bytes of records that still fit into the buffer.",
        "requests_in_flight": "Requests without a response yet.",
    }

    record_send_total: int = counter("Records that were sent; each repetition counts.")
    record_error_total: int = counter("Records that failed.")
    record_retry_total: int = counter("Records that were sent again.")
    byte_total: int = counter("Bytes of batches that were sent, compressed.")
    batch_total: int = counter("Batches that were sent; each repetition counts.")
    batch_size_max: float = gauge("Bytes of the largest batch.")
    request_total: int = counter("Produce requests that were sent.")
    response_total: int = counter("Produce requests with a response.")
    request_latency_total_ms: float = total("Milliseconds from request to response, of all requests.")
    request_latency_max: float = gauge("Milliseconds from request to response, of the slowest.")
    record_queue_time_total_ms: float = total("Milliseconds batches waited before they were sent, in all.")
    record_queue_time_max: float = gauge("Milliseconds the batch waited that waited the longest.")
    produce_throttle_time_total_ms: float = total("Milliseconds that brokers asked to wait, for quotas.")
    produce_throttle_time_max: float = gauge("Milliseconds of the longest throttle time.")
    bufferpool_wait_time_total_ms: float = total("Milliseconds that `send` waited for buffer space.")
    buffer_exhausted_total: int = counter("Records that were rejected because the buffer was full.")
    flush_time_total_ms: float = total("Milliseconds that `flush` waited.")
    txn_commit_total: int = counter("Transactions that were committed.")
    txn_abort_total: int = counter("Transactions that were aborted.")
    topics: dict[str, ProducerTopicMetrics] = field(default_factory=dict)
    buffer_total_bytes: int = 0
    available: Callable[[], int] = field(default=_none, repr=False)
    in_flight: Callable[[], int] = field(default=_none, repr=False)

    def batch_sent(self, topic: str, records: int, size_bytes: int, waited_ms: float, attempt: int) -> None:
        """Count a batch that is sent; `attempt` 0 is the first."""
        of_topic = self.topic(topic)
        self.record_send_total += records
        of_topic.record_send_total += records
        self.byte_total += size_bytes
        of_topic.byte_total += size_bytes
        self.batch_total += 1
        if size_bytes > self.batch_size_max:
            self.batch_size_max = size_bytes
        if attempt:
            self.record_retry_total += records
            of_topic.record_retry_total += records
            return
        self.record_queue_time_total_ms += waited_ms
        if waited_ms > self.record_queue_time_max:
            self.record_queue_time_max = waited_ms

    def batch_failed(self, topic: str, records: int) -> None:
        """Count a batch that failed."""
        self.record_error_total += records
        self.topic(topic).record_error_total += records

    def answered(self, latency_ms: float, throttle_ms: float = 0) -> None:
        """Count the response to a request."""
        self.response_total += 1
        self.request_latency_total_ms += latency_ms
        self.produce_throttle_time_total_ms += throttle_ms
        if throttle_ms > self.produce_throttle_time_max:
            self.produce_throttle_time_max = throttle_ms
        if latency_ms > self.request_latency_max:
            self.request_latency_max = latency_ms

    def topic(self, name: str) -> ProducerTopicMetrics:
        """Return the metrics of a topic."""
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = ProducerTopicMetrics()
        return found

    @property
    def batch_size_avg(self) -> float:
        """Bytes of a batch, on average."""
        return average(self.byte_total, self.batch_total)

    @property
    def records_per_batch_avg(self) -> float:
        """Records of a batch, on average."""
        return average(self.record_send_total, self.batch_total)

    @property
    def records_per_request_avg(self) -> float:
        """Records of a request, on average."""
        return average(self.record_send_total, self.request_total)

    @property
    def record_queue_time_avg(self) -> float:
        """Milliseconds a batch waited before it was sent, on average."""
        return average(self.record_queue_time_total_ms, self.batch_total)

    @property
    def request_latency_avg(self) -> float:
        """Milliseconds from request to response, on average."""
        return average(self.request_latency_total_ms, self.response_total)

    @property
    def produce_throttle_time_avg(self) -> float:
        """Milliseconds a broker throttled a request for a quota, on average."""
        return average(self.produce_throttle_time_total_ms, self.response_total)

    @property
    def buffer_available_bytes(self) -> int:
        """Bytes of records that still fit into the buffer."""
        return self.available()

    @property
    def requests_in_flight(self) -> int:
        """Requests without a response yet."""
        return self.in_flight()

    @classmethod
    def all_descriptions(cls) -> tuple[Description, ...]:
        """Return the descriptions of all metrics, those of topics among them."""
        return (*cls.descriptions(), *ProducerTopicMetrics.descriptions(("topic",)))

    def samples(self) -> Iterator[Sample]:
        """Yield every metric with its value, those of topics among them."""
        yield from self.tagged({})
        for name, metrics in tuple(self.topics.items()):
            yield from metrics.tagged({"topic": name})
