"""The quotas of clients: Kafka's rates, throttle times and precedence, in virtual time."""

from __future__ import annotations

import gc
import math

import pytest

from ottla.broker.config import BrokerConfig
from ottla.broker.quotas import Quota
from ottla.broker.quotas import clients as clients_module
from ottla.broker.quotas.clients import (
    IDLE_MS,
    ClientQuotas,
    ControllerMutations,
    QuotaEntity,
    encoded_name,
)
from ottla.broker.quotas.connections import DEFAULT
from ottla.broker.quotas.rates import QuotaBucket, SampledRate, SessionQuotas, ThrottleTimes, TokenBucket
from ottla.protocol.errors import ThrottlingQuotaExceeded

START_MS = 1_000_000.0


class Time:
    def __init__(self) -> None:
        self.ms = START_MS

    def now_ms(self) -> float:
        return self.ms

    def sleep(self, ms: float) -> None:
        self.ms += ms


def byte_bucket(bound: float) -> QuotaBucket:
    return QuotaBucket(bound, 1000.0, 11)


# ---- rates


def test_the_rate_of_a_new_client_counts_all_windows_but_the_last() -> None:
    rate = SampledRate(1000.0, 11)
    rate.record(5_000, START_MS)

    assert rate.per_s(START_MS) == 500
    assert rate.per_s(START_MS + 500) == pytest.approx(5_000 / 10.5)
    assert rate.span_ms(START_MS + 500) == 10_500


def test_a_spike_is_throttled_until_the_rate_is_the_quota_and_forgotten_with_its_window() -> None:
    bucket, time = byte_bucket(500), Time()
    for _ in range(10):
        assert bucket.record(400, time.ms) == 0
        time.sleep(1000)
    time.sleep(500)

    # 10 * 400 + 2300 bytes in 10.5 s are 600 a second: a fifth above the quota, and so a fifth of that time.
    assert bucket.record(2300, time.ms) == 2100

    time.sleep(2100)
    for _ in range(10):
        bucket.record(400, time.ms)
        time.sleep(1000)
    assert bucket.record(0, time.ms) == 0


def test_a_steady_rate_above_the_quota_is_throttled_to_the_quota() -> None:
    bucket, time = byte_bucket(10_000), Time()
    counted_from, counted = time.ms + 20_000, 0
    while time.ms < START_MS + 80_000:
        throttle_ms = bucket.record(1_000, time.ms)
        if time.ms >= counted_from:
            counted += 1_000
        time.sleep(throttle_ms + 5)

    assert counted / 60 == pytest.approx(10_000, rel=0.05)


@pytest.mark.parametrize("clients", [1, 20])
@pytest.mark.parametrize("worth_s", [0.1, 0.5, 1, 3])
def test_large_requests_of_several_clients_are_held_to_the_quota_that_they_share(
    clients: int, worth_s: float
) -> None:
    """For a minute after the first window; each client sends as soon as its throttle is over."""
    bucket, counted = byte_bucket(1_000_000), 0.0
    due_ms = [START_MS + number for number in range(clients)]
    while (now_ms := min(due_ms)) < START_MS + 71_000:
        throttle_ms = bucket.charge(worth_s * 1_000_000, now_ms)
        due_ms[due_ms.index(now_ms)] = now_ms + throttle_ms + 2 * clients
        if now_ms >= START_MS + 11_000:
            counted += worth_s

    assert counted / 60 == pytest.approx(1, rel=0.05), "Kafka's rate alone gives up to 2.2 times the quota"


def test_what_was_used_beyond_the_quota_is_paid_also_when_its_window_is_forgotten() -> None:
    bucket = byte_bucket(100)

    assert bucket.charge(3_000, START_MS) == 25_000
    assert bucket.excess_ms(START_MS + 25_000) == 0, "Kafka forgets it"
    assert bucket.wait_ms(START_MS + 25_000) == 5_000
    assert bucket.charge(1_000, START_MS + 30_000) == 10_000
    assert bucket.charge(1_000, START_MS + 60_000) == 0, "idle since then, and so free to burst"


