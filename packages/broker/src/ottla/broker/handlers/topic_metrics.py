"""Meters of produced and fetched data, for each topic and for all topics, under Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.metrics import Meter, Metrics

_KIND = ("kafka.server", "BrokerTopicMetrics")


@dataclass(slots=True)
class TopicMeters:
    """The meters of one topic, or of all of them."""

    messages_in: Meter
    bytes_in: Meter
    bytes_out: Meter
    bytes_rejected: Meter
    produce_requests: Meter
    failed_produce_requests: Meter
    fetch_requests: Meter
    failed_fetch_requests: Meter
    produce_conversions: Meter
    fetch_conversions: Meter


class TopicMetrics:
    """Makes the meters of each topic on their first use."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._by_topic: dict[str, TopicMeters] = {}
        self.all_topics = self._make({})

    def of(self, topic: str) -> TopicMeters:
        """Return the meters of one topic."""
        found = self._by_topic.get(topic)
        if found is None:
            found = self._by_topic[topic] = self._make({"topic": topic})
        return found

    def _make(self, tags: dict[str, str]) -> TopicMeters:
        def meter(name: str) -> Meter:
            return self._metrics.meter(*_KIND, name, **tags)

        return TopicMeters(
            messages_in=meter("MessagesInPerSec"),
            bytes_in=meter("BytesInPerSec"),
            bytes_out=meter("BytesOutPerSec"),
            bytes_rejected=meter("BytesRejectedPerSec"),
            produce_requests=meter("TotalProduceRequestsPerSec"),
            failed_produce_requests=meter("FailedProduceRequestsPerSec"),
            fetch_requests=meter("TotalFetchRequestsPerSec"),
            failed_fetch_requests=meter("FailedFetchRequestsPerSec"),
            produce_conversions=meter("ProduceMessageConversionsPerSec"),
            fetch_conversions=meter("FetchMessageConversionsPerSec"),
        )
