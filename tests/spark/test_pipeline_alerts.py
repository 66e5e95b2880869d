"""Metrics become alerts: each fires once and is resolved once, also where the pipeline is killed."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.pipeline.jobs.alerting.on_spark import LABELS, METRIC, TIME, VALUE, Metrics
from ottla.pipeline.jobs.declaration_files import read_job
from ottla.pipeline.jobs.run import Run
from ottla.pipeline.jobs.samples import sample_declaration
from ottla.pipeline.jobs.samples.sample_data import BEGIN, metrics
from ottla.pipeline.jobs.value_parsing import REASON
from peers.pipelines import SPARK, Pipeline, failure_line
from peers.small_disk import small_disk
from peers.topics import Sent, Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Fresh = Callable[[str], str]
Said = tuple[str, str, str, datetime, datetime]
"""Rule, host, state, since when, and when."""

COUNT = 4_000
MINUTE = timedelta(minutes=1)
END = BEGIN + timedelta(hours=3)


def _read(spark: SparkSession, declared: dict[str, Any], *values: str | None) -> list[Any]:
    """Return what of each value is a sample, or why it is none; the records are of noon."""
    given = Metrics.model_validate(declared)
    assert list(given.inspect()) == []
    rows = [(at, each and bytearray(each.encode())) for at, each in enumerate(values)]
    frame = spark.createDataFrame(rows, "at INT, value BINARY").selectExpr(
        "*", "TIMESTAMP '2024-05-01 12:00:00Z' AS timestamp"
    )
    read = given.add_to(frame).orderBy("at").selectExpr("*", f"unix_micros({TIME}) AS us").collect()
    return [row[REASON] or (row[METRIC], row[LABELS], row["us"] / 1e6, row[VALUE]) for row in read]


NOON = 1_714_564_800
NOON_TEXT = "2024-05-01T12:00:00Z"


def test_samples(spark: SparkSession) -> None:
    def sample(**more: Any) -> str:
        return json.dumps({"name": "cpu", "value": 5, "time": NOON_TEXT} | more)

    assert _read(
        spark, {},
        sample(), sample(labels={"b": 1, "a": "x", "c": None}), sample(time="2024-05-01T14:00:00.5+02:00"),
        sample(time="2024-05-01T13:00:00Z"),
        sample(time="2024-05-01T13:00:01Z"), sample(time="soon"), sample(name=None), sample(value=None),
        sample(value=float("nan")), sample(value=float("inf")), sample(value="many"), "no json", "null", None,
    ) == [
        ("cpu", "{}", NOON, 5.0), ("cpu", '{"a":"x","b":"1"}', NOON, 5.0), ("cpu", "{}", NOON + 0.5, 5.0),
        ("cpu", "{}", NOON + 3_600, 5.0),
        "time is too far after that of the record", "time is no time", "has no name", "value is no number",
        "value is no number", "value is no number", *["is no JSON with these fields"] * 3, "has no value",
    ]  # fmt: skip


@pytest.mark.parametrize(("unit", "per_s"), [("s", 1), ("ms", 1_000), ("us", 1_000_000)])
def test_samples_with_names_of_their_own(spark: SparkSession, unit: str, per_s: int) -> None:
    def sample(at: float) -> str:
        return json.dumps({"what": "cpu", "is": 0.5, "ts": at, "host": "a", "zone": 3})

    names = {"name": "what", "value": "is", "time": "ts", "time_unit": unit, "labels": "zone,host,disk"}
    assert _read(spark, names, sample(NOON * per_s), sample(10**18), sample(-(10**18))) == [
        ("cpu", '{"host":"a","zone":"3"}', NOON, 0.5),
        *["ts is no time"] * 2,
    ]


class Watched:
    """A topic of metrics, and a declaration of what is asked of them."""

    def __init__(self, folder: Path, topics: Topics, fresh: Fresh) -> None:
        self.folder = folder
        self.topics = topics
        self.topic = topics.create(fresh("metrics"), 2)
        self.alerts = topics.create(fresh("alerts"))
        self.dead = topics.create(fresh("dead"))
        self.checkpoint = folder / "state" / "web-alerts"

    def declare(self, per_batch: int = 1_000) -> Path:
        """Write the sample's declaration for these topics, and return its file."""
        text = sample_declaration("alerts").replace('"metrics-dead"', f'"{self.dead}"')
        text = text.replace('topic = "alerts"', f'topic = "{self.alerts}"')
        text = text.replace('"metrics"]', f'"{self.topic}"]\nmax_records_per_batch = {per_batch}')
        text = text.replace("127.0.0.1:9092", self.topics.bootstrap_servers).replace("10s", "100ms")
        file = self.folder / "alerts.toml"
        file.write_text(text + SPARK)
        return file

    def send(self, values: Iterable[tuple[str, str]]) -> None:
        """Send samples; those of one server keep their order."""
        sent = [
            Sent(value=each.encode(), key=host.encode(), partition=int(host[-1]) % 2) for host, each in values
        ]
        self.topics.send(self.topic, sent)

    def flush(self) -> None:
        """Send samples so much later that all before is over."""
        for host in ("end-1", "end-2"):
            labels = {"host": host}
            sample = {"name": "cpu", "labels": labels, "value": 1, "time": END.isoformat()}
            self.send([(host, json.dumps(sample))])

    def said(self, spark: SparkSession) -> list[dict[str, Any]]:
        """Return the alerts, with their headers."""
        frame = spark.read.format("ottla").option("subscribe", self.alerts).option("includeHeaders", "true")
        rows = frame.option("kafka.bootstrap.servers", self.topics.bootstrap_servers).load()
        return [
            json.loads(row.value) | {each.key: each.value.decode() for each in row.headers}
            for row in rows.orderBy("offset").collect()
        ]


