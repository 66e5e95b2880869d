"""Apache Kafka 3.9 in ZooKeeper mode, from Maven: the peer that tests and benchmarks compare with."""

from __future__ import annotations

import socket
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from ottla.protocol.api import ApiKey, RequestHeader, decode_response_header, encode_request
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from peers.maven import kafka_3_server
from peers.processes import Process, free_port

_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
_START_TIMEOUT_S = 120.0


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
        jvm_options: Sequence[str] = (),
    ) -> None:
        self.data_dir = data_dir
        self._jvm_options = tuple(jvm_options)
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
        try:
            return self._started()
        except BaseException:
            self.stop()
            raise

    def _started(self) -> Self:
        if self._zookeeper is None:
            self._zookeeper = self._stack.enter_context(ZooKeeper(self.data_dir / "zookeeper"))
        self.data_dir.mkdir(parents=True, exist_ok=True)
        properties = self.data_dir / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self._properties().items()))
        command = [
            "java", f"-Xmx{self.heap}", f"-Xms{self.heap}", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", _QUIET,
            *self._jvm_options, "-cp", kafka_3_server(), "kafka.Kafka", str(properties),
        ]  # fmt: skip
        self._process = self._stack.enter_context(Process(command, self.data_dir / "kafka.out"))
        self._wait_until_it_serves(self._process)
        return self

    def _wait_until_it_serves(self, process: Process) -> None:
        """Return once Metadata names a broker, or raise with the end of the broker's output.

        The port is open before the controller has told the broker which brokers are alive. Until then each
        topic is refused, for its replication factor is larger than the number of brokers, 0.
        """
        deadline = time.monotonic() + _START_TIMEOUT_S
        process.wait_for_port(self.port, _START_TIMEOUT_S)
        while not brokers_known_to(self.port):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the broker knows of no broker:\n{process.last_words()}")
            time.sleep(0.05)

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
        self._wait_until_it_serves(self._process)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def brokers_known_to(port: int) -> list[int]:
    """Return the ids of the live brokers that the broker at a local port knows of."""
    header = RequestHeader(api_key=ApiKey.METADATA, api_version=1, correlation_id=1, client_id="test")
    frame = encode_request(header, MetadataRequest(topics=[]))
    with socket.create_connection(("127.0.0.1", port), timeout=60) as wire, wire.makefile("rb") as received:
        wire.sendall(struct.pack(">i", len(frame)) + frame)
        body = received.read(struct.unpack(">i", received.read(4))[0])
    _, offset = decode_response_header(body, ApiKey.METADATA, 1)
    return [broker.node_id for broker in MetadataResponse.decode(body[offset:], 1).brokers]


def run_tool(
    main_class: str,
    *arguments: str,
    timeout_s: float = 120,
    stdin: str | None = None,
    class_path: str | None = None,
) -> str:
    """Run one of Kafka's command-line classes, of 3.9 by default, and return what it printed."""
    command = ["java", "-Xmx256m", _QUIET, "-cp", class_path or kafka_3_server(), main_class, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False, input=stdin
    )
    if done.returncode:
        raise RuntimeError(f"{main_class} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout
