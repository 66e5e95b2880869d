"""Streams whose records are lost, or whose topics are deleted, on real Spark against a real broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from ottla.protocol.topics import TopicPartition
from peers.spark import Stream
from peers.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import Row

    Streams = Callable[..., Stream]

FROM_FIRST = {"startingOffsets": "earliest"}


def values(rows: list[Row]) -> list[str]:
    return sorted(bytes(row.value).decode() for row in rows)


def names(*counts: int, start: int = 0) -> list[str]:
    """Name the values that `Topics.fill` sends."""
    return sorted(f"{index}-{number}" for index, count in enumerate(counts) for number in range(start, count))


@pytest.mark.parametrize("allowed", [False, True])
def test_records_that_go_before_they_were_read(
    stream: Streams, topics: Topics, fresh: Callable[[str], str], allowed: bool
) -> None:
    name = topics.create(fresh("gone"))
    query = stream({"subscribe": name, "failOnDataLoss": not allowed} | FROM_FIRST)
    topics.fill(name, {0: 2})
    query.start()
    query.read()
    query.stop()
    topics.fill(name, {0: 4}, start=2)
    topics.delete_records({TopicPartition(name, 0): 4})

    query.start()
    if allowed:
        assert values(query.read()) == ["0-0", "0-1", "0-4", "0-5"]
    else:
        assert f"offsets from 2 of {name}-0 are lost" in query.failure()
        assert query.sizes == [2]


@pytest.mark.parametrize("allowed", [False, True])
def test_a_topic_that_goes_while_it_is_read(
    stream: Streams, topics: Topics, fresh: Callable[[str], str], allowed: bool
) -> None:
    stays, goes = topics.create(fresh("stays")), topics.create(fresh("goes"))
    query = stream({"subscribe": f"{stays},{goes}", "failOnDataLoss": not allowed} | FROM_FIRST)
    for name in (stays, goes):
        topics.fill(name, {0: 2})
    query.start()
    query.read()
    topics.delete(goes)
    topics.fill(stays, {0: 1}, start=2)

    if allowed:
        while len(query.read()) < 5:
            pass
        assert values(query.all_rows) == ["0-0", "0-0", "0-1", "0-1", "0-2"]
    else:
        assert f"{goes}-0 does not exist any more" in query.failure()


@pytest.mark.slice
@pytest.mark.parametrize("count", [2, 5, 9])
@pytest.mark.parametrize("allowed", [False, True])
def test_a_topic_that_was_made_anew_is_data_loss(
    stream: Streams, topics: Topics, fresh: Callable[[str], str], count: int, allowed: bool
) -> None:
    name = topics.create(fresh("anew"))
    query = stream({"subscribe": name, "failOnDataLoss": not allowed} | FROM_FIRST)
    topics.fill(name, {0: 5})
    query.start()
    query.read()
    query.stop()
    topics.delete(name)
    topics.create(name)
    topics.fill(name, {0: count})

    query.start()

    if not allowed:
        words = f"topic '{name}' was deleted and created again, and {name}-0 was read up to 5 before"
        assert words in query.failure()
        assert query.sizes == [5]
        return
    assert values(query.read()) == sorted([*names(5), *names(count)])


@pytest.mark.parametrize("allowed", [False, True])
def test_a_batch_in_the_checkpoint_is_not_read_from_a_topic_that_was_made_anew(
    stream: Streams, topics: Topics, fresh: Callable[[str], str], allowed: bool
) -> None:
    name = topics.create(fresh("repeated"))
    query = stream({"subscribe": name, "failOnDataLoss": not allowed} | FROM_FIRST)
    topics.fill(name, {0: 3})
    query.start()
    query.read()
    query.stop()
    topics.fill(name, {0: 2}, start=3)
    query.break_off()
    topics.delete(name)
    topics.create(name)
    topics.fill(name, {0: 9}, start=100)

    query.start()

    if not allowed:
        assert f"topic '{name}' was deleted and created again" in query.failure()
        assert query.sizes == [3]
        return
    assert values(query.read()) == sorted([*names(3), *(f"0-{number}" for number in range(100, 109))])
