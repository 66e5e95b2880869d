"""The conditions that end a delayed fetch and a delayed produce."""

from __future__ import annotations

import pytest

from ottla.broker.handlers.delayed_fetch import is_enough
from ottla.broker.handlers.delayed_produce import ALL_ACKS, LEADER_ACKS, Placed, nothing_to_wait_for
from ottla.broker.handlers.fetch_response import FetchedPartition
from ottla.broker.handlers.fetch_sessions import FetchContext, RequestedPartition
from ottla.protocol.errors import NotLeaderOrFollower
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.produce import PartitionProduceResponse
from ottla.protocol.topics import TopicPartition

WANTED = [RequestedPartition(TopicPartition("t", 0), 0, 1 << 20, -1, -1, -1)]


@pytest.mark.parametrize(
    ("result", "enough"),
    [
        (FetchedPartition(0), False),
        (FetchedPartition(0, records=b"1234"), False),
        (FetchedPartition(0, records=b"12345"), True),
        (FetchedPartition(0, error_code=6), True),
        (FetchedPartition(0, diverging_epoch=(1, 2)), True),
    ],
)
def test_a_fetch_waits_until_there_are_min_bytes_or_an_error(result: FetchedPartition, enough: bool) -> None:
    request = FetchRequest(max_wait_ms=500, min_bytes=5)
    assert is_enough(request, FetchContext(WANTED), [result]) is enough


def test_a_fetch_without_a_wait_or_without_partitions_is_answered_at_once() -> None:
    nothing = [FetchedPartition(0)]
    assert is_enough(FetchRequest(max_wait_ms=0, min_bytes=5), FetchContext(WANTED), nothing)
    assert is_enough(FetchRequest(max_wait_ms=500, min_bytes=5), FetchContext([]), [])


@pytest.mark.parametrize("acks", [LEADER_ACKS, ALL_ACKS])
def test_a_produce_that_failed_waits_for_no_replica(acks: int) -> None:
    placed = Placed(PartitionProduceResponse(index=0))
    placed.failed(NotLeaderOrFollower())
    assert nothing_to_wait_for(acks, [placed])
