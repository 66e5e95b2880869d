from __future__ import annotations

import pytest

from ottla.consumer.errors import NoOffset, NotAssigned
from ottla.consumer.fetch.decoding import RecordCursor, end_of
from ottla.consumer.fetch.positions import FetchedData, PartitionState, Positions
from ottla.protocol.records import BatchBuilder
from ottla.protocol.topics import TopicPartition

A, B, C = (TopicPartition("t", n) for n in range(3))


def fetched(state: PartitionState, count: int = 2, epoch: int = 1) -> FetchedData:
    builder = BatchBuilder()
    for n in range(count):
        builder.append(None, b"%d" % n, 0)
    data = builder.build(base_offset=state.fetch_offset, partition_leader_epoch=epoch)
    end_offset, end_epoch, _ = end_of(data, state.fetch_offset)
    cursor = RecordCursor(state.partition, data, state.fetch_offset)
    return FetchedData(cursor, data, None, end_offset, end_epoch, end_offset, 1)


def at(positions: Positions, partition: TopicPartition, offset: int = 0) -> PartitionState:
    state = positions[partition]
    state.seek(offset)
    return state


def test_the_position_follows_the_last_record_and_the_fetch_offset_the_buffered_data() -> None:
    positions = Positions()
    positions.assign([A])
    state = at(positions, A, 5)
    assert state.is_fetchable(0.0)
    state.add(fetched(state))
    state.add(fetched(state))

    assert (state.position, state.fetch_offset) == (5, 9)
    assert not state.is_fetchable(0.0)
    state.buffered[0].cursor.read()
    assert state.position == 6
    state.buffered[0].cursor.take(10)
    state.pop_finished()
    assert (state.position, state.epoch) == (7, 1)
    assert state.is_fetchable(0.0)


def test_a_seek_invalidates_outstanding_fetches() -> None:
    positions = Positions()
    positions.assign([A])
    state = at(positions, A)
    state.add(fetched(state))
    generation = state.generation

    state.seek(100)

    assert state.generation != generation
    assert (state.position, state.fetch_offset, len(state.buffered)) == (100, 100, 0)


def test_dropping_buffered_data_keeps_the_position_between_records() -> None:
    positions = Positions()
    positions.assign([A])
    state = at(positions, A)
    state.add(fetched(state))
    state.buffered[0].cursor.read()

    state.discard_buffered()

    assert (state.position, state.fetch_offset, state.fetch_epoch) == (1, 1, 1)


def test_partitions_that_stay_keep_their_place_and_only_new_ones_are_held() -> None:
    positions = Positions()
    positions.assign([A, B])
    kept = at(positions, A, 5)
    gone = positions[B]

    positions.assign([A, C], held=True)

    assert positions.assigned == {A, C}
    assert positions[A] is kept
    assert (kept.is_held, positions[C].is_held, gone.is_unassigned) == (False, True, True)
    with pytest.raises(NotAssigned):
        positions[B]


def test_partitions_take_turns_and_those_that_may_not_give_are_passed_over() -> None:
    positions = Positions()
    positions.assign([A, B, C])
    states = [at(positions, each) for each in (A, B, C)]
    for state in states:
        state.add(fetched(state))
        positions.enqueue(state)
    turns = []
    for _ in range(4):
        turn = positions.next_ready()
        assert turn is not None
        turns.append(turn.partition)
        positions.enqueue(turn)
    assert turns == [A, B, C, A]

    states[1].is_paused = True
    assert [each.partition for each in (positions.next_ready(), positions.next_ready()) if each] == [C, A]
    assert positions.next_ready() is None
    states[1].is_paused = False
    positions.enqueue(states[1])
    assert positions.next_ready([A]) is None
    assert positions.next_ready([B]) is states[1]


def test_errors_are_raised_after_the_buffered_records() -> None:
    positions = Positions()
    positions.assign([A])
    state = at(positions, A)
    state.add(fetched(state))
    state.failure = NoOffset(A)

    assert positions.take_failures() == []
    state.buffered[0].cursor.take(10)
    state.pop_finished()

    assert [type(each) for each in positions.take_failures()] == [NoOffset]
    assert positions.take_failures() == []
