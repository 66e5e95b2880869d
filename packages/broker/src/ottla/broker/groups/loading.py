"""From the log of a partition back to its groups and offsets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ottla.broker.groups.events import GroupSnapshot
from ottla.broker.groups.group import Group
from ottla.broker.groups.hosted import HostedGroup
from ottla.broker.groups.offsets import GroupOffsets
from ottla.broker.groups.records import GroupRecord, OffsetRecord, read_record
from ottla.broker.groups.states import GroupLimits
from ottla.broker.groups.store import OffsetsStore
from ottla.protocol.primitives import MalformedMessage
from ottla.protocol.records import (
    BatchHeader,
    ControlType,
    iter_records,
    read_end_transaction_marker,
    read_header,
    split_batches,
)

log = logging.getLogger(__name__)

RETRY_MS: Final = 500
BUSY_MS: Final = 4.0
"""How long loading keeps the event loop before others get a turn."""
_RECORDS_BETWEEN_LOOKS: Final = 32


@dataclass(slots=True)
class LoadedPartition:
    """What one partition holds: the last word about each group, and each group's offsets."""

    groups: dict[str, GroupSnapshot] = field(default_factory=dict)
    offsets: dict[str, GroupOffsets] = field(default_factory=dict)
    records: int = 0


class _Turns:
    """Gives the loop back every few milliseconds."""

    def __init__(self, monotonic_ms: Callable[[], float]) -> None:
        self._monotonic_ms = monotonic_ms
        self._until_ms = monotonic_ms() + BUSY_MS

    async def maybe_yield(self) -> None:
        if self._monotonic_ms() >= self._until_ms:
            await asyncio.sleep(0)
            self._until_ms = self._monotonic_ms() + BUSY_MS


async def load_until_there(
    store: OffsetsStore, partition: int, monotonic_ms: Callable[[], float], is_wanted: Callable[[], bool]
) -> LoadedPartition | None:
    """Load a partition, again and again if need be; None once it is not wanted any more.

    An empty cache would tell consumers that they never committed: rather they wait.
    """
    while is_wanted():
        try:
            loaded = await load_partition(store, partition, monotonic_ms)
        except Exception:
            log.exception("groups not loaded", extra={"partition": partition})
            await asyncio.sleep(RETRY_MS / 1000)
        else:
            return loaded if is_wanted() else None
    return None


def groups_of(loaded: LoadedPartition, partition: int, limits: GroupLimits) -> dict[str, HostedGroup]:
    """Make the groups that a partition holds, with their offsets."""
    groups: dict[str, HostedGroup] = {}
    for group_id in loaded.groups.keys() | loaded.offsets.keys():
        snapshot, offsets = loaded.groups.get(group_id), loaded.offsets.get(group_id)
        if snapshot is None and (offsets is None or offsets.is_idle):
            continue
        group = Group(group_id, limits) if snapshot is None else Group.restore(snapshot, limits)
        groups[group_id] = HostedGroup(group, partition, GroupOffsets() if offsets is None else offsets)
    return groups


async def load_partition(
    store: OffsetsStore, partition: int, monotonic_ms: Callable[[], float]
) -> LoadedPartition:
    """Read one partition of `__consumer_offsets` from start to end.

    A record that cannot be read is logged and passed over: one bad record must not keep every group of
    the partition from its offsets. Raises what the store raises.
    """
    loaded = LoadedPartition()
    turns = _Turns(monotonic_ms)
    async for batches in store.read(partition):
        for batch in split_batches(batches):
            header = read_header(batch)
            if header.is_control:
                _end_transaction(loaded, header, batch)
            else:
                await _take_in(loaded, header, batch, turns)
        await turns.maybe_yield()
    return loaded


async def _take_in(loaded: LoadedPartition, header: BatchHeader, batch: memoryview, turns: _Turns) -> None:
    producer_id = header.producer_id if header.is_transactional else None
    for record in iter_records(batch):
        loaded.records += 1
        if loaded.records % _RECORDS_BETWEEN_LOOKS == 0:
            await turns.maybe_yield()
        if record.key is None:
            continue
        try:
            entry = read_record(record.key, record.value)
        except (MalformedMessage, ValueError) as error:
            log.warning("group record passed over", extra={"offset": record.offset, "error": str(error)})
            continue
        if isinstance(entry, GroupRecord):
            _take_group(loaded, entry)
        elif entry is not None:
            _take_offset(loaded, entry, header.base_offset, producer_id)


def _take_group(loaded: LoadedPartition, entry: GroupRecord) -> None:
    if entry.snapshot is None:
        loaded.groups.pop(entry.group_id, None)
    else:
        loaded.groups[entry.group_id] = entry.snapshot


def _take_offset(
    loaded: LoadedPartition, entry: OffsetRecord, position: int, producer_id: int | None
) -> None:
    offsets = loaded.offsets.setdefault(entry.group_id, GroupOffsets())
    if entry.committed is None:
        offsets.forget([entry.partition])
    elif producer_id is not None:
        offsets.written_transactional(producer_id, {entry.partition: entry.committed}, position)
    else:
        offsets.load({entry.partition: entry.committed}, position)


def _end_transaction(loaded: LoadedPartition, header: BatchHeader, batch: memoryview) -> None:
    marker = read_end_transaction_marker(batch)
    if marker is None:
        return
    for offsets in loaded.offsets.values():
        offsets.end_transaction(header.producer_id, commit=marker.type is ControlType.COMMIT)
