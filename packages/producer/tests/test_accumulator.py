"""The accumulator and its appends, without a producer."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from ottla.producer.accumulator import Accumulator, Appender, TopicInfo


def test_a_drained_partition_is_last_in_the_next_pass() -> None:
    accumulator = Accumulator(
        batch_size=100, linger_ms=0, buffer_memory=10_000, max_record_size=1_000, monotonic_ms=lambda: 0.0
    )
    info = accumulator.update_topic("t", 3, [0, 1, 2])
    appender = Appender(accumulator)
    for partition in (0, 1, 2, 0, 1, 2):
        appender.append(info, b"k", bytes(90), partition, None, None)

    due, _ = accumulator.ready(0.0, 5)
    first = due[0]
    accumulator.drain(first)

    assert [batch.partition.partition for batch in accumulator.ready(0.0, 5)[0]] == [1, 2, 0]


@pytest.mark.parametrize("available", [[1], [-1], [5, 0], [2**31 - 1]])
def test_leaders_of_partitions_that_are_not_there_are_left_out(available: list[int]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEADERS.format(available=available)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_a_topic_without_partitions_is_refused() -> None:
    accumulator = Accumulator(
        batch_size=100, linger_ms=0, buffer_memory=10_000, max_record_size=1_000, monotonic_ms=lambda: 0.0
    )

    with pytest.raises(ValueError, match="'t' has no partitions"):
        accumulator.update_topic("t", 0, [])


LEADERS = """
from ottla.producer.accumulator import Accumulator, Appender

accumulator = Accumulator(
    batch_size=100, linger_ms=0, buffer_memory=10_000, max_record_size=1_000, monotonic_ms=lambda: 0.0
)
info = accumulator.update_topic("t", 1, {available})
Appender(accumulator).append(info, None, b"value", None, None, None)
print(accumulator.ready(0.0, 5)[0][0].partition.partition)
"""

NO_MEMORY = """
    import resource
    from ottla.producer.accumulator import BatchBuilder, Accumulator, Appender

    LARGE = bytes(400_000_000)

    def without_memory(call):
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (size + 100_000_000, before[1]))
        try:
            call()
        except MemoryError:
            pass
        else:
            raise AssertionError("there was memory")
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)

    builder = BatchBuilder(1_000_000_000)
    builder.append(value=b"first")
    without_memory(lambda: builder.append(value=LARGE))
    builder.append(value=b"second")
    assert builder.record_count() == 2

    accumulator = Accumulator(
        batch_size=1_000_000_000, linger_ms=0, buffer_memory=2_000_000_000, max_record_size=1_000_000_000,
        monotonic_ms=lambda: 0.0,
    )
    info, appender = accumulator.update_topic("t", 2, [0, 1]), Appender(accumulator)
    appender.append(info, None, b"first", 0, None, None)
    for partition in (0, 1):
        without_memory(lambda: appender.append(info, None, LARGE, partition, None, None))
    assert [batch.partition.partition for batch in accumulator.incomplete_batches()] == [0]
    appender.append(info, None, b"second", 0, None, None)
    (batch,) = accumulator.incomplete_batches()
    accumulator.drain(batch)
    batch.pack(0, None)
    assert b"first" in batch.data and b"second" in batch.data and batch.record_count == 2
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_record_without_memory_harms_no_other() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(NO_MEMORY)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_an_idle_topic_is_forgotten() -> None:
    now = [0.0]
    accumulator = Accumulator(
        batch_size=100, linger_ms=0, buffer_memory=9_999, max_record_size=1_000, monotonic_ms=lambda: now[0]
    )
    appender = Appender(accumulator)
    topics = {topic: accumulator.update_topic(topic, 1, [0]) for topic in ("idle", "used", "waiting")}

    def send(topic: str) -> None:
        appender.append(topics[topic], None, b"x", 0, None, None)

    send("waiting")
    now[0] = 6.0
    send("used")
    (used,) = (batch for batch in accumulator.incomplete_batches() if batch.partition.topic == "used")
    accumulator.finish(used)

    assert appender.forget_idle(0.0 - 1) == []
    assert appender.forget_idle(5.0) == ["idle"]
    assert appender.forget_idle(7.0) == ["used"]
    assert list(accumulator.topics) == ["waiting"]


def test_a_forgotten_topic_keeps_its_topic_info_while_a_call_holds_it() -> None:
    accumulator = Accumulator(
        batch_size=100, linger_ms=0, buffer_memory=9_999, max_record_size=1_000, monotonic_ms=lambda: 0.0
    )
    held: TopicInfo | None = accumulator.update_topic("t", 1, [0])
    accumulator.forget_idle(1.0)

    again = accumulator.update_topic("t", 2, [0, 1])

    assert again is held
    assert (list(accumulator.topics), again.count) == (["t"], 2)
    del again
    held = None
    accumulator.forget_idle(1.0)
    assert accumulator.update_topic("t", 1, [0]).count == 1
