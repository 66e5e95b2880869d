"""Meters of a topic live as long as this broker leads a partition of it."""

from __future__ import annotations

from ottla.broker.api.topic_metrics import TopicMetrics
from ottla.broker.metrics import Metrics
from ottla.protocol.topics import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def topics_of(metrics: Metrics) -> set[str]:
    return {value for name, _ in metrics for tag, value in name.tags if tag == "topic"}


def test_meters_go_with_the_last_partition_of_their_topic() -> None:
    metrics = Metrics()
    topics = TopicMetrics(metrics)
    topics.leadership_changed([(A0, 1), (A1, 1), (B0, 1)], [])
    topics.of("a").messages_in.mark(3)
    topics.of("b").messages_in.mark()

    topics.leadership_changed([], [(A0, 2)])
    assert topics_of(metrics) == {"a", "b"}

    topics.leadership_changed([], [(A1, 2)])
    assert topics_of(metrics) == {"b"}


def test_a_topic_that_is_made_again_counts_from_nothing() -> None:
    topics = TopicMetrics(Metrics())
    topics.leadership_changed([(A0, 1)], [])
    topics.of("a").messages_in.mark(3)

    topics.leadership_changed([], [(A0, 2)])
    topics.leadership_changed([(A0, 3)], [])

    assert topics.of("a").messages_in.count == 0


def test_a_new_epoch_of_a_partition_that_stays_keeps_the_meters() -> None:
    topics = TopicMetrics(Metrics())
    topics.leadership_changed([(A0, 1)], [])
    topics.of("a").messages_in.mark(3)

    topics.leadership_changed([(A0, 2)], [])
    topics.leadership_changed([], [(B0, 2)])

    assert topics.of("a").messages_in.count == 3
