"""Commit metadata: bytes for 10,000 records finished out of order, ours and Confluent's Parallel Consumer.

Each pattern has one unfinished record at the committed offset and 10,000 finished ones after it, among
unfinished ones. The broker takes 4,096 bytes by default (`offset.metadata.max.bytes`). The time of ours is
the median of encoding each pattern a hundred times.

python benchmarks/streams_commit_metadata.py [--quick] [--records N]
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from contenders import kafka_is_here, show
from ottla.protocol.topics import TopicPartition
from ottla.streams.scheduling.finished_offsets import decode, encode
from stream_apps.confluent import java_command

# As after some time in production: offsets are long numbers.
COMMITTED = 1_234_567_890
LIMIT_BYTES = 4_096
PARTITION = TopicPartition("orders", 3)
SEED = 12

Chooser = Callable[[random.Random, int], bool]

PATTERNS: dict[str, Chooser] = {
    "one record unfinished, all after it finished": lambda chance, index: True,
    "one key of 1,000 blocked": lambda chance, index: index % 1000 != 0,
    "one key of 100 blocked": lambda chance, index: index % 100 != 0,
    "five long runs": lambda chance, index: index // 2000 % 2 == 1,
    "runs of 100": lambda chance, index: index // 100 % 2 == 1,
    "every second finished": lambda chance, index: index % 2 == 1,
    "1 % unfinished, at random": lambda chance, index: chance.random() >= 0.01,
    "10 % unfinished, at random": lambda chance, index: chance.random() >= 0.1,
    "half finished, at random": lambda chance, index: chance.random() >= 0.5,
    "10 % finished, at random": lambda chance, index: chance.random() < 0.1,
}


def finished(pattern: Chooser, records: int) -> list[int]:
    """Return this many offsets above the committed one that are finished, by a pattern."""
    chance, index = random.Random(SEED), 1
    found: list[int] = []
    while len(found) < records:
        if pattern(chance, index):
            found.append(COMMITTED + index)
        index += 1
    return found


def ranges(offsets: list[int]) -> list[tuple[int, int]]:
    """Return ascending offsets as ranges: first, and one past the last."""
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found


def ours(offsets: list[int], rounds: int) -> tuple[int, float, int]:
    """Return bytes without a limit, microseconds to encode, and how many records fit the broker's limit."""
    wanted = ranges(offsets)
    text, _ = encode(PARTITION, COMMITTED, wanted, 1 << 20)
    if decode(PARTITION, COMMITTED, text) != wanted:
        raise AssertionError("decoding does not return what was encoded")
    times = []
    for _ in range(rounds):
        begun = time.process_time()
        _, count = encode(PARTITION, COMMITTED, wanted, LIMIT_BYTES)
        times.append(time.process_time() - begun)
    return len(text), statistics.median(times) * 1e6, sum(end - first for first, end in wanted[:count])


def theirs(patterns: list[list[int]]) -> Iterator[str]:
    """Yield the bytes of Confluent's metadata for each list of finished offsets, "" without Java."""
    if not kafka_is_here():
        yield from [""] * len(patterns)
        return
    lines = []
    for offsets in patterns:
        done = set(offsets)
        unfinished = [each for each in range(COMMITTED, offsets[-1]) if each not in done]
        lines.append(" ".join(map(str, [COMMITTED, offsets[-1], *unfinished])))
    ran = subprocess.run(
        java_command("CommitMetadata"), input="\n".join(lines), capture_output=True, text=True, timeout=300,
        check=True,
    )  # fmt: skip
    yield from ran.stdout.split()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--records", type=int, default=10_000)
    options = parser.parse_args(arguments)
    patterns = [finished(pattern, options.records) for pattern in PATTERNS.values()]
    rows: list[tuple[str, ...]] = []
    for name, offsets, other in zip(PATTERNS, patterns, theirs(patterns), strict=True):
        size, encode_us, fit = ours(offsets, 3 if options.quick else 100)
        rows.append((name, f"{size:,}", other, f"{fit:,}", f"{encode_us:,.0f}"))
    header = ("finished records", "ours, bytes", "Confluent, bytes", f"ours in {LIMIT_BYTES:,}", "encode µs")
    show(f"metadata of {options.records:,} records finished out of order", rows, header)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
