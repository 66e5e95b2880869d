"""A program of Kafka Streams 4.4 that reads words and counts, joins or maps them; words and their counts."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from peers.committed_records import read_committed
from peers.java import compile_program
from peers.maven import KAFKA_4, kafka_streams
from peers.processes import Process

PARTITIONS: Final = 3
KEYS: Final = 20
BOUND_S: Final = 150.0
"""The time in which whatever is awaited has to happen."""
SHORT_SESSIONS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.min.session.timeout.ms": "6000",
    "group.streams.session.timeout.ms": "6000",
    "group.streams.min.heartbeat.interval.ms": "500",
    "group.streams.heartbeat.interval.ms": "500",
}
"""Settings of brokers with which groups soon notice who comes and goes."""
_PROGRAM: Final = Path(__file__).parents[1] / "interop" / "java" / "StreamsOfToday.java"


def program(servers: str, topology: str, folder: Path, *settings: str, protocol: str = "streams") -> Process:
    """Return a process of the program, still to be started, that keeps its state in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    class_path = kafka_streams(KAFKA_4)
    command = [
        "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-cp", f"{compile_program(_PROGRAM, class_path)}{os.pathsep}{class_path}", _PROGRAM.stem,
        servers, "app", topology, str(folder / "state"), f"group.protocol={protocol}", *settings,
    ]  # fmt: skip
    return Process(command, folder / "streams.out")


def word(number: int) -> str:
    """Return the word of a record."""
    return f"word{number * 7919 % KEYS}"


def produce_words(servers: str, first: int, count: int) -> None:
    """Send records, each with its word and its number, and return once all are acknowledged."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for number in range(first, first + count):
        producer.produce("words", f"{word(number)} {number}".encode(), partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(BOUND_S) == 0


def counts_of(servers: str) -> dict[str, list[int]]:
    """Return the committed counts of each word, in their order."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for record in read_committed(servers, "counts"):
        found[(record.key() or b"").decode()].append(int(record.value() or b""))
    return found


def exact_counts(records: int) -> dict[str, list[int]]:
    """Return the counts of each word when every record has been counted once."""
    times = Counter(word(number) for number in range(records))
    return {counted: list(range(1, count + 1)) for counted, count in times.items()}
