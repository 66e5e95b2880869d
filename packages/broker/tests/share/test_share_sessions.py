"""Share sessions, and the settings of share groups."""

from __future__ import annotations

from uuid import UUID

import pytest

from ottla.broker.config import BrokerConfig, ConfigError
from ottla.broker.config.group import check_group_settings, iso_duration_ms
from ottla.broker.share.partition import ShareLimits
from ottla.broker.share.sessions import Member, ShareSession, ShareSessions, TopicIdPartition
from ottla.broker.share.terms import ShareGroupSettings, ShareGroupTerms, share_group_terms
from ottla.protocol.errors import (
    InvalidRequest,
    InvalidShareSessionEpoch,
    ShareSessionLimitReached,
    ShareSessionNotFound,
)

ONE, TWO = Member("g", "one"), Member("g", "two")
P0, P1, P2 = (TopicIdPartition(UUID(int=1), number) for number in range(3))


def fetch(
    sessions: ShareSessions,
    epoch: int,
    *wanted: TopicIdPartition,
    member: Member = ONE,
    forgotten: tuple[TopicIdPartition, ...] = (),
    acknowledges: bool = False,
    connection: str = "c",
) -> ShareSession:
    return sessions.fetch(
        member, epoch, dict.fromkeys(wanted), forgotten, acknowledges=acknowledges, connection_id=connection
    )


def test_a_session_remembers_its_partitions_and_takes_changes() -> None:
    sessions = ShareSessions(10)
    fetch(sessions, 0, P0, P1)

    session = fetch(sessions, 1, P2, forgotten=(P0,))

    assert set(session.partitions) == {P1, P2}
    assert session.epoch == 2


def test_no_partition_is_always_the_last() -> None:
    sessions = ShareSessions(10)
    session = fetch(sessions, 0, P0, P1, P2)
    first = {session.in_turn()[0]}
    for epoch in (1, 2):
        first.add(fetch(sessions, epoch).in_turn()[0])

    assert first == {P0, P1, P2}


def test_another_epoch_is_refused_and_the_session_goes_on() -> None:
    sessions = ShareSessions(10)
    fetch(sessions, 0, P0)
    for epoch in (2, 7, -2):
        with pytest.raises(InvalidShareSessionEpoch):
            fetch(sessions, epoch)
    with pytest.raises(InvalidShareSessionEpoch):
        sessions.acknowledge(ONE, 0)

    assert sessions.acknowledge(ONE, 1).epoch == 2


def test_the_epoch_after_the_greatest_is_one() -> None:
    sessions = ShareSessions(10)
    session = fetch(sessions, 0, P0)
    session.epoch = 2**31 - 1

    assert fetch(sessions, 2**31 - 1).epoch == 1


def test_a_session_that_begins_again_replaces_the_one_before_and_acknowledges_nothing() -> None:
    sessions = ShareSessions(1)
    before = fetch(sessions, 0, P0)
    with pytest.raises(InvalidRequest):
        fetch(sessions, 0, P0, acknowledges=True)

    assert fetch(sessions, 0, P1) is not before
    assert len(sessions) == 1
    assert not sessions.end(before)


def test_a_hundred_thousand_sessions_are_refused_beyond_the_limit() -> None:
    sessions = ShareSessions(2_000)
    refused = 0
    for number in range(100_000):
        try:
            fetch(sessions, 0, P0, member=Member("g", str(number)), connection=str(number))
        except ShareSessionLimitReached:
            refused += 1

    assert (len(sessions), refused) == (2_000, 98_000)
    assert fetch(sessions, 1, member=Member("g", "7")).epoch == 2


def test_a_member_keeps_its_session_where_another_one_is_refused() -> None:
    sessions = ShareSessions(10)
    many = [TopicIdPartition(UUID(int=1), number) for number in range(300_000)]
    fetch(sessions, 0, P0)
    fetch(sessions, 0, *many, member=TWO)

    with pytest.raises(ShareSessionLimitReached):
        fetch(sessions, 0, *many)

    assert len(sessions) == 2
    assert fetch(sessions, 1).epoch == 2
    fetch(sessions, 0, *many, member=TWO)  # its own partitions before do not count


def test_refused_partitions_are_not_remembered_in_part() -> None:
    sessions = ShareSessions(10)
    many = [TopicIdPartition(UUID(int=1), number) for number in range(500_001)]
    session = fetch(sessions, 0, many[0])

    for _ in range(2):
        with pytest.raises(ShareSessionLimitReached):
            fetch(sessions, 1, *many, forgotten=(many[0],))
        assert (list(session.partitions), sessions.partitions) == ([many[0]], 1)

    assert fetch(sessions, 1, many[2], many[1], many[0], forgotten=(many[0], many[3])) is session
    assert set(session.partitions) == {*many[:3]}
    assert sessions.partitions == 3
    fetch(sessions, -1)
    sessions.end(session)
    assert sessions.partitions == 0


def test_sessions_remember_no_more_partitions_than_they_may() -> None:
    sessions = ShareSessions(10)
    many = [TopicIdPartition(UUID(int=1), number) for number in range(300_000)]
    fetch(sessions, 0, *many)

    with pytest.raises(ShareSessionLimitReached):
        fetch(sessions, 0, *many, member=TWO)
    fetch(sessions, 0, P0, member=TWO)
    with pytest.raises(ShareSessionLimitReached):
        fetch(sessions, 1, *many, member=TWO)


