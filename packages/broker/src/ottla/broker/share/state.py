"""The persisted state of share partitions, as the share coordinator keeps it, and its records. Pure.

A snapshot holds the whole state of a share partition, an update what a write has changed since. Where both
have an offset, more deliveries win, and of equally many the later state: a write that is repeated or comes
late takes nothing back.
"""

from __future__ import annotations

import base64
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple
from uuid import UUID

from ottla.broker.coordinators.coordinator_partitions import Headers, KeyValue
from ottla.broker.share.in_flight import StateBatch, joined
from ottla.protocol.messages.share_state import StateBatch as StoredBatch
from ottla.protocol.stored_groups import (
    SHARE_STATE_RECORDS,
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    decode_record,
    key_bytes,
)

UNINITIALIZED: Final = -1
"""The start offset of a share partition that no leader has begun to read, and the leader epoch until then."""


class SharePartitionKey(NamedTuple):
    """A partition of a topic, for one share group."""

    group_id: str
    topic_id: UUID
    partition: int

    @property
    def text(self) -> str:
        """The key by which the coordinator of its state is found."""
        topic_id = base64.urlsafe_b64encode(self.topic_id.bytes).rstrip(b"=").decode()
        return f"{self.group_id}:{topic_id}:{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareState:
    """The state of one share partition. Its batches are in order and do not overlap."""

    state_epoch: int
    start_offset: int
    leader_epoch: int = UNINITIALIZED
    delivery_complete_count: int = UNINITIALIZED
    snapshot_epoch: int = 0
    created_ms: int = 0
    written_ms: int = 0
    batches: tuple[StateBatch, ...] = ()


class StateRecord(NamedTuple):
    """A record of `__share_group_state`: a snapshot, an update, or None, which removes the state."""

    key: SharePartitionKey
    value: ShareState | ShareUpdate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareUpdate:
    """The changes of a write since the snapshot of the same epoch."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...] = ()


# ---- records


class StateRecordCodec:
    """The `RecordCodec` of `__share_group_state`, in Kafka's layout."""

    @staticmethod
    def encode(record: StateRecord) -> KeyValue:
        """Return the record as the log stores it."""
        (group_id, topic_id, partition), value = record
        if isinstance(value, ShareUpdate):
            update_key = ShareUpdateKey(group_id=group_id, topic_id=topic_id, partition=partition)
            return KeyValue(key_bytes(update_key), _stored_update(value).to_bytes(0))
        key = ShareSnapshotKey(group_id=group_id, topic_id=topic_id, partition=partition)
        return KeyValue(key_bytes(key), None if value is None else _stored(value).to_bytes(0))

    @staticmethod
    def decode(key: bytes, value: bytes | None, headers: Headers = ()) -> StateRecord | None:
        """Return the record. Raises MalformedMessage or ValueError for a damaged one."""
        found, content = decode_record(key, value, SHARE_STATE_RECORDS)
        assert isinstance(found, ShareSnapshotKey | ShareUpdateKey)
        of = SharePartitionKey(found.group_id, found.topic_id, found.partition)
        if isinstance(content, ShareUpdateValue):
            update = ShareUpdate(
                snapshot_epoch=content.snapshot_epoch,
                leader_epoch=content.leader_epoch,
                start_offset=content.start_offset,
                delivery_complete_count=content.delivery_complete_count,
                batches=_read(content.state_batches),
            )
            return StateRecord(of, update)
        if content is None and isinstance(found, ShareUpdateKey):
            return None
        assert content is None or isinstance(content, ShareSnapshotValue)
        return StateRecord(of, None if content is None else _loaded(content))


def _stored(state: ShareState) -> ShareSnapshotValue:
    return ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        create_timestamp=state.created_ms,
        write_timestamp=state.written_ms,
        state_batches=stored_batches(state.batches),
    )


def _stored_update(update: ShareUpdate) -> ShareUpdateValue:
    return ShareUpdateValue(
        snapshot_epoch=update.snapshot_epoch,
        leader_epoch=update.leader_epoch,
        start_offset=update.start_offset,
        delivery_complete_count=update.delivery_complete_count,
        state_batches=stored_batches(update.batches),
    )


def _loaded(value: ShareSnapshotValue) -> ShareState:
    return ShareState(
        snapshot_epoch=value.snapshot_epoch,
        state_epoch=value.state_epoch,
        leader_epoch=value.leader_epoch,
        start_offset=value.start_offset,
        delivery_complete_count=value.delivery_complete_count,
        created_ms=value.create_timestamp,
        written_ms=value.write_timestamp,
        batches=combined((), _read(value.state_batches), value.start_offset),
    )


