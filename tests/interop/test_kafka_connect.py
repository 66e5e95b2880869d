"""A distributed worker of Kafka Connect, unpatched: a file into a topic exactly once, and out into a file."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from peers.committed_records import read_committed
from peers.maven import kafka_connect
from peers.processes import Process, free_port
from peers.topics import Topics
from peers.transactional_brokers import transactional_broker

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

LINES = 1_500
"""Fewer than one batch of the source, 2,000: what it has read beyond a batch waits until the file grows."""
BOUND_S = 150.0
_STRINGS = "org.apache.kafka.connect.storage.StringConverter"


@pytest.fixture(params=["kafka-3.9", "ottla"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with transactional_broker(request.param, tmp_path / "broker") as running:
        yield running.bootstrap_servers


class Worker:
    """A worker of a Connect cluster, and its REST interface."""

    def __init__(self, servers: str, folder: Path, more: Mapping[str, str] | None = None) -> None:
        self._servers = servers
        self._folder = folder
        self._port = free_port()
        self._properties = folder / "worker.properties"
        settings = {
            "bootstrap.servers": servers,
            "group.id": "connect",
            "listeners": f"http://127.0.0.1:{self._port}",
            "key.converter": _STRINGS,
            "value.converter": _STRINGS,
            "plugin.path": str(folder / "plugins"),
            "offset.flush.interval.ms": "200",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "500",
            "scheduled.rebalance.max.delay.ms": "0",
            "exactly.once.source.support": "enabled",
            "consumer.isolation.level": "read_committed",
            "consumer.auto.offset.reset": "earliest",
            **{f"{each}.storage.topic": f"connect-{each}" for each in ("config", "offset", "status")},
            **{f"{each}.storage.replication.factor": "1" for each in ("config", "offset", "status")},
            **{f"{each}.storage.partitions": "2" for each in ("offset", "status")},
            **(more or {}),
        }
        (folder / "plugins").mkdir()
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def process(self) -> Process:
        """Return a process of the worker, still to be started."""
        command = [
            "java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", kafka_connect(),
            "org.apache.kafka.connect.cli.ConnectDistributed", str(self._properties),
        ]  # fmt: skip
        return Process(command, self._folder / "connect.out")

    def put(self, connector: str, config: dict[str, str]) -> None:
        """Create a connector, as soon as the worker is a member of its cluster."""
        wait_until(lambda: self._ask("PUT", f"connectors/{connector}/config", config) is not None)

    def is_running(self, connector: str) -> bool:
        found = self._ask("GET", f"connectors/{connector}/status") or {}
        tasks = found.get("tasks", [])
        return bool(tasks) and all(each["state"] == "RUNNING" for each in tasks)

    def said(self) -> str:
        """Return what the connectors say of themselves, and how far they are."""
        states = [self._ask("GET", f"connectors/{each}/status") for each in ("reads", "writes")]
        return f"{states}, {len(read_committed(self._servers, 'lines'))} lines in the topic"

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=90) as answer:
                return json.load(answer)
        except (urllib.error.HTTPError, OSError):
            return None  # it starts, or rebalances


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.1)


def append(file: Path, numbers: range) -> None:
    with file.open("a") as lines:
        lines.writelines(f"line {number}\n" for number in numbers)


def test_a_file_passes_through_a_topic_exactly_once_though_the_worker_is_killed(
    servers: str, tmp_path: Path
) -> None:
    given, taken = tmp_path / "given.txt", tmp_path / "taken.txt"
    with Topics(servers) as topics:
        topics.create("lines")
    worker = Worker(servers, tmp_path)
    append(given, range(LINES // 3))

    process = worker.process().start()
    try:
        worker.put("reads", {
            "connector.class": "FileStreamSource", "tasks.max": "1", "file": str(given), "topic": "lines",
            "exactly.once.support": "required",
        })  # fmt: skip
        worker.put("writes", {
            "connector.class": "FileStreamSink", "tasks.max": "1", "file": str(taken), "topics": "lines",
        })  # fmt: skip
        wait_until(lambda: worker.is_running("reads") and worker.is_running("writes"))
        for begin in range(LINES // 3, 2 * LINES // 3, 50):
            append(given, range(begin, begin + 50))
        wait_until(lambda: len(read_committed(servers, "lines")) > LINES // 3 and taken.exists())
    except AssertionError as error:
        raise AssertionError(f"{worker.said()}\n{process.last_words(30)}") from error
    finally:
        process.kill()
    append(given, range(2 * LINES // 3, LINES))
    with worker.process() as process:
        try:
            wait_until(lambda: len(read_committed(servers, "lines")) >= LINES)
            wait_until(lambda: taken.read_text().endswith(f"line {LINES - 1}\n"))
        except AssertionError as error:
            raise AssertionError(f"{worker.said()}\n{process.last_words(30)}") from error

    expected = [f"line {number}" for number in range(LINES)]
    assert [(each.value() or b"").decode() for each in read_committed(servers, "lines")] == expected
    # The sink commits after it has written: what a kill came between is in the file twice, nothing is lost.
    assert list(dict.fromkeys(taken.read_text().splitlines())) == expected
