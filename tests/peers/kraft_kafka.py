"""Apache Kafka 4.4 in KRaft mode, from Maven: one process that is broker and controller."""

from __future__ import annotations

import base64
import os
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from peers.apache_kafka import Listener, brokers_known_to, listener_settings
from peers.maven import kafka_4_server
from peers.processes import Process, free_port

_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
_FORMAT_TIMEOUT_S = 120
_START_TIMEOUT_S = 120.0


class KraftKafka:
    """One Kafka 4.4 node with a fresh log directory, ready when entered.

    `listeners` are there beside PLAINTEXT, by name. Nodes with one `cluster_id` are one cluster, if settings
    make all but one of them brokers of that one's controller.
    `classes` are directories with classes of a test that settings name.
    `format_arguments` go to the storage tool: `--add-scram SCRAM-SHA-256=[name=anna,password=...]`.
    """

    def __init__(
        self,
        data_dir: Path,
        settings: Mapping[str, str] | None = None,
        *,
        heap: str = "512m",
        format_arguments: Sequence[str] = (),
        cluster_id: str | None = None,
        listeners: Mapping[str, Listener] | None = None,
        classes: Sequence[Path] = (),
    ) -> None:
        self.data_dir = data_dir
        self._classes = tuple(classes)
        self._listeners = dict(listeners or {})
        self.port = free_port()
        self.controller_port = free_port()
        self.heap = heap
        self._settings = dict(settings or {})
        self._format_arguments = tuple(format_arguments)
        self._cluster_id = cluster_id or base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._process: Process | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    def format(self) -> Path:
        """Write the properties and give a new node its log directory, which `start` does too."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        properties = self.data_dir / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self._properties().items()))
        if not (self.data_dir / "data").exists():
            self._format(properties)
        return properties

    def start(self) -> Self:
        properties = self.format()
        class_path = os.pathsep.join([*map(str, self._classes), kafka_4_server()])
        command = [
            "java", f"-Xmx{self.heap}", f"-Xms{self.heap}", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", _QUIET,
            "-cp", class_path, "kafka.Kafka", str(properties),
        ]  # fmt: skip
        self._process = Process(command, self.data_dir / "kafka.out").start()
        self._wait_until_it_serves(self._process)
        return self

    def restart(self) -> None:
        """Stop the broker cleanly and start it again on the same port."""
        assert self._process is not None, "the broker is not running"
        self._process.stop(timeout_s=60)
        self._process.start()
        self._wait_until_it_serves(self._process)

    def _wait_until_it_serves(self, process: Process) -> None:
        process.wait_for_port(self.port, _START_TIMEOUT_S)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not brokers_known_to(self.port):  # the controller has not admitted it yet
            if time.monotonic() > deadline:
                raise RuntimeError(f"the broker knows of no broker:\n{process.last_words()}")
            time.sleep(0.05)

    def _format(self, properties: Path) -> None:
        quorum = ["--standalone"] if self._is_controller else ["--no-initial-controllers"]
        command = [
            "java", "-Xmx128m", _QUIET, "-cp", kafka_4_server(), "kafka.tools.StorageTool", "format",
            *quorum, f"--cluster-id={self._cluster_id}", "-c", str(properties), *self._format_arguments,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FORMAT_TIMEOUT_S, check=False)
        if done.returncode:
            raise RuntimeError(f"the log directory was not formatted:\n{done.stdout}\n{done.stderr}")

    def _properties(self) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self.controller_port}",
            **self._listener_settings(),
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.data_dir / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "8",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "8",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **self._settings,
        }

    def _listener_settings(self) -> dict[str, str]:
        advertised = {"PLAINTEXT": Listener("PLAINTEXT", self.port), **self._listeners}
        both = listener_settings(advertised, CONTROLLER=Listener("PLAINTEXT", self.controller_port))
        # A node that is only a broker knows how the controller's listener is secured, and has none itself.
        return (
            both if self._is_controller else both | {"listeners": listener_settings(advertised)["listeners"]}
        )

    @property
    def _is_controller(self) -> bool:
        return "controller" in self._settings.get("process.roles", "broker,controller")

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
