"""Compare what a cluster holds in the end with the journals of its writers and readers."""

from __future__ import annotations

import itertools
import json
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

Log = Mapping[int, Mapping[int, tuple[str, int]]]
_OUT_OF_ORDER: Final = ("OutOfOrderSequenceNumber", "OUT_OF_ORDER_SEQUENCE_NUMBER")


@dataclass
class Acknowledgements:
    """Acknowledgements to one writer: (partition, offset, number), and when each partition answered.

    `somewhere` has the (partition, number) of records whose acknowledgement named no offset, `refused` when
    the writer was told that a record is not written, and why; `unknown` when it was told that the topic or a
    partition does not exist; `anew` counts its clients that met a fatal error; `at_ms` has when each record
    was acknowledged whose place is known.
    """

    name: str
    places: set[tuple[int, int, int]] = field(default_factory=set)
    somewhere: set[tuple[int, int]] = field(default_factory=set)
    times_ms: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    at_ms: dict[tuple[int, int, int], int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)
    unknown: list[tuple[int, str]] = field(default_factory=list)
    anew: int = 0
    ended: bool = False


def acknowledgements(name: str, journal: Path) -> Acknowledgements:
    """Read a writer's journal."""
    found = Acknowledgements(name)
    for line in journal.read_text().splitlines():
        words = line.split()
        if words[0] == "failed":
            found.wrong.append(f"{name}: {line}")
        elif words[0] == "refused":
            found.refused.append((int(words[1]), line))
        elif words[0] == "unknown":
            found.unknown.append((int(words[1]), line))
        elif words[0] == "anew":
            found.anew += 1
        elif words[0] == "end":
            found.ended = words[1] == "0"
        else:
            at_ms, partition, offset, number = map(int, words)
            if offset < 0:
                found.somewhere.add((partition, number))
            else:
                found.places.add((partition, offset, number))
                found.at_ms[partition, offset, number] = at_ms
            found.times_ms[partition].append(at_ms)
    return found


def places_lost(log: Log, writer: Acknowledgements) -> set[tuple[int, int, int]]:
    """Return the (partition, offset, number) of acknowledged records that are not at their offsets.

    The offset is -1 for one whose acknowledgement named none, and that is nowhere in its partition.
    """
    missing = {
        (partition, offset, number)
        for partition, offset, number in writer.places
        if log[partition].get(offset) != (writer.name, number)
    }
    there = {
        (p, number) for p, records in log.items() for name, number in records.values() if name == writer.name
    }
    return missing | {(partition, -1, number) for partition, number in writer.somewhere - there}


def lost(log: Log, writer: Acknowledgements) -> list[str]:
    """Return acknowledged records that are not at their acknowledged offsets."""
    missing = sorted(places_lost(log, writer))
    return [
        f"{writer.name} LOST record {number}: acknowledged at {partition}/{offset}, where there is "
        f"{log[partition].get(offset)} ({len(missing)} in all)"
        for partition, offset, number in missing[:2]
    ]


def unexplained(
    writer: Acknowledgements, windows: Sequence[tuple[float, float]], *, under_way_ms: float = 5_000
) -> list[str]:
    """Return refusals that no leader explains which knows too little; `windows` are when some leader may.

    A leader that was stopped beyond its session does not know for a moment that another one was elected. It
    still names itself, and answers OUT_OF_ORDER_SEQUENCE_NUMBER to a batch behind those that the other one
    has; Apache Kafka 3.9 does the same. One of Apache Kafka that was stopped in good order answers so, too,
    when the batch before a producer's last one is repeated, for it remembers the last one only. kafka-python
    and librdkafka believe it, and give up this batch and what is under way then, which fails within
    `under_way_ms`.
    """
    doubtful = [
        (since_ms, until_ms + under_way_ms)
        for since_ms, until_ms in windows
        if any(
            since_ms <= at <= until_ms and any(words in line for words in _OUT_OF_ORDER)
            for at, line in writer.refused
        )
    ]
    return [
        f"{writer.name}: {line}"
        for at, line in writer.refused
        if not any(since_ms <= at <= until_ms for since_ms, until_ms in doubtful)
    ][:3]


