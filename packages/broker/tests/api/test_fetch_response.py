"""The hand-written Fetch response is byte for byte the generated codec's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.api.current_leaders import Leadership, Node
from ottla.broker.api.fetch.response import FetchAnswer, FetchedPartition
from ottla.broker.api.testing import topic_id_of
from ottla.protocol.messages import fetch as messages

OFFSETS = st.integers(-1, 2**63 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)
NAMES = st.text(st.characters(codec="utf-8"), max_size=200)
PARTITIONS = st.builds(
    FetchedPartition,
    index=INTS,
    error_code=st.integers(-1, 100),
    high_watermark=OFFSETS,
    last_stable_offset=OFFSETS,
    log_start_offset=OFFSETS,
    aborted=st.none() | st.lists(st.tuples(OFFSETS, OFFSETS), max_size=3),
    preferred_read_replica=INTS,
    diverging_epoch=st.none() | st.tuples(st.integers(0, 1000), OFFSETS),
    current_leader=st.none() | st.builds(Leadership, st.integers(0, 1000), st.integers(0, 1000)),
    records=st.binary(max_size=200),
)
ANSWERS = st.builds(
    FetchAnswer,
    error_code=st.integers(-1, 100),
    session_id=INTS,
    throttle_time_ms=INTS,
    topics=st.lists(
        st.tuples(NAMES, st.lists(PARTITIONS, max_size=3)),
        max_size=3,
    ),
    nodes=st.lists(st.builds(Node, INTS, NAMES, INTS, st.none() | NAMES), max_size=3),
)


def generated(answer: FetchAnswer, version: int) -> bytes:
    """The same response through the message classes; what a version does not carry is left out."""
    response = messages.FetchResponse()
    if version >= 1:
        response.throttle_time_ms = answer.throttle_time_ms
    if version >= 7:
        response.error_code, response.session_id = answer.error_code, answer.session_id
    response.node_endpoints = [messages.NodeEndpoint(**one._asdict()) for one in answer.nodes]
    for named, partitions in answer.topics:
        topic = messages.FetchableTopicResponse()
        if isinstance(named, str):
            topic.topic = named
        else:
            topic.topic_id = named
        topic.partitions = [partition_of(one, version) for one in partitions]
        response.responses.append(topic)
    return response.encode(version)


def partition_of(one: FetchedPartition, version: int) -> messages.PartitionData:
    data = messages.PartitionData(
        partition_index=one.index,
        error_code=one.error_code,
        high_watermark=one.high_watermark,
        records=one.records if isinstance(one.records, bytes) else None,
    )
    if version >= 4:
        data.last_stable_offset = one.last_stable_offset
        data.aborted_transactions = None
        if one.aborted is not None:
            data.aborted_transactions = [
                messages.AbortedTransaction(producer_id=producer, first_offset=first)
                for producer, first in one.aborted
            ]
    if version >= 5:
        data.log_start_offset = one.log_start_offset
    if version >= 11:
        data.preferred_read_replica = one.preferred_read_replica
    if version >= 12 and one.diverging_epoch is not None:
        epoch, end = one.diverging_epoch
        data.diverging_epoch = messages.EpochEndOffset(epoch=epoch, end_offset=end)
    if version >= 12 and one.current_leader is not None:
        leader, epoch = one.current_leader
        data.current_leader = messages.LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
    return data


@pytest.mark.parametrize("version", range(18))
@given(answer=ANSWERS)
def test_the_bytes_are_the_generated_codecs(version: int, answer: FetchAnswer) -> None:
    if version >= 13:
        answer.topics = [(topic_id_of(str(name)), partitions) for name, partitions in answer.topics]
    if version < 16:
        answer.nodes = []
    written = b"".join(one for one in answer.encode_parts(version) if isinstance(one, bytes))

    assert written == generated(answer, version)
