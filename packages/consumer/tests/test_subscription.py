from __future__ import annotations

import re

import pytest

from ottla.consumer.subscription import TopicFilter, subscription


def test_names_are_wanted_whether_or_not_they_are_known() -> None:
    assert subscription(["a", "b"]).topics({"b": False, "c": False}) == {"a", "b"}
    assert subscription("a").topics({}) == {"a"}


def test_a_pattern_matches_whole_names() -> None:
    known = dict.fromkeys(["orders", "orders.eu", "reorders"], False)

    assert subscription(pattern="orders").topics(known) == {"orders"}
    assert subscription(pattern=re.compile(r"orders(\..+)?")).topics(known) == {"orders", "orders.eu"}
    assert subscription(pattern=r"orders{0,1}").topics(known) == {"orders"}


def test_a_filter_leaves_out_what_it_denies() -> None:
    known = dict.fromkeys(["orders", "orders.test", "payments"], False)

    assert subscription(pattern=TopicFilter("orders.*,payments", deny=r".*\.test")).topics(known) == {
        "orders",
        "payments",
    }


def test_topics_of_the_brokers_are_left_out_of_patterns() -> None:
    known = {"__consumer_offsets": True, "mine": False}

    assert subscription(pattern=".*").topics(known) == {"mine"}
    assert subscription(pattern=".*").topics(known, exclude_internal=False) == set(known)
    assert subscription(["__consumer_offsets"]).topics(known) == {"__consumer_offsets"}


def test_neither_and_both_of_names_and_pattern_are_refused() -> None:
    with pytest.raises(ValueError, match="one of the two"):
        subscription()
    with pytest.raises(ValueError, match="one of the two"):
        subscription(["a"], "a")


def test_a_broken_expression_is_named() -> None:
    with pytest.raises(ValueError, match=r"'\(' is not a regular expression"):
        TopicFilter("(")