def denied(writer: Acknowledgements, served_ms: Iterable[float], *, within_ms: float = 5_000) -> list[str]:
    """Return when a writer was told that its topic does not exist, and no Apache broker had just started.

    One of Apache Kafka 3.9 answers Metadata from its first connection on, before any controller has told it
    of the cluster: with UNKNOWN_TOPIC_OR_PARTITION and no brokers, for 20 to 450 ms of an idle machine.
    librdkafka takes one such answer for final, once `topic.metadata.propagation.max.ms` (30 s) have passed
    since the topic was first used. `served_ms` has when such brokers accepted connections, which is noticed
    a moment later. Ottla's brokers have no such time.
    """
    starts_ms = list(served_ms)
    return [
        f"{writer.name}: {line}"
        for at, line in writer.unknown
        if not any(start - 1_000 <= at <= start + within_ms for start in starts_ms)
    ][:3]


def disordered(log: Log, name: str) -> list[str]:
    """Return records of a writer that are out of order in a partition, repetitions aside."""
    for partition, records in log.items():
        last, seen = -1, set[int]()
        for offset in sorted(records):
            writer, number = records[offset]
            if writer != name or number in seen:
                continue
            if number < last:
                return [f"{name} is out of order: {number} stands at {partition}/{offset}, behind {last}"]
            last = number
            seen.add(number)
    return []


def doubled(log: Log, name: str) -> int:
    """Count records of a writer that are in the log more than once.

    A client that gives up its producer id or epoch after an error may repeat a record, on every broker; what
    a broker owes is `out_of_sequence`.
    """
    numbers = [number for records in log.values() for writer, number in records.values() if writer == name]
    return len(numbers) - len(set(numbers))


def out_of_sequence(directory: Path, topic: str, partitions: int) -> list[str]:
    """Return batches whose sequence does not follow the last one of their producer id and epoch."""
    wrong: list[str] = []
    for index in range(partitions):
        following: dict[tuple[int, int], int] = {}
        for batch in _batches(directory / f"{topic}-{index}"):
            producer = batch.producer_id, batch.producer_epoch
            expected = following.get(producer, 0)
            if batch.producer_id >= 0 and batch.base_sequence != expected:
                wrong.append(
                    f"{topic}-{index} has sequence {batch.base_sequence} of producer {producer} at offset "
                    f"{batch.base_offset}, after {expected - 1}"
                )
            following[producer] = batch.base_sequence + batch.records
    return wrong[:3]


@dataclass(frozen=True)
class Batch:
    """The header of a record batch, as it stands in a segment."""

    base_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int


def _batches(folder: Path) -> Iterator[Batch]:
    data = b"".join(one.read_bytes() for one in sorted(folder.glob("*.log")))
    position = 0
    while position < len(data):
        offset, length = struct.unpack_from(">qi", data, position)
        producer_id, epoch, sequence, records = struct.unpack_from(">qhii", data, position + 43)
        yield Batch(offset, producer_id, epoch, sequence, records)
        position += 12 + length


def misread(log: Log, journal: Path, *, follows: bool) -> list[str]:
    """Return records that a reader was given and the log has not, or that it was not given in order.

    A reader that follows has every record once, in order; a member of a group may have some twice.
    """
    wrong: list[str] = []
    given: dict[int, set[int]] = defaultdict(set)
    last: dict[int, int] = {}
    for line in journal.read_text().splitlines():
        words = line.split()
        if not words[0].isdigit():
            continue
        partition, offset, number = int(words[0]), int(words[1]), int(words[3])
        given[partition].add(offset)
        if log[partition].get(offset) != (words[2], number):
            there = log[partition].get(offset)
            wrong.append(f"{journal.stem} read {words[2]} {number} at {partition}/{offset}; there is {there}")
        if follows and offset != last.get(partition, -1) + 1:
            wrong.append(f"{journal.stem} jumped to {partition}/{offset} from {last.get(partition, -1)}")
        last[partition] = offset
    return wrong[:3]


