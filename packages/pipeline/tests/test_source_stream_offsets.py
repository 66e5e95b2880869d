"""The offsets of a stream's batches, over restarts of its driver."""

from __future__ import annotations

import logging

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from ottla.pipeline.errors import DataLoss
from peers.stream_queries import ONE, ZERO, Query, Read, Topic

# --- a driver that is killed in its first batch


def test_a_repeated_first_batch_keeps_its_start_when_records_were_added() -> None:
    query = Query(Topic({ZERO: 100}))
    assert query.batch() == []

    query.topic.ends[ZERO] = 160
    query.restart()

    assert query.read() == []
    assert query.batch() == [(ZERO, 100, 160)]


def test_a_repeated_first_batch_does_not_miss_partitions_that_were_added() -> None:
    query = Query(Topic({ZERO: 5}), startingOffsets="earliest")
    assert query.batch() == [(ZERO, 0, 5)]

    query.topic.ends[ONE] = 7
    query.restart()

    assert query.read() == [(ZERO, 0, 5)]
    assert query.batch() == [(ONE, 0, 7)]


def test_a_repeated_first_batch_needs_no_option_about_new_partitions() -> None:
    query = Query(Topic({ZERO: 5}), startingOffsets='{"t": {"0": 2}}')
    assert query.batch() == [(ZERO, 2, 5)]

    query.topic.ends[ONE] = 7
    query.restart()

    assert query.read() == [(ZERO, 2, 5)]
    assert query.batch() == [(ONE, 0, 7)]


def test_a_first_batch_without_any_topic_is_repeated() -> None:
    query = Query(Topic({}))
    assert query.batch() == []

    query.topic.ends[ZERO] = 3
    query.restart()

    assert query.read() == []
    assert query.batch() == [(ZERO, 0, 3)]


def test_a_limited_first_batch_is_repeated_unchanged() -> None:
    query = Query(Topic({ZERO: 10}, {ZERO: 4}), startingOffsets="earliest")
    query.plan(ReadMaxRows(2))
    assert query.read() == [(ZERO, 4, 6)]

    query.topic.begins[ZERO] = 5
    query.restart()

    assert query.read() == [(ZERO, 4, 6)]
    assert query.batch() == [(ZERO, 6, 10)]


def test_later_batches_go_on_behind_the_first_in_every_life() -> None:
    query = Query(Topic({ZERO: 3}), startingOffsets="earliest")
    query.batch()
    for end in (5, 9):
        query.restart()
        assert not query.plan()
        query.topic.ends[ZERO] = end
        assert query.plan()
        first = query.read()
        query.restart()
        assert query.read() == first
    assert first == [(ZERO, 5, 9)]


# --- checkpoints of older versions


def test_a_first_batch_of_a_checkpoint_without_its_beginnings_begins_where_options_say() -> None:
    query = Query(Topic({ZERO: 5, ONE: 7}), startingOffsets="earliest")
    query.log = ['{"t": {"0": 5}}']

    assert query.read() == [(ZERO, 0, 5)]
    assert query.batch() == [(ONE, 0, 7)]


def test_a_later_batch_of_a_checkpoint_without_its_beginnings() -> None:
    query = Query(Topic({ZERO: 9}))
    query.log = ['{"t": {"0": 5}}', '{"t": {"0": 8}}']

    assert query.read() == [(ZERO, 5, 8)]
    assert query.batch() == [(ZERO, 8, 9)]


# --- offsets outside of the checkpoint


@pytest.mark.parametrize("allowed", [False, True])
def test_a_start_behind_the_end_is_rejected_before_it_is_in_the_checkpoint(
    caplog: pytest.LogCaptureFixture, allowed: bool
) -> None:
    query = Query(Topic({ZERO: 5}), startingOffsets='{"t": {"0": 9}}', failOnDataLoss=not allowed)

    if allowed:
        with caplog.at_level(logging.WARNING):
            assert query.batch() == []
        assert "t-0 ends at 5, and should be read from 9" in caplog.text
    else:
        with pytest.raises(DataLoss, match="t-0 ends at 5, and should be read from 9"):
            query.plan()
        assert query.log == []


def test_the_lag_is_told_by_ends_alone() -> None:
    query = Query(Topic({ZERO: 5}), startingOffsets="earliest")
    assert query.reader.reportLatestOffset() is None

    query.plan(ReadMaxRows(2))

    assert query.reader.reportLatestOffset() == {"t": {"0": 5}}


# --- Trigger.AvailableNow


def test_available_now_begins_and_ends_right_while_somebody_writes() -> None:
    query = Query(Topic({ZERO: 100}, grows={ZERO: 3}))
    query.restart(available_now=True)

    first = query.batch()
    while query.plan():
        first += query.read()
    assert all(start < end for _, start, end in first)

    query.restart(available_now=True)
    ((_, start, end),) = query.batch()
    assert start == (first[-1][2] if first else 100)
    assert end > start
    assert not query.plan()


def test_available_now_asks_again_while_a_broker_is_behind() -> None:
    query = Query(Topic({ZERO: 8}))
    query.log = ['{"t": {"0": 8}}']
    query.topic.ends[ZERO] = 10
    query.topic.behind = 2
    query.restart(available_now=True)

    assert query.batch() == [(ZERO, 8, 10)]


def test_available_now_does_not_go_beyond_what_was_there() -> None:
    query = Query(Topic({ZERO: 6}), startingOffsets="earliest")
    query.restart(available_now=True)
    read: Read = []

    while query.plan(ReadMaxRows(2)):
        read += query.read()
        query.topic.ends[ZERO] += 5

    assert read == [(ZERO, 0, 2), (ZERO, 2, 4), (ZERO, 4, 6)]


def test_connections_are_closed() -> None:
    query = Query(Topic({}))

    query.reader.stop()

    assert query.topic.closed
