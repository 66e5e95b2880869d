"""Groups of member processes, with several kinds of clients, and their reported partitions and records."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peers.java import compile_program
from peers.maven import KAFKA_3, KAFKA_4, kafka_clients

_JAVA = Path(__file__).parents[1] / "interop" / "java"
PROGRAMS = {"java": (_JAVA / "GroupMember.java", KAFKA_3), "java-4": (_JAVA / "TodaysMember.java", KAFKA_4)}
STOP_TIMEOUT_S = 60.0


class MemberProcess:
    """One member in its own process; one of `java-4` takes settings where others take an assignor."""

    def __init__(self, kind: str, servers: str, group: str, topic: str, assignor: str) -> None:
        self.kind = kind
        self.owned: frozenset[int] = frozenset()
        self.read: set[tuple[int, int]] = set()
        self.complaints: list[str] = []
        arguments = [servers, group, topic, assignor]
        self._process = subprocess.Popen(
            _command(kind, arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        )
        self._threads = [
            threading.Thread(target=self._listen, daemon=True),
            threading.Thread(target=self._collect, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __repr__(self) -> str:
        return f"<{self.kind} owns {sorted(self.owned)}>"

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """Make it leave and exit. Raises AssertionError if it does not, or fails."""
        assert self._process.stdin is not None
        if self.is_running:
            self._process.stdin.close()
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self} did not end:\n{self._said()}") from None
        self._end()
        assert code == 0, f"{self} ended with {code}:\n{self._said()}"

    def kill(self) -> None:
        """Kill it, so that the group has to detect its failure."""
        self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)
        self._end()

    def _end(self) -> None:
        for thread in self._threads:
            thread.join(STOP_TIMEOUT_S)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        self.owned = frozenset()

    def _said(self) -> str:
        return "".join(self.complaints[-40:])

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            match line.split():
                case ["owns", *partitions]:
                    self.owned = frozenset(int(each) for each in partitions)
                case ["read", partition, offset]:
                    self.read.add((int(partition), int(offset)))

    def _collect(self) -> None:
        assert self._process.stderr is not None
        self.complaints.extend(self._process.stderr)


class MixedGroup:
    """A group whose members are started, stopped and killed one after the other."""

    def __init__(self, servers: str, group: str, topic: str, partitions: int, assignor: str) -> None:
        self.members: list[MemberProcess] = []
        self.gone: list[MemberProcess] = []
        self.partitions = partitions
        self._facts = (servers, group, topic, assignor)

    def start(self, kind: str, settings: str = "") -> MemberProcess:
        servers, group, topic, assignor = self._facts
        member = MemberProcess(kind, servers, group, topic, settings or assignor)
        self.members.append(member)
        return member

    def stop(self, member: MemberProcess) -> None:
        self.members.remove(member)
        self.gone.append(member)
        member.stop()

    def kill(self, member: MemberProcess) -> None:
        self.members.remove(member)
        self.gone.append(member)
        member.kill()

    def settle(self, timeout_s: float = 60.0) -> None:
        """Wait until each partition has one owner, and each member some partitions, for a whole second."""
        deadline, since = time.monotonic() + timeout_s, None
        while since is None or time.monotonic() < since + 1:
            since = (since or time.monotonic()) if self._is_settled() else None
            assert time.monotonic() < deadline, f"the group did not settle: {self.members}\n{self._said()}"
            time.sleep(0.02)

    def wait_for(self, written: set[tuple[int, int]], timeout_s: float = 30.0) -> None:
        """Wait until every written record was read by a member, at least once."""
        deadline = time.monotonic() + timeout_s
        while missing := written.difference(*[member.read for member in self.members + self.gone]):
            assert time.monotonic() < deadline, f"not read: {sorted(missing)[:20]}\n{self._said()}"
            time.sleep(0.02)

    def _is_settled(self) -> bool:
        assert all(member.is_running for member in self.members), f"one died: {self._said()}"
        owned = sorted(partition for member in self.members for partition in member.owned)
        fair = all(member.owned for member in self.members) or len(self.members) > self.partitions
        return owned == list(range(self.partitions)) and fair

    def _said(self) -> str:
        return "\n".join(f"{member}\n{member._said()}" for member in self.members)


@contextmanager
def mixed_group(servers: str, group: str, topic: str, partitions: int, assignor: str) -> Iterator[MixedGroup]:
    """Yield a group without members; members that still run at the end are killed."""
    mixed = MixedGroup(servers, group, topic, partitions, assignor)
    try:
        yield mixed
    finally:
        for member in list(mixed.members):
            mixed.kill(member)


def _command(kind: str, arguments: list[str]) -> list[str]:
    if kind not in PROGRAMS:
        return [sys.executable, "-m", "peers.group_member", kind, *arguments]
    program, version = PROGRAMS[kind]
    class_path = kafka_clients(version)
    classes = compile_program(program, class_path)
    return [
        "java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        "-cp", f"{classes}{os.pathsep}{class_path}", program.stem, *arguments,
    ]  # fmt: skip
