"""Share sessions and acquired offsets, as they are kept without a broker."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from ottla.consumer.share.session import (
    LAST_EPOCH,
    Acknowledgement,
    AcknowledgeType,
    AcquiredRanges,
    SharePartition,
    ShareSession,
)

P0, P1 = SharePartition(UUID(int=1), 0), SharePartition(UUID(int=1), 1)
GAP, ACCEPT, RELEASE, RENEW = (
    AcknowledgeType.GAP, AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.RENEW,
)  # fmt: skip


def opened(*partitions: SharePartition) -> ShareSession:
    session = ShareSession()
    session.cover(partitions)
    session.next_fetch()
    session.answered()
    return session


def test_a_session_opens_with_all_partitions_and_sends_what_changes() -> None:
    session = ShareSession()
    session.cover([P0])

    first = session.next_fetch()
    session.answered()
    session.cover([P1])
    second = session.next_fetch()
    session.answered()

    assert (first.epoch, first.added, first.forgotten) == (0, (P0,), ())
    assert (second.epoch, second.added, second.forgotten) == (1, (P1,), (P0,))
    assert session.next_fetch() == (2, (), (), {})


def test_the_number_of_requests_starts_over_at_1() -> None:
    session = opened(P0)
    session.epoch = LAST_EPOCH

    session.answered()

    assert session.next_fetch().epoch == 1


def test_acknowledgements_of_neighbours_go_out_as_one() -> None:
    session = opened(P0)
    session.acquired(5)
    for offset in (3, 4, 5):
        session.acknowledge(P0, 0, Acknowledgement(offset, offset, ACCEPT))
    session.acknowledge(P0, 0, Acknowledgement(1, 1, RELEASE))

    request = session.next_fetch()

    assert request.acknowledgements == {P0: [Acknowledgement(1, 1, RELEASE), Acknowledgement(3, 5, ACCEPT)]}
    assert session.in_flight == 1
    assert not session.has_pending


def test_a_renewed_record_stays_in_flight() -> None:
    session = opened(P0)
    session.acquired(1)
    session.acknowledge(P0, 0, Acknowledgement(1, 1, RENEW))

    assert session.in_flight == 1
    assert session.next_acknowledge().renews


def test_a_lost_session_takes_the_locks_of_its_records_along() -> None:
    session = opened(P0)
    session.acquired(2)
    session.acknowledge(P0, 0, Acknowledgement(1, 1, ACCEPT))

    unsent = session.reset()

    assert unsent == {P0: [Acknowledgement(1, 1, ACCEPT)]}
    assert not session.acknowledge(P0, 0, Acknowledgement(2, 2, ACCEPT))
    assert (session.next_fetch().epoch, session.in_flight) == (0, 0)


def test_an_opening_request_carries_no_acknowledgements() -> None:
    session = opened(P0)
    session.reset()
    session.acknowledge(P0, 1, Acknowledgement(1, 1, ACCEPT))

    assert session.next_fetch().acknowledgements == {}
    assert session.has_pending


def test_offsets_between_records_are_gaps_and_others_are_not_acquired() -> None:
    ranges = AcquiredRanges([(10, 14, 1), (20, 21, 3)])

    assert ranges.find(9) == (None, [])
    assert ranges.find(12) == (1, [Acknowledgement(10, 11, GAP)])
    assert ranges.find(17) == (None, [Acknowledgement(13, 14, GAP)])
    assert ranges.find(20) == (3, [])
    assert ranges.skip_to(None) == [Acknowledgement(21, 21, GAP)]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=6),
    st.sets(st.integers(0, 40)),
)
def test_every_acquired_offset_is_a_record_or_a_gap_once(
    shape: list[tuple[int, int]], records: set[int]
) -> None:
    spans, offset = [], 0
    for space, length in shape:
        first = offset + space
        spans.append((first, first + length, 1))
        offset = first + length + 1
    acquired = {offset for first, last, _ in spans for offset in range(first, last + 1)}
    ranges = AcquiredRanges(spans)
    assert ranges.count == len(acquired)

    found: list[int] = []
    gaps: list[Acknowledgement] = []
    for record in sorted(records):
        count, before = ranges.find(record)
        gaps += before
        found += [record] if count is not None else []
    gaps += ranges.skip_to(None)

    passed = [offset for gap in gaps for offset in range(gap.first, gap.last + 1)]
    assert set(found) == acquired & records
    assert sorted(passed) == sorted(acquired - records)
