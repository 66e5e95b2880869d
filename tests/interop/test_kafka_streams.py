"""A program of Kafka Streams that counts exactly once, unpatched, while it is killed."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from peers.apache_kafka import run_tool
from peers.committed_records import read_committed
from peers.java import compile_program
from peers.maven import kafka_streams
from peers.processes import Process
from peers.topics import Topics
from peers.transactional_brokers import KINDS, transactional_broker

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

PARTITIONS, KEYS, RECORDS, KILLS = 3, 20, 6_000, 3
BOUND_S = 120.0


@pytest.fixture(params=KINDS)
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with transactional_broker(request.param, tmp_path / "broker") as running:
        yield running.bootstrap_servers


class Counting:
    """The program, of which each start has an empty state directory: its counts come from the changelog."""

    def __init__(self, servers: str, folder: Path, *login: str) -> None:
        self._arguments = (servers, "counting", "words", "counts")
        self._login = login
        self._folder = folder
        self._starts = 0

    def process(self) -> Process:
        """Return a process of the program, still to be started."""
        self._starts += 1
        program = Path(__file__).parent / "java" / "CountingStreams.java"
        classes = compile_program(program, kafka_streams())
        command = [
            "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp", f"{classes}{os.pathsep}{kafka_streams()}", program.stem, *self._arguments,
            str(self._folder / f"state-{self._starts}"), *self._login,
        ]  # fmt: skip
        return Process(command, self._folder / "streams.out")


def produce(servers: str, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for number in range(first, first + count):
        word = f"word{number * 7919 % KEYS}"
        producer.produce("words", f"{word} {number}".encode(), partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(60) == 0


def counts_of(servers: str) -> dict[str, list[int]]:
    """Return the committed counts of each word, in their order."""
    found: dict[str, list[int]] = {}
    for each in read_committed(servers, "counts"):
        found.setdefault((each.key() or b"").decode(), []).append(int(each.value() or b""))
    return found


def test_counts_are_exact_though_the_program_is_killed(servers: str, tmp_path: Path) -> None:
    with Topics(servers) as topics:
        for name in ("words", "counts"):
            topics.create(name, partitions=PARTITIONS)
    counting = Counting(servers, tmp_path)
    share = RECORDS // (KILLS + 1)
    expected: Counter[str] = Counter(f"word{number * 7919 % KEYS}" for number in range(RECORDS))

    for kill in range(KILLS):
        process = counting.process().start()
        try:
            before = written(servers)
            produce(servers, kill * share, share)
            # It is killed amid the work, with a transaction open.
            wait_until(lambda before=before: written(servers) > before, process)
        finally:
            process.kill()
    with counting.process() as process:
        produce(servers, KILLS * share, RECORDS - KILLS * share)
        wait_until(lambda: total(counts_of(servers)) >= RECORDS, process)

    assert counts_of(servers) == {word: list(range(1, count + 1)) for word, count in expected.items()}
    changelog = read_committed(servers, "counting-counts-changelog")
    newest = {each.key(): int.from_bytes(each.value() or b"", "big") for each in changelog}
    assert newest == {word.encode(): count for word, count in expected.items()}
    listed = run_tool("org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", servers, "list")
    assert "Ongoing" not in listed


def written(servers: str) -> int:
    return total(counts_of(servers))


def total(counts: dict[str, list[int]]) -> int:
    return sum(map(len, counts.values()))


def wait_until(condition: Any, process: Process) -> None:
    """Wait until a condition holds; what the program has said is in the error."""
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline, process.last_words()
        time.sleep(0.1)
