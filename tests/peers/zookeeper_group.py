"""Members of groups in ZooKeeper as processes, Java's and ours, with their output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from peers.java import compile_program
from peers.maven import classpath

KAFKA_1 = "1.1.1"
HERE = Path(__file__).parent
BOUND_S = 60.0


class Seen(NamedTuple):
    """A record that a member printed."""

    topic: str
    partition: int
    offset: int
    value: str


class GroupMember:
    """A member in its own process; leaving the context shuts it down."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.command = command
        self.log = log
        self.seen: list[Seen] = []
        self._words: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._listener = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        with self.log.open("ab") as errors:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._listener.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def joined(self) -> Self:
        """Wait until it has its partitions."""
        self.until(lambda: "joined" in self._words)
        return self

    def commit(self) -> None:
        """Make it commit, and wait for the end of that."""
        process = self._running()
        assert process.stdin is not None
        before = self._words.count("committed")
        process.stdin.write("commit\n")
        process.stdin.flush()
        self.until(lambda: self._words.count("committed") > before)

    def leave(self) -> None:
        """Shut it down normally."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
            raise AssertionError(f"{self.command[0]} did not end:\n{self.last_words()}") from None
        finally:
            self._listener.join(10)

    def kill(self) -> None:
        """Kill it: its session survives for a while."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(10)
            assert process.stdin is not None
            process.stdin.close()
            self._listener.join(10)

    def pause(self) -> None:
        """Pause it: its session expires if the pause is long."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume it."""
        self._running().send_signal(signal.SIGCONT)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds; otherwise raise with the end of the member's log."""
        deadline = time.monotonic() + BOUND_S
        while not condition():
            if self._process is not None and self._process.poll() is not None:
                raise AssertionError(f"{self.command[0]} ended:\n{self.last_words()}")
            assert time.monotonic() < deadline, f"it did not come:\n{self.last_words()}"
            time.sleep(0.02)

    def last_words(self, lines: int = 30) -> str:
        """Return the end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "the member is not running"
        return self._process

    def _listen(self) -> None:
        stdout = self._running().stdout
        assert stdout is not None
        with stdout:
            for line in stdout:
                words = line.split()
                if len(words) == 4:
                    self.seen.append(Seen(words[0], int(words[1]), int(words[2]), words[3]))
                else:
                    self._words.append(line.strip())


class Group:
    """A group at one ZooKeeper; creates members of it."""

    def __init__(self, name: str, zookeeper: str, folder: Path) -> None:
        self.name = name
        self.zookeeper = zookeeper
        self.folder = folder
        self._members = 0

    def member(self, kind: str, topic: str, streams: int = 1, **settings: str) -> GroupMember:
        """Return a member to be entered; `kind` is java or ours."""
        self._members += 1
        given = {
            "group.id": self.name,
            "zookeeper.connect": self.zookeeper,
            "zookeeper.session.timeout.ms": "4000",
            "rebalance.backoff.ms": "1000",
            "rebalance.max.retries": "10",
            "auto.offset.reset": "smallest",
            "auto.commit.interval.ms": "1000",
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
        arguments = [topic, str(streams), *(f"{key}={value}" for key, value in given.items())]
        command = [*(_java() if kind == "java" else _ours()), *arguments]
        return GroupMember(command, self.folder / f"{self.name}-{self._members}-{kind}.log")


def _ours() -> list[str]:
    return [sys.executable, str(HERE / "zookeeper_member.py")]


def kafka_1() -> str:
    """Class path of Apache Kafka 1.1, the last version that has the old consumers."""
    return classpath(f"org.apache.kafka:kafka_2.12:{KAFKA_1}", "org.slf4j:slf4j-simple:1.7.36")


def run_kafka_1_tool(main_class: str, *arguments: str) -> str:
    """Run one of Kafka 1.1's command-line classes; return its output."""
    command = ["java", "-Xmx128m", "-cp", kafka_1(), main_class, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=True)
    return done.stdout + done.stderr


def _java() -> list[str]:
    jars = kafka_1()
    source = HERE.parent / "interop" / "java" / "ZookeeperMember.java"
    classes = compile_program(source, jars)
    return [
        "java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=info", "-cp", f"{classes}{os.pathsep}{jars}", source.stem,
    ]  # fmt: skip
