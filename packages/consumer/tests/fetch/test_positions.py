from __future__ import annotations

import pytest

from ottla.consumer.errors import NoOffset, NotAssigned
from ottla.consumer.fetch.decoding import Cursor, end_of
from ottla.consumer.fetch.positions import Piece, Place, Positions
from ottla.protocol.records import BatchBuilder
from ottla.protocol.topics import TopicPartition

A, B, C = (TopicPartition("t", n) for n in range(3))


def piece(place: Place, count: int = 2, epoch: int = 1) -> Piece:
    builder = BatchBuilder()
    for n in range(count):
        builder.append(None, b"%d" % n, 0)
    data = builder.build(base_offset=place.fetch_offset, partition_leader_epoch=epoch)
    end_offset, end_epoch, _ = end_of(data, place.fetch_offset)
    cursor = Cursor(place.partition, data, place.fetch_offset)
    return Piece(cursor, data, None, end_offset, end_epoch, end_offset, 1)


def at(positions: Positions, partition: TopicPartition, offset: int = 0) -> Place:
    place = positions[partition]
    place.seek(offset)
    return place


def test_the_position_is_behind_the_last_record_given_and_fetching_goes_on_behind_what_is_at_hand() -> None:
    positions = Positions()
    positions.assign([A])
    place = at(positions, A, 5)
    assert place.is_fetchable(0.0)
    place.add(piece(place))
    place.add(piece(place))

    assert (place.position, place.fetch_offset) == (5, 9)
    assert not place.is_fetchable(0.0)
    place.pieces[0].cursor.read()
    assert place.position == 6
    place.pieces[0].cursor.take(10)
    place.finish_piece()
    assert (place.position, place.epoch) == (7, 1)
    assert place.is_fetchable(0.0)


def test_what_is_on_its_way_is_void_after_a_seek() -> None:
    positions = Positions()
    positions.assign([A])
    place = at(positions, A)
    place.add(piece(place))
    generation = place.generation

    place.seek(100)

    assert place.generation != generation
    assert (place.position, place.fetch_offset, len(place.pieces)) == (100, 100, 0)


def test_giving_up_what_is_at_hand_keeps_the_place_between_records() -> None:
    positions = Positions()
    positions.assign([A])
    place = at(positions, A)
    place.add(piece(place))
    place.pieces[0].cursor.read()

    place.forget()

    assert (place.position, place.fetch_offset, place.fetch_epoch) == (1, 1, 1)


def test_partitions_that_stay_keep_their_place_and_only_new_ones_are_held() -> None:
    positions = Positions()
    positions.assign([A, B])
    kept = at(positions, A, 5)
    gone = positions[B]

    positions.assign([A, C], held=True)

    assert positions.assigned == {A, C}
    assert positions[A] is kept
    assert (kept.is_held, positions[C].is_held, gone.is_gone) == (False, True, True)
    with pytest.raises(NotAssigned):
        positions[B]


def test_partitions_take_turns_and_those_that_may_not_give_are_passed_over() -> None:
    positions = Positions()
    positions.assign([A, B, C])
    places = [at(positions, each) for each in (A, B, C)]
    for place in places:
        place.add(piece(place))
        positions.enqueue(place)
    turns = []
    for _ in range(4):
        turn = positions.next_ready()
        assert turn is not None
        turns.append(turn.partition)
        positions.enqueue(turn)
    assert turns == [A, B, C, A]

    places[1].is_paused = True
    assert [each.partition for each in (positions.next_ready(), positions.next_ready()) if each] == [C, A]
    assert positions.next_ready() is None
    places[1].is_paused = False
    positions.enqueue(places[1])
    assert positions.next_ready([A]) is None
    assert positions.next_ready([B]) is places[1]


def test_errors_come_after_what_is_at_hand() -> None:
    positions = Positions()
    positions.assign([A])
    place = at(positions, A)
    place.add(piece(place))
    place.failure = NoOffset(A)

    assert positions.take_failures() == []
    place.pieces[0].cursor.take(10)
    place.finish_piece()

    assert [type(each) for each in positions.take_failures()] == [NoOffset]
    assert positions.take_failures() == []
