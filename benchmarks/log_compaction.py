"""The cost of compaction: MB/s of a whole cleaning, CPU, and memory, over kinds of batches and codecs.

Each case fills a log with records of random keys and cleans all of it once, in this process. MB/s counts
the bytes of the log before; the throttle is off. Memory is how much the process grew at most meanwhile.

python benchmarks/log_compaction.py [--quick] [--directory D]
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

from ottla.broker.config import BrokerConfig, LogConfig
from ottla.broker.log.compaction.cleaner import Cleaner
from ottla.broker.log.hosting.registry import LogRegistry
from ottla.broker.log.log import Log
from ottla.broker.log.testing import commit
from ottla.broker.runtime.environment import Environment
from ottla.protocol.records import BatchBuilder, Codec
from ottla.protocol.topics import TopicPartition


@dataclass(frozen=True)
class Case:
    """The batches of a log."""

    records: int
    """In one batch."""
    value_bytes: int
    keys: int
    codec: Codec = Codec.NONE

    def __str__(self) -> str:
        name = self.codec.name.lower()
        return f"{self.records:>4} x {self.value_bytes:>5} B, {self.keys:>9,} keys, {name:>6}"


CASES = (
    Case(1, 100, 1_000),
    Case(1, 1_000, 100_000),
    Case(100, 100, 1_000),
    Case(100, 100, 1_000_000),
    Case(100, 1_000, 100_000),
    Case(100, 100, 100_000, Codec.LZ4),
    Case(100, 100, 100_000, Codec.ZSTD),
)


def fill(log: Log, case: Case, size_bytes: int) -> None:
    """Append batches until the log has the size, and flush."""
    chance = Random(1)
    pool = chance.randbytes(case.value_bytes + 4_096)
    while log.segments.size_bytes < size_bytes:
        for _ in range(100):
            builder = BatchBuilder(8 << 20, codec=case.codec)
            for _ in range(case.records):
                at = chance.randrange(4_096)
                builder.append(
                    b"key-%012d" % chance.randrange(case.keys), pool[at : at + case.value_bytes], 1
                )
            log.append(bytearray(builder.build()), leader_epoch=0, now_ms=0)
    commit(log)
    log.roll(0)
    log.flush()


def reset_peak() -> int:
    """Forget the largest resident size so far; returns the present one in KiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    """The largest resident size, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


async def measure(directory: Path, case: Case, size_bytes: int) -> str:
    """Fill a log, clean it, and return the figures as a line."""
    config = BrokerConfig(
        log_dirs=(str(directory),), log_cleanup_policy=("compact",), log_segment_bytes=64 << 20
    )
    logs = LogRegistry(config, Environment())
    await logs.lock()
    await logs.open(lambda _: LogConfig.from_broker(config))
    log = logs.create(TopicPartition("bench", 0))
    fill(log, case, size_bytes)
    before, resident = log.segments.size_bytes, reset_peak()
    cleaner, passes = Cleaner(logs), 0
    began, cpu = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    while await cleaner.clean_next(10**12):
        passes += 1
    took = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    spent = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
    left, grown = log.segments.size_bytes, (peak() - resident) / 1024
    await logs.close()
    await logs.unlock()
    megabytes = before / 1e6
    return (
        f"{case}: {megabytes / took:7.0f} MB/s, {megabytes / spent:7.0f} MB per CPU s, +{grown:5.1f} MiB, "
        f"{megabytes:5.0f} MB became {left / 1e6:6.1f} in {passes} pass"
    )


def main() -> None:
    """Print a line for each case."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="logs of 20 MB instead of 400")
    arguments.add_argument("--directory", type=Path, help="where the logs are, for example on another disk")
    options = arguments.parse_args()
    for case in CASES:
        with tempfile.TemporaryDirectory(dir=options.directory) as name:
            size_bytes = 20_000_000 if options.quick else 400_000_000
            print(asyncio.run(measure(Path(name), case, size_bytes)), flush=True)


if __name__ == "__main__":
    main()
