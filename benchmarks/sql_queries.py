"""`ottla sql` beside kcat and jq, and beside Spark: the same count by a field, over the same topic.

Each is a process of its own, measured from its start to its end: seconds, CPU seconds with those of its
children, and the largest resident memory of the process that reads. They take turns; numbers are medians with
the spread. The broker runs on the same cores, and its CPU is not counted. `--spark` measures Spark beside
them: the session's start takes seconds, so its last words are the seconds of the query alone.

`--gigabytes N` measures memory alone, over N GB of values of 1,000 bytes in batches of zstd.

python benchmarks/sql_queries.py [--count N] [--rounds N] [--spark] [--gigabytes N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from contenders import Contender, ottla
from ottla.admin import Admin
from ottla.producer import Producer

TOPIC = "flights"
PARTITIONS = 4
SLICE = 20_000
GOAL_S = 2.0
GOAL_MIB = 200
QUERY = f"SELECT origin, count(*) AS flights FROM {TOPIC} GROUP BY 1 ORDER BY 1"
LATE = f"SELECT origin, count(*) AS flights FROM {TOPIC} WHERE delay > 60 GROUP BY 1 ORDER BY 1"
WORDS = [f"word{number:05}" for number in range(20_000)]
JQ = {QUERY: ".origin", LATE: "select(.delay > 60) | .origin"}
_PROGRAM = "from ottla.client.cli import main; main()"
_SPARK = """
import sys, time
servers, condition = sys.argv[1:]
began = time.monotonic()
from peers.spark import spark_session
from pathlib import Path
import tempfile
with spark_session(Path(tempfile.mkdtemp())) as spark:
    started = time.monotonic()
    options = {"kafka.bootstrap.servers": servers, "subscribe": "flights"}
    rows = spark.read.format("ottla").options(**options).load()
    table = rows.selectExpr("from_json(CAST(value AS STRING), 'origin STRING, delay INT') AS v").select("v.*")
    print(table.where(condition).groupBy("origin").count().orderBy("origin").collect())
    print(f"query {time.monotonic() - started:.2f}", file=sys.stderr)
"""


@dataclass(frozen=True)
class Run:
    """The time and memory that a process took."""

    seconds: float
    cpu_s: float
    mib: float
    output: str


def values(count: int, size: int) -> Iterator[bytes]:
    """Yield flights in JSON, about 100 bytes each, or padded to a size."""
    chance = random.Random(1)
    for _ in range(count):
        flight = {
            "origin": chance.choice(["EWR", "LGA", "JFK"]), "dest": "IAH", "delay": chance.randint(-10, 90),
            "tail": f"N{chance.randint(0, 99_999):05}", "distance": chance.random() * 1_000,
        }  # fmt: skip
        if size:
            flight["note"] = " ".join(chance.choices(WORDS, k=size // 10))
        yield json.dumps(flight).encode()


async def fill(servers: str, count: int, size: int = 0, compression: Literal["none", "zstd"] = "none") -> int:
    """Write flights to all partitions in turns; return their bytes."""
    async with Admin(servers) as admin:
        await admin.topics.create(TOPIC, partitions=PARTITIONS)
    made = values(min(count, 10 * SLICE), size)
    slices = [list(part) for part in iter(lambda: [next(made, b"") for _ in range(SLICE)], [b""] * SLICE)]
    total = 0
    async with Producer(servers, compression_type=compression) as producer:
        for number in range(0, count, SLICE):
            part = [value for value in slices[number // SLICE % len(slices)] if value][: count - number]
            for partition in range(PARTITIONS):
                await producer.send_many(TOPIC, part[partition::PARTITIONS], partition=partition)
            total += sum(map(len, part))
        await producer.flush()
    return total


def run(command: list[str], environment: dict[str, str] | None = None) -> Run:
    """Run a command; the memory is that of the process itself, the CPU with its children."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    mib = 0.0
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        while process.poll() is None:
            mib = _peak_mib(process.pid) or mib
            time.sleep(0.02)
        output, errors = process.communicate()
        seconds = time.monotonic() - began
    if process.returncode:
        raise SystemExit(errors)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(seconds, cpu_s, mib, output + errors)


def _peak_mib(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next(
        (int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0
    )


def with_sql(servers: str, query: str) -> Run:
    return run([sys.executable, "-c", _PROGRAM, "sql", "-b", servers, query, "--output", "csv"])


def with_kcat(servers: str, query: str) -> Run:
    pipe = f"kcat -b {servers} -C -t {TOPIC} -o beginning -e -q | jq -r '{JQ[query]}' | sort | uniq -c"
    return run(["sh", "-c", pipe])


def with_spark(servers: str, query: str) -> Run:
    tests = str(Path(__file__).resolve().parent.parent / "tests")
    condition = "delay > 60" if query == LATE else "true"
    return run([sys.executable, "-c", _SPARK, servers, condition], {**os.environ, "PYTHONPATH": tests})


def compare(contender: Contender, count: int, rounds: int, *, spark: bool) -> None:
    size = asyncio.run(fill(contender.bootstrap_servers, count))
    load = os.getloadavg()[0]
    print(f"{count:,} records of {size / count:.0f} B, {os.cpu_count()} cores, load {load:.1f}")
    kinds = {"ottla sql": with_sql}
    if shutil.which("kcat") and shutil.which("jq"):
        kinds["kcat | jq"] = with_kcat
    if spark:
        kinds["Spark"] = with_spark
    for query in (QUERY, LATE):
        print(query)
        found: dict[str, list[Run]] = {name: [] for name in kinds}
        for _ in range(rounds):
            for name, kind in kinds.items():
                found[name].append(kind(contender.bootstrap_servers, query))
        for name, runs in found.items():
            seconds, cpu_s = sorted(each.seconds for each in runs), [each.cpu_s for each in runs]
            print(
                f"  {name:10} {statistics.median(seconds):6.2f} s ({seconds[0]:.2f} to {seconds[-1]:.2f})   "
                f"CPU {statistics.median(cpu_s):6.2f} s   "
                f"{max(each.mib for each in runs):4.0f} MiB   {runs[0].output.split()[-1]}"
            )
    print(f"goal of ottla sql: {GOAL_S:g} s of CPU on two cores for a million records")


def memory(contender: Contender, gigabytes: float) -> None:
    count = int(gigabytes * 1e9 / 1_000)
    size = asyncio.run(fill(contender.bootstrap_servers, count, 1_000, "zstd"))
    print(f"{count:,} records, {size / 1e9:.1f} GB")
    for query in (QUERY, f"SELECT count(*), sum(delay), max(distance) FROM {TOPIC} WHERE tail LIKE 'N1%'"):
        found = with_sql(contender.bootstrap_servers, query)
        print(f"  {found.mib:.0f} MiB (goal {GOAL_MIB})   {found.seconds:.1f} s, CPU {found.cpu_s:.1f} s")
        print(f"    {query}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--gigabytes", type=float)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ottla(Path(folder)) as contender:
        if given.gigabytes is not None:
            memory(contender, given.gigabytes)
        else:
            compare(contender, given.count, given.rounds, spark=given.spark)


if __name__ == "__main__":
    main()