def stored_batches(batches: Iterable[StateBatch]) -> list[StoredBatch]:
    """Return state batches as messages and records have them."""
    return [
        StoredBatch(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count)
        for first, last, state, count in batches
    ]


def read_batches(batches: Iterable[StoredBatch]) -> tuple[StateBatch, ...]:
    """Return the state batches of a message. Raises ValueError for ones that hold no offset."""
    read = tuple(
        StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
        for batch in batches
    )
    for batch in read:
        if not 0 <= batch.first_offset <= batch.last_offset:
            raise ValueError(f"offsets {batch.first_offset} to {batch.last_offset} are no range")
    return read


_read = read_batches


# ---- combination


def combined(
    before: Sequence[StateBatch], changes: Iterable[StateBatch], start_offset: int
) -> tuple[StateBatch, ...]:
    """Return the batches from `start_offset` on after changes; `before` is in order without overlaps."""
    batches = list(before)
    for change in changes:
        _lay_over(batches, change)
    return tuple(_above(joined(batches), start_offset))


def _lay_over(batches: list[StateBatch], change: StateBatch) -> None:
    first, last = change.first_offset, change.last_offset
    at = max(bisect_right(batches, (first,), key=_first) - 1, 0)
    if batches and batches[at].last_offset < first:
        at += 1
    end, position, pieces = at, first, []
    while end < len(batches) and batches[end].first_offset <= last:
        present = batches[end]
        end += 1
        if present.first_offset < first:
            pieces.append(present._replace(last_offset=first - 1))
        start, stop = max(present.first_offset, first), min(present.last_offset, last)
        if present[:1:-1] > change[:1:-1]:  # more deliveries, or as many and a later state
            if position < start:
                pieces.append(change._replace(first_offset=position, last_offset=start - 1))
            pieces.append(present._replace(first_offset=start, last_offset=stop))
            position = stop + 1
        if stop < present.last_offset:
            if position <= stop:
                pieces.append(change._replace(first_offset=position, last_offset=stop))
            position = last + 1
            pieces.append(present._replace(first_offset=stop + 1))
    if position <= last:
        pieces.append(change._replace(first_offset=position))
    batches[at:end] = pieces


def _first(batch: StateBatch) -> tuple[int]:
    return batch[:1]


def _above(batches: Iterable[StateBatch], start_offset: int) -> Iterator[StateBatch]:
    for batch in batches:
        if batch.last_offset >= start_offset:
            yield batch._replace(first_offset=max(batch.first_offset, start_offset))


def merged(state: ShareState, update: ShareUpdate) -> ShareState:
    """Return a state after an update."""
    start_offset = state.start_offset if update.start_offset == UNINITIALIZED else update.start_offset
    return replace(
        state,
        leader_epoch=state.leader_epoch if update.leader_epoch == UNINITIALIZED else update.leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=update.delivery_complete_count,
        batches=combined(state.batches, update.batches, start_offset),
    )


# ---- the state of a partition of the topic


class ShareStates:
    """The share partitions whose state is in one partition of `__share_group_state`."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.states: dict[SharePartitionKey, ShareState] = {}
        self.leader_epochs: dict[SharePartitionKey, int] = {}
        """The latest leader epoch, which a new beginning of the state does not take back."""
        self.updates: dict[SharePartitionKey, int] = {}
        """How many updates came since the last snapshot."""
        self.snapshots: dict[SharePartitionKey, int] = {}
        """Where the last snapshot is: records before all of them are not needed any more."""

    def replay(self, record: StateRecord, position: int, producer_id: int | None) -> None:
        """Apply one record; nothing in this topic is transactional."""
        key, value = record
        if value is None:
            for facts in (self.states, self.leader_epochs, self.updates, self.snapshots):
                facts.pop(key, None)
            return
        self.leader_epochs[key] = max(self.leader_epochs.get(key, UNINITIALIZED), value.leader_epoch)
        if isinstance(value, ShareState):
            self.states[key] = value
            self.updates[key] = 0
            self.snapshots[key] = position
        elif key in self.states:  # its snapshot may be damaged
            self.states[key] = merged(self.states[key], value)
            self.updates[key] += 1

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Do nothing: no producer writes to this topic."""

    def complete_load(self) -> None:
        """Do nothing: every record was complete in itself."""

    def first_needed_position(self) -> int | None:
        """Return where the oldest snapshot is that still counts; None without any."""
        return min(self.snapshots.values(), default=None)
