"""Positions of the assigned partitions, and the data fetched for them. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ottla.client.group_metadata import OffsetAndMetadata
from ottla.consumer.errors import NotAssigned
from ottla.consumer.fetch.decoding import RecordCursor
from ottla.protocol.messages.fetch import AbortedTransaction
from ottla.protocol.primitives import ZERO_UUID
from ottla.protocol.records import Buffer
from ottla.protocol.topics import TopicPartition

NO_EPOCH = -1
NO_LEADER = -1
MAX_BUFFERED = 2


@dataclass(slots=True, eq=False)
class FetchedData:
    """The records that one fetch response carried for a partition."""

    cursor: RecordCursor
    data: Buffer
    aborted: Sequence[AbortedTransaction] | None
    end_offset: int
    """The offset to fetch next, after this data."""
    end_epoch: int
    high_watermark: int
    record_bytes: int
    """The average size of a record."""

    def copy(self) -> None:
        """Copy the bytes so that their response can be freed, unless they are being read right now."""
        data = bytes(self.data)
        if self.cursor.move(data):
            self.data = data


class PartitionState:
    """One assigned partition: its position, the data buffered for it, and where to fetch next.

    `generation` changes whenever buffered data and outstanding fetches become invalid, as after a seek.
    `topic_id` is the id of the topic that the position belongs to, zero while it is unknown.
    """

    __slots__ = (
        "_position",
        "buffered",
        "epoch",
        "failure",
        "fetch_epoch",
        "fetch_not_before_s",
        "fetch_offset",
        "generation",
        "high_watermark",
        "is_awaited",
        "is_held",
        "is_paused",
        "is_queued",
        "is_unassigned",
        "last_retried",
        "last_stable_offset",
        "leader",
        "leader_epoch",
        "log_start_offset",
        "lookup_time",
        "must_validate",
        "partition",
        "preferred",
        "preferred_until_s",
        "skips_committed",
        "topic_id",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.buffered: deque[FetchedData] = deque()
        self.epoch = NO_EPOCH
        self.fetch_offset = -1
        self.fetch_epoch = NO_EPOCH
        self.generation = 0
        self.is_unassigned = self.is_held = self.is_paused = self.is_awaited = self.is_queued = False
        self.skips_committed = self.must_validate = False
        self.leader = self.preferred = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.topic_id = ZERO_UUID
        self.preferred_until_s = self.fetch_not_before_s = 0.0
        self.high_watermark: int | None = None
        self.last_stable_offset: int | None = None
        self.log_start_offset: int | None = None
        self.failure: Exception | None = None
        self.last_retried: Exception | None = None
        self.lookup_time: int | None = None
        self._position: int | None = None

    @property
    def position(self) -> int | None:
        """The offset of the next record to deliver; None while it is unknown."""
        return self.buffered[0].cursor.position if self.buffered else self._position

    @property
    def is_deliverable(self) -> bool:
        """Whether its records may be delivered."""
        return not (self.is_paused or self.is_held or self.is_unassigned)

    @property
    def needs_position(self) -> bool:
        """Whether the position must be resolved: from a committed offset, or by the reset policy."""
        free = not self.is_held or self.is_awaited
        return self._position is None and not self.buffered and free and self.failure is None

    def is_fetchable(self, now_s: float) -> bool:
        """Return whether more should be fetched now."""
        return (
            self._position is not None
            and len(self.buffered) < MAX_BUFFERED
            and not (self.is_paused or self.is_held or self.must_validate)
            and self.failure is None
            and self.fetch_not_before_s <= now_s
        )

    def is_read_from(self, node: int) -> bool:
        """Return whether a broker is the one to fetch from, or none is known."""
        return self.leader == NO_LEADER or node in (self.leader, self.preferred)

    def committable(self) -> OffsetAndMetadata | None:
        """Return the position as an offset to commit, with the leader epoch of the last record delivered."""
        position = self.position
        if position is None:
            return None
        epoch = self.buffered[0].cursor.leader_epoch if self.buffered else NO_EPOCH
        return OffsetAndMetadata(position, "", max(epoch, self.epoch))

    def seek(self, offset: int, epoch: int = NO_EPOCH) -> None:
        """Set the position. With the epoch of the record before it, a truncation of the log is detected."""
        self.discard_buffered()
        self._position = self.fetch_offset = offset
        self.epoch = self.fetch_epoch = epoch
        self.must_validate = epoch != NO_EPOCH

    def seek_time(self, time: int | None) -> None:
        """Resolve the position from a timestamp; None: from the committed offset, or by the reset policy."""
        self.discard_buffered()
        self._position = None
        self.epoch = self.fetch_epoch = NO_EPOCH
        self.must_validate = False
        self.lookup_time = time
        self.skips_committed = time is not None

    def discard_buffered(self) -> None:
        """Drop buffered data and invalidate outstanding fetches; keep the position."""
        self._position = self.position
        if self.buffered:
            self.epoch = max(self.epoch, self.buffered[0].cursor.leader_epoch)
        if self._position is not None:
            self.fetch_offset, self.fetch_epoch = self._position, self.epoch
        while self.buffered:
            self.buffered.pop().cursor.close()
        self.generation += 1
        self.failure = self.last_retried = self.lookup_time = None
        self.fetch_not_before_s = 0.0

    def add(self, fetched: FetchedData) -> None:
        """Buffer further data."""
        self.buffered.append(fetched)
        self.fetch_offset = fetched.end_offset
        self.fetch_epoch = max(self.fetch_epoch, fetched.end_epoch)

    def pop_finished(self) -> FetchedData:
        """Remove the first buffered data, all of which was delivered, and move the position past it."""
        fetched = self.buffered.popleft()
        self._position = max(fetched.cursor.position, fetched.end_offset)
        self.epoch = max(self.epoch, fetched.end_epoch)
        return fetched


class Positions:
    """The assigned partitions, and a round-robin queue of those that have records to deliver."""

    def __init__(self) -> None:
        self._states: dict[TopicPartition, PartitionState] = {}
        self._ready: deque[PartitionState] = deque()

    def __iter__(self) -> Iterator[PartitionState]:
        return iter(self._states.values())

    def __contains__(self, partition: object) -> bool:
        return partition in self._states

    def __len__(self) -> int:
        return len(self._states)

    def get(self, partition: TopicPartition) -> PartitionState | None:
        """Return the state of a partition; None if it is not assigned."""
        return self._states.get(partition)

    def __getitem__(self, partition: TopicPartition) -> PartitionState:
        """Return the state of a partition. Raises NotAssigned."""
        state = self._states.get(partition)
        if state is None:
            raise NotAssigned(TopicPartition(*partition))
        return state

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """The assigned partitions."""
        return frozenset(self._states)

    def assign(self, partitions: Iterable[TopicPartition], *, held: bool = False) -> None:
        """Assign exactly these partitions; old ones keep their positions, new ones may be held."""
        wanted = dict.fromkeys(TopicPartition(*partition) for partition in partitions)
        for gone in self._states.keys() - wanted.keys():
            self._states.pop(gone).is_unassigned = True
        for partition in wanted:
            if partition not in self._states:
                state = self._states[partition] = PartitionState(partition)
                state.is_held = held

    def enqueue(self, state: PartitionState) -> None:
        """Queue a partition for delivery if it has deliverable records."""
        if state.buffered and not state.is_queued and state.is_deliverable:
            state.is_queued = True
            self._ready.append(state)

    def next_ready(self, partitions: Sequence[TopicPartition] = ()) -> PartitionState | None:
        """Dequeue the next partition with records, of all or some; `enqueue` it again if it has more."""
        for _ in range(len(self._ready)):
            state = self._ready.popleft()
            if not state.buffered or not state.is_deliverable:
                state.is_queued = False
            elif partitions and state.partition not in partitions:
                self._ready.append(state)
            else:
                state.is_queued = False
                return state
        return None

    def put_first(self, state: PartitionState) -> None:
        """Queue a partition at the front, after it was dequeued and could not be read."""
        if not state.is_queued:
            state.is_queued = True
            self._ready.appendleft(state)

    def take_failures(self, partitions: Sequence[TopicPartition] = ()) -> list[Exception]:
        """Return and clear the failures of partitions without buffered data: one, or several of one type."""
        failed = [
            state
            for state in self._states.values()
            if state.failure is not None
            and not state.buffered
            and state.is_deliverable
            and (not partitions or state.partition in partitions)
        ]
        same = [state for state in failed if type(state.failure) is type(failed[0].failure)]
        taken = [state.failure for state in same if state.failure is not None]
        for state in same:
            state.failure = None
        return taken


def snapshot(states: Iterable[PartitionState]) -> dict[TopicPartition, tuple[int, int]]:
    """Return what identifies the positions of partitions before a request that resolves them is sent."""
    return {state.partition: (state.generation, state.fetch_offset) for state in states}


def unchanged(
    states: Iterable[PartitionState], before: Mapping[TopicPartition, tuple[int, int]]
) -> list[PartitionState]:
    """Return the partitions that were neither sought, unassigned nor read since the snapshot."""
    now = snapshot(states)
    return [
        state
        for state in states
        if not state.is_unassigned and now[state.partition] == before[state.partition]
    ]
