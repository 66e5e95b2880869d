"""A distributed worker of Kafka Connect, unpatched: a file into a topic exactly once, and out into a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from peers.committed_records import read_committed
from peers.connect_worker import Worker, wait_until
from peers.topics import Topics
from peers.transactional_brokers import transactional_broker

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

LINES = 1_500
"""Fewer than one batch of the source, 2,000: what it has read beyond a batch waits until the file grows."""


@pytest.fixture(params=["kafka-3.9", "ottla"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with transactional_broker(request.param, tmp_path / "broker") as running:
        yield running.bootstrap_servers


def append(file: Path, numbers: range) -> None:
    with file.open("a") as lines:
        lines.writelines(f"line {number}\n" for number in numbers)


def test_a_file_passes_through_a_topic_exactly_once_though_the_worker_is_killed(
    servers: str, tmp_path: Path
) -> None:
    given, taken = tmp_path / "given.txt", tmp_path / "taken.txt"
    with Topics(servers) as topics:
        topics.create("lines")
    worker = Worker(servers, tmp_path)
    append(given, range(LINES // 3))

    process = worker.process().start()
    try:
        worker.put("reads", {
            "connector.class": "FileStreamSource", "tasks.max": "1", "file": str(given), "topic": "lines",
            "exactly.once.support": "required",
        })  # fmt: skip
        worker.put("writes", {
            "connector.class": "FileStreamSink", "tasks.max": "1", "file": str(taken), "topics": "lines",
        })  # fmt: skip
        wait_until(lambda: worker.is_running("reads") and worker.is_running("writes"))
        for begin in range(LINES // 3, 2 * LINES // 3, 50):
            append(given, range(begin, begin + 50))
        wait_until(lambda: len(read_committed(servers, "lines")) > LINES // 3 and taken.exists())
    except AssertionError as error:
        raise AssertionError(f"{worker.said()}\n{process.last_words(30)}") from error
    finally:
        process.kill()
    append(given, range(2 * LINES // 3, LINES))
    with worker.process() as process:
        try:
            wait_until(lambda: len(read_committed(servers, "lines")) >= LINES)
            wait_until(lambda: taken.read_text().endswith(f"line {LINES - 1}\n"))
        except AssertionError as error:
            raise AssertionError(f"{worker.said()}\n{process.last_words(30)}") from error

    expected = [f"line {number}" for number in range(LINES)]
    assert [(each.value() or b"").decode() for each in read_committed(servers, "lines")] == expected
    # The sink commits after it has written: what a kill came between is in the file twice, nothing is lost.
    assert list(dict.fromkeys(taken.read_text().splitlines())) == expected
