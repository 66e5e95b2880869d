"""`ottla log`: look into the files of a data directory."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from ottla.broker.log.files.file_system import DiskFiles
from ottla.client.commands import printable
from ottla.protocol.errors import KafkaError
from ottla.protocol.records import (
    BatchHeader,
    Codec,
    EndTransactionMarker,
    iter_records,
    read_end_transaction_marker,
    read_header,
    why_unreadable,
)
from ottla.protocol.storage import CorruptStorage, checkpoints
from ottla.protocol.storage.indexes import (
    decode_aborted_transactions,
    decode_producer_snapshot,
    offset_entry_at,
    time_entry_at,
)
from ottla.protocol.storage.segments import (
    SegmentFile,
    directory_name,
    file_name,
    iter_stored,
    parse_file_name,
)

_SHOWN_BYTES: Final = 60


class Section(NamedTuple):
    """The content of one file: rows of equal columns, faults included."""

    path: Path
    kind: str
    rows: Iterable[dict[str, Any]]


class Options(NamedTuple):
    """The options of the command."""

    records: bool
    verify: bool


@click.group()
def log() -> None:
    """Look into the files of a data directory."""


@log.command(
    epilog="""\b
Examples:
  ottla log dump /data/flights-0
  ottla log dump --records /data/flights-0/00000000000000000000.log
  ottla log dump --verify --json /data
