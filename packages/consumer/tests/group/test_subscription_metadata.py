"""The topics of a subscription that are missing."""

from __future__ import annotations

from ottla.consumer.group.subscription_metadata import MISSING_TOPIC_INTERVAL_S, MissingTopics


def test_a_topic_that_the_broker_creates_meanwhile_is_not_warned_of() -> None:
    missing = MissingTopics()

    first = missing.to_warn_of({"orders"}, 0)
    second = missing.to_warn_of(set(), MISSING_TOPIC_INTERVAL_S)

    assert (first, second) == ([], [])


def test_a_topic_that_stays_missing_is_warned_of_once_and_again_when_it_was_there() -> None:
    missing = MissingTopics()
    seen: list[set[str]] = [{"a", "b"}, {"a", "b"}, {"a", "b"}, {"b"}, {"a", "b"}, {"a", "b"}]

    warned = [missing.to_warn_of(names, at * MISSING_TOPIC_INTERVAL_S) for at, names in enumerate(seen)]

    assert warned == [[], ["a", "b"], [], [], [], ["a"]]
