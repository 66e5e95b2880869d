"""Fetch sessions: both sides remember, and only changes travel."""

from __future__ import annotations

import itertools

import pytest

from ottla.broker.api.fetch.response import FetchedPartition
from ottla.broker.api.fetch.sessions import FINAL_EPOCH, FetchContext, FetchSessions, RequestedPartition
from ottla.protocol.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch
from ottla.protocol.topics import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 1)


def wanted(topic_partition: TopicPartition, offset: int = 0) -> RequestedPartition:
    return RequestedPartition(topic_partition, offset, 1000)


def sessions(slots: int = 10, max_partitions: int = 1_000) -> FetchSessions:
    numbers = itertools.count(100)
    return FetchSessions(slots, lambda: next(numbers), max_partitions=max_partitions)


def opened(
    cache: FetchSessions,
    session_id: int = 0,
    epoch: int = 0,
    *asked: RequestedPartition,
    forgotten: tuple[TopicPartition, ...] = (),
    privileged: bool = False,
    now_ms: float = 0,
) -> FetchContext:
    return cache.open(session_id, epoch, list(asked), list(forgotten), privileged=privileged, now_ms=now_ms)


def test_a_first_fetch_opens_a_session() -> None:
    cache = sessions()

    first = opened(cache, 0, 0, wanted(A))

    assert first.session_id == 100
    assert not first.incremental
    assert cache.partition_count == 1


def test_a_fetch_without_a_session_opens_none() -> None:
    cache = sessions()

    assert opened(cache, 0, FINAL_EPOCH, wanted(A)).session_id == 0
    assert len(cache) == 0


def test_a_session_remembers_partitions_that_a_request_omits() -> None:
    cache = sessions()
    first = opened(cache, 0, 0, wanted(A), wanted(B))

    second = opened(cache, first.session_id, 1, wanted(A, 5))

    assert second.incremental
    assert [(one.topic_partition, one.fetch_offset) for one in second.wanted] == [(A, 5), (B, 0)]


def test_forgotten_partitions_are_forgotten_and_an_empty_session_ends() -> None:
    cache = sessions()
    first = opened(cache, 0, 0, wanted(A), wanted(B))

    assert [one.topic_partition for one in opened(cache, first.session_id, 1, forgotten=(A,)).wanted] == [B]
    assert opened(cache, first.session_id, 2, forgotten=(B,)).session_id == 0
    assert len(cache) == 0


def test_another_epoch_than_the_next_is_refused() -> None:
    cache = sessions()
    first = opened(cache, 0, 0, wanted(A))
    opened(cache, first.session_id, 1)

    with pytest.raises(InvalidFetchSessionEpoch):
        opened(cache, first.session_id, 1)


def test_an_unknown_session_is_refused() -> None:
    with pytest.raises(FetchSessionIdNotFound):
        opened(sessions(), 5, 1)


def test_the_epoch_skips_zero_when_it_wraps() -> None:
    cache = sessions()
    session = opened(cache, 0, 0, wanted(A)).session
    assert session is not None
    session.next_epoch = 2**31 - 1

    opened(cache, session.session_id, 2**31 - 1)

    assert session.next_epoch == 1


def test_closing_a_session_answers_in_full() -> None:
    cache = sessions()
    first = opened(cache, 0, 0, wanted(A))

    assert not opened(cache, first.session_id, FINAL_EPOCH, wanted(A)).incremental
    assert len(cache) == 0


@pytest.mark.parametrize(
    ("answer", "news"),
    [
        (FetchedPartition(0, high_watermark=5, log_start_offset=0), False),
        (FetchedPartition(0, high_watermark=6, log_start_offset=0), True),
        (FetchedPartition(0, high_watermark=5, log_start_offset=1), True),
        (FetchedPartition(0, high_watermark=5, log_start_offset=0, records=b"x"), True),
        (FetchedPartition(0, error_code=3), True),
        (FetchedPartition(0, high_watermark=5, log_start_offset=0, preferred_read_replica=2), True),
        (FetchedPartition(0, high_watermark=5, log_start_offset=0, diverging_epoch=(1, 2)), True),
    ],
)
def test_only_changes_are_news(answer: FetchedPartition, news: bool) -> None:
    cache = sessions()
    first = opened(cache, 0, 0, wanted(A))
    first.answered([(first.wanted[0], FetchedPartition(0, high_watermark=5, log_start_offset=0))])

    second = opened(cache, first.session_id, 1)

    assert second.must_respond(second.wanted[0], answer) is news


