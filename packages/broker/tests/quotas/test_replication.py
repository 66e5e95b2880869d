"""Replication throttles in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random

import pytest

from ottla.broker.config import BrokerConfig, LogConfig
from ottla.broker.metrics import Gauge, Metrics
from ottla.broker.quotas.replication import RecentRate, ReplicaQuota, ReplicationQuota, ReplicationQuotas
from ottla.client.config_definition import ConfigError
from ottla.protocol.topics import TopicPartition

MIB = 1 << 20


class Time:
    def __init__(self) -> None:
        self.now_ms = 5_000.0

    def __call__(self) -> float:
        return self.now_ms


def transfers(quota: ReplicationQuota, time: Time, total: int, size: int) -> Iterator[float]:
    """Copy in transfers of `size` whenever the quota allows; yield when each was made."""
    while total > 0:
        if quota.is_exceeded:
            assert quota.due_ms > time.now_ms, "it would be asked again at once, for ever"
            time.now_ms = quota.due_ms
            continue
        quota.record(size)
        total -= size
        yield time.now_ms
        time.now_ms += 0.1


@pytest.mark.parametrize("rate", [100_000, MIB, 20 * MIB])
@pytest.mark.parametrize("size", [10_000, MIB])
def test_copying_takes_the_time_of_its_rate_and_one_transfer_less(rate: int, size: int) -> None:
    time = Time()
    quota, total = ReplicationQuota(1, 11, time), 30 * rate
    quota.bytes_per_s = rate

    times = list(transfers(quota, time, total, size))

    took_s = (times[-1] - times[0]) / 1000
    assert (total - 2 * size) / rate - 1 <= took_s <= total / rate * 1.1 + 1


def test_after_a_rest_there_is_no_burst_beyond_the_first_second() -> None:
    time = Time()
    quota = ReplicationQuota(1, 11, time)
    quota.bytes_per_s = MIB
    list(transfers(quota, time, 20 * MIB, 10_000))
    time.now_ms += 60_000

    begun_ms = time.now_ms
    times = list(transfers(quota, time, 5 * MIB, 10_000))

    assert sum(one < begun_ms + 999 for one in times) * 10_000 <= MIB + 20_000


def test_the_rate_of_random_transfers_is_their_bytes_over_the_time_of_their_windows() -> None:
    chance = Random(7)
    rate, made, now_ms = RecentRate(1_000, 11), [], 0.0
    for _ in range(2_000):
        now_ms += chance.expovariate(1 / 200)
        size = chance.randrange(10_000)
        rate.record(size, now_ms)
        made.append((now_ms, size))

        counted = rate.per_s(now_ms)
        within = [sum(s for at, s in made if at > now_ms - span) * 1000 for span in (10_000, 11_000)]

        assert within[0] / 11_000 * 0.9 <= counted or now_ms < 11_000
        assert counted <= within[1] / 1_000
    assert rate.per_s(now_ms + 11_000) == 0


def test_a_rate_falls_until_the_time_that_was_told() -> None:
    rate = RecentRate(1_000, 11)
    rate.record(3 * MIB, 0)

    due_ms = rate.falls_to_ms(MIB, 0)

    assert due_ms == 3_000
    assert rate.per_s(due_ms - 1) > MIB >= rate.per_s(due_ms)
    assert rate.falls_to_ms(0, 0) == 11_000
    falling = [rate.per_s(float(at)) for at in range(0, 12_000, 100)]
    assert all(later <= earlier for earlier, later in pairwise(falling))


def test_without_a_rate_nothing_waits_and_the_bytes_are_counted() -> None:
    time = Time()
    quota = ReplicationQuota(1, 11, time)
    quota.record(10**12)

    assert not quota.is_exceeded
    assert quota.byte_rate == 10**12


def test_a_setting_selects_the_replicas_of_this_broker() -> None:
    quota = ReplicaQuota(2, 1, 11, Time())
    named, every = ("0:1", "0:2", "3:2", "4:1"), ("*",)

    assert [one for one in range(5) if quota.selects(TopicPartition("t", one), named)] == [0, 3]
    assert all(quota.selects(TopicPartition("t", one), every) for one in range(5))
    assert not quota.selects(TopicPartition("t", 0), ())
    assert not quota.selects(TopicPartition("t", 0), ("0:1",))


@pytest.mark.parametrize("value", ["0", "0:", "a:1", "0:1,*", "0:-1", "0:1:2", "none"])
def test_a_setting_that_names_no_replicas_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"must be \* or a list of partition:broker"):
        LogConfig().with_overrides({"leader.replication.throttled.replicas": value})


def test_rates_are_metrics_under_kafkas_names_and_follow_the_settings() -> None:
    metrics = Metrics()
    quotas = ReplicationQuotas(1, BrokerConfig(), Time(), metrics)
    quotas.configure(
        BrokerConfig(
            leader_replication_throttled_rate=10,
            follower_replication_throttled_rate=20,
            replica_alter_log_dirs_io_max_bytes_per_second=30,
        )
    )
    made = (quotas.leader, quotas.follower, quotas.log_moves)
    for quota in made:
        quota.record(quota.bytes_per_s)

    kinds = ("LeaderReplication", "FollowerReplication", "AlterLogDirsReplication")
    shown = [metrics.get("kafka.server", kind, "byte-rate") for kind in kinds]

    assert [one.value for one in shown if isinstance(one, Gauge)] == [10, 20, 30]
