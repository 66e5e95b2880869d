"""The cost of a log: appends beside bare pwrite(2), rolls, and reads with 1 and with 1,000 segments.

CPU time of the process, the best of several alternating rounds; nothing is synced.

The page cache is that of a new partition's indexes after two entries.

python benchmarks/log_append.py [--quick] [--directory D]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from ottla.broker.config import LogConfig
from ottla.broker.log.files.file_system import DiskFiles
from ottla.broker.log.log import AppendOrigin, Log
from ottla.broker.log.recovery.recovery import open_log
from ottla.protocol.records import BatchBuilder, assign_offsets
from ottla.protocol.topics import TopicPartition

SIZES = {"200 B": (200, 20_000), "16 KB": (16_384, 2_000), "1 MB": (1_000_000, 60)}
ROUNDS = 5


def batch(size: int, *, producer_id: int = -1) -> bytearray:
    """A batch of about `size` bytes, of records of 100 bytes."""
    builder = BatchBuilder(2 << 20)
    while not builder.record_count or builder.size_in_bytes + 110 <= size:
        builder.append(None, b"v" * 100, 1_000)
    first = min(producer_id, 0)  # -1 for both epoch and sequence without a producer id
    return bytearray(builder.build(producer_id=producer_id, producer_epoch=first, base_sequence=first))


def opened(directory: Path, *, clean: bool = True, segment_bytes: int = 1 << 30) -> Log:
    """A log of its own in a directory."""
    at = directory / "bench-0"
    config = LogConfig(segment_bytes=segment_bytes)
    return open_log(DiskFiles(), at, TopicPartition("bench", 0), config, clean=clean, is_new=not at.exists())


def cpu_ns(work: Callable[[], object], times: int) -> float:
    """CPU nanoseconds of one call."""
    began = time.process_time_ns()
    for _ in range(times):
        work()
    return (time.process_time_ns() - began) / times


def appends(directory: Path, size: int, count: int) -> tuple[float, float, int]:
    """Best CPU of an append and of a bare write of the same bytes."""
    data = batch(size)
    log = opened(directory)
    descriptor = os.open(directory / "bare", os.O_RDWR | os.O_CREAT)
    position = 0

    def write() -> None:
        nonlocal position
        os.pwrite(descriptor, data, position)
        position += len(data)

    def append() -> None:
        log.append(data, leader_epoch=0, now_ms=0)

    best_write = best_append = float("inf")
    for _ in range(ROUNDS):
        best_write = min(best_write, cpu_ns(write, count))
        best_append = min(best_append, cpu_ns(append, count))
    os.close(descriptor)
    return best_append, best_write, len(data)


def general_appends(directory: Path, count: int) -> dict[str, float]:
    """Best CPU of appends of 200 B by the general path, and by a follower, in ns."""
    log, plain = opened(directory), batch(200)
    several, of_producer = bytearray(plain * 4), batch(200, producer_id=7)

    def by_coordinator(data: bytearray) -> Callable[[], object]:
        return lambda: log.append(data, leader_epoch=0, now_ms=0, origin=AppendOrigin.COORDINATOR)

    def by_follower() -> None:
        assign_offsets(plain, log.log_end_offset, 0)
        log.append_as_follower(plain, 0)

    ways: dict[str, Callable[[], object]] = {
        "one batch": by_coordinator(plain),
        "one batch of a producer": by_coordinator(of_producer),
        "four batches": by_coordinator(several),
        "one batch, as follower": by_follower,
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, way in ways.items():
            best[name] = min(best[name], cpu_ns(way, count))
    return best


def rolls(directory: Path, segments: int, total_bytes: int) -> tuple[float, float]:
    """MB/s of appends of 16 KB into so many segments, and CPU microseconds of each segment."""
    data = batch(16_384)
    log = opened(directory, segment_bytes=max(20_000, total_bytes // segments))
    began, began_cpu = time.perf_counter_ns(), time.process_time_ns()
    for _ in range(total_bytes // len(data)):
        log.append(data, leader_epoch=0, now_ms=0)
    took, cpu = time.perf_counter_ns() - began, time.process_time_ns() - began_cpu
    count = len(log.segments)
    log.close()
    return total_bytes / took * 1e3, cpu / count / 1e3


def cached_index_bytes(directory: Path) -> int:
    """The page cache that the indexes of one active partition take."""
    log = opened(directory)
    for _ in range(4):
        log.append(batch(16_384), leader_epoch=0, now_ms=0)
    paths = [str(path) for path in directory.rglob("*index")]
    told = subprocess.run(
        ["fincore", "--bytes", "--noheadings", "--output", "RES", *paths], check=True, stdout=subprocess.PIPE
    )
    return sum(map(int, told.stdout.split()))


def filled(directory: Path, segments: int) -> Log:
    """A log of this many segments with 64 KB in each, closed and opened again."""
    log = opened(directory, segment_bytes=64 * 1024)
    data = batch(2_000)
    while len(log.segments) < segments or log.log_end.position < 60_000:
        log.append(data, leader_epoch=0, now_ms=0)
    log.close()
    return opened(directory, segment_bytes=64 * 1024)


def reads(directory: Path, segments: int, count: int) -> dict[str, float]:
    """Best CPU of each way to read a log, in ns."""
    log = filled(directory, segments)
    end, chance = log.log_end_offset, Random(1)
    near = log.log_end.segment.base_offset

    def tail() -> None:
        log.read(end - 18, 16_384, up_to=end)

    def somewhere() -> None:
        log.read(chance.randrange(end), 16_384, up_to=end)

    def here() -> None:
        log.read(chance.randrange(near, end), 16_384, up_to=end)

    at = 0

    def on_and_on() -> None:
        nonlocal at
        found = log.read(at, 16_384, up_to=end)
        at += max(18, found.length // 2_000 * 18)
        at = at if at < end else 0

    ways = {
        "newest batch": tail,
        "anywhere in newest segment": here,
        "anywhere": somewhere,
        "in order": on_and_on,
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, way in ways.items():
            best[name] = min(best[name], cpu_ns(way, count))
    return best


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--directory", help="where to write")
    arguments = parser.parse_args()
    divisor, tempfile.tempdir = 10 if arguments.quick else 1, arguments.directory
    print(f"{'append':>28}  {'µs':>8}  {'pwrite':>8}  {'more':>7}  GB/s")
    for name, (size, count) in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            append, write, length = appends(Path(folder), size, max(1, count // divisor))
        more = (append - write) / 1e3
        print(f"{name:>28}  {append / 1e3:8.2f}  {write / 1e3:8.2f}  {more:7.2f}  {length / append:.2f}")
    print(f"{'by the general path':>28}  {'µs':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for way, cost in general_appends(Path(folder), 20_000 // divisor).items():
            print(f"{way:>28}  {cost / 1e3:8.2f}")
    print(f"{'16 KB into':>28}  {'MB/s':>8}  µs of CPU per segment")
    for segments in (1, 1_000):
        with tempfile.TemporaryDirectory() as folder:
            speed, cpu = rolls(Path(folder), segments, (64 << 20) // divisor)
        print(f"{f'{segments} segments':>28}  {speed:8.0f}  {cpu:8.0f}")
    with tempfile.TemporaryDirectory() as folder:
        cached = cached_index_bytes(Path(folder)) / 1024
    print(f"{'page cache of two indexes':>28}  {cached:8.0f} KiB")
    for segments in (1, 1_000):
        with tempfile.TemporaryDirectory() as folder:
            found = reads(Path(folder), segments, 1_000 // divisor)
        print(f"{f'read of 16 KB, {segments} segments':>28}")
        for way, cost in found.items():
            print(f"{way:>28}  {cost / 1e3:8.2f}")


if __name__ == "__main__":
    main()