def test_a_new_client_beyond_its_quota_waits_until_the_windows_that_its_rate_covers_have_passed() -> None:
    bucket = byte_bucket(100)
    assert bucket.charge(1_000, START_MS) == 0

    assert bucket.record(0, START_MS) == 0
    assert bucket.charge(100, START_MS) == 11_000, "Kafka says 1,000, and again after that"
    assert bucket.charge(1, START_MS + 11_000) == 10


def test_the_wait_of_a_new_client_is_shorter_than_the_time_after_which_requests_are_given_up() -> None:
    bucket = QuotaBucket(100, 1000.0, 61)
    assert bucket.charge(6_000, START_MS) == 0

    assert bucket.charge(100, START_MS) == 25_000
    assert bucket.charge(4_900, START_MS) == 50_000, "Kafka's throttle time"


def test_another_quota_forgives_what_was_used_before() -> None:
    bucket = byte_bucket(100)
    bucket.charge(3_000, START_MS)

    bucket.bound = 99

    assert bucket.wait_ms(START_MS + 12_000) == 0


def test_an_older_debt_counts_for_five_minutes_and_that_of_request_time_for_the_windows() -> None:
    produced, time = byte_bucket(10), QuotaBucket(10, 1000.0, 11, longest_ms=1000.0)
    for bucket in (produced, time):
        bucket.charge(1_000_000, START_MS)
        bucket.charge(10, START_MS)

    after_ms = START_MS + 12_000
    assert produced.wait_ms(after_ms) == 301_000 - 12_000
    assert produced.wait_ms(after_ms + 289_000) == 0
    assert time.wait_ms(after_ms) == 0


def test_the_rate_keeps_a_window_that_reaches_into_the_time_that_is_covered() -> None:
    rate = SampledRate(1000.0, 3)
    rate.record(10, START_MS)
    rate.record(20, START_MS + 999)  # in the same window

    assert rate.per_s(START_MS + 3_500) == pytest.approx(30 / 3.5)
    assert rate.per_s(START_MS + 3_999) == 0


def test_a_rest_of_days_leaves_nothing_of_a_rate() -> None:
    rate = SampledRate(1000.0, 11)
    for second in range(40):
        rate.record(7, START_MS + second * 1000)

    assert rate.per_s(START_MS + 39_000) == pytest.approx(11 * 7 / 10)
    assert rate.per_s(START_MS + 10**9) == 0
    assert rate.last_ms == START_MS + 39_000


def test_one_window_of_one_value_has_a_rate_over_at_least_a_millisecond() -> None:
    rate = SampledRate(1000.0, 1)
    rate.record(3, START_MS)

    assert rate.per_s(START_MS) == 3000


def test_the_room_of_a_bucket_is_what_may_come_without_a_throttle() -> None:
    bucket = byte_bucket(100)
    assert bucket.room(START_MS) == 1_000
    bucket.charge(900, START_MS)

    assert bucket.room(START_MS) == 100
    assert bucket.charge(100, START_MS) == 0
    assert bucket.charge(1, START_MS) > 0
    assert bucket.room(START_MS) == -1


def test_the_time_of_requests_is_throttled_for_one_window_at_most() -> None:
    bucket, time = QuotaBucket(1, 1000.0, 11, longest_ms=1000.0), Time()
    for _ in range(10):
        assert bucket.record(0.4, time.ms) == 0
        time.sleep(1000)
    time.sleep(500)

    assert bucket.record(6.71, time.ms) == 210
    assert bucket.record(500, time.ms) == 1000


def test_a_quota_of_zero_throttles_for_the_longest_time() -> None:
    bucket = QuotaBucket(0, 1000.0, 11, longest_ms=1000.0)

    assert bucket.excess_ms(START_MS) == 0
    assert bucket.record(1, START_MS) == 1000


