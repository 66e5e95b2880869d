from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from ottla.client.serialization import PreparationNeeded, SerializationContext, SerializationFailed
from ottla.consumer import ConsumerRecord
from ottla.producer import ProducerConfig, RecordTooLarge
from ottla.protocol.topics import TopicPartition
from ottla.streams.dedupe.wrapping import PartOfWork
from ottla.streams.exactly_once.buffered_outputs import BufferedOutputs
from ottla.streams.exactly_once.transactional_outputs import OutputsTooLarge, TransactionalOutputs
from ottla.streams.seams import state_of

P0, P1 = TopicPartition("in", 0), TopicPartition("in", 1)


class Sent(NamedTuple):
    """A record that a handler sends."""

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]] = ()


class HandlerCall:
    """Work of one record."""

    def __init__(self, offset: int, partition: TopicPartition = P0) -> None:
        self.context: Any = None
        self.partition = partition
        self.record = ConsumerRecord(partition.topic, partition.partition, offset)
        self.records = [self.record]
        self.offset = offset
        self.lane: Hashable = None
        self.attempt = 1
        self.started_ms = 0


class Everything:
    """A plan that covers all offsets of a partition."""

    offset, end, metadata, is_complete = 1_000, 1_000, "", True

    def __init__(self, partition: TopicPartition = P0) -> None:
        self.partition = partition

    def covers(self, offset: int) -> bool:
        return True


def made(max_bytes: int = 1_000_000, **config: Any) -> tuple[BufferedOutputs, TransactionalOutputs]:
    finished = BufferedOutputs()
    outputs = TransactionalOutputs(finished, ProducerConfig.of(**config), max_bytes=max_bytes, turn_ms=20)
    return finished, outputs


def next_values(finished: BufferedOutputs) -> list[bytes | None]:
    opened = finished.next_transaction({P0: Everything()})
    return [each.value for work in opened.works for each in work.outputs] if opened is not None else []


async def test_outputs_wait_until_their_handler_has_finished() -> None:
    finished, outputs = made()
    done, running, failed = HandlerCall(0), HandlerCall(1), HandlerCall(2)
    for work in (done, running, failed):
        await outputs.send(work, Sent("out", b"of %d" % work.offset))

    outputs.settle(done)
    outputs.discard(failed)
    outputs.settle(failed)

    assert next_values(finished) == [b"of 0"]


async def test_only_the_last_attempt_of_a_record_sends() -> None:
    finished, outputs = made()
    work = HandlerCall(0)
    await outputs.send(work, Sent("out", b"first attempt"))
    outputs.discard(work)
    await outputs.send(work, Sent("out", b"second attempt"))
    outputs.settle(work)

    assert next_values(finished) == [b"second attempt"]


async def test_outputs_of_a_batch_without_its_duplicates_belong_to_the_whole_batch() -> None:
    finished, outputs = made()
    whole = HandlerCall(0)
    whole.records = [whole.record, HandlerCall(1).record]
    state_of(whole)

    await outputs.send(PartOfWork(whole, whole.records[1:]), Sent("out", b"of the part"))
    outputs.settle(whole)

    opened = finished.next_transaction({P0: Everything()})
    assert opened is not None
    assert [(each.offsets, len(each.outputs)) for each in opened.works] == [((0, 1), 1)]


async def test_outputs_are_serialized_when_they_are_sent() -> None:
    finished, outputs = made(value_serializer="json", key_serializer="str")
    work, value = HandlerCall(0), {"a": 1}
    await outputs.send(work, Sent("out", value, "k", headers={"trace": "1"}))
    value["a"] = 2
    outputs.settle(work)

    opened = finished.next_transaction({P0: Everything()})
    assert opened is not None
    (output,) = opened.works[0].outputs
    assert (output.key, output.value, output.headers) == (b"k", b'{"a":1}', (("trace", b"1"),))


class Registered:
    """Adds the id of a schema as a header, which it must look up first."""

    schema: bytes | None = None

    def serialize(self, value: str, context: SerializationContext) -> bytes:
        if self.schema is None:
            raise PreparationNeeded(self._find)
        context.headers.append((f"__{context.field}_schema_id", self.schema))
        return value.encode()

    async def _find(self) -> None:
        await asyncio.sleep(0)
        self.schema = b"17"


async def test_serializers_of_outputs_see_headers_and_may_wait() -> None:
    finished, outputs = made(value_serializer=Registered())
    await outputs.send(work := HandlerCall(0), Sent("out", "a", "k", headers={"trace": "1"}))
    outputs.settle(work)

    opened = finished.next_transaction({P0: Everything()})
    assert opened is not None
    (output,) = opened.works[0].outputs
    assert (output.value, output.headers) == (b"a", (("trace", b"1"), ("__value_schema_id", b"17")))


async def test_what_cannot_be_sent_fails_in_the_handler() -> None:
    _, outputs = made(max_bytes=5_000, key_serializer="str", max_request_size=1_000)

    with pytest.raises(SerializationFailed):
        await outputs.send(HandlerCall(0), Sent("out", b"x", key=object()))
    with pytest.raises(RecordTooLarge):
        await outputs.send(HandlerCall(0), Sent("out", b"x" * 2_000))
    with pytest.raises(OutputsTooLarge, match=r"offset 7.*raise max_buffered_output_bytes"):
        for _ in range(10):
            await outputs.send(work := HandlerCall(7), Sent("out", b"x" * 500))
            for _ in range(10):
                await outputs.send(work, Sent("out", b"x" * 500))


async def test_handlers_wait_while_too_much_is_not_committed() -> None:
    finished, outputs = made(max_bytes=1_000)
    await outputs.send(first := HandlerCall(0), Sent("out", b"x" * 904))
    outputs.settle(first)
    assert next_values(finished)

    async with asyncio.TaskGroup() as tasks:
        lower, higher = HandlerCall(1), HandlerCall(2)
        low = tasks.create_task(outputs.send(lower, Sent("out", b"low")))
        high = tasks.create_task(outputs.send(higher, Sent("out", b"high")))
        await low  # nothing was committed: the lowest offset goes on, for a commit may wait for it
        assert not high.done()
        finished.committed()
        outputs.committed()

    assert high.done()


async def test_a_revoked_partition_leaves_nothing_behind() -> None:
    finished, outputs = made()
    for work in (HandlerCall(0), HandlerCall(1), HandlerCall(0, P1)):
        await outputs.send(work, Sent("out", b"x"))
        if work.offset == 0:
            outputs.settle(work)
    before = outputs.size_bytes

    outputs.revoked(P0)

    assert outputs.size_bytes == before // 3
    assert len(finished) == 1
