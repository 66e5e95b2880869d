"""Invalid arguments raise at once, and the error says what is valid."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.client.group_metadata import OffsetAndMetadata
from ottla.client.settings import SettingError, aliases, settings_of
from ottla.consumer import Consumer, ConsumerConfig, ConsumerRecord, RecordBatch, SyncConsumer
from ottla.consumer.argument_validation import PRODUCER_SETTINGS, to_commit
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


@pytest.mark.parametrize("kind", [Consumer, SyncConsumer])
@pytest.mark.parametrize(
    ("topics", "error", "says"),
    [
        ([["a", "b"]], TypeError, r"each an argument of its own: 'a', 'b'; not \['a', 'b'\]"),
        ([5], TypeError, "named by text"),
        ([b"a"], TypeError, "named by text"),
        (["bad topic"], ValueError, "cannot be the name of a topic: 'bad topic' has"),
        ([""], ValueError, "cannot be the name of a topic"),
    ],
)
def test_what_names_no_topic_is_refused(kind: Any, topics: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        kind(*topics)


def test_a_topic_is_subscribed_to_by_its_name() -> None:
    consumer: Any = Consumer()
    with pytest.raises(TypeError, match="a topic is named by text, not 5"):
        consumer.subscribe(5)


@pytest.mark.parametrize("kind", [Consumer, SyncConsumer])
def test_a_setting_of_the_producer_is_named_as_such(kind: Any) -> None:
    with pytest.raises(SettingError, match="linger_ms is a setting of the producer"):
        kind("t", linger_ms=5)


def test_the_settings_of_the_producer_are_no_settings_of_the_consumer() -> None:
    assert not PRODUCER_SETTINGS & (settings_of(ConsumerConfig).keys() | aliases(ConsumerConfig).keys())


@pytest.mark.parametrize("kind", [Consumer, SyncConsumer])
def test_names_of_other_clients_say_what_to_use(kind: Any) -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'poll'; use getmany\("):
        _ = kind().poll
    with pytest.raises(AttributeError, match="no attribute 'last_poll_timestamp'; use the timestamp"):
        _ = kind().last_poll_timestamp
    with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
        _ = kind().nonsense


class TheirAssignor:
    """As aiokafka's and kafka-python's are: a class with a name and `assign`, and no protocols."""

    name = "roundrobin"

    @classmethod
    def assign(cls, cluster: object, members: object) -> dict[str, object]:
        return {}


@pytest.mark.parametrize("assignor", [TheirAssignor, TheirAssignor()])
def test_an_assignor_of_another_client_is_refused(assignor: Any) -> None:
    with pytest.raises(ValueError, match=r"is no assignor here.*name one of range, roundrobin"):
        Consumer("t", group_id="g", partition_assignment_strategy=[assignor])


def test_the_repr_of_records_is_short() -> None:
    record = ConsumerRecord("t", 0, 7, 1, b"k", b"v" * 1_000_000, [("h", b"x" * 10_000)])
    assert len(repr(record)) < 800
    assert "offset=7" in repr(record)
    assert "value=b'vvv" in repr(record)
    assert "1000000 in all" in repr(record)
    batch = RecordBatch(A, [record] * 500, 8, 9)
    assert repr(batch) == "RecordBatch(t-0, 500 records, offsets 7 to 7)"
    assert repr(RecordBatch(A, [], 8, 9)) == "RecordBatch(t-0, 0 records, empty)"