def test_throttle_times_are_a_mean_of_the_last_minute() -> None:
    times = ThrottleTimes()
    times.note(100, START_MS)
    times.note(300, START_MS + 10)

    assert times.average_ms(START_MS + 20) == 200
    assert times.average_ms(START_MS + 31_000) == 200
    assert times.average_ms(START_MS + 200_000) == 0


# ---- controller mutations


def mutations(bound: float, time: Time, *, strict: bool) -> tuple[TokenBucket, ControllerMutations]:
    bucket = TokenBucket(bound, 1000.0, 11, time.ms)
    return bucket, ControllerMutations(SessionQuotas(time.now_ms, mutation=bucket), is_strict=strict)


def test_a_burst_of_all_windows_is_free_and_then_the_rate_fills_the_tokens() -> None:
    bucket = TokenBucket(10, 1000.0, 11, START_MS)

    assert bucket.tokens(START_MS) == 110
    assert bucket.record(110, START_MS) == 0
    assert bucket.record(30, START_MS) == 3000
    assert bucket.excess_ms(START_MS + 1000) == 2000
    assert bucket.tokens(START_MS + 100_000) == 110


def test_a_strict_client_is_served_below_zero_once_and_then_refused_until_tokens_are_back() -> None:
    time = Time()
    bucket, first = mutations(10, time, strict=True)
    first.record(150)

    assert first.throttle_time_ms == 0, "the request that takes the last tokens is not throttled"
    with pytest.raises(ThrottlingQuotaExceeded):
        first.record(1)
    assert first.throttle_time_ms == 4000
    time.sleep(1000)
    assert first.throttle_time_ms == 3000
    assert bucket.tokens(time.ms) == -30, "what is refused is not counted"
    time.sleep(3000)
    later = ControllerMutations(SessionQuotas(time.now_ms, mutation=bucket), is_strict=True)
    later.record(1)
    assert later.throttle_time_ms == 0


def test_an_older_client_is_served_and_throttled_afterwards() -> None:
    time = Time()
    bucket, asked = mutations(10, time, strict=False)

    asked.record(120)
    asked.record(10)

    assert asked.throttle_time_ms == 2000
    assert bucket.tokens(time.ms) == -20


# ---- precedence


ALL = dict.fromkeys((Quota.PRODUCE, Quota.FETCH, Quota.REQUEST), 1.0)


def quotas_in(time: Time) -> ClientQuotas:
    return ClientQuotas(BrokerConfig(), time.now_ms)


def produce_bound(quotas: ClientQuotas, user: str, client_id: str | None) -> float | None:
    bucket = quotas.of(user, client_id).produce
    return None if bucket is None else bucket.bound


def test_the_first_entity_of_kafkas_order_decides() -> None:
    quotas = quotas_in(Time())
    order = [
        QuotaEntity("alice", "app"),
        QuotaEntity("alice", DEFAULT),
        QuotaEntity("alice"),
        QuotaEntity(DEFAULT, "app"),
        QuotaEntity(DEFAULT, DEFAULT),
        QuotaEntity(DEFAULT),
        QuotaEntity(None, "app"),
        QuotaEntity(None, DEFAULT),
    ]
    assert produce_bound(quotas, "alice", "app") is None

    for number, entity in reversed(list(enumerate(order, 1))):
        quotas.limit(entity, {Quota.PRODUCE: number})
        assert produce_bound(quotas, "alice", "app") == number
    assert produce_bound(quotas, "alice", "other") == 2
    assert produce_bound(quotas, "bob", "app") == 4
    assert produce_bound(quotas, "bob", "other") == 5
    assert produce_bound(quotas, "bob", "") == 6, "a client without an id has its user's quota"
    assert produce_bound(quotas, "bob", None) == 6


def test_each_quota_has_an_order_of_its_own() -> None:
    quotas = quotas_in(Time())
    quotas.limit(QuotaEntity("alice"), {Quota.PRODUCE: 5})
    quotas.limit(QuotaEntity(None, DEFAULT), {Quota.FETCH: 7})

    found = quotas.of("alice", "app")

    assert found.produce is not None
    assert found.fetch is not None
    assert (found.produce.bound, found.fetch.bound, found.request) == (5, 7, None)


