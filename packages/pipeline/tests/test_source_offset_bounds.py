"""Starting and ending offsets."""

from __future__ import annotations

import json

import pytest

from ottla.pipeline.errors import OptionError
from ottla.pipeline.options import given_options
from ottla.pipeline.source.offset_bounds import Bound, BoundOptions, Edge, ending, starting
from ottla.protocol.topics import TopicPartition

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


def read(given: dict[str, str]) -> BoundOptions:
    return BoundOptions(**given_options(BoundOptions, given))


def begin(given: dict[str, str] | None = None, *, streaming: bool = False) -> Bound:
    return starting(read(given or {}), Edge.LATEST if streaming else Edge.EARLIEST, streaming=streaming)


def test_a_batch_begins_at_the_first_record_and_a_stream_behind_the_last() -> None:
    assert begin().edge is Edge.EARLIEST
    assert begin(streaming=True).edge is Edge.LATEST
    assert ending(read({})).edge is Edge.LATEST


def test_edges_are_words_in_any_case() -> None:
    assert begin({"startingOffsets": " Earliest "}).edge is Edge.EARLIEST
    assert begin({"startingOffsets": "EARLIEST"}, streaming=True).edge is Edge.EARLIEST
    with pytest.raises(OptionError, match="must be earliest, latest, or offsets as JSON, not 'earlyest'"):
        begin({"startingOffsets": "earlyest"})
    assert ending(read({"endingOffsets": "LATEST"})).edge is Edge.LATEST


def test_one_timestamp_wins_over_timestamps_and_these_over_offsets() -> None:
    given = {
        "startingTimestamp": "1000",
        "startingOffsetsByTimestamp": '{"orders": {"0": 2000}}',
        "startingOffsets": '{"orders": {"0": 3}}',
    }
    assert begin(given).time == 1_000
    del given["startingTimestamp"]
    assert begin(given).times == {ZERO: 2_000}
    del given["startingOffsetsByTimestamp"]
    assert begin(given).offsets == {ZERO: 3}


def test_the_end_has_the_same_order() -> None:
    given = {
        "endingTimestamp": "1000",
        "endingOffsetsByTimestamp": '{"orders": {"0": 2000}}',
        "endingOffsets": '{"orders": {"0": 3}}',
    }
    assert ending(read(given)).time == 1_000
    del given["endingTimestamp"]
    assert ending(read(given)).times == {ZERO: 2_000}
    del given["endingOffsetsByTimestamp"]
    assert ending(read(given)).offsets == {ZERO: 3}


@pytest.mark.parametrize("given", ["latest", '{"orders": {"0": 5, "1": -1}}'])
def test_a_batch_cannot_start_at_latest(given: str) -> None:
    with pytest.raises(OptionError, match="'startingOffsets' of a batch cannot be latest"):
        begin({"startingOffsets": given})
    assert begin({"startingOffsets": given}, streaming=True)


@pytest.mark.parametrize("given", ["earliest", '{"orders": {"0": 5, "1": -2}}'])
def test_nothing_ends_before_the_first_record(given: str) -> None:
    with pytest.raises(OptionError, match="'endingOffsets' cannot be earliest"):
        ending(read({"endingOffsets": given}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("startingTimestamp", "-1"), ("startingTimestamp", "noon"),
     ("startingOffsetsByTimestamp", '{"orders": {"0": -1}}'), ("startingOffsets", '{"orders": {"0": -3}}')],
)  # fmt: skip
def test_invalid_numbers_are_rejected(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"'{name}'"):
        begin({name: value})


def test_an_edge_is_asked_for_all_partitions() -> None:
    assert Bound(edge=Edge.EARLIEST).needs([ZERO, ONE]) == {ZERO: Edge.EARLIEST, ONE: Edge.EARLIEST}


def test_one_time_is_asked_for_all_partitions() -> None:
    assert Bound(time=7).needs([ZERO, ONE]) == {ZERO: 7, ONE: 7}
    assert Bound(times={ZERO: 7, ONE: 8}).needs([ZERO, ONE]) == {ZERO: 7, ONE: 8}


def test_of_offsets_only_the_edges_are_asked_for() -> None:
    bound = begin({"startingOffsets": json.dumps({"orders": {"0": 5, "1": -2}})}, streaming=True)

    assert bound.needs([ZERO, ONE]) == {ONE: Edge.EARLIEST}
    assert bound.known() == {ZERO: 5}
    assert Bound(offsets={ZERO: -1, ONE: 0}).needs([ZERO, ONE]) == {ZERO: Edge.LATEST}


@pytest.mark.parametrize("name", ["startingOffsets", "startingOffsetsByTimestamp"])
def test_all_partitions_have_to_be_named(name: str) -> None:
    bound = begin({name: '{"orders": {"0": 5}}'})

    with pytest.raises(OptionError, match=f"'{name}' must name all partitions, and lacks orders-1"):
        bound.needs([ZERO, ONE])


def test_a_partition_that_is_not_read_is_not_to_be_named() -> None:
    bound = begin({"startingOffsets": '{"orders": {"0": 5, "1": 5}}'})

    with pytest.raises(OptionError, match="names orders-1, which the query does not read"):
        bound.needs([ZERO])
