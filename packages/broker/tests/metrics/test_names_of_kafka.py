"""The catalogue's names of the newer meters, beside those that Apache Kafka 4.4.0 shows over JMX.

They were read from a running broker with a share group, a consumer group and a transaction. Those of dead
letters and the pruned offset, which it makes later, are the names in its classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from ottla.broker.metrics.catalogue import Described, catalogue

OF_KAFKA: Final[Mapping[tuple[str, str], str]] = {
    ("kafka.server", "SharePartitionMetrics"): """
        AcquisitionLockTimeoutPerSec FetchLockRatio FetchLockTimeMs InFlightBatchCount
        InFlightBatchMessageCount InFlightMessageCount
    """,
    ("kafka.server", "ShareGroupMetrics"): """
        RecordAcknowledgementsPerSec RequestTopicPartitionsFetchRatio TopicPartitionsAcquireTimeMs
        PartitionLoadTimeMs DeadLetterQueueRecordCount DeadLetterQueueTotalProduceRequestsPerSec
        DeadLetterQueueFailedProduceRequestsPerSec
    """,
    ("kafka.server", "ShareSessionCache"): """
        SharePartitionsCount ShareSessionEvictionsPerSec ShareSessionsCount
    """,
    ("kafka.server", "DelayedShareFetchMetrics"): "ExpiresPerSec",
    ("kafka.server", "share-coordinator-metrics"): """
        write-rate write-total write-latency-avg write-latency-max partition-load-time-avg
        partition-load-time-max last-pruned-offset
    """,
    ("kafka.server", "group-coordinator-metrics"): """
        group-count classic-group-count consumer-group-count share-group-count streams-group-count
        group-completed-rebalance-rate group-completed-rebalance-count consumer-group-rebalance-rate
        consumer-group-rebalance-count share-group-rebalance-rate share-group-rebalance-count
        streams-group-rebalance-rate streams-group-rebalance-count offset-commit-rate offset-commit-count
        offset-deletion-rate offset-deletion-count offset-expiration-rate offset-expiration-count
        partition-load-time-avg partition-load-time-max
    """,
    ("kafka.server", "transaction-coordinator-metrics"): "partition-load-time-avg partition-load-time-max",
    ("kafka.coordinator.transaction", "TransactionMarkerChannelManager"): """
        LogAppendRetryQueueSize UnknownDestinationQueueSize
    """,
    ("kafka.server", "AddPartitionsToTxnManager"): "VerificationFailureRate VerificationTimeMs",
    ("kafka.server", "client-metrics"): "instance-count",
}
ENDS: Final = {
    "meter": ("", "-rate", "-total", "-count"),
    "histogram": ("", "-avg", "-max"),
    "gauge": ("",),
}
"""Endings of Kafka for the name of a sensor of each kind; the page of metrics has those of Prometheus."""
NEWER: Final = [described for described in catalogue() if (described.group, described.type) in OF_KAFKA]


@pytest.mark.parametrize("described", [pytest.param(each, id=each.name) for each in NEWER])
def test_a_newer_meter_has_the_name_that_kafka_gives_it(described: Described) -> None:
    names = OF_KAFKA[described.group, described.type].split()

    assert any(described.name + end in names for end in ENDS[described.kind]), (
        "a meter that Kafka does not have belongs to the group ottla.broker"
    )


def test_every_type_of_newer_meters_is_described() -> None:
    assert {(described.group, described.type) for described in NEWER} == set(OF_KAFKA)