@pytest.mark.parametrize(
    ("entity", "are_shared"),
    [
        (QuotaEntity("alice"), True),
        (QuotaEntity(DEFAULT), True),
        (QuotaEntity("alice", DEFAULT), False),
        (QuotaEntity(None, DEFAULT), False),
    ],
)
def test_clients_share_what_their_user_has_and_not_what_each_client_has(
    entity: QuotaEntity, are_shared: bool
) -> None:
    quotas = quotas_in(Time())
    quotas.limit(entity, {Quota.PRODUCE: 5})

    first, second = quotas.of("alice", "one"), quotas.of("alice", "two")

    assert (first.produce is second.produce) is are_shared


def test_names_are_encoded_as_kafka_encodes_them() -> None:
    quotas = quotas_in(Time())
    quotas.limit(QuotaEntity("CN%3Da%20b%2A~%2Fc"), {Quota.PRODUCE: 5})
    quotas.limit(QuotaEntity(DEFAULT), {Quota.PRODUCE: 6})

    assert encoded_name("a b*~/c.d-e_f+g") == "a%20b%2A~%2Fc.d-e_f%2Bg"
    assert produce_bound(quotas, "CN=a b*~/c", None) == 5
    assert produce_bound(quotas, "<default>", None) == 6
    assert produce_bound(quotas, "\ud800..\0", "\udfff") == 6


# ---- changes and memory


def test_a_change_makes_stale_what_sessions_have_and_keeps_the_rates() -> None:
    time = Time()
    quotas = quotas_in(time)
    unlimited = quotas.of("alice", "app")
    assert not unlimited.is_limited

    quotas.limit(QuotaEntity("alice"), {Quota.PRODUCE: 100})
    assert unlimited.is_stale
    limited = quotas.of("alice", "app")
    assert limited.charge_produce(2_000) == 20_000
    quotas.limit(QuotaEntity("alice"), {Quota.PRODUCE: 1_000})

    assert limited.is_stale
    again = quotas.of("alice", "app")
    assert not again.is_stale
    assert again.produce is limited.produce
    assert again.charge_produce(0) == 0
    quotas.limit(QuotaEntity("alice"), {Quota.PRODUCE: 1_000})
    assert not again.is_stale, "nothing has changed"
    quotas.limit(QuotaEntity("alice"), {})
    assert not quotas.of("alice", "app").is_limited
    assert not quotas.entities


def test_a_client_that_connects_again_goes_on_where_it_was() -> None:
    time = Time()
    quotas = quotas_in(time)
    quotas.limit(QuotaEntity(None, DEFAULT), {Quota.PRODUCE: 100})
    quotas.of("u", "app").charge_produce(1_000)
    gc.collect()
    time.sleep(1_000)

    assert quotas.of("u", "app").charge_produce(500) > 0


def test_a_client_that_was_idle_for_an_hour_is_forgotten_and_one_that_is_busy_is_not() -> None:
    time = Time()
    quotas = quotas_in(time)
    quotas.limit(QuotaEntity(None, DEFAULT), {Quota.PRODUCE: 100})
    busy = quotas.of("u", "busy")
    quotas.of("u", "idle").charge_produce(1)
    time.sleep(IDLE_MS)
    busy.charge_produce(1)

    quotas.forget_idle()

    assert len(quotas) == 1
    assert quotas.of("u", "busy") is busy


def test_clients_without_number_do_not_fill_the_memory_and_share_no_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients_module, "MOST_REMEMBERED", 3)
    monkeypatch.setattr(clients_module, "MOST_SHOWN", 2)
    time = Time()
    quotas = quotas_in(time)
    quotas.limit(QuotaEntity(None, DEFAULT), ALL)
    connected = quotas.of("u", "connected")

    for number in range(100):
        quotas.of("u", f"client-{number}").charge_produce(1)
    gc.collect()

    assert len(quotas) == 3
    assert len(quotas._buckets) == 3 * 4, "three clients, and the one whose session lives"
    assert quotas.of("u", "connected").produce is connected.produce
    shown = [sample for sample in quotas.samples() if sample is not None]
    assert len(shown) == 2 * 3 * 2 + 1, "and the time of brokers"