def test_the_sessions_of_a_connection_end_with_it() -> None:
    sessions = ShareSessions(10)
    fetch(sessions, 0, P0, connection="a")
    fetch(sessions, 0, P0, member=TWO, connection="b")

    assert [session.member for session in sessions.connection_ended("a")] == [ONE]
    assert list(sessions.connection_ended("a")) == []
    with pytest.raises(ShareSessionNotFound):
        fetch(sessions, 1)
    assert fetch(sessions, 1, member=TWO)


# ---- settings


def test_a_member_that_begins_on_another_connection_while_many_sessions_end_keeps_that_one() -> None:
    sessions = ShareSessions(10)
    for member in (ONE, TWO):
        fetch(sessions, 0, P0, member=member, connection="a")
    ending = sessions.connection_ended("a")

    ended = [next(ending).member]
    (other,) = {ONE, TWO} - set(ended)
    begun = fetch(sessions, 0, P1, member=other, connection="b")
    ended += [session.member for session in ending]

    assert ended == [ONE]
    assert sessions.has(other)
    assert fetch(sessions, 1, member=other) is begun


def test_sessions_of_many_members_or_of_many_partitions_are_ended_in_steps() -> None:
    sessions = ShareSessions(1_000)
    many = [TopicIdPartition(UUID(int=1), number) for number in range(300)]
    fetch(sessions, 0, P0, connection="short")
    fetch(sessions, 0, *many, member=TWO, connection="partitions")
    for number in range(300):
        fetch(sessions, 0, P0, member=Member("g", str(number)), connection="members")

    assert [sessions.is_long(one) for one in ("short", "partitions", "members", "none")] == [
        False, True, True, False,
    ]  # fmt: skip


def test_a_group_has_the_settings_of_the_broker_and_its_own() -> None:
    config = BrokerConfig(group_share_record_lock_duration_ms=20_000)

    assert share_group_terms(config, {}) == ShareGroupTerms(
        ShareLimits(record_lock_duration_ms=20_000), "latest", committed_only=False
    )
    own = {
        "share.record.lock.duration.ms": "15000",
        "share.delivery.count.limit": "7",
        "share.partition.max.record.locks": "300",
        "share.auto.offset.reset": "earliest",
        "share.isolation.level": "read_committed",
        "share.renew.acknowledge.enable": "false",
    }
    assert share_group_terms(config, own) == ShareGroupTerms(
        ShareLimits(
            max_record_locks=300, delivery_count_limit=7, record_lock_duration_ms=15_000, renew_enabled=False
        ),
        "earliest",
        committed_only=True,
    )


def test_changed_settings_hold_for_the_next_request() -> None:
    own: dict[str, str] = {}
    settings = ShareGroupSettings(lambda: BrokerConfig(), lambda group_id: own, lambda: True)
    assert not settings("g").committed_only

    own["share.isolation.level"] = "read_committed"

    assert settings("g").committed_only


def test_a_group_has_dead_letters_at_the_level_that_has_them() -> None:
    level = 1
    own = {
        "errors.deadletterqueue.topic.name": "dlq.orders",
        "errors.deadletterqueue.copy.record.enable": "true",
    }
    settings = ShareGroupSettings(lambda: BrokerConfig(), lambda group_id: own, lambda: level >= 2)
    before = settings("g")

    level = 2
    terms = settings("g")

    assert not before.limits.dead_letters
    assert before.dead_letter_topic == "dlq.orders"  # letters that are on their way arrive
    assert terms.limits.dead_letters
    assert (terms.dead_letter_topic, terms.copies_dead_letters) == ("dlq.orders", True)
    assert not share_group_terms(BrokerConfig(), {}).limits.dead_letters


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("PT1H", 3_600_000), ("P1DT2H3M4.5S", 93_784_500), ("PT0.001S", 1), ("P2D", 172_800_000)],
)
def test_a_group_may_begin_a_duration_ago(text: str, milliseconds: int) -> None:
    own = {"share.auto.offset.reset": f"by_duration:{text}"}

    assert share_group_terms(BrokerConfig(), own).auto_offset_reset == str(milliseconds)


@pytest.mark.parametrize("text", ["", "P", "PT", "-PT1H", "1h", "PT1H1", "P1Y"])
def test_other_texts_are_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        iso_duration_ms(text)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("share.auto.offset.reset", "none"),
        ("share.auto.offset.reset", "by_duration:1h"),
        ("share.isolation.level", "serializable"),
        ("share.record.lock.duration.ms", "14999"),
        ("share.record.lock.duration.ms", "60001"),
        ("share.delivery.count.limit", "11"),
        ("share.partition.max.record.locks", "4001"),
        ("share.session.timeout.ms", "44999"),
        ("share.heartbeat.interval.ms", "15001"),
    ],
)
def test_a_setting_of_a_group_beyond_the_bounds_of_the_broker_is_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        check_group_settings({key: value}, BrokerConfig())


def test_settings_within_the_bounds_are_accepted() -> None:
    own = {"share.auto.offset.reset": "by_duration:PT1H", "share.record.lock.duration.ms": "15000"}

    check_group_settings(own, BrokerConfig())


def test_a_group_is_known_until_its_last_session_ends() -> None:
    sessions = ShareSessions(10)
    first = fetch(sessions, 0, P0)
    again = fetch(sessions, 0, P0)
    other = fetch(sessions, 0, P1, member=TWO, connection="d")

    assert not sessions.end(first)
    assert sessions.end(other)
    assert sessions.has_group("g")
    assert sessions.end(again)
    assert not sessions.has_group("g")
