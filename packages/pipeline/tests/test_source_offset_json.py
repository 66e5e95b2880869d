"""Offsets as JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.pipeline.errors import OptionError
from ottla.pipeline.source.offsets import (
    INITIAL,
    Position,
    end_with_starts,
    flat,
    nested,
    of_topics,
    parse_offsets,
    parse_partitions,
    partition_names,
    position_in,
    starts_in,
)
from ottla.protocol.topics import TopicPartition

PLACES = st.dictionaries(
    st.builds(TopicPartition, st.from_regex(r"[a-zA-Z0-9._-]{1,5}", fullmatch=True), st.integers(0, 2_000)),
    st.integers(-2, 2**62),
)


@given(PLACES)
def test_nested_offsets_come_back_flat(offsets: dict[TopicPartition, int]) -> None:
    assert flat(nested(offsets)) == offsets
    assert flat(json.loads(json.dumps(nested(offsets)))) == offsets


@given(PLACES)
def test_a_checkpoint_s_offsets_can_be_given_as_an_option(offsets: dict[TopicPartition, int]) -> None:
    assert parse_offsets("startingOffsets", json.dumps(nested(offsets))) == offsets


@given(PLACES, PLACES, st.dictionaries(st.sampled_from(["a", "orders", "x.y"]), st.text(min_size=1)))
def test_the_end_of_a_first_batch_says_where_it_started_and_is_an_end_like_others(
    starts: dict[TopicPartition, int], end: dict[TopicPartition, int], ids: dict[str, str]
) -> None:
    found = json.loads(json.dumps(end_with_starts(starts, Position(end, ids))))
    topics = {each.topic for each in end}

    assert starts_in(found) == starts
    assert flat(found) == end == parse_offsets("startingOffsets", json.dumps(found))
    assert of_topics(found) == nested(end)
    assert position_in(found) == (end, {topic: ids[topic] for topic in ids if topic in topics})


def test_other_offsets_say_nothing_of_starts() -> None:
    assert starts_in({"orders": {"0": 4}}) == {}
    assert starts_in(INITIAL) == flat(INITIAL) == {}


def test_partitions_stand_in_the_order_of_their_numbers() -> None:
    offsets = {TopicPartition("orders", number): number for number in (10, 9, 2)}

    assert list(nested(offsets)["orders"]) == ["2", "9", "10"]


@pytest.mark.parametrize(
    "text",
    ["orders", "[1]", '{"orders": 1}', '{"orders": {"first": 1}}', '{"orders": {"0": "1"}}',
     '{"orders": {"0": 1.5}}', '{"orders": {"0": true}}', '{"orders": {"0": null}}'],
)  # fmt: skip
def test_invalid_json_of_offsets_is_rejected_with_an_example(text: str) -> None:
    with pytest.raises(
        OptionError, match=r"'startingOffsets' must .*\{\"orders\": \{\"0\": 23, \"1\": -2\}\}"
    ):
        parse_offsets("startingOffsets", text)


@pytest.mark.parametrize("topic", ["ord/ers", "/initial", "ord/ers/from"])
def test_a_topic_with_a_slash_is_refused_and_not_left_out(topic: str) -> None:
    text = json.dumps({"orders": {"0": 23}, topic: {"0": 4}})

    with pytest.raises(OptionError, match=f"'startingOffsets' names '{topic}': no topic has a slash"):
        parse_offsets("startingOffsets", text)


def test_partitions_are_given_as_lists() -> None:
    found = parse_partitions("assign", '{"orders": [0, 2], "bills": [1]}')

    assert found == {TopicPartition("orders", 0), TopicPartition("orders", 2), TopicPartition("bills", 1)}


@pytest.mark.parametrize(
    "text", ["orders", '{"orders": 0}', '{"orders": ["0"]}', '{"orders": [-1]}', '{"orders": []}', "{}"]
)
def test_json_without_partitions_is_rejected(text: str) -> None:
    with pytest.raises(OptionError, match="'assign' must"):
        parse_partitions("assign", text)


def test_a_message_names_the_first_few_partitions() -> None:
    many = [TopicPartition("orders", number) for number in range(7)]

    assert partition_names(many[:2]) == "orders-0, orders-1"
    assert partition_names(many) == "orders-0, orders-1, orders-2, orders-3, orders-4 and 2 more"
