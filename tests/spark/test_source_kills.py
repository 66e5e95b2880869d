"""The source while Python workers or the broker are killed: no row is lost, and none comes twice."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.broker.testing import BrokerProcess
from peers.topics import Sent, Topics
from spark.topic_copying import Copying, kill_python_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 4
ROWS = 4_000
AT_ONCE = 100
FEW, MANY = 2, 10

pytestmark = pytest.mark.timeout(3_600)


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that may be killed."""
    with BrokerProcess(tmp_path / "mortal") as running:
        yield running


@pytest.fixture
def copying(mortal: BrokerProcess, tmp_path: Path) -> Copying:
    """A query from a topic that is full into a lake."""
    with Topics(mortal.bootstrap_servers) as topics:
        source = topics.create("source", PARTITIONS)
        topics.send(source, [Sent(value=b"%d" % row, partition=row % PARTITIONS) for row in range(ROWS)])
    # As on a cluster, a task that failed is tried again.
    more = {"at_once": AT_ONCE, "lake": str(tmp_path / "lake"), "master": "local[2,4]"}
    return Copying(mortal.bootstrap_servers, "source", "", tmp_path / "copying", more)


@pytest.fixture
def arrived(spark: SparkSession, tmp_path: Path) -> Callable[[], Counter[int]]:
    """Count the rows of the lake, by their numbers."""

    def arrived() -> Counter[int]:
        rows = spark.read.parquet(str(tmp_path / "lake")).collect()
        return Counter(int(row.value) for row in rows)

    return arrived


def harmed(copying: Copying, harm: Callable[[subprocess.Popen[str]], None], times: int) -> None:
    """Do harm so many times, over as many lives of the driver as that takes; then copy what is left."""
    done = 0
    while done < times:
        done += copying.run_through(harm, times - done)
    copying.run()


@pytest.mark.parametrize("times", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_killed_python_workers_lose_and_double_nothing(
    copying: Copying, arrived: Callable[[], Counter[int]], times: int
) -> None:
    harmed(copying, kill_python_workers, times)

    assert arrived() == dict.fromkeys(range(ROWS), 1)


@pytest.mark.parametrize("times", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_a_killed_broker_loses_and_doubles_nothing(
    mortal: BrokerProcess, copying: Copying, arrived: Callable[[], Counter[int]], times: int
) -> None:
    def kill_broker(_: subprocess.Popen[str]) -> None:
        mortal.kill()
        mortal.start()

    harmed(copying, kill_broker, times)

    assert arrived() == dict.fromkeys(range(ROWS), 1)