def places_read(journals: Iterable[Path]) -> set[tuple[int, int]]:
    """Return the (partition, offset) of all records that readers were given."""
    lines = (line.split(maxsplit=2) for journal in journals for line in journal.read_text().splitlines())
    return {(int(words[0]), int(words[1])) for words in lines if words[0].isdigit() and len(words) == 3}


def unread(log: Log, journals: Iterable[Path]) -> set[tuple[int, int]]:
    """Return the (partition, offset) of records that no reader was given, however often it got others."""
    return {(partition, offset) for partition in log for offset in log[partition]} - places_read(journals)


def what_is_unread(log: Log, journals: Sequence[Path]) -> str:
    """Describe records that readers lack, the last answers to them, and their last reports."""
    missing = sorted(unread(log, journals))
    lacking = sorted({partition for partition, _ in missing})
    told = [line for one in journals for line in one.read_text().splitlines() if not line[:1].isdigit()]
    states = [f"{one.stem}: {_state(statistics, lacking)}" for one in journals
              if (statistics := one.with_suffix(".statistics")).exists()]  # fmt: skip
    return f"{len(missing)} records, first {missing[:3]}; told {told[-3:]}; {'; '.join(states)}"


def _state(statistics: Path, partitions: Sequence[int]) -> str:
    known = json.loads(statistics.read_text())
    brokers = {each["nodeid"]: each["state"] for each in known["brokers"].values() if each["nodeid"] >= 0}
    states = [
        {
            key: each.get(key)
            for key in ("partition", "fetch_state", "leader", "broker", "next_offset", "hi_offset")
        }
        for topic in known["topics"].values()
        for each in topic["partitions"].values()
        if each["partition"] in partitions
    ]
    return f"brokers {brokers}, partitions {states}"


def unhandled(log: Log, journals: Iterable[Path]) -> list[str]:
    """Return records that no member of a group was given."""
    missed = sorted(unread(log, journals))
    return [f"the group SKIPPED {len(missed)} records, first {missed[:3]}"] if missed else []


def differing(directories: Mapping[str, Path], topic: str, partitions: int) -> list[str]:
    """Return the partitions whose logs are not the same bytes on all brokers that hold them."""
    wrong: list[str] = []
    for index in range(partitions):
        held = {
            name: b"".join(one.read_bytes() for one in sorted(folder.glob("*.log")))
            for name, directory in directories.items()
            if (folder := directory / f"{topic}-{index}").is_dir()
        }
        sizes = {name: len(data) for name, data in held.items()}
        # A segment of Apache Kafka is preallocated by nobody here: equal logs have equal files.
        if len(set(held.values())) > 1:
            wrong.append(f"replicas of {topic}-{index} differ: {sizes}, {_first_difference(held)}")
    return wrong


def _first_difference(held: Mapping[str, bytes]) -> str:
    (first, one), *others = held.items()
    for name, other in others:
        for at, (left, right) in enumerate(zip(one, other, strict=False)):
            if left != right:
                return f"{first} and {name} at byte {at}"
    return "one is shorter"


def longest_gaps_ms(writers: Sequence[Acknowledgements], since_ms: float, until_ms: float) -> dict[int, int]:
    """Return for each partition the longest time without an acknowledgement to anybody."""
    gaps: dict[int, int] = {}
    partitions = {each for writer in writers for each in writer.times_ms}
    for partition in sorted(partitions):
        times = sorted(
            at
            for writer in writers
            for at in writer.times_ms.get(partition, ())
            if since_ms <= at <= until_ms
        )
        edges = [int(since_ms), *times, int(until_ms)]
        gaps[partition] = max(after - before for before, after in itertools.pairwise(edges))
    return gaps
