"""Programs of Kafka Streams 4.4 as streams groups, unpatched, and the tool of 4.4 for such groups."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from ottla.admin import Admin, GroupDescription
from ottla.broker.testing import BrokerProcess
from peers.apache_kafka import run_tool
from peers.committed_records import read_committed
from peers.maven import kafka_4_tools
from peers.processes import Process
from peers.streams_programs import (
    BOUND_S,
    KEYS,
    PARTITIONS,
    SHORT_SESSIONS,
    counts_of,
    exact_counts,
    produce_words,
    program,
    word,
)
from peers.topics import Topics

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

RECORDS = 3_000
_SETTINGS = SHORT_SESSIONS | {
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


@pytest.fixture
def servers(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A broker; a test may give it more settings."""
    with BrokerProcess(tmp_path / "broker", _SETTINGS | getattr(request, "param", {})) as running:
        yield running.bootstrap_servers


def create(servers: str, *names: str) -> None:
    with Topics(servers) as topics:
        for name in names:
            topics.create(name, partitions=PARTITIONS)


def wait_until(condition: Callable[[], Any], *processes: Process) -> None:
    """Wait until a condition holds; what the programs have said is in the error."""
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline, [process.last_words() for process in processes]
        time.sleep(0.2)


def values(servers: str, topic: str) -> list[bytes]:
    return [record.value() or b"" for record in read_committed(servers, topic)]


def streams_groups(servers: str, *arguments: str) -> str:
    tool = "org.apache.kafka.tools.streams.StreamsGroupCommand"
    return run_tool(tool, "--bootstrap-server", servers, *arguments, class_path=kafka_4_tools())


@pytest.mark.parametrize("protocol", ["streams", "classic"])
def test_a_program_without_state_maps_every_record(servers: str, tmp_path: Path, protocol: str) -> None:
    create(servers, "words", "upper")
    produce_words(servers, 0, RECORDS)

    with program(servers, "map", tmp_path / "one", protocol=protocol) as process:
        wait_until(lambda: len(values(servers, "upper")) >= RECORDS, process)

    expected = Counter(f"{word(number).upper()} {number}".encode() for number in range(RECORDS))
    assert Counter(values(servers, "upper")) == expected


def test_counts_are_exact_over_two_instances_of_which_one_is_killed(servers: str, tmp_path: Path) -> None:
    create(servers, "words", "counts")
    settings = ("processing.guarantee=exactly_once_v2", "num.stream.threads=2")
    share = RECORDS // 3

    with ExitStack() as stack:
        first = stack.enter_context(program(servers, "count", tmp_path / "one", *settings))
        produce_words(servers, 0, share)
        wait_until(lambda: values(servers, "counts"), first)
        second = program(servers, "count", tmp_path / "two", *settings).start()
        stack.callback(second.kill)
        produce_words(servers, share, share)
        wait_until(lambda: len(_members(servers)) == 4, first, second)
        wait_until(lambda: len(values(servers, "counts")) >= 2 * share, first, second)
        second.kill()
        produce_words(servers, 2 * share, RECORDS - 2 * share)
        wait_until(lambda: len(values(servers, "counts")) >= RECORDS, first)

    assert counts_of(servers) == exact_counts(RECORDS)


def _members(servers: str) -> list[str]:
    lines = streams_groups(servers, "--describe", "--group", "app", "--members").splitlines()
    return [line for line in lines if line.startswith("app ")]


def test_a_join_by_another_key_finds_every_pair(servers: str, tmp_path: Path) -> None:
    create(servers, "words", "lists", "joined")
    # Java's producers, as those of the program, place keys by murmur2.
    producer = Producer({"bootstrap.servers": servers, "partitioner": "murmur2_random"})
    for number in range(KEYS):
        producer.produce("lists", f"listed{number}".encode(), key=f"word{number}".encode())
    assert producer.flush(60) == 0

    with program(servers, "join", tmp_path / "one", "max.task.idle.ms=2000") as process:
        produce_words(servers, 0, RECORDS)
        wait_until(lambda: len(values(servers, "joined")) >= RECORDS, process)

    pairs = (value.split() for value in values(servers, "joined"))
    assert all(word.removeprefix(b"word") == listed.removeprefix(b"listed") for word, _, listed in pairs)


@pytest.mark.parametrize("servers", [{"group.streams.num.standby.replicas": "1"}], indirect=True)
def test_a_second_instance_has_standbys_and_the_tool_sees_the_group(servers: str, tmp_path: Path) -> None:
    create(servers, "words", "counts")
    produce_words(servers, 0, RECORDS)

    with ExitStack() as stack:
        first = stack.enter_context(program(servers, "count", tmp_path / "one"))
        wait_until(lambda: len(values(servers, "counts")) >= RECORDS, first)
        second = stack.enter_context(program(servers, "count", tmp_path / "two"))
        wait_until(lambda: "STANDBY: " in _verbose(servers), first, second)
        listed = streams_groups(servers, "--list")
        state = streams_groups(servers, "--describe", "--group", "app", "--state")
        offsets = streams_groups(servers, "--describe", "--group", "app")
        own = asyncio.run(_described(servers))
    assert (own.type, own.state, len(own.members)) == ("streams", "Stable", 2)
    active = [task for member in own.members if member.tasks is not None for task in member.tasks.active]
    assert len(active) == len(set(active)) == 2 * PARTITIONS
    assert listed.split() == ["app"]
    assert "Stable" in state
    assert "words" in offsets

    wait_until(lambda: "Empty" in streams_groups(servers, "--describe", "--group", "app", "--state"))
    reset = streams_groups(
        servers, "--reset-offsets", "--group", "app", "--to-earliest", "--input-topic", "words", "--execute"
    )
    assert "words" in reset
    deleted = streams_groups(servers, "--delete", "--group", "app")
    assert "app" in deleted
    assert streams_groups(servers, "--list").split() == []


async def _described(servers: str) -> GroupDescription:
    """Return the group as Ottla's own client and commands see it."""
    async with Admin(servers) as admin:
        return await admin.groups.describe("app")


def _verbose(servers: str) -> str:
    return streams_groups(servers, "--describe", "--group", "app", "--members", "--verbose")