@pytest.fixture
def watched(tmp_path: Path, topics: Topics, fresh: Fresh) -> Watched:
    """Topics of its own."""
    return Watched(tmp_path, topics, fresh)


Series = dict[tuple[str, str], list[tuple[datetime, float]]]


def _samples(values: Iterable[tuple[str, str]]) -> tuple[Series, int, int]:
    """Return samples that are on time by series, how many are late, and how many nobody can read."""
    series: Series = defaultdict(list)
    newest, late, bad = BEGIN, 0, 0
    for host, text in values:
        try:
            sample = json.loads(text)
        except ValueError:
            bad += 1
            continue
        at = datetime.fromisoformat(sample["time"])
        newest = max(newest, at)
        if at < newest - 15 * MINUTE:
            late += 1
        else:
            series[sample["name"], host].append((at, sample["value"]))
    return series, late, bad


def _means(samples: list[tuple[datetime, float]]) -> dict[datetime, float]:
    windows = defaultdict(list)
    for at, value in samples:
        windows[at.replace(second=0)].append(value)
    return {begin: statistics.fmean(values) for begin, values in sorted(windows.items())}


def _busy(samples: list[tuple[datetime, float]]) -> Iterator[tuple[str, datetime, datetime]]:
    run: list[datetime] = []
    for begin, mean in _means(samples).items():
        if mean > 90:
            run.append(begin)
            if len(run) == 3:
                yield "firing", run[0], begin + MINUTE
        else:
            if len(run) >= 3:
                yield "resolved", run[0], begin + MINUTE
            run = []


def _odd(samples: list[tuple[datetime, float]]) -> Iterator[tuple[str, datetime, datetime]]:
    means = _means(samples)
    since: datetime | None = None
    for begin, mean in means.items():
        before = [each for at, each in means.items() if begin - 15 * MINUTE <= at < begin]
        if len(before) < 10:
            continue
        middle = statistics.median(before)
        usual = 1.4826 * statistics.median(abs(each - middle) for each in before)
        if abs(mean - middle) > 6 * usual and since is None:
            since = begin
            yield "firing", since, begin + MINUTE
        elif abs(mean - middle) <= 6 * usual and since is not None:
            yield "resolved", since, begin + MINUTE
            since = None


def _silent(samples: list[tuple[datetime, float]]) -> Iterator[tuple[str, datetime, datetime]]:
    times = sorted(at for at, _ in samples)
    for before, after in zip(times, [*times[1:], END], strict=True):
        if after - before >= 5 * MINUTE:
            yield "firing", before, before + 5 * MINUTE
            if after != END:
                yield "resolved", before, after


def _truth(series: Series) -> set[Said]:
    """Return what has to be said, told from all samples at once."""
    asked = {"cpu": ("cpu-high", _busy), "requests": ("requests-odd", _odd), "heartbeat": ("silent", _silent)}
    return {
        (asked[metric][0], host, *each)
        for (metric, host), samples in series.items()
        for each in asked[metric][1](samples)
    }


def _one(alert: dict[str, Any]) -> Said:
    since, at = (datetime.fromisoformat(alert[name]) for name in ("since", "at"))
    return alert["rule"], alert["labels"]["host"], alert["state"], since, at


