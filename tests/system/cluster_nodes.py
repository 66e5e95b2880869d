"""The processes of a test cluster: brokers of Ottla and of Apache Kafka, and a ZooKeeper ensemble."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from cluster_network import Host

from peers.maven import kafka_3_server
from peers.processes import free_port

SESSION_MS: Final = 6_000
"""The ZooKeeper session timeout of the brokers."""
START_BOUND_S: Final = 300.0
"""Java takes seconds of processor time until an Apache broker serves, of which a busy machine has few."""
_QUIET: Final = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
_LOG4J: Final = """log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %c{1}: %m%n
"""
"""An Apache broker says in its output why it ended."""


class NodeFailed(RuntimeError):
    """A process of the cluster did not start or did not stop; the message holds the end of its output."""


class Node:
    """A process on a host of the network, with a port that shows whether it serves."""

    def __init__(self, host: Host, port: int, folder: Path) -> None:
        self.host = host
        self.port = port
        self.folder = folder
        self.is_paused = False
        self.kills = 0
        self.was_stopped = False
        """Whether it ended in good order the last time."""
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def address(self) -> str:
        return f"{self.host.address}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def process_id(self) -> int | None:
        """The id of its process, None while it does not run."""
        return self._process.pid if self._process is not None else None

    @property
    def output(self) -> Path:
        return self.folder / f"{self.name}.out"

    def command(self) -> Sequence[str]:
        """Return the command that runs in the foreground."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the process; `wait` returns once it serves.

        It has a session of its own, to which Linux gives a share of the processors like any other's.
        """
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [*self.host.prefix, *self.command()],
                stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self.is_paused = False

    def wait(self) -> None:
        deadline = time.monotonic() + START_BOUND_S
        while time.monotonic() < deadline:
            if not self.is_running:
                raise NodeFailed(f"{self.name} ended: {self.last_words()}")
            with suppress(OSError):
                socket.create_connection((self.host.address, self.port), timeout=1).close()
                return
            time.sleep(0.05)
        raise NodeFailed(f"{self.name} did not serve within {START_BOUND_S:g} s: {self.last_words()}")

    def last_words(self, lines: int = 8) -> str:
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-lines:])

    def kill(self) -> None:
        """SIGKILL: nothing is flushed or closed."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None
            self.was_stopped = False
            self.kills += 1

    def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
            raise NodeFailed(f"{self.name} did not stop within 60 s: {self.last_words()}") from None
        self._process = None
        self.was_stopped = True

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self.is_paused = False

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            os.kill(self._process.pid, number)


class KafkaBroker(Node):
    """A broker with a file of settings, which hold from its next start on."""

    kind = ""

    def __init__(
        self, node_id: int, host: Host, folder: Path, zookeeper: str, settings: Mapping[str, str]
    ) -> None:
        super().__init__(host, free_port(), folder)
        self.id = node_id
        self.data = folder / "data"
        self.properties = folder / "server.properties"
        self.settings: dict[str, str] = {}
        self.configure(
            {
                "broker.id": str(node_id),
                "listeners": f"PLAINTEXT://{host.address}:{self.port}",
                "log.dirs": str(self.data),
                "zookeeper.connect": zookeeper,
                **settings,
            }
        )

    def configure(self, settings: Mapping[str, str]) -> None:
        """Add settings, or replace those there are; the address is that of the first listener."""
        self.settings |= settings
        self.port = int(self.settings["listeners"].partition(",")[0].rpartition(":")[2])
        self.properties.touch(mode=0o600)  # it may hold passwords
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))


class OttlaBroker(KafkaBroker):
    """One of our brokers."""

    kind = "ottla"

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "ottla.broker", "start", "--config", str(self.properties)]


