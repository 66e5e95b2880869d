"""What is given wrong is told at once, with what is meant."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.client.groups import OffsetAndMetadata
from ottla.consumer import Consumer
from ottla.consumer.arguments import to_commit
from ottla.protocol.topics import TopicPartition

A = TopicPartition("t", 0)


def test_offsets_are_taken_as_numbers_and_with_notes() -> None:
    other, third = TopicPartition("t", 1), TopicPartition("t", 2)
    offsets: dict[Any, Any] = {A: 3, ("t", 1): (4, "note"), third: OffsetAndMetadata(5, "", 7)}

    assert to_commit(offsets) == {
        A: OffsetAndMetadata(3),
        other: OffsetAndMetadata(4, "note"),
        third: OffsetAndMetadata(5, "", 7),
    }


@pytest.mark.parametrize("offset", [-1, (-1, "note"), OffsetAndMetadata(-1), 2**63])
async def test_an_offset_that_cannot_be_is_refused_before_anything_is_sent(offset: Any) -> None:
    consumer = Consumer(group_id="g")
    with pytest.raises(ValueError, match="the offset of t-0 cannot be"):
        await consumer.commit({A: offset})
    with pytest.raises(ValueError, match="the offset of t-0 cannot be"):
        consumer.commit_nowait({A: offset})


@pytest.mark.parametrize("offset", ["3", 3.0, None, True, (3, None), (3, 4), [], b"3"])
async def test_an_offset_of_another_type_is_refused(offset: Any) -> None:
    with pytest.raises(TypeError, match=r"the offset of t-0 is a whole number, \(offset, note\)"):
        await Consumer(group_id="g").commit({A: offset})


@pytest.mark.parametrize("offsets", [[A], {"t": 3}, 3, {("t",): 3}, {("t", "0"): 3}])
async def test_offsets_of_no_partitions_are_refused(offsets: Any) -> None:
    with pytest.raises(TypeError, match="TopicPartition"):
        await Consumer(group_id="g").commit(offsets)


@pytest.mark.parametrize("partitions", [A, "t", None, 5, ["t"], [("t", "0")], [("t", -1)]])
def test_partitions_are_assigned_as_a_list(partitions: Any) -> None:
    with pytest.raises(TypeError, match=r"TopicPartition\("):
        Consumer().assign(partitions)
