"""Segments of each broker, read by Apache Kafka's own tool: the same batches, each of them valid.

The judge is `kafka.tools.DumpLogSegments` of Apache Kafka 3.9. Its ReplicaVerificationTool cannot be: it
sends Fetch 17 without asking, which brokers at `inter.broker.protocol.version=2.8` need not serve.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from peers.apache_kafka import run_tool

_TOOL: Final = "kafka.tools.DumpLogSegments"
_BOUND_S: Final = 300.0
_COMPLAINTS: Final = ("isvalid: false", "invalid bytes", "Non-consecutive offsets")
# Replicas may roll their segments at different batches, so a batch may stand elsewhere in its file.
_POSITION: Final = re.compile(r" position: \d+")


def judged(directories: Mapping[str, Path], topic: str, partitions: int) -> list[str]:
    """Dump the segments of all brokers; return what Kafka's tool complains of or where they differ."""
    try:
        with ThreadPoolExecutor(len(directories)) as pool:
            printed = pool.map(lambda one: _dump(one, topic, partitions), directories.values())
            dumps = dict(zip(directories, printed, strict=True))
    except RuntimeError as error:
        return [f"Kafka's tool cannot read a log: {error}"]
    count = sum(map(len, batches_in(next(iter(dumps.values()))).values()))
    print(f"  {count:,} batches of {len(dumps)} brokers compared in Kafka's DumpLogSegments")
    return complaints(dumps) + disagreements(dumps)


def _dump(directory: Path, topic: str, partitions: int) -> str:
    folders = [directory / f"{topic}-{index}" for index in range(partitions)]
    files = [str(file) for folder in folders for file in sorted(folder.glob("*.log"))]
    return run_tool(_TOOL, "--files", ",".join(files), timeout_s=_BOUND_S) if files else ""


def complaints(dumps: Mapping[str, str]) -> list[str]:
    """Return the first lines in which the tool complains, by broker."""
    return [
        f"Kafka's dump of {name}: {line[:500]}"
        for name, text in dumps.items()
        for line in text.splitlines()
        if any(words in line for words in _COMPLAINTS)
    ][:3]


def disagreements(dumps: Mapping[str, str]) -> list[str]:
    """Return for each partition the first batch that two of the brokers that hold it do not share."""
    wrong: list[str] = []
    held = {name: batches_in(text) for name, text in dumps.items()}
    for partition in sorted({each for found in held.values() for each in found}):
        replicas = {name: found[partition] for name, found in held.items() if partition in found}
        for one, other in itertools.pairwise(replicas):
            if pair := _first_difference(replicas[one], replicas[other]):
                wrong.append(f"Kafka's dumps of {partition} differ: {one} has {pair[0]}, {other} {pair[1]}")
    return wrong if any(held.values()) else ["Kafka's dumps have no batches"]


def batches_in(text: str) -> dict[str, list[str]]:
    """Return the lines of batches of each partition in a dump, without where they stand in their files."""
    found: dict[str, list[str]] = {}
    partition = ""
    for line in text.splitlines():
        if line.startswith("Dumping "):
            partition = Path(line.removeprefix("Dumping ")).parent.name
            found.setdefault(partition, [])
        elif line.startswith("baseOffset: "):
            found[partition].append(_POSITION.sub("", line))
    return found


def _first_difference(one: Sequence[str], other: Sequence[str]) -> tuple[str, str] | None:
    pairs = itertools.zip_longest(one, other, fillvalue="nothing")
    return next((pair for pair in pairs if pair[0] != pair[1]), None)