def _check(
    spark: SparkSession, watched: Watched, values: list[tuple[str, str]], queries: Any
) -> Counter[str]:
    """Check what was said, and what was counted; return how often each alert was sent."""
    series, late, bad = _samples(values)
    truth = _truth(series)
    assert {said[0] for said in truth} == {"cpu-high", "requests-odd", "silent"}, "the sample has all of them"
    assert late > 2
    sent = watched.said(spark)
    by_id = {each["alert-id"]: _one(each) for each in sent}
    assert sorted(by_id.values()) == sorted(truth)
    states = Counter(said[2] for said in truth)
    counts = queries["main"]["counts"]
    assert counts == {"firing": states["firing"], "resolved": states["resolved"], "late": late}
    assert queries["dead-letters"]["counts"] == {"dead": bad}
    places = {(each["ottla-batch"], each["ottla-partition"], each["ottla-row"]) for each in sent}
    assert len(places) == len(by_id), "what is sent again has the same ids as before"
    return Counter(each["alert-id"] for each in sent)


@pytest.mark.timeout(900)
def test_alerts_fire_once_and_are_resolved_once(spark: SparkSession, watched: Watched) -> None:
    values = list(metrics(COUNT))
    watched.send(values)
    watched.flush()
    said: dict[str, Any] = {}
    Run(read_job(watched.declare(400)), once=True, watch=said.update)()
    times = _check(spark, watched, values, said["queries"])
    assert set(times.values()) == {1}
    busy = next(each for each in watched.said(spark) if each["rule"] == "cpu-high")
    assert (busy["severity"], busy["alert-state"], busy["number"]) == ("page", "firing", 1)
    assert busy["why"].endswith("is above 90")
    assert busy["labels"] == {"host": "web-2"}
    assert busy["alert-id"] == busy["id"]


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.timeout(3_600)
def test_killed_in_the_middle(spark: SparkSession, watched: Watched, rounds: int) -> None:
    values = list(metrics(COUNT))
    share = COUNT // (rounds + 1)
    watched.send(values[:share])
    pipeline = Pipeline(watched.declare(100), watched.checkpoint)
    chance = random.Random(rounds)
    for number in range(1, rounds + 1):
        begun = pipeline.planned()
        pipeline.start()
        pipeline.until(lambda begun=begun: pipeline.planned() > begun + 1)  # type: ignore[misc]
        time.sleep(chance.random() * 3)
        pipeline.kill()
        watched.send(values[number * share : (number + 1) * share if number < rounds else None])
    watched.flush()
    _check(spark, watched, values, pipeline.once()["queries"])


DYING = """
import os
from pathlib import Path
from ottla.pipeline.jobs.alerts import Alerts
from ottla.pipeline.jobs.declaration_files import read_job

died = Path(__file__).with_name("died")

class Dying(Alerts):
    "Dies once, after alerts were sent and before Spark knows."

    def _send(self, run):
        send = super()._send(run)
        def each(batch, batch_id):
            counts = send(batch, batch_id)
            if counts["firing"] and not died.exists():
                died.touch()
                os.kill(os.getpid(), 9)
            return counts
        return each

pipeline = Dying(**dict(read_job(Path(__file__).with_name("alerts.toml"))))
"""


@pytest.mark.timeout(900)
def test_killed_between_sending_and_committing(spark: SparkSession, watched: Watched, tmp_path: Path) -> None:
    values = list(metrics(COUNT))
    watched.send(values)
    watched.flush()
    watched.declare(500)
    file = tmp_path / "dying.py"
    file.write_text(DYING)
    pipeline = Pipeline(file, watched.checkpoint)
    with pytest.raises(AssertionError) as raised:
        pipeline.once()
    assert (tmp_path / "died").exists(), raised.value
    assert pipeline.planned() == pipeline.committed() + 1
    before = len(watched.said(spark))
    assert before > 0, "alerts are sent, and Spark does not know"
    times = _check(spark, watched, values, pipeline.once()["queries"])
    assert Counter(times.values())[2] == before, "they were sent again, with the same ids"


@pytest.mark.timeout(900)
def test_a_full_disk_is_told_in_one_line_and_loses_no_alert(
    spark: SparkSession, watched: Watched, tmp_path: Path
) -> None:
    values = list(metrics(COUNT))
    watched.send(values[: COUNT // 2])
    pipeline = Pipeline(watched.declare(400), watched.checkpoint)
    with small_disk(tmp_path / "state", 64) as disk:
        pipeline.start()
        pipeline.until(lambda: pipeline.committed() > 1)
        disk.fill()
        watched.send(values[COUNT // 2 :])
        watched.flush()
        assert "No space left on device" in failure_line(pipeline.failed())
        disk.free()
        _check(spark, watched, values, pipeline.once()["queries"])