def test_metrics_have_kafkas_names_and_tags() -> None:
    time = Time()
    quotas = quotas_in(time)
    quotas.limit(QuotaEntity("alice"), {Quota.PRODUCE: 100, Quota.CONTROLLER_MUTATION: 2})
    alice = quotas.of("alice", "app")
    alice.charge_produce(2_000)

    found = {str(name): value for name, value in filter(None, quotas.samples())}

    assert found == {
        "kafka.server:type=Produce,name=byte-rate,client-id=,user=alice": 200,
        "kafka.server:type=Produce,name=throttle-time,client-id=,user=alice": 20_000,
        "kafka.server:type=ControllerMutation,name=mutation-rate,client-id=,user=alice": 0,
        "kafka.server:type=ControllerMutation,name=throttle-time,client-id=,user=alice": 0,
        "kafka.server:type=ControllerMutation,name=tokens,client-id=,user=alice": 22,
    }


def test_the_time_of_brokers_requests_is_shown_while_any_clients_is_limited() -> None:
    time = Time()
    quotas = quotas_in(time)
    assert not list(quotas.samples())

    quotas.limit(QuotaEntity("alice"), {Quota.REQUEST: 100})
    quotas.exempt.record(50, time.ms)

    assert {str(name): value for name, value in filter(None, quotas.samples())} == {
        "kafka.server:type=Request,name=exempt-request-time": 5
    }


# ---- one session's quotas


def test_a_fetch_beyond_the_quota_is_not_counted() -> None:
    time = Time()
    quotas = SessionQuotas(time.now_ms, fetch=byte_bucket(100))

    assert quotas.throttle_fetch(900) == 0
    assert quotas.throttle_fetch(300) == 12_000
    assert quotas.throttle_fetch(100) == 0
    time.sleep(13_000)
    assert quotas.throttle_fetch(300) == 0
    assert quotas.most_fetch_bytes == 1_000


def test_a_fetch_larger_than_the_quota_ever_allows_is_granted_to_a_client_that_owes_nothing() -> None:
    time = Time()
    quotas = SessionQuotas(time.now_ms, fetch=byte_bucket(100))

    assert quotas.throttle_fetch(5_000) == 0, "one batch, and fetches are of whole batches"
    assert quotas.throttle_fetch(5_000) > 0
    time.sleep(49_000)
    assert quotas.throttle_fetch(5_000) > 0
    time.sleep(1_000)
    assert quotas.throttle_fetch(5_000) == 0


def test_a_session_without_quotas_is_charged_nothing() -> None:
    quotas = SessionQuotas(Time().now_ms)

    assert (quotas.charge_produce(10**12), quotas.throttle_fetch(10**12), quotas.throttle_request(1e9)) == (
        0,
        0,
        0,
    )
    assert quotas.most_fetch_bytes == 2**63 - 1


def test_a_throttle_time_fits_the_response() -> None:
    quotas = SessionQuotas(Time().now_ms, produce=byte_bucket(1e-9), fetch=byte_bucket(math.inf))

    assert quotas.charge_produce(10**15) == 2**31 - 1
    assert quotas.throttle_fetch(10**15) == 0


def test_request_time_is_percent_of_one_loop() -> None:
    time = Time()
    quotas = SessionQuotas(time.now_ms, request=QuotaBucket(50, 1000.0, 11, longest_ms=1000.0))

    assert quotas.throttle_request(5_000) == 0, "half of ten seconds"
    assert quotas.throttle_request(100) == 1_000, "a window at most"
    time.sleep(10_100)
    assert quotas.throttle_request(100) == 300
