"""Activity becomes sessions and counts over time, each event once, and late events are counted truly."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from ottla.broker.testing import BrokerProcess
from ottla.pipeline.jobs.declaration_files import read_job
from ottla.pipeline.jobs.run import Run
from ottla.pipeline.jobs.samples import sample_declaration
from ottla.pipeline.jobs.samples.sample_data import events
from peers.pipelines import SPARK, Pipeline, failure_line
from peers.small_disk import small_disk
from peers.topics import Sent, Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Fresh = Callable[[str], str]
Session = tuple[str, datetime, datetime, int]
Window = tuple[datetime, str, int]

COUNT = 4_000
GAP, LENGTH = timedelta(minutes=30), timedelta(minutes=5)
BEGIN = datetime.fromisoformat("2024-05-01T06:00:00+00:00")


class Activity:
    """A topic of events, and a declaration of what becomes of them."""

    def __init__(self, folder: Path, topics: Topics, fresh: Fresh) -> None:
        self.folder = folder
        self.topics = topics
        self.topic = topics.create(fresh("activity"), 2)
        self.dead = topics.create(fresh("dead"))

    def declare(self, lake: str, per_batch: int = 1_000) -> Path:
        """Write the sample's declaration for this topic, and return its file."""
        text = sample_declaration("activity").replace('"delta"', f'"{lake}"')
        text = text.replace('"activity"]', f'"{self.topic}"]\nmax_records_per_batch = {per_batch}')
        text = text.replace("127.0.0.1:9092", self.topics.bootstrap_servers).replace("10s", "100ms")
        file = self.folder / "activity.toml"
        file.write_text(text.replace("activity-dead", self.dead) + SPARK)
        return file

    def send(self, values: Iterable[tuple[str, str]]) -> None:
        """Send events of users; those of one user keep their order."""
        sent = [
            Sent(value=each.encode(), key=user.encode(), partition=len(user) % 2) for user, each in values
        ]
        self.topics.send(self.topic, sent)

    def flush(self) -> None:
        """Send an event so much later that all before is over."""
        for user in ("end", "of"):
            event = {"id": f"flush-{user}", "user": user, "time": "2024-06-01T00:00:00Z", "action": "flush"}
            self.send([(user, json.dumps(event))])

    @property
    def checkpoint(self) -> Path:
        """Where the pipeline keeps its place."""
        return self.folder / "state" / "shop-activity"


@pytest.fixture
def activity(tmp_path: Path, topics: Topics, fresh: Fresh) -> Activity:
    """A topic of its own."""
    return Activity(tmp_path, topics, fresh)


