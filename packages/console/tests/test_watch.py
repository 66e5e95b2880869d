"""The history of lag: kept and thinned; trends; the exporter; the collector beside a real broker."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.admin import Admin, Broker, ClusterState, GroupListing
from ottla.admin.groups import GroupDescription, GroupProgress, PartitionProgress
from ottla.broker.testing import BrokerProcess
from ottla.client.config import ClientConfig
from ottla.console.clusters.connections import ShownCluster, ShownClusters
from ottla.console.clusters.samples import NoSample, Sample
from ottla.console.settings import ClusterSettings
from ottla.console.testing import serving
from ottla.console.watch.collecting import Collector, Look, look_at, values_of
from ottla.console.watch.exporter import exposition
from ottla.console.watch.history import COARSE_S, KEPT_FOR_S, History, Point, Series
from ottla.console.watch.trends import Trend, trend
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition

LAG = Series("local", "lag", "billing")
NOW_S = 1_767_225_600


async def test_points_of_a_minute_keep_its_lowest_and_its_highest_value(tmp_path: Path) -> None:
    path = tmp_path / "state" / "console.sqlite"
    async with History(path) as history:
        await history.add(NOW_S, {LAG: 10})
        await history.add(NOW_S + 30, {LAG: 30})
        await history.add(NOW_S + 60, {LAG: 5})
    async with History(path) as history:
        found = await history.read(LAG, 0)

    assert found == [Point(NOW_S, 10, 30, 20), Point(NOW_S + 60, 5, 5, 5)]


async def test_old_points_are_merged_and_very_old_ones_dropped() -> None:
    async with History(None) as history:
        for minute in range(0, 15 * 1440, 10):
            await history.add(NOW_S + 60 * minute, {LAG: minute})
            await history.add(NOW_S + 60 * minute + 60, {LAG: minute + 1})
        now_s = NOW_S + 15 * 86_400
        await history.thin(now_s)
        await history.thin(now_s)
        found = await history.read(LAG, 0)

    assert found[0].at_s >= now_s - KEPT_FOR_S - COARSE_S
    assert found[0].high - found[0].low == 1
    assert len([point for point in found if point.at_s < now_s - 86_400]) == 13 * 144
    assert len([point for point in found if point.at_s >= now_s - 86_400]) == 2 * 144


async def test_a_history_that_is_closed_says_so() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await History(None).read(LAG, 0)


async def test_a_value_that_cannot_be_kept_spoils_no_series() -> None:
    async with History(None) as history:
        with pytest.raises(sqlite3.Error):
            await history.add(NOW_S, {LAG: math.nan})
        await history.add(NOW_S, {LAG: 3})

        assert await history.read(LAG, 0) == [Point(NOW_S, 3, 3, 3)]


def line(*values: float) -> list[Point]:
    first_s = NOW_S - 60 * len(values)
    return [Point(first_s + 60 * index, value, value, value) for index, value in enumerate(values)]


def test_a_trend_says_how_fast_a_lag_grows_or_when_it_is_caught_up() -> None:
    assert trend(line(0, 600, 1200, 1800), NOW_S) == Trend(10.0)
    assert trend(line(3000, 2400, 1800, 1200), NOW_S) == Trend(-10.0, 120.0)
    assert trend(line(1000, 1001, 999, 1000), NOW_S) == Trend(0.0)
    assert trend(line(1, 2), NOW_S) is None
    assert trend(line(*range(100)), NOW_S + 7_200) is None
    assert Trend(10.0).text == "grows by 10 records/s"
    assert (Trend(-0.25).text, Trend(0.0).text) == ("shrinks by 0.2 records/s", "steady")


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
    assert values_of(look()) == {
        Series("local", "problems", ""): 0,
        LAG: 20,
        Series("local", "committed", "billing"): 10,
        Series("local", "ends", "orders"): 37,
    }


def test_the_exporter_escapes_names_and_leaves_out_what_is_not_known() -> None:
    text = exposition({"local": (look('a"b\\c\nd'), NOW_S)})

    assert 'ottla_console_group_lag_records{cluster="local",group="a\\"b\\\\c\\nd"} 20' in text
    assert text.count("ottla_console_group_partition_lag_records{") == 1
    assert text.count("# TYPE ottla_console_group_lag_records gauge") == 1


def test_prometheus_reads_the_page() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    families = {family.name: family for family in parser.text_string_to_metric_families(
        exposition({"local": (look("a\"b"), NOW_S)})
    )}  # fmt: skip

    (sample,) = families["ottla_console_group_lag_records"].samples
    assert (sample.labels, sample.value) == ({"cluster": "local", "group": 'a"b'}, 20)


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
        return Sample(look().progress[group], self._ages_s[1])


async def test_old_answers_are_not_collected_as_new_ones() -> None:
    assert (await look_at(Remembered(30, 30))).progress.keys() == {"billing"}
    found = await look_at(Remembered(30, 90))
    assert (list(found.progress), set(found.silent_groups)) == ([], {"billing"})
    with pytest.raises(NoSample, match="no broker answers"):
        await look_at(Remembered(90, 30))


async def test_a_fault_in_one_cluster_does_not_end_the_watch() -> None:
    class Faulty(Remembered):
        async def groups(self) -> Sample[list[GroupListing]]:
            raise RuntimeError("a fault")

    class Several(ShownClusters):
        def __iter__(self) -> Iterator[ShownCluster]:
            return iter((Faulty(0, 0), Remembered(0, 0)))

    def fails(_: Look, at_s: int) -> None:
        raise RuntimeError(at_s)

    async with History(None) as history, asyncio.timeout(60):
        collector = Collector(Several((), lambda: 0.0), history, every_s=0.0, on_look=fails)
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
