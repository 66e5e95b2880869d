"""A group whose members are replaced one by one under load, and what its log of events shows."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from confluent_kafka import Message, Producer

BOUND_S: Final = 180.0
_PAUSE_S: Final = 0.01


class Event(NamedTuple):
    """A record that was given to a member, or a commit that was acknowledged."""

    at_ns: int
    member: str
    is_commit: bool
    partition: int
    offset: int


class MemberHost:
    """A program that hosts members (`tests/interop/python/hosted_members.py`), while the context is open."""

    def __init__(self, command: Sequence[str], servers: str, group: str, topic: str) -> None:
        self.owned: dict[str, frozenset[int]] = {}
        """The partitions of each member that runs."""
        self.events: list[Event] = []
        self.failures: list[str] = []
        self._command = [*command, servers, group, topic]
        self._complaints: list[str] = []
        self._threads = [threading.Thread(target=work) for work in (self._listen, self._collect)]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        )  # fmt: skip
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def start(self, name: str, protocol: str) -> None:
        self.owned[name] = frozenset()
        self._command_line(f"start {name} {protocol}")

    def stop(self, name: str) -> None:
        self._command_line(f"stop {name}")

    def last_words(self) -> str:
        return "".join(self._complaints[-20:])

    def _command_line(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            at_ns, member, word, *rest = line.split(maxsplit=3)
            if word == "owns":
                self.owned[member] = frozenset(map(int, " ".join(rest).split()))
            elif word == "left":
                self.owned.pop(member, None)
            elif word == "failed":
                self.failures.append(line)
            else:
                partition, offset = map(int, rest[0].split())
                self.events.append(Event(int(at_ns), member, word == "committed", partition, offset))

    def _collect(self) -> None:
        assert self._process.stderr is not None
        self._complaints.extend(self._process.stderr)


class Load:
    """A producer that writes to the partitions in turn, while the context is open.

    `counts` has the acknowledged records by partition.
    """

    def __init__(self, servers: str, topic: str, partitions: int) -> None:
        self.counts = [0] * partitions
        self.errors: list[str] = []
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5})
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join(2 * BOUND_S)

    def _write(self) -> None:
        number = 0
        while not self._is_over.wait(_PAUSE_S):
            partition = number % len(self.counts)
            self._producer.produce(
                self._topic, b"%d" % number, partition=partition, on_delivery=self._delivered
            )
            self._producer.poll(0)
            number += 1
        if left := self._producer.flush(BOUND_S):
            self.errors.append(f"{left} records were not written")

    def _delivered(self, error: object, record: Message) -> None:
        if error is None:
            self.counts[record.partition()] += 1
        else:
            self.errors.append(str(error))


@dataclass
class MovingGroup:
    """A group of members in hosts. Each protocol has its hosts, which new members go to in turn."""

    hosts: dict[str, Sequence[MemberHost]]
    partitions: int
    members: list[tuple[MemberHost, str]] = field(default_factory=list)
    _numbers: int = 0

    def start(self, protocol: str) -> None:
        """Start one more member."""
        hosts = self.hosts[protocol]
        host, name = hosts[self._numbers % len(hosts)], f"{protocol}-{self._numbers}"
        self._numbers += 1
        host.start(name, protocol)
        self.members.append((host, name))

    def stop_oldest(self) -> None:
        """Make the oldest member leave, and wait until it has."""
        host, name = self.members.pop(0)
        host.stop(name)
        self.wait_until(lambda: name not in host.owned, f"{name} does not leave")

    def settle(self, why: str) -> None:
        """Wait until each partition has one owner, and each member some partitions."""
        self.wait_until(self._is_shared, f"not shared {why}")

    def wait_until(self, condition: Callable[[], bool], complaint: str) -> None:
        deadline = time.monotonic() + BOUND_S
        while not condition():
            assert time.monotonic() < deadline, f"{complaint}: {self._said()}"
            for host in self._all_hosts():
                assert not host.failures, host.failures
                assert not host.has_ended, host.last_words()
            time.sleep(_PAUSE_S)

    def wait_until_read(self, counts: Sequence[int]) -> None:
        """Wait until all records have been given to a member."""

        def are_read() -> bool:
            read = {(event.partition, event.offset) for event in self.events() if not event.is_commit}
            return len(read) == sum(counts)

        self.wait_until(are_read, "not all records were read")

    def events(self) -> list[Event]:
        """Return what all members did, in the order of time."""
        return sorted(event for host in self._all_hosts() for event in host.events)

    def _all_hosts(self) -> set[MemberHost]:
        return {host for hosts in self.hosts.values() for host in hosts}

    def _is_shared(self) -> bool:
        owned = [host.owned.get(name, frozenset()) for host, name in self.members]
        return all(owned) and sorted(index for found in owned for index in found) == list(
            range(self.partitions)
        )

    def _said(self) -> str:
        owned = {name: sorted(host.owned.get(name, ())) for host, name in self.members}
        return f"{owned}\n" + "\n".join(host.last_words() for host in self._all_hosts())


@dataclass
class Deliveries:
    """Judges the events of a group, in order: `faults` has what uncommitted offsets do not explain."""

    partitions: int
    faults: list[str] = field(default_factory=list)
    repeated: int = 0

    def __post_init__(self) -> None:
        self.committed = [0] * self.partitions
        self.ends = [0] * self.partitions
        """The offset after the last record that was given to a member, by partition."""
        self._next: dict[tuple[str, int], int] = {}

    def judge(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.is_commit:
                self._commit(event)
            else:
                self._read(event)

    def _commit(self, event: Event) -> None:
        if event.offset < self.committed[event.partition]:
            self.faults.append(f"{event} after a commit of {self.committed[event.partition]}")
        self.committed[event.partition] = event.offset

    def _read(self, event: Event) -> None:
        partition, offset = event.partition, event.offset
        if offset > self.ends[partition]:
            self.faults.append(f"{event} skips from {self.ends[partition]}")
        if offset < self.committed[partition]:
            self.faults.append(f"{event} after a commit of {self.committed[partition]}")
        self.repeated += offset < self.ends[partition]
        self.ends[partition] = max(self.ends[partition], offset + 1)
