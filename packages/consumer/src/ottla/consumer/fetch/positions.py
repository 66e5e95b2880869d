"""Where the partitions are that a consumer reads, and what was fetched of them. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ottla.client.group_metadata import OffsetAndMetadata
from ottla.consumer.errors import NotAssigned
from ottla.consumer.fetch.decoding import Cursor
from ottla.protocol.messages.fetch import AbortedTransaction
from ottla.protocol.records import Buffer
from ottla.protocol.topics import TopicPartition

NO_EPOCH = -1
NO_LEADER = -1
PIECES_AHEAD = 2


@dataclass(slots=True, eq=False)
class Piece:
    """What one answer had of a partition."""

    cursor: Cursor
    data: Buffer
    aborted: Sequence[AbortedTransaction] | None
    end_offset: int
    """The offset to fetch behind it."""
    end_epoch: int
    high_watermark: int
    record_bytes: int
    """About how large its records are."""

    def copy(self) -> None:
        """Let go of the answer that the bytes came in, unless they are being read right now."""
        data = bytes(self.data)
        if self.cursor.move(data):
            self.data = data


class Place:
    """One partition as it is being read: what was given out, what is at hand, and where to fetch on.

    `generation` changes whenever what is on its way, or at hand, is not wanted any more.
    """

    __slots__ = (
        "_position",
        "epoch",
        "failure",
        "fetch_epoch",
        "fetch_offset",
        "generation",
        "high_watermark",
        "is_gone",
        "is_held",
        "is_needed",
        "is_paused",
        "is_queued",
        "last_stable_offset",
        "leader",
        "leader_epoch",
        "log_start_offset",
        "must_validate",
        "not_before_s",
        "partition",
        "pieces",
        "preferred",
        "preferred_until_s",
        "wanted_time",
        "was_looked_up",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.pieces: deque[Piece] = deque()
        self.epoch = NO_EPOCH
        self.fetch_offset = -1
        self.fetch_epoch = NO_EPOCH
        self.generation = 0
        self.is_gone = self.is_held = self.is_paused = self.is_needed = self.is_queued = False
        self.was_looked_up = self.must_validate = False
        self.leader = self.preferred = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.preferred_until_s = self.not_before_s = 0.0
        self.high_watermark: int | None = None
        self.last_stable_offset: int | None = None
        self.log_start_offset: int | None = None
        self.failure: Exception | None = None
        self.wanted_time: int | None = None
        self._position: int | None = None

    @property
    def position(self) -> int | None:
        """The offset of the next record to give out; None while it is not known."""
        return self.pieces[0].cursor.position if self.pieces else self._position

    @property
    def is_giving(self) -> bool:
        """Whether records may be given out."""
        return not (self.is_paused or self.is_held or self.is_gone)

    @property
    def lacks_position(self) -> bool:
        """Whether somebody must find out where to begin."""
        free = not self.is_held or self.is_needed
        return self._position is None and not self.pieces and free and self.failure is None

    def is_fetchable(self, now_s: float) -> bool:
        """Say whether more should be fetched."""
        return (
            self._position is not None
            and len(self.pieces) < PIECES_AHEAD
            and not (self.is_paused or self.is_held or self.must_validate)
            and self.failure is None
            and self.not_before_s <= now_s
        )

    def committable(self) -> OffsetAndMetadata | None:
        """Return how far records were given out, with the leader epoch of the last."""
        position = self.position
        if position is None:
            return None
        epoch = self.pieces[0].cursor.leader_epoch if self.pieces else NO_EPOCH
        return OffsetAndMetadata(position, "", max(epoch, self.epoch))

    def seek(self, offset: int, epoch: int = NO_EPOCH) -> None:
        """Go on from an offset; with the epoch of the record in front of it, a truncation is noticed."""
        self.forget()
        self._position = self.fetch_offset = offset
        self.epoch = self.fetch_epoch = epoch
        self.must_validate = epoch != NO_EPOCH

    def seek_time(self, time: int | None) -> None:
        """Go on from a time, which must be looked up; None: where the group stands, or the policy says."""
        self.forget()
        self._position = None
        self.epoch = self.fetch_epoch = NO_EPOCH
        self.must_validate = False
        self.wanted_time = time
        self.was_looked_up = time is not None

    def forget(self) -> None:
        """Give up what is at hand and on its way; stay where records were given out to."""
        self._position = self.position
        if self.pieces:
            self.epoch = max(self.epoch, self.pieces[0].cursor.leader_epoch)
        if self._position is not None:
            self.fetch_offset, self.fetch_epoch = self._position, self.epoch
        while self.pieces:
            self.pieces.pop().cursor.close()
        self.generation += 1
        self.failure = self.wanted_time = None
        self.not_before_s = 0.0

    def add(self, piece: Piece) -> None:
        """Have a further piece at hand."""
        self.pieces.append(piece)
        self.fetch_offset = piece.end_offset
        self.fetch_epoch = max(self.fetch_epoch, piece.end_epoch)

    def finish_piece(self) -> Piece:
        """Take the first piece away: everything in it was given out."""
        piece = self.pieces.popleft()
        self._position = max(piece.cursor.position, piece.end_offset)
        self.epoch = max(self.epoch, piece.end_epoch)
        return piece


class Positions:
    """The partitions that are read, and which of them has records to give, in turn."""

    def __init__(self) -> None:
        self._places: dict[TopicPartition, Place] = {}
        self._ready: deque[Place] = deque()

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places.values())

    def __contains__(self, partition: object) -> bool:
        return partition in self._places

    def __len__(self) -> int:
        return len(self._places)

    def get(self, partition: TopicPartition) -> Place | None:
        """Return a partition's place, if it is read."""
        return self._places.get(partition)

    def __getitem__(self, partition: TopicPartition) -> Place:
        """Raises NotAssigned."""
        place = self._places.get(partition)
        if place is None:
            raise NotAssigned(TopicPartition(*partition))
        return place

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """What is read."""
        return frozenset(self._places)

    def assign(self, partitions: Iterable[TopicPartition], *, held: bool = False) -> None:
        """Read exactly these; what was read before stays where it is, what is new may come held."""
        wanted = dict.fromkeys(TopicPartition(*each) for each in partitions)
        for gone in self._places.keys() - wanted.keys():
            self._places.pop(gone).is_gone = True
        for partition in wanted:
            if partition not in self._places:
                place = self._places[partition] = Place(partition)
                place.is_held = held

    def enqueue(self, place: Place) -> None:
        """Let a place have its turn if it has something to give."""
        if place.pieces and not place.is_queued and place.is_giving:
            place.is_queued = True
            self._ready.append(place)

    def next_ready(self, partitions: Sequence[TopicPartition] = ()) -> Place | None:
        """Return the place whose turn it is, of all or some; `enqueue` it again when more is left in it."""
        for _ in range(len(self._ready)):
            place = self._ready.popleft()
            if not place.pieces or not place.is_giving:
                place.is_queued = False
            elif partitions and place.partition not in partitions:
                self._ready.append(place)
            else:
                place.is_queued = False
                return place
        return None

    def put_first(self, place: Place) -> None:
        """Let a place have the next turn: it could not be used now."""
        if not place.is_queued:
            place.is_queued = True
            self._ready.appendleft(place)

    def take_failures(self, partitions: Sequence[TopicPartition] = ()) -> list[Exception]:
        """Return what went wrong with partitions of which nothing is at hand, and forget it.

        It is one error, or several of the same type.
        """
        failed = [
            place
            for place in self._places.values()
            if place.failure is not None
            and not place.pieces
            and place.is_giving
            and (not partitions or place.partition in partitions)
        ]
        same = [place for place in failed if type(place.failure) is type(failed[0].failure)]
        taken = [place.failure for place in same if place.failure is not None]
        for place in same:
            place.failure = None
        return taken