"""
)
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--records", is_flag=True, help="Print the records of every batch too.")
@click.option(
    "--verify",
    is_flag=True,
    help="Check checksums, records, and indexes against their log. Exit 1 on a fault.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per row.")
def dump(paths: tuple[Path, ...], *, records: bool, verify: bool, as_json: bool) -> None:
    """Print segments, indexes, producer snapshots and checkpoints.

    PATHS are files, partitions' directories, or a whole data directory. Files are only read; a running broker
    is not disturbed, and its newest batches may be seen half written.
    """
    faults = 0
    for section in _sections(paths, Options(records, verify)):
        faults += _print_json(section) if as_json else _print_table(section)
    if faults:
        click.echo("1 fault" if faults == 1 else f"{faults} faults", err=True)
        sys.exit(1)


# ---- which files


def _sections(paths: Iterable[Path], options: Options) -> Iterator[Section]:
    for path in paths:
        if path.is_dir():
            yield from _sections_in(path, options)
            continue
        reader = _reader_for(path)
        if reader is None:
            raise click.UsageError(f"{path} is not a file of a data directory that can be shown")
        yield Section(path, reader[0], reader[1](path, options))


def _sections_in(directory: Path, options: Options) -> Iterator[Section]:
    is_empty = True
    for file in sorted(directory.rglob("*")):
        reader = _reader_for(file)
        if reader is not None and file.is_file():
            is_empty = False
            yield Section(file, reader[0], reader[1](file, options))
    if is_empty:
        raise click.ClickException(
            f"{directory} has no file that can be shown: it is neither a data directory nor a partition's"
        )


Reader = Callable[[Path, Options], Iterator[dict[str, Any]]]


def _reader_for(path: Path) -> tuple[str, Reader] | None:
    parsed = parse_file_name(path.name)
    if parsed is not None:
        return str(parsed.kind).removeprefix("."), _SEGMENT_READERS[parsed.kind]
    reader = _SMALL_READERS.get(path.name)
    return None if reader is None else (path.name, reader)


def _base_offset(path: Path) -> int:
    parsed = parse_file_name(path.name)
    return parsed.base_offset if parsed is not None else 0


# ---- printing


def _rows_or_fault(section: Section) -> Iterator[dict[str, Any]]:
    try:
        yield from section.rows
    except (CorruptStorage, KafkaError, OSError) as error:
        yield {"fault": str(error)}


def _print_json(section: Section) -> int:
    faults = 0
    for row in _rows_or_fault(section):
        faults += bool(row.get("fault"))
        click.echo(json.dumps({"file": str(section.path), "kind": section.kind, **row}))
    return faults


def _print_table(section: Section) -> int:
    click.echo(click.style(printable(str(section.path)), bold=True))
    faults = 0
    columns: tuple[str, ...] = ()
    for row in _rows_or_fault(section):
        fault = row.pop("fault", None)
        if row and columns != tuple(row):
            columns = tuple(row)
            click.echo("  " + "  ".join(f"{name:>{_width(name)}}" for name in columns))
        if row:
            click.echo("  " + "  ".join(f"{_text(value):>{_width(name)}}" for name, value in row.items()))
        if fault:
            faults += 1
            click.echo(click.style(f"  fault: {printable(fault)}", fg="red"))
    if not columns and not faults:
        click.echo("  empty")
    click.echo()
    return faults


def _width(name: str) -> int:
    return max(len(name), _WIDTHS.get(name, 8))


_WIDTHS: Final = {
    "base_timestamp": 13,
    "max_timestamp": 13,
    "timestamp": 13,
    "offset": 10,
    "topic": 24,
    "key": 20,
}


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else ""
    return printable(str(value))


def _shown(data: bytes | None) -> str | None:
    if data is None:
        return None
    text = data[:_SHOWN_BYTES].decode(errors="backslashreplace")
    return text if len(data) <= _SHOWN_BYTES else f"{text}… ({len(data)} bytes)"


# ---- segments and indexes


def _log_rows(path: Path, options: Options) -> Iterator[dict[str, Any]]:
    file = DiskFiles().open(path)
    expected = -1
    for position, data in iter_stored(lambda at, size: file.pread(size, at), 0, file.size()):
        reason = _why_unreadable(position, data, options)
        row = _entry_row(position, data)
        if reason is not None:
            row["fault"] = f"the records at offset {_first_offset(data)} cannot be read: {reason}"
        elif row["last_offset"] < expected:
            row["fault"] = f"offset {row['last_offset']} follows {expected - 1}"
        expected = int(row["last_offset"]) + 1
        yield row
        if options.records:
            with suppress(KafkaError):  # the batch's row names the fault
                yield from _record_rows(data)


def _why_unreadable(position: int, data: memoryview, options: Options) -> str | None:
    """Why the records of an entry cannot be read, if that is looked for.

    Raises CorruptStorage where the checksum has to be right and is not: what follows may be no entry.
    """
    if not (options.verify or options.records):
        return None
    try:
        return why_unreadable(data)
    except KafkaError as error:
        if options.verify:
            raise CorruptStorage(str(error), position) from None
        return str(error)


def _first_offset(data: memoryview) -> int:
    return int.from_bytes(data[:8], "big", signed=True)


def _entry_row(position: int, data: memoryview) -> dict[str, Any]:
    if data[16] != 2:
        return {
            "position": position,
            "size": len(data),
            "last_offset": int.from_bytes(data[:8], "big"),
            "magic": data[16],
            "codec": data[17] & 7,
        }
    header = read_header(data)
    return {
        "position": position,
        "size": len(data),
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "epoch": header.partition_leader_epoch,
        "codec": _codec_name(header.attributes & 7),
        "max_timestamp": header.max_timestamp,
        "producer": header.producer_id,
        "p.epoch": header.producer_epoch,
        "sequence": header.base_sequence,
        "what": _what(header, data),
        "crc": f"{header.crc:08x}",
    }


def _codec_name(number: int) -> str:
    return Codec(number).name.lower() if number <= max(Codec) else str(number)


def _what(header: BatchHeader, data: memoryview) -> str:
    if header.is_control:
        marker = read_end_transaction_marker(data)
        return "control" if marker is None else marker.type.name.lower()
    return "transaction" if header.is_transactional else "data"


def _marker_of(data: memoryview) -> EndTransactionMarker | None:
    is_control = data[16] == 2 and read_header(data).is_control
    return read_end_transaction_marker(data) if is_control else None


def _record_rows(data: memoryview) -> Iterator[dict[str, Any]]:
    marker = _marker_of(data)
    for record in iter_records(data):
        if marker is not None:
            yield {
                "offset": record.offset,
                "timestamp": record.timestamp_ms,
                "marker": marker.type.name,
                "coordinator_epoch": marker.coordinator_epoch,
            }
            continue
        yield {
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "key": _shown(record.key),
            "value": _shown(record.value),
            "headers": ", ".join(f"{name}={_shown(value)}" for name, value in record.headers) or None,
        }


def _offset_rows(path: Path, options: Options) -> Iterator[dict[str, Any]]:
    data, base = path.read_bytes(), _base_offset(path)
    positions = _positions_of(path) if options.verify else None
    last = -1
    for number in range(len(data) // 8):
        entry = offset_entry_at(data, number, base)
        if entry.offset == base and entry.position == 0:
            break  # unused room: the first batch of a segment is never in its index
        row: dict[str, Any] = {"number": number, "offset": entry.offset, "position": entry.position}
        if entry.offset <= last:
            row["fault"] = "offsets do not rise"
        elif positions is not None and entry.position not in positions:
            row["fault"] = "no batch begins at this position"
        last = entry.offset
        yield row


def _positions_of(index: Path) -> set[int]:
    log_path = index.with_name(file_name(_base_offset(index), SegmentFile.LOG))
    file = DiskFiles().open(log_path)
    return {at for at, _ in iter_stored(lambda at, size: file.pread(size, at), 0, file.size())}


def _time_rows(path: Path, options: Options) -> Iterator[dict[str, Any]]:
    data, base = path.read_bytes(), _base_offset(path)
    last = -1
    for number in range(len(data) // 12):
        entry = time_entry_at(data, number, base)
        if entry.timestamp_ms == 0 and entry.offset == base:
            break  # unused room
        row: dict[str, Any] = {"number": number, "timestamp": entry.timestamp_ms, "offset": entry.offset}
        if entry.timestamp_ms <= last:
            row["fault"] = "timestamps do not rise"
        last = entry.timestamp_ms
        yield row


def _transaction_rows(path: Path, options: Options) -> Iterator[dict[str, Any]]:
    for transaction in decode_aborted_transactions(path.read_bytes()):
        yield transaction._asdict()


def _snapshot_rows(path: Path, options: Options) -> Iterator[dict[str, Any]]:
    for producer in decode_producer_snapshot(path.read_bytes()):
        yield producer._asdict()


# ---- checkpoints


def _offset_checkpoint_rows(path: Path, options: Options) -> Iterator[dict[str, Any]]:
    for partition, offset in checkpoints.decode_offset_checkpoint(path.read_bytes()).items():
        row: dict[str, Any] = {"topic": partition.topic, "partition": partition.partition, "offset": offset}
        if options.verify and not (path.parent / directory_name(partition)).is_dir():
            row["fault"] = "the log directory has no such partition"
        yield row


def _leader_epoch_rows(path: Path, options: Options) -> Iterator[dict[str, Any]]:
    for epoch in checkpoints.decode_leader_epochs(path.read_bytes()):
        yield epoch._asdict()


def _meta_rows(path: Path, options: Options) -> Iterator[dict[str, Any]]:
    meta = checkpoints.decode_meta_properties(path.read_bytes())
    yield {"broker_id": meta.broker_id, "cluster_id": meta.cluster_id}


def _partition_rows(path: Path, options: Options) -> Iterator[dict[str, Any]]:
    yield {"topic_id": str(checkpoints.decode_partition_metadata(path.read_bytes()))}


_SEGMENT_READERS: Final[dict[SegmentFile, Reader]] = {
    SegmentFile.LOG: _log_rows,
    SegmentFile.OFFSET_INDEX: _offset_rows,
    SegmentFile.TIME_INDEX: _time_rows,
    SegmentFile.TRANSACTION_INDEX: _transaction_rows,
    SegmentFile.PRODUCER_SNAPSHOT: _snapshot_rows,
}
_SMALL_READERS: Final[dict[str, Reader]] = {
    checkpoints.RECOVERY_POINTS_FILE: _offset_checkpoint_rows,
    checkpoints.HIGH_WATERMARKS_FILE: _offset_checkpoint_rows,
    checkpoints.LOG_START_OFFSETS_FILE: _offset_checkpoint_rows,
    checkpoints.CLEANER_OFFSETS_FILE: _offset_checkpoint_rows,
    checkpoints.LEADER_EPOCHS_FILE: _leader_epoch_rows,
    checkpoints.META_PROPERTIES_FILE: _meta_rows,
    checkpoints.PARTITION_METADATA_FILE: _partition_rows,
}
