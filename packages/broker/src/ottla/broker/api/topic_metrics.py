"""Meters of produced and fetched data, for each topic and for all topics, under Kafka's names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ottla.broker.metrics import Meter, Metrics
    from ottla.protocol.topics import TopicPartition

_KIND: Final = ("kafka.server", "BrokerTopicMetrics")
_NAMES: Final = {
    "messages_in": "MessagesInPerSec",
    "bytes_in": "BytesInPerSec",
    "bytes_out": "BytesOutPerSec",
    "bytes_rejected": "BytesRejectedPerSec",
    "produce_requests": "TotalProduceRequestsPerSec",
    "failed_produce_requests": "FailedProduceRequestsPerSec",
    "fetch_requests": "TotalFetchRequestsPerSec",
    "failed_fetch_requests": "FailedFetchRequestsPerSec",
    "share_fetch_requests": "TotalShareFetchRequestsPerSec",
    "failed_share_fetch_requests": "FailedShareFetchRequestsPerSec",
    "share_acknowledgements": "TotalShareAcknowledgementRequestsPerSec",
    "failed_share_acknowledgements": "FailedShareAcknowledgementRequestsPerSec",
    "produce_conversions": "ProduceMessageConversionsPerSec",
    "fetch_conversions": "FetchMessageConversionsPerSec",
}


@dataclass(slots=True, eq=False, repr=False)
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
    share_fetch_requests: Meter
    failed_share_fetch_requests: Meter
    share_acknowledgements: Meter
    failed_share_acknowledgements: Meter
    produce_conversions: Meter
    fetch_conversions: Meter


class TopicMetrics:
    """Makes the meters of each topic on their first use.

    They are removed when this broker leads no partition of the topic any more, as it is after a deletion.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._by_topic: dict[str, TopicMeters] = {}
        self._led: defaultdict[str, set[int]] = defaultdict(set)
        self.all_topics = self._make({})
        self.replication_bytes_out = metrics.meter(*_KIND, "ReplicationBytesOutPerSec")
        self.reassignment_bytes_out = metrics.meter(*_KIND, "ReassignmentBytesOutPerSec")

    def of(self, topic: str) -> TopicMeters:
        """Return the meters of one topic."""
        found = self._by_topic.get(topic)
        if found is None:
            found = self._by_topic[topic] = self._make({"topic": topic})
        return found

    def leadership_changed(
        self,
        elected: Sequence[tuple[TopicPartition, int]],
        resigned: Sequence[tuple[TopicPartition, int]],
    ) -> None:
        """Remove the meters of topics of which the last partition is given up."""
        for (topic, partition), _ in elected:
            self._led[topic].add(partition)
        for (topic, partition), _ in resigned:
            led = self._led[topic]
            led.discard(partition)
            if not led:
                del self._led[topic]
                self._remove(topic)

    def _remove(self, topic: str) -> None:
        if self._by_topic.pop(topic, None) is not None:
            for name in _NAMES.values():
                self._metrics.remove(*_KIND, name, topic=topic)

    def _make(self, tags: dict[str, str]) -> TopicMeters:
        return TopicMeters(
            **{field: self._metrics.meter(*_KIND, name, **tags) for field, name in _NAMES.items()}
        )
