"""A distributed worker of Kafka Connect as a process, and its REST interface."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from peers.committed_records import read_committed
from peers.maven import kafka_connect
from peers.processes import Process, free_port

BOUND_S = 150.0
STRINGS = "org.apache.kafka.connect.storage.StringConverter"


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
            "listeners": self.url,
            "key.converter": STRINGS,
            "value.converter": STRINGS,
            "plugin.path": str(folder / "plugins"),
            "offset.flush.interval.ms": "200",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "500",
            "scheduled.rebalance.max.delay.ms": "0",
            "exactly.once.source.support": "enabled",
            "consumer.isolation.level": "read_committed",
            "consumer.auto.offset.reset": "earliest",
            **{f"{topic}.storage.topic": f"connect-{topic}" for topic in ("config", "offset", "status")},
            **{f"{topic}.storage.replication.factor": "1" for topic in ("config", "offset", "status")},
            **{f"{topic}.storage.partitions": "2" for topic in ("offset", "status")},
            **(more or {}),
        }
        (folder / "plugins").mkdir()
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    @property
    def url(self) -> str:
        """The address of its REST interface."""
        return f"http://127.0.0.1:{self._port}"

    def process(self) -> Process:
        """Return a process of the worker, still to be started."""
        command = [
            "java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", kafka_connect(),
            "org.apache.kafka.connect.cli.ConnectDistributed", str(self._properties),
        ]  # fmt: skip
        return Process(command, self._folder / "connect.out")

    def is_ready(self) -> bool:
        """Whether it is a member of its cluster, and takes requests."""
        return self._ask("GET", "connectors") is not None

    def put(self, connector: str, config: dict[str, str]) -> None:
        """Create a connector, as soon as the worker is a member of its cluster."""
        wait_until(lambda: self._ask("PUT", f"connectors/{connector}/config", config) is not None)

    def is_running(self, connector: str) -> bool:
        """Whether a connector has tasks, and all of them run."""
        found = self._ask("GET", f"connectors/{connector}/status") or {}
        tasks = found.get("tasks", [])
        return bool(tasks) and all(task["state"] == "RUNNING" for task in tasks)

    def said(self) -> str:
        """Return what the connectors say of themselves, and how far they are."""
        states = [self._ask("GET", f"connectors/{name}/status") for name in ("reads", "writes")]
        return f"{states}, {len(read_committed(self._servers, 'lines'))} lines in the topic"

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            f"{self.url}/{path}",
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
    """Return once a condition holds, and fail after a bound."""
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.1)
