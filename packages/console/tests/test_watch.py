"""Looks at clusters: what is kept of them, the exporter, times of records, and the collector."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from click.testing import CliRunner

from ottla.admin import (
    Admin,
    Broker,
    ClusterState,
    GroupListing,
    LogDir,
    PartitionHealth,
)  # fmt: skip
from ottla.admin.groups import GroupDescription, GroupProgress, PartitionProgress
from ottla.broker.testing import BrokerProcess
from ottla.client.config import ClientConfig
from ottla.console.cli import console
from ottla.console.clusters.connections import ShownCluster, ShownClusters
from ottla.console.clusters.samples import NoSample, Sample
from ottla.console.settings import ClusterSettings
from ottla.console.testing import serving
from ottla.console.watch.alerts import Alert
from ottla.console.watch.collecting import Collector, values_of, watched
from ottla.console.watch.exporter import METRICS, exposition
from ottla.console.watch.history import History, Series
from ottla.console.watch.looks import MOST_POINTS, Look, WrittenTimes, look_at, time_lags
from ottla.console.watch.rule_files import Rule
from ottla.console.watch.rules import Readings, readings
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition

T = TypeVar("T")

LAG = Series("local", "lag", "billing")
NOW_S = 1_767_225_600


def look(group: str = "billing") -> Look:
    partitions = (
        PartitionProgress(TopicPartition("orders", 0), 10, 30),
        PartitionProgress(TopicPartition("orders", 1), None, 7),
    )
    progress = GroupProgress(GroupDescription(group, "Stable", "consumer", "range", 1), partitions)
    state = ClusterState("id", 1, (Broker(1, "host", 9092, None, True),), ())
    ends = {TopicPartition("orders", 0): 30, TopicPartition("orders", 1): 7}
    return Look("local", state, {group: progress}, ends)


def test_a_look_keeps_lag_commits_ends_and_problems() -> None:
    found = look()
    assert values_of(found, readings(found, None)) == {
        Series("local", "problems", ""): 0,
        LAG: 20,
        Series("local", "committed", "billing"): 10,
        Series("local", "members", "billing"): 0,
        Series("local", "ends", "orders"): 37,
    }


def test_the_exporter_escapes_names_and_leaves_out_what_is_not_known() -> None:
    text = exposition({"local": watched(look('a"b\\c\nd'), NOW_S, None, None)})

    assert 'ottla_console_group_lag_records{cluster="local",group="a\\"b\\\\c\\nd"} 20' in text
    assert text.count("ottla_console_group_partition_lag_records{") == 1
    assert text.count("# TYPE ottla_console_group_lag_records gauge") == 1


def test_a_broker_takes_what_is_written_to_the_partitions_that_it_leads() -> None:
    state = ClusterState(
        "id", 1, tuple(Broker(number, "host", 9092, None, False) for number in (1, 2, 3)),
        tuple(
            PartitionHealth(TopicPartition("orders", index), leader, (1, 2), (1, 2))
            for index, leader in enumerate((1, 2, None))
        ),
    )  # fmt: skip
    before = watched(replace(look(), state=state), NOW_S, None, None)
    ends = {TopicPartition("orders", index): end for index, end in enumerate((90, 5, 9))}

    found = watched(replace(look(), state=state, ends=ends), NOW_S + 30, None, before)

    assert found.taken_per_s == {1: 2.0, 2: 0.0, 3: 0.0}


def test_rates_are_of_what_both_looks_know() -> None:
    before = watched(look(), NOW_S, None, None)
    grown = replace(
        look(), ends={TopicPartition("orders", 0): 90, TopicPartition("orders", 2): 1_000},
        progress={"billing": replace(look().progress["billing"], partitions=(
            PartitionProgress(TopicPartition("orders", 0), 25, 90),
        ))},
    )  # fmt: skip

    found = watched(grown, NOW_S + 30, before.look, before)

    assert (found.written_per_s, found.committed_per_s) == ({"orders": 2.0}, {"billing": 0.5})
    assert found.lag_per_s == {"billing": {TopicPartition("orders", 0): 1.5}}
    text = exposition({"local": found})
    assert 'ottla_console_topic_written_records_per_second{cluster="local",topic="orders"} 2.0' in text
    assert 'ottla_console_group_committed_records_per_second{cluster="local",group="billing"} 0.5' in text
    again = watched(look(), NOW_S + 60, None, found)  # the topic was made again, the group was reset
    assert (again.written_per_s, again.committed_per_s) == ({}, {})


def test_a_group_that_commits_for_the_first_time_is_not_said_to_hang() -> None:
    def committed(*offsets: int | None) -> Look:
        partitions = tuple(
            PartitionProgress(TopicPartition("orders", index), offset, 30)
            for index, offset in enumerate(offsets)
        )
        return replace(
            look(), progress={"billing": replace(look().progress["billing"], partitions=partitions)}
        )

    def rate(earlier: Look, later: Look) -> float | None:
        before = watched(earlier, NOW_S, None, None)
        return watched(later, NOW_S + 30, before.look, before).committed_per_s.get("billing")

    assert rate(committed(None, None), committed(60, None)) is None
    assert rate(committed(60, None), committed(60, 30)) is None
    assert rate(committed(60, None), committed(90, 30)) == 1.0
    assert rate(committed(60, None), committed(60, None)) == 0.0
    assert rate(committed(None, None), committed(None, None)) == 0.0


def test_the_page_leaves_out_partitions_before_groups_and_counts_what_is_left_out() -> None:
    whole = exposition({"local": watched(look(), NOW_S, None, None)})
    lines = [line for line in whole.splitlines() if not line.startswith("#")]
    cut = exposition({"local": watched(look(), NOW_S, None, None)}, most_series=len(lines) - 5)

    assert lines.count("ottla_console_left_out_series 0") == 1
    assert "ottla_console_left_out_series 4" in cut
    assert "ottla_console_group_lag_records{" in cut
    assert "ottla_console_partition_end_offset{" not in cut


def test_alerts_that_stand_are_counted_by_rule() -> None:
    alert = Alert(Rule("behind", "lag"), "local", "billing", 0, "text", is_raised=True)
    text = exposition({}, [alert, replace(alert, subject="other")], ["behind", "full"], {"mail": 3})

    assert 'ottla_console_alert{rule="behind"} 2' in text
    assert 'ottla_console_alert{rule="full"} 0' in text
    assert 'ottla_console_alerts_given_up_total{target="mail"} 3' in text


def test_dashboards_name_metrics_that_the_page_has(tmp_path: Path) -> None:
    done = CliRunner().invoke(console, ["dashboard", str(tmp_path)])
    assert done.exit_code == 0, done.output
    names = sorted(file.name for file in tmp_path.iterdir())
    texts = [file.read_text() for file in tmp_path.iterdir()]
    named = {name for text in texts for name in re.findall(r"ottla_console_\w+", text)}
    state = replace(
        look().state,
        partitions=(PartitionHealth(TopicPartition("orders", 0), 1, (1,), (1,)),),
        log_dirs=(LogDir(1, "/data", (), None, 100, 5),),
    )
    full = replace(look(), state=state, time_lags_s={"billing": 1.0}, certificate_days={"1:host:9092": 3.0})
    page = exposition(
        {"local": watched(full, NOW_S + 30, full, watched(full, NOW_S, None, None))},
        (),
        ["behind"],
        {"mail": 0},
    )
    given = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")}

    assert names == ["ottla-console-alerts.yml", "ottla-console.json"]
    assert given == METRICS
    assert named - METRICS == set()
    assert len(named) >= 15
    panels = json.loads((tmp_path / "ottla-console.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_prometheus_reads_the_page() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    families = {family.name: family for family in parser.text_string_to_metric_families(
        exposition({"local": watched(look("a\"b"), NOW_S, None, None)})
    )}  # fmt: skip

    (sample,) = families["ottla_console_group_lag_records"].samples
    assert (sample.labels, sample.value) == ({"cluster": "local", "group": 'a"b'}, 20)


ORDERS = TopicPartition("orders", 0)


def test_the_time_of_an_unread_record_follows_from_the_ends_of_looks() -> None:
    times = WrittenTimes()
    for at_s, end in ((0, 100), (30, 100), (60, 100), (90, 160), (120, 160), (150, 190)):
        times.add({ORDERS: end}, at_s)

    assert times.written_s(ORDERS, 99) is None  # it was there before the first look
    assert times.written_s(ORDERS, 100) == 60
    assert times.written_s(ORDERS, 130) == 75
    assert times.written_s(ORDERS, 160) == 120
    assert times.written_s(ORDERS, 190) is None  # it is not there yet
    times.learn(ORDERS, 99, -500)
    assert times.written_s(ORDERS, 99) == -500


def test_times_of_a_partition_take_bounded_memory_and_keep_their_reach() -> None:
    times = WrittenTimes()
    for look_number in range(10_000):
        times.add({ORDERS: look_number * 10}, look_number * 30.0)

    for offset in (1, 50_000, 99_000):
        found = times.written_s(ORDERS, offset)
        assert found is not None
        assert abs(found - offset * 3) <= 30
    (points,) = times._points.values()
    assert len(points[0]) <= MOST_POINTS


def test_a_topic_that_is_made_again_has_no_times_of_the_old_one() -> None:
    times = WrittenTimes()
    times.add({ORDERS: 100}, 0)
    times.add({ORDERS: 200}, 30)
    times.learn(ORDERS, 5, 1)
    times.add({ORDERS: 10}, 60)

    assert (times.written_s(ORDERS, 150), times.written_s(ORDERS, 5)) == (None, None)
    times.add({ORDERS: 20}, 90)
    times.forget_others([], {})
    assert times.written_s(ORDERS, 15) is None


def test_the_time_lag_of_a_group_is_that_of_its_oldest_unread_record() -> None:
    times = WrittenTimes()
    times.add({ORDERS: 10}, 0)
    times.add({ORDERS: 30}, 100)

    assert time_lags(look().progress, times, 160) == ({"billing": 160.0}, frozenset())
    assert time_lags(look().progress, WrittenTimes(), 160) == ({"billing": 0.0}, frozenset({"billing"}))


class Remembered(ShownCluster):
    """A cluster whose answers are from a time before."""

    def __init__(self, state_age_s: float, progress_age_s: float) -> None:
        self.name = "local"
        self._ages_s = state_age_s, progress_age_s

    async def admin(self) -> Admin:
        return Admin("127.0.0.1:1")

    async def state(self) -> Sample[ClusterState]:
        return Sample(look().state, self._ages_s[0], "no broker answers")

    async def groups(self) -> Sample[list[GroupListing]]:
        return Sample([GroupListing("billing", "Stable", "consumer")], 0.0)

    async def progress(self, group: str) -> Sample[GroupProgress]:
        found = look().progress[group]
        caught_up = PartitionProgress(TopicPartition("orders", 0), 30, 30)  # no record is read for its time
        return Sample(replace(found, partitions=(caught_up,)), self._ages_s[1])

    async def ask(
        self, key: tuple[str, ...], question: Callable[[Admin], Awaitable[T]], *, fresh_s: float = 0
    ) -> Sample[T]:
        raise NoSample("no broker answers")


async def test_old_answers_are_not_collected_as_new_ones() -> None:
    assert (await look_at(Remembered(30, 30), WrittenTimes(), NOW_S)).progress.keys() == {"billing"}
    found = await look_at(Remembered(30, 90), WrittenTimes(), NOW_S)
    assert (list(found.progress), set(found.silent_groups)) == ([], {"billing"})
    with pytest.raises(NoSample, match="no broker answers"):
        await look_at(Remembered(90, 30), WrittenTimes(), NOW_S)


async def test_a_fault_in_one_cluster_does_not_end_the_watch() -> None:
    class Faulty(Remembered):
        async def groups(self) -> Sample[list[GroupListing]]:
            raise RuntimeError("a fault")

    class Several(ShownClusters):
        def __iter__(self) -> Iterator[ShownCluster]:
            return iter((Faulty(0, 0), Remembered(0, 0)))

    async def fails(_: Readings, at_s: int) -> None:
        raise RuntimeError(at_s)

    async with History(None) as history, asyncio.timeout(60):
        collector = Collector(Several((), lambda: 0.0), history, every_s=0.0, on_readings=fails)
        watching = asyncio.create_task(collector.run())
        while not await history.read(LAG, 0):
            pass  # reading waits for a thread
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching


async def test_the_console_watches_the_lag_of_a_real_group(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        address = f"127.0.0.1:{broker.port}"
        async with Admin(address) as admin, Producer(bootstrap_servers=address) as producer:
            await admin.topics.create("orders")
            for number in range(5):
                await producer.send_and_wait("orders", str(number).encode())
            await admin.groups.commit("billing", {TopicPartition("orders", 0): 2})
        async with serving(ClusterSettings("local", address, ClientConfig)) as console:
            metrics, points = "", list[float]()
            for _ in range(600):
                metrics = (await console.get("/metrics")).text
                points = (await console.get("/c/local/points?name=billing")).json()["mean"]
                if points:
                    break
                await asyncio.sleep(0.1)
            group = (await console.get("/c/local/group?name=billing")).text

    assert 'ottla_console_partition_end_offset{cluster="local",topic="orders",partition="0"} 5' in metrics
    assert 'group="billing"} 3' in metrics
    assert points == [3]
    assert "The oldest record that it has not read was written" in group


def test_the_history_keeps_no_part_of_a_lag_or_of_the_ends_of_a_topic() -> None:
    whole = look()
    where = [TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("gone", 0)]
    parts = (
        PartitionProgress(where[0], 10, 30), PartitionProgress(where[1], 5, None),
        PartitionProgress(where[2], 3, None),
    )  # fmt: skip
    progress = GroupProgress(whole.progress["billing"].description, parts)
    exist = tuple(PartitionHealth(partition, 1, (1,), (1,)) for partition in where[:2])
    state = replace(whole.state, partitions=exist)
    part = replace(whole, state=state, progress={"billing": progress}, ends={where[0]: 30})
    exists_no_more = replace(part, state=replace(state, partitions=exist[:1]))
    kept, kept_whole = (values_of(found, readings(found, None)) for found in (part, exists_no_more))

    assert LAG not in kept
    assert Series("local", "ends", "orders") not in kept
    assert (kept_whole[LAG], kept_whole[Series("local", "ends", "orders")]) == (20, 30)
    assert "group_lag_records{" not in exposition({"local": watched(part, NOW_S, None, None)})