def _read(values: Iterable[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield the events that are on time, each once; and mark those that are held up."""
    seen = set()
    newest = BEGIN
    for _, text in values:
        try:
            event = json.loads(text)
        except ValueError:
            continue
        if event["id"] in seen:
            continue
        seen.add(event["id"])
        at = datetime.fromisoformat(event["time"])
        newest = max(newest, at)
        yield event | {"at": at, "is_late": at < newest - timedelta(hours=1)}


def _expected(values: list[tuple[str, str]]) -> tuple[Counter[Session], Counter[Window], int, int]:
    """Return sessions, windows, and how many events are late and how many unreadable."""
    read = list(_read(values))
    on_time = sorted((each for each in read if not each["is_late"]), key=lambda each: each["at"])
    windows = Counter((_window(each["at"]), each["action"]) for each in on_time)
    bad = sum(not text.endswith("}") for _, text in values)
    late = sum(each["is_late"] for each in read)
    return Counter(_sessions(on_time)), Counter((at, what, n) for (at, what), n in windows.items()), late, bad


def _window(at: datetime) -> datetime:
    return at - (at - BEGIN) % LENGTH


def _sessions(on_time: list[dict[str, Any]]) -> Iterator[Session]:
    for user in {each["user"] for each in on_time}:
        times = [each["at"] for each in on_time if each["user"] == user]
        began, last, count = times[0], times[0], 0
        for at in times:
            if at - last >= GAP:
                yield user, began, last, count
                began, count = at, 0
            last, count = at, count + 1
        yield user, began, last, count


def _table(path: Path, lake: str) -> list[dict[str, Any]]:
    table = DeltaTable(path).to_pyarrow_table() if lake == "delta" else pq.read_table(path)
    found: list[dict[str, Any]] = table.to_pylist()
    return [each for each in found if each["began"].year == 2024 and each["began"].month == 5]


def _check(activity: Activity, lake: str, values: list[tuple[str, str]], queries: dict[str, Any]) -> None:
    sessions, windows, late, bad = _expected(values)
    assert late > 10, "the sample has late events"
    found = _table(activity.folder / "lake/actions", lake)
    assert Counter((each["began"], each["action"], each["events"]) for each in found) == windows
    found = _table(activity.folder / "lake/sessions", lake)
    assert Counter((each["user"], each["began"], each["ended"], each["events"]) for each in found) == sessions
    assert queries["windows"]["counts"] == {"late": late}
    assert queries["sessions"]["counts"] == {"late": late}
    assert queries["dead-letters"]["counts"] == {"dead": bad}


@pytest.mark.parametrize("lake", ["delta", "parquet"])
@pytest.mark.timeout(400)
def test_sessions_windows_and_late_events(spark: SparkSession, activity: Activity, lake: str) -> None:
    values = list(events(COUNT))
    activity.send(values)
    activity.flush()
    said: dict[str, Any] = {}
    Run(read_job(activity.declare(lake)), once=True, watch=said.update)()
    _check(activity, lake, values, said["queries"])


@pytest.mark.parametrize("rounds", [2, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.timeout(3_600)
def test_killed_in_the_middle(activity: Activity, rounds: int) -> None:
    values = list(events(COUNT))
    share = COUNT // (rounds + 1)
    activity.send(values[:share])
    pipeline = Pipeline(activity.declare("delta", per_batch=400), activity.checkpoint)
    chance = random.Random(rounds)
    for number in range(1, rounds + 1):
        begun = pipeline.planned("sessions")
        pipeline.start()
        pipeline.until(lambda begun=begun: pipeline.planned("sessions") > begun)  # type: ignore[misc]
        time.sleep(chance.random() * 3)
        pipeline.kill()
        activity.send(values[number * share : (number + 1) * share if number < rounds else None])
    activity.flush()
    _check(activity, "delta", values, pipeline.once()["queries"])


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.timeout(3_600)
def test_workers_and_broker_are_killed(tmp_path: Path, fresh: Fresh, rounds: int) -> None:
    values = list(events(COUNT))
    share = COUNT // (rounds + 1)
    with BrokerProcess(tmp_path / "broker") as broker, Topics(broker.bootstrap_servers) as topics:
        activity = Activity(tmp_path, topics, fresh)
        activity.send(values[:share])
        pipeline = Pipeline(activity.declare("delta", per_batch=100), activity.checkpoint)
        pipeline.start()
        for number in range(1, rounds + 1):
            more = values[number * share : (number + 1) * share if number < rounds else None]
            pipeline.kill_worker_and(broker, partial(activity.send, more), "sessions")
        activity.flush()
        assert pipeline.stop() == 0
        _check(activity, "delta", values, pipeline.once()["queries"])


@pytest.mark.parametrize("where", ["state", "lake"])
@pytest.mark.timeout(900)
def test_a_full_disk_is_told_in_one_line_and_counts_no_event_twice(
    tmp_path: Path, activity: Activity, where: str
) -> None:
    values = list(events(COUNT))
    activity.send(values[: COUNT // 2])
    pipeline = Pipeline(activity.declare("delta", per_batch=400), activity.checkpoint)
    with small_disk(tmp_path / where, 64) as disk:
        pipeline.start()
        pipeline.until(lambda: pipeline.committed("sessions") > 1 and pipeline.committed("windows") > 1)
        disk.fill()
        activity.send(values[COUNT // 2 :])
        activity.flush()
        assert "No space left on device" in failure_line(pipeline.failed())
        disk.free()
        _check(activity, "delta", values, pipeline.once()["queries"])
