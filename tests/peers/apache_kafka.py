"""Apache Kafka 3.9 in ZooKeeper mode, from Maven: the peer that tests and benchmarks compare with."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from peers.maven import kafka_3_server
from peers.processes import Process, free_port

_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"


@dataclass(frozen=True)
class Listener:
    """A port that a broker listens on, and how connections to it are secured."""

    protocol: str
    port: int


def listener_settings(advertised: Mapping[str, Listener], **hidden: Listener) -> dict[str, str]:
    """Write listeners as Kafka's settings; hidden ones are not advertised to clients."""
    every = {**advertised, **hidden}

    def places(listeners: Mapping[str, Listener]) -> str:
        return ",".join(f"{name}://127.0.0.1:{each.port}" for name, each in listeners.items())

    return {
        "listeners": places(every),
        "advertised.listeners": places(advertised),
        "listener.security.protocol.map": ",".join(f"{name}:{one.protocol}" for name, one in every.items()),
    }


class ZooKeeper:
    """A real ZooKeeper server on a free port."""

    def __init__(self, data_dir: Path, port: int = 0) -> None:
        self.data_dir = data_dir
        self.port = port or free_port()
        self._process: Process | None = None

    @property
    def connect_string(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        command = [
            "java", "-Xmx96m", "-cp", kafka_3_server(), "-Dzookeeper.admin.enableServer=false", _QUIET,
            "-Dzookeeper.4lw.commands.whitelist=*",
            "org.apache.zookeeper.server.ZooKeeperServerMain", str(self.port), str(self.data_dir),
        ]  # fmt: skip
        self._process = Process(command, self.data_dir / "zookeeper.out").start()
        self._process.wait_for_port(self.port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.stop()


class ApacheKafka:
    """One Kafka 3.9 broker with its ZooKeeper (or a given one), ready when entered.

    `listeners` are added to PLAINTEXT, by name.
    """

    def __init__(
        self,
        data_dir: Path,
        settings: Mapping[str, str] | None = None,
        *,
        zookeeper: ZooKeeper | None = None,
        heap: str = "1g",
        listeners: Mapping[str, Listener] | None = None,
    ) -> None:
        self.data_dir = data_dir
        self._listeners = dict(listeners or {})
        self.port = free_port()
        self.heap = heap
        self._settings = dict(settings or {})
        self._zookeeper = zookeeper
        self._process: Process | None = None
        self._stack = ExitStack()

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    def start(self) -> Self:
        if self._zookeeper is None:
            self._zookeeper = self._stack.enter_context(ZooKeeper(self.data_dir / "zookeeper"))
        self.data_dir.mkdir(parents=True, exist_ok=True)
        properties = self.data_dir / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self._properties().items()))
        command = [
            "java", f"-Xmx{self.heap}", f"-Xms{self.heap}", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", _QUIET,
            "-cp", kafka_3_server(), "kafka.Kafka", str(properties),
        ]  # fmt: skip
        self._process = self._stack.enter_context(Process(command, self.data_dir / "kafka.out"))
        self._process.wait_for_port(self.port, 120)
        return self

    def _properties(self) -> dict[str, str]:
        assert self._zookeeper is not None
        return {
            "broker.id": "1",
            **listener_settings({"PLAINTEXT": Listener("PLAINTEXT", self.port), **self._listeners}),
            "log.dirs": str(self.data_dir / "data"),
            "zookeeper.connect": self._zookeeper.connect_string,
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **self._settings,
        }

    def stop(self) -> None:
        self._stack.close()
        self._process = None

    def restart(self) -> None:
        """Stop the broker cleanly and start it again on the same port; its ZooKeeper goes on."""
        assert self._process is not None, "the broker is not running"
        self._process.stop(timeout_s=60)
        self._process.start()
        self._process.wait_for_port(self.port, 120)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def run_tool(main_class: str, *arguments: str, timeout_s: float = 120, stdin: str | None = None) -> str:
    """Run one of Kafka 3.9's command-line classes and return what it printed."""
    command = ["java", "-Xmx256m", _QUIET, "-cp", kafka_3_server(), main_class, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False, input=stdin
    )
    if done.returncode:
        raise RuntimeError(f"{main_class} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout
