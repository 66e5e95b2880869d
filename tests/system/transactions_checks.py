"""Compare what transactions have copied with their source, and find transactions that are still open."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from chaos_log import Log
from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

CALL_S: Final = 30.0
_MOST_LINES: Final = 3

Copied = tuple[int, str, int]
"""The source's offset that a copy names, and the writer and number in it."""


def miscopied(source: Log, target: Log, name: str) -> list[str]:
    """Return the partitions whose copies are not the source's records, each once, in order.

    Every record of a key stands in one partition, so the order of each key is that of its partition.
    """
    wrong = []
    for partition, records in source.items():
        expected = [(offset, *records[offset]) for offset in sorted(records)]
        copies = target.get(partition, {})
        found = [read_copy(*copies[offset]) for offset in sorted(copies)]
        if difference := differs(expected, found):
            wrong.append(f"{name} copied partition {partition} wrongly: {difference}")
    return wrong[:_MOST_LINES]


def read_copy(writer: str, number: int) -> Copied:
    """Read what `transactions_worker.image` has made of a record."""
    offset, _, name = writer.partition("@")
    return int(offset), name, number


def differs(expected: Sequence[Copied], found: Sequence[Copied]) -> str:
    """Return what is missing, doubled or out of order; an empty text where nothing is."""
    if list(expected) == list(found):
        return ""
    missing, more = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
    if not missing and not more:
        index = next(i for i, (one, other) in enumerate(zip(expected, found, strict=True)) if one != other)
        return f"out of order from {found[index]} on, where {expected[index]} must be"
    return (
        f"{missing.total()} LOST, first {sorted(missing)[:2]}; "
        f"{more.total()} DOUBLED or strange, first {sorted(more)[:2]}"
    )


def misread(target: Log, journal: Path) -> list[str]:
    """Return what a reader was given that is not committed, in order and once, and what it lacks."""
    given: dict[int, list[tuple[int, str, int]]] = {partition: [] for partition in target}
    for partition, offset, writer, number in journalled(journal):
        given[partition].append((offset, writer, number))
    wrong = []
    for partition, records in target.items():
        committed = [(offset, *records[offset]) for offset in sorted(records)]
        if given[partition] != committed:
            strange = Counter(given[partition]) - Counter(committed)
            missing = Counter(committed) - Counter(given[partition])
            wrong.append(
                f"{journal.stem} read partition {partition} wrongly: {strange.total()} records that are not "
                f"committed, first {sorted(strange)[:2]}; {missing.total()} not read, "
                f"first {sorted(missing)[:2]}"
            )
    return wrong[:_MOST_LINES]


def journalled(journal: Path) -> Iterator[tuple[int, int, str, int]]:
    """Yield partition, offset, writer and number of the records in a reader's journal."""
    for line in journal.read_text().splitlines():
        words = line.split()
        if len(words) == 4 and words[0].isdigit():
            yield int(words[0]), int(words[1]), words[2], int(words[3])


def ends(admin: AdminClient, topics: Mapping[str, int], isolation: IsolationLevel) -> dict[str, int]:
    """Return where readers of an isolation level end in each partition, by its name `TOPIC-PARTITION`."""
    wanted = {
        TopicPartition(topic, index): OffsetSpec.latest()
        for topic, partitions in topics.items()
        for index in range(partitions)
    }
    found = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=CALL_S)
    return {f"{each.topic}-{each.partition}": future.result().offset for each, future in found.items()}


def still_open(admin: AdminClient, topics: Mapping[str, int], within_s: float) -> list[str]:
    """Return the partitions whose last stable offset does not reach the log's end within a time."""
    deadline = time.monotonic() + within_s
    while True:
        stable = ends(admin, topics, IsolationLevel.READ_COMMITTED)
        whole = ends(admin, topics, IsolationLevel.READ_UNCOMMITTED)
        behind = [name for name, offset in stable.items() if offset != whole[name]]
        if not behind or time.monotonic() > deadline:
            return [
                f"{name} has an open transaction: its last stable offset is {stable[name]}, "
                f"its end {whole[name]}"
                for name in behind[:_MOST_LINES]
            ]
        time.sleep(0.2)


def committed(admin: AdminClient, group: str, topic: str, partitions: int) -> dict[int, int]:
    """Return the offsets that a group has committed, -1 where it has none."""
    every = [TopicPartition(topic, index) for index in range(partitions)]
    wanted = [ConsumerGroupTopicPartitions(group, every)]
    found = admin.list_consumer_group_offsets(wanted, require_stable=True, request_timeout=CALL_S)
    (future,) = found.values()
    return {each.partition: max(-1, each.offset) for each in future.result().topic_partitions}