@pytest.mark.parametrize(
    "without_watermark",
    [
        FetchedPartition(0, error_code=6),
        # A follower that has to truncate first takes nothing else from the answer.
        FetchedPartition(0, high_watermark=5, log_start_offset=0, diverging_epoch=(1, 2)),
    ],
)
def test_after_an_error_or_a_diverging_epoch_the_next_good_answer_is_news(
    without_watermark: FetchedPartition,
) -> None:
    cache = sessions()
    first = opened(cache, 0, 0, wanted(A))
    good = FetchedPartition(0, high_watermark=5, log_start_offset=0)
    first.answered([(first.wanted[0], good)])
    first.answered([(first.wanted[0], without_watermark)])

    second = opened(cache, first.session_id, 1)

    assert second.must_respond(second.wanted[0], good)


def test_partitions_with_records_move_to_the_end() -> None:
    cache = sessions()
    first = opened(cache, 0, 0, wanted(A), wanted(B))
    first.answered([(first.wanted[0], FetchedPartition(0, records=b"x"))])

    second = opened(cache, first.session_id, 1)

    assert [one.topic_partition for one in second.wanted] == [B, A]


def test_a_full_cache_evicts_only_stale_sessions() -> None:
    cache = sessions(slots=1)
    first = opened(cache, 0, 0, wanted(A), now_ms=0)

    assert opened(cache, 0, 0, wanted(B), now_ms=119_000).session_id == 0
    assert opened(cache, 0, 0, wanted(B), now_ms=121_000).session_id != 0
    with pytest.raises(FetchSessionIdNotFound):
        opened(cache, first.session_id, 1)


def test_a_follower_takes_a_consumers_place() -> None:
    cache = sessions(slots=1)
    opened(cache, 0, 0, wanted(A))

    assert opened(cache, 0, 0, wanted(B), privileged=True).session_id != 0
    assert opened(cache, 0, 0, wanted(A), privileged=True).session_id == 0
    assert cache.evictions == 1


def test_without_slots_there_are_no_sessions() -> None:
    assert opened(sessions(slots=0), 0, 0, wanted(A)).session_id == 0


def test_a_fetch_of_more_partitions_than_there_is_room_for_opens_no_session() -> None:
    cache = sessions(max_partitions=3)
    opened(cache, 0, 0, wanted(A), wanted(B))

    refused = opened(cache, 0, 0, wanted(A), wanted(B))
    follower = opened(cache, 0, 0, wanted(A), wanted(B), privileged=True)

    assert (refused.session_id, len(refused.wanted)) == (0, 2)  # it is served nevertheless
    assert follower.session_id
    assert cache.partition_count == 4


def test_a_session_that_grows_beyond_the_room_ends_and_leaves_it_to_others() -> None:
    cache = sessions(max_partitions=1)
    first = opened(cache, 0, 0, wanted(A))

    with pytest.raises(FetchSessionIdNotFound):
        opened(cache, first.session_id, 1, wanted(B))

    assert (len(cache), cache.partition_count) == (0, 0)


def test_partitions_of_sessions_that_end_are_not_counted() -> None:
    cache = sessions(slots=1)
    for now_ms in (0, 500_000, 1_000_000):
        last = opened(cache, 0, 0, wanted(A), wanted(B), now_ms=now_ms)
    opened(cache, last.session_id, 1, forgotten=(A,))
    assert cache.partition_count == 1

    opened(cache, last.session_id, FINAL_EPOCH)
    assert cache.partition_count == 0
