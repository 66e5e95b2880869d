"""Undecoded data: taking it moves the position, and giving it back moves it to the rest."""

from __future__ import annotations

from dataclasses import replace

from ottla.client.testing import ScriptedBroker
from ottla.consumer import (
    Consumer,
)
from ottla.consumer.fetch.offset_lookups import EpochEnd
from ottla.consumer.fetch.resolution_steps import EpochValidation
from peers.scripted_topic import FAST, A, Log, reader, take


async def test_taking_raw_data_moves_the_position_and_the_rest_can_be_given_back(
    broker: ScriptedBroker,
) -> None:
    log = Log(broker)
    log.add(*(b"%d" % n for n in range(10)))
    async with reader(broker) as consumer:
        assert await take(consumer, 2) == [b"0", b"1"]
        (fetched,) = await consumer._delivery.take_raw(1, 5_000)
        assert (fetched.partition, fetched.since_offset, fetched.next_offset) == (A, 2, 10)
        assert await consumer.position(A) == 10
        assert consumer._lifecycle.fetch.assigned.finished_offsets()[A].offset == 2
        consumer._delivery.give_back(fetched, 5)
        assert await consumer.position(A) == 5
        assert await take(consumer, 5) == [b"5", b"6", b"7", b"8", b"9"]
        assert consumer._lifecycle.fetch.assigned.finished_offsets()[A].offset == 9


async def test_the_rest_of_raw_data_is_fetched_again_if_buffered_data_was_invalidated(
    broker: ScriptedBroker,
) -> None:
    log = Log(broker)
    log.add(*(b"%d" % n for n in range(6)))
    async with reader(broker) as consumer:
        (fetched,) = await consumer._delivery.take_raw(1, 5_000)
        consumer._positions[A].discard_buffered()  # as the check for truncations does, meanwhile
        consumer._delivery.give_back(fetched, 3)
        assert await consumer.position(A) == 3
        assert await take(consumer, 3) == [b"3", b"4", b"5"]


async def test_a_truncation_before_the_data_given_back_is_detected(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a", b"lost 1", b"lost 2")
    async with reader(broker) as consumer:
        (fetched,) = await consumer._delivery.take_raw(1, 5_000)
        log.records[0] = [(b"a", 1), (b"x", 2)]
        log.epoch = 2
        consumer._positions[A].discard_buffered()
        consumer._delivery.give_back(fetched, 2)
        assert await take(consumer, 1) == [b"x"]


async def test_a_truncation_of_data_that_was_taken_and_is_given_back_raises_nothing(
    broker: ScriptedBroker,
) -> None:
    log = Log(broker)
    log.add(b"a", b"lost 1", b"lost 2")
    async with reader(broker, replace(FAST, auto_offset_reset="none")) as consumer:
        consumer.seek(A, 0)
        (fetched,) = await consumer._delivery.take_raw(1, 5_000)
        log.records[0] = [(b"a", 1), (b"x", 2)]
        log.epoch = 2
        state = consumer._positions[A]
        EpochValidation(consumer.config, consumer._lifecycle.fetch.offset_lookups, lambda: None).check(
            state, EpochEnd(leader_epoch=1, end_offset=1)
        )
        consumer._delivery.give_back(fetched, 0)
        assert state.failure is None, "what was not given out yet does not differ"
        assert await take(consumer, 2) == [b"a", b"x"]


async def test_giving_back_undoes_no_seek(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(*(b"%d" % n for n in range(6)))
    async with reader(broker) as consumer:
        (fetched,) = await consumer._delivery.take_raw(1, 5_000)
        consumer.seek(A, 5)
        consumer._delivery.give_back(fetched, 0)
        assert await take(consumer, 1) == [b"5"]


async def test_a_partition_that_went_and_came_back_is_not_moved_by_giving_back(
    broker: ScriptedBroker,
) -> None:
    log = Log(broker)
    log.add(*(b"%d" % n for n in range(6)))
    async with Consumer(bootstrap_servers=broker.bootstrap_servers, config=FAST) as consumer:
        consumer.assign([A])
        (fetched,) = await consumer._delivery.take_raw(1, 5_000)
        consumer.assign([])
        consumer.assign([A])
        consumer.seek(A, 4)
        consumer._delivery.give_back(fetched, 0)
        assert await take(consumer, 1) == [b"4"]
