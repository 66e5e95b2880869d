"""The processes of groups_chaos.py: members of groups, and writers, with their journals."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cluster_nodes import NodeFailed

from peers.java import java_command
from peers.maven import KAFKA_4, kafka_clients

HERE: Final = Path(__file__).resolve().parent
TOPIC: Final = "chaos"
PARTITIONS: Final = 8
SHARE, CONSUMER = "shared", "ordered"
STOP_BOUND_S: Final = 180.0
HOSTS: Final[Mapping[str, Mapping[str, str]]] = {
    "java": {
        "java-shares-1": "share-explicit", "java-shares-2": "share-implicit",
        "java-consumes-1": "consumer", "java-consumes-2": "consumer",
    },
    "ottla-1": {"ottla-shares-1": "share-explicit", "ottla-consumes-1": "consumer"},
    "ottla-2": {"ottla-shares-2": "share-implicit", "ottla-consumes-2": "consumer"},
    "confluent": {"confluent-consumes-1": "consumer", "confluent-consumes-2": "consumer"},
}  # fmt: skip
"""Processes, with the members in each and what they do."""


class Host:
    """A process with members, which it is told to start and to stop."""

    def __init__(self, name: str, members: Mapping[str, str], folder: Path, servers: str) -> None:
        self.name = name
        self.members = members
        self.starts = 0
        self._folder = folder
        self._command = host_command(name, servers, folder)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process and its members."""
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=output, stderr=output
            )
        self.starts += 1
        for member in self.members:
            self.join(member)

    @property
    def _output(self) -> Path:
        return self._folder / f"{self.name}.out"

    def join(self, member: str) -> None:
        """Start a member; one of the same name leaves first."""
        group = CONSUMER if self.members[member] == "consumer" else SHARE
        self._tell(f"start {member} {group} {self.members[member]}")

    def leave(self, member: str) -> None:
        """Ask a member to leave its group; this does not wait for it."""
        self._tell(f"stop {member}")

    def _tell(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise NodeFailed(f"{self.name} ended: {self._last_words()}") from None

    def kill(self) -> None:
        """Kill it with SIGKILL: its members do not leave."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate(timeout=30)

    def stop(self) -> str:
        """Make all members leave, and wait for the end; return what is wrong with it."""
        assert self._process is not None
        try:
            self._process.communicate(timeout=STOP_BOUND_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"{self.name} did not end within {STOP_BOUND_S:g} s: {self._last_words()}"
        status = self._process.returncode
        return f"{self.name} ended with {status}: {self._last_words()}" if status else ""

    def _last_words(self) -> str:
        return self._output.read_text(errors="replace")[-1_000:]


def host_command(name: str, servers: str, folder: Path) -> list[str]:
    """Return the command of a process for members."""
    kind = name.partition("-")[0]
    if kind == "java":
        program = HERE.parent / "interop" / "java" / "ChaosMembers.java"
        return java_command(program, kafka_clients(KAFKA_4), servers, TOPIC, str(folder))
    return [
        sys.executable, str(HERE / "groups_member.py"), "--kind", kind, "--servers", servers,
        "--topic", TOPIC, "--folder", str(folder),
    ]  # fmt: skip


class Writer:
    """A producer in its own process."""

    def __init__(self, kind: str, folder: Path, servers: str, per_s: int) -> None:
        self.name = f"writer-{kind}"
        self.journal = folder / f"{self.name}.writes"
        command = [
            sys.executable, str(HERE / "cluster_writer.py"), "--name", self.name, "--kind", kind,
            "--per-s", str(per_s), "--servers", servers, "--topic", TOPIC,
            "--partitions", str(PARTITIONS), "--journal", str(self.journal),
        ]  # fmt: skip
        with (folder / f"{self.name}.out").open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output)


class Progress:
    """How many records members, and groups of each partition, have read, from journals that grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._positions: Counter[Path] = Counter()
        self._counts: Counter[str | tuple[str, int]] = Counter()

    def counts(self) -> Counter[str | tuple[str, int]]:
        """Return the numbers by member, and by group and partition."""
        for journal in self._folder.glob("*.journal"):
            with journal.open("rb") as file:
                file.seek(self._positions[journal])
                whole = file.read().rpartition(b"\n")[0]
            self._positions[journal] += len(whole) + 1 if whole else 0
            for line in whole.split(b"\n"):
                words = line.split(b" ", 3)
                if len(words) > 2 and words[1] in (b"read", b"given"):
                    group = CONSUMER if words[1] == b"read" else SHARE
                    self._counts[group, int(words[2])] += 1
                    self._counts[journal.stem] += 1
        return self._counts.copy()