class ApacheBroker(KafkaBroker):
    """A broker of Apache Kafka 3.9 in ZooKeeper mode, which speaks to the others as Kafka 2.8 does."""

    kind = "apache"

    def __init__(
        self, node_id: int, host: Host, folder: Path, zookeeper: str, settings: Mapping[str, str]
    ) -> None:
        level = {"inter.broker.protocol.version": "2.8"}
        super().__init__(node_id, host, folder, zookeeper, {**level, **settings})
        self.served_ms: list[float] = []
        """When it began to accept connections, once for each start."""
        self.restarted_ms: list[float] = []
        """Of these, the starts after a stop in good order."""
        self._log4j = folder / "log4j.properties"
        self._log4j.write_text(_LOG4J)

    def command(self) -> Sequence[str]:
        return [
            "java", "-Xmx384m", "-Xms384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", _QUIET,
            f"-Dlog4j.configuration=file:{self._log4j}", "-cp", kafka_3_server(),
            "kafka.Kafka", str(self.properties),
        ]  # fmt: skip

    def wait(self) -> None:
        """Wait until it serves; it ends as long as the session of a killed one has not expired."""
        deadline = time.monotonic() + START_BOUND_S
        while True:
            try:
                super().wait()
            except NodeFailed:
                if time.monotonic() > deadline or "NodeExists" not in self.last_words(30):
                    raise
                self.start()
            else:
                self.served_ms.append(time.time() * 1000)
                if self.was_stopped:
                    self.restarted_ms.append(self.served_ms[-1])
                return


Broker = OttlaBroker | ApacheBroker


class ZooKeeperServer(Node):
    """One server of a ZooKeeper ensemble."""

    def __init__(self, number: int, host: Host, folder: Path, tick_ms: int) -> None:
        super().__init__(host, free_port(), folder)
        self.number = number
        self._tick_ms = tick_ms
        self.quorum_ports = (free_port(), free_port())
        self._config = folder / "zoo.cfg"

    def configure(self, ensemble: Sequence[ZooKeeperServer]) -> None:
        """Write the server's configuration; all servers are known by now."""
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(str(self.number))
        lines = [
            f"tickTime={self._tick_ms}", "initLimit=40", "syncLimit=10", "admin.enableServer=false",
            "4lw.commands.whitelist=*", "maxSessionTimeout=60000", f"dataDir={data}",
            f"clientPort={self.port}", f"clientPortAddress={self.host.address}",
            *(
                f"server.{each.number}={each.host.address}:{each.quorum_ports[0]}:{each.quorum_ports[1]}"
                for each in ensemble
            ),
        ]  # fmt: skip
        self._config.write_text("\n".join(lines) + "\n")

    def command(self) -> Sequence[str]:
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return ["java", "-Xmx96m", _QUIET, "-cp", kafka_3_server(), main, str(self._config)]

    @property
    def mode(self) -> str:
        """`leader`, `follower`, or an empty text while there is no quorum."""
        with suppress(OSError), socket.create_connection((self.host.address, self.port), timeout=2) as link:
            link.sendall(b"srvr")
            answer = b"".join(iter(lambda: link.recv(4096), b"")).decode(errors="replace")
            return next((one.split()[1] for one in answer.splitlines() if one.startswith("Mode:")), "")
        return ""


class Ensemble:
    """ZooKeeper servers that form a quorum; sessions last at least twice `tick_ms`."""

    def __init__(self, hosts: Sequence[Host], folder: Path, *, tick_ms: int = 500) -> None:
        self.servers = [
            ZooKeeperServer(number, host, folder / host.name, tick_ms) for number, host in enumerate(hosts, 1)
        ]
        for each in self.servers:
            each.configure(self.servers)

    @property
    def connect_string(self) -> str:
        return ",".join(each.address for each in self.servers)

    def start(self) -> None:
        """Start what does not run, and wait for the quorum."""
        for each in self.servers:
            if not each.is_running:
                each.start()
        self.wait_for_quorum()

    def wait_for_quorum(self) -> None:
        deadline = time.monotonic() + START_BOUND_S
        while self.leader() is None:
            if time.monotonic() > deadline:
                words = " | ".join(each.last_words(2) for each in self.servers)
                raise NodeFailed(f"ZooKeeper has no quorum after {START_BOUND_S:g} s: {words}")
            time.sleep(0.1)

    def leader(self) -> ZooKeeperServer | None:
        running = (each for each in self.servers if each.is_running and not each.is_paused)
        return next((each for each in running if each.mode == "leader"), None)

    def lose_quorum(self) -> None:
        """Kill all servers but the last."""
        for each in self.servers[:-1]:
            each.kill()

    def kill(self) -> None:
        for each in self.servers:
            each.kill()
