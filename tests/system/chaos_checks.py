"""Compare the log, read by an independent client in its own process, with what the writers were promised.

python tests/system/chaos_checks.py SERVERS TOPIC PARTITIONS     prints the log as JSON
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from chaos_log import Log
from chaos_writers import Writer


def compare(log: Log, writers: Iterable[Writer]) -> list[str]:
    """Return lost, duplicated and misplaced records, compared with the writers' acknowledgements."""
    wrong: list[str] = []
    for writer in writers:
        found = _places(log, writer.name)
        wrong += _lost(log, writer)
        wrong += _astray(writer, found)
        wrong += _disordered(log, writer)
        wrong += _torn(writer, found)
        if writer.idempotent:
            doubled = {number: places for number, places in found.items() if len(places) > 1}
            wrong += [
                f"{writer.name} ({writer.kind}, idempotent) is doubled: record {number} stands at {places}"
                for number, places in list(doubled.items())[:3]
            ]
    return wrong


def _places(log: Log, name: str) -> dict[int, list[tuple[int, int]]]:
    places: dict[int, list[tuple[int, int]]] = {}
    for partition, records in log.items():
        for offset, (writer, number) in records.items():
            if writer == name:
                places.setdefault(number, []).append((partition, offset))
    return places


def _lost(log: Log, writer: Writer) -> list[str]:
    lost = [
        record
        for record in writer.records
        if record.place and log[record.place[0]].get(record.place[1]) != (writer.name, record.number)
    ]
    return [
        f"{writer.name} ({writer.kind}) lost record {record.number}: acknowledged at {record.place}, "
        f"where there is {log[record.place[0]].get(record.place[1]) if record.place else None} "
        f"({len(lost)} in all)"
        for record in lost[:2]
    ]


def _torn(writer: Writer, found: Mapping[int, list[tuple[int, int]]]) -> list[str]:
    """Return transactions that are partly written, or not as they ended."""
    wrong: list[str] = []
    for transaction in writer.transactions:
        there = sum(number in found for number in transaction.numbers)
        allowed = {"committed": {len(transaction.numbers)}, "aborted": {0}}
        if there not in allowed.get(transaction.fate, {0, len(transaction.numbers)}):
            wrong.append(
                f"{writer.name}: {there} of {len(transaction.numbers)} records are there "
                f"of a transaction whose fate is {transaction.fate}"
            )
    return wrong[:3]


def _astray(writer: Writer, found: Mapping[int, list[tuple[int, int]]]) -> list[str]:
    """Return records in a wrong partition, and keys that are in two partitions."""
    homes: dict[bytes, set[int]] = {}
    wrong: list[str] = []
    for number, places in found.items():
        if number >= len(writer.records):
            wrong.append(f"{writer.name} ({writer.kind}) never wrote {number}, found at {places}")
            continue
        record = writer.records[number]
        partitions = {partition for partition, _ in places}
        if record.partition is not None and partitions != {record.partition}:
            wrong.append(f"{writer.name} ({writer.kind}): {number} for {record.partition} is in {partitions}")
        if record.key is not None:
            homes.setdefault(record.key, set()).update(partitions)
    wrong += [
        f"{writer.name} ({writer.kind}): key {key!r} is in {where}"
        for key, where in homes.items()
        if len(where) > 1
    ]
    return wrong[:3]


def _disordered(log: Log, writer: Writer) -> list[str]:
    """Return records out of a writer's order of sending within a partition, repetitions aside."""
    for partition, records in log.items():
        last, seen = -1, set[int]()
        for offset in sorted(records):
            name, number = records[offset]
            if name != writer.name or number in seen:
                continue
            if number < last:
                what = "idempotent" if writer.idempotent else "not idempotent"
                return [
                    f"{writer.name} ({writer.kind}, {what}) is out of order in partition {partition}: "
                    f"{number} stands at {offset}, behind {last}"
                ]
            last = number
            seen.add(number)
    return []
