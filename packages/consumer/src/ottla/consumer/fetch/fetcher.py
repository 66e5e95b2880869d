"""Fetches ahead of the application: one request at a time per broker, for all partitions read from it."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError
from ottla.client.pool import Pool
from ottla.client.retry import is_retriable
from ottla.client.serialization import deserializer
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.errors import OffsetOutOfRange, named_error
from ottla.consumer.fetch.decoding import Cursor, abortions, decompression_ms, end_of
from ottla.consumer.fetch.memory import copy_leftovers, held_bytes
from ottla.consumer.fetch.notifier import News
from ottla.consumer.fetch.positions import NO_LEADER, Piece, Place, Positions
from ottla.consumer.fetch.session import Asked, FetchSession, Wanted
from ottla.consumer.metrics import ConsumerMetrics
from ottla.protocol.errors import BrokerNotAvailable, ErrorCode, KafkaError, MessageTooLarge, error_for
from ottla.protocol.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from ottla.protocol.records import Buffer
from ottla.protocol.topics import TopicPartition

NO_REPLICA = -1
OFF_LOOP_ABOVE_MS = 10.0

_LOOK_AGAIN = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)

_SESSION_OVER = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RawPiece:
    """Bytes of a partition as they were fetched; records below `since_offset` are not wanted."""

    partition: TopicPartition
    data: memoryview
    since_offset: int
    aborted: Sequence[AbortedTransaction] | None
    high_watermark: int
    next_offset: int
    """Where the partition goes on behind this piece."""
    end_epoch: int
    """The leader epoch of its last batch."""
    generation: int
    """The place's, when this was taken."""


class _Since(NamedTuple):
    """When a partition was asked for: in which of its place's generations, and from which offset."""

    generation: int
    offset: int

    def holds(self, place: Place) -> bool:
        """Say whether an answer is still of use.

        Whoever leads or is preferred may change while another broker is asked: the first answer counts.
        """
        return not place.is_gone and self == (place.generation, place.fetch_offset)


class Fetcher:
    """Keeps records at hand for all places that may be read.

    No more is fetched of a partition of which two answers are at hand, nor of any while about
    `fetch_max_bytes` are. But all of that may be of partitions that are paused, or not asked for: then those
    that are asked for are fetched all the same.
    """

    def __init__(
        self,
        cluster: Cluster,
        positions: Positions,
        config: ConsumerConfig,
        news: News,
        metrics: ConsumerMetrics,
        *,
        look_up_leaders: Callable[[], None],
        look_up_offsets: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._positions = positions
        self._config = config
        self._news = news
        self._metrics = metrics
        self._look_up_leaders = look_up_leaders
        self._look_up_offsets = look_up_offsets
        self._key_deserializer = deserializer(config.key_deserializer)
        self._value_deserializer = deserializer(config.value_deserializer)
        # Brokers answer in order: other questions shall not wait behind a fetch that waits for records.
        self._pool = Pool(cluster.config)
        self._sessions: dict[int, FetchSession] = {}
        self._out: set[int] = set()
        self._wake = asyncio.Event()
        self.asked_for: Sequence[TopicPartition] = ()
        """Of which partitions somebody asked for records last; none stand for all."""

    # --- what the consumer calls

    def look(self) -> None:
        """See what may be fetched now."""
        self._wake.set()

    async def run(self) -> None:
        """Fetch, until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._wake.clear()
                    # Read once: what comes due between two readings would be neither fetched nor waited for.
                    now_s = loop.time()
                    for node, places in self._due(now_s).items():
                        self._out.add(node)
                        tasks.create_task(self._fetch(node, places))
                    await self._next_turn(now_s)
        finally:
            await self._pool.close()

    def take_raw(self, max_bytes: int, partitions: Sequence[TopicPartition] = ()) -> list[RawPiece]:
        """Return what is at hand as it was fetched, about `max_bytes` but at least one piece, and move on."""
        taken: list[RawPiece] = []
        size = 0
        while size < max_bytes and (place := self._positions.next_ready(partitions)) is not None:
            piece = place.pieces[0]
            since = piece.cursor.position
            place.finish_piece()
            self._positions.enqueue(place)
            end_offset = max(piece.end_offset, since)
            taken.append(
                RawPiece(
                    place.partition,
                    memoryview(piece.data),
                    since,
                    piece.aborted,
                    piece.high_watermark,
                    end_offset,
                    piece.end_epoch,
                    place.generation,
                )
            )
            size += piece.cursor.size_in_bytes
        self.look()
        return taken

    def give_back(self, raw: RawPiece, next_offset: int) -> None:
        """Have the rest of a piece at hand again, from an offset on.

        Where something made what was at hand worthless since, the rest is read again, unless the place was
        moved in front of it. With the piece's epoch a truncation within it is noticed once more.
        """
        place = self._positions.get(raw.partition)
        if place is None or next_offset >= raw.next_offset:
            return
        if place.generation != raw.generation:
            if place.position is None or next_offset < place.position:
                place.seek(next_offset, raw.end_epoch)
                self._look_up_offsets()
            return
        cursor = self._cursor(place, raw.data, next_offset, raw.aborted)
        place.pieces.appendleft(
            Piece(
                cursor,
                raw.data,
                raw.aborted,
                raw.next_offset,
                raw.end_epoch,
                raw.high_watermark,
                max(1, len(raw.data) // max(1, raw.next_offset - raw.since_offset)),
            )
        )
        self._positions.enqueue(place)

    # --- when to fetch what

    async def _next_turn(self, now_s: float) -> None:
        waits = [place.not_before_s for place in self._positions if place.not_before_s > now_s]
        if not waits:
            await self._wake.wait()
            return
        try:
            async with asyncio.timeout_at(min(waits)):
                await self._wake.wait()
        except TimeoutError:
            return

    def _due(self, now_s: float) -> dict[int, list[Place]]:
        """Return what to fetch from which broker, of those with no fetch out."""
        due: dict[int, list[Place]] = defaultdict(list)
        needs_leader = needs_offset = False
        for place in self._positions:
            if place.is_fetchable(now_s):
                node = self._node(place, now_s)
                if node == NO_LEADER:
                    needs_leader = True
                elif node not in self._out:
                    due[node].append(place)
            elif place.must_validate or place.lacks_position:
                needs_offset = True
        if needs_leader:
            self._look_up_leaders()
        if needs_offset:
            self._look_up_offsets()
        return due if self._has_room() else self._due_above_bound(due)

    def _has_room(self) -> bool:
        """Say whether less than the bound is held, if need be after copying what is left of answers."""
        pieces = [piece for place in self._positions for piece in place.pieces]
        if held_bytes(pieces) < self._config.fetch_max_bytes:
            return True
        copy_leftovers(pieces)
        return held_bytes(pieces) < self._config.fetch_max_bytes

    def _due_above_bound(self, due: Mapping[int, list[Place]]) -> dict[int, list[Place]]:
        if any(place.pieces and place.is_giving and self._is_asked_for(place) for place in self._positions):
            return {}
        wanted = {node: [each for each in places if self._is_asked_for(each)] for node, places in due.items()}
        return {node: places for node, places in wanted.items() if places}

    def _is_asked_for(self, place: Place) -> bool:
        return not self.asked_for or place.partition in self.asked_for

    def _node(self, place: Place, now_s: float) -> int:
        """Return the broker to read from: the leader, or the replica that it recommended (KIP-392)."""
        if place.preferred != NO_LEADER:
            if now_s < place.preferred_until_s and place.preferred in self._cluster.nodes:
                return place.preferred
            place.preferred = NO_LEADER
        return place.leader if place.leader in self._cluster.nodes else NO_LEADER

    # --- one fetch

    async def _fetch(self, node: int, places: list[Place]) -> None:
        session = self._sessions.setdefault(node, FetchSession())
        asked = {place.partition: (place, _Since(place.generation, place.fetch_offset)) for place in places}
        try:
            answer = await self._ask(node, session, places)
        except (ClientError, KafkaError) as error:
            session.broke()
            self._failed(error, node, places)
        else:
            session.answered(answer.session_id, answer.error_code)
            if answer.error_code != ErrorCode.NONE:
                self._refused(node, answer.error_code, places)
            await self._read(node, answer, asked)
        finally:
            self._out.discard(node)
            self._wake.set()

    async def _ask(self, node: int, session: FetchSession, places: list[Place]) -> FetchResponse:
        known = self._cluster.nodes.get(node)
        if known is None:
            raise BrokerNotAvailable(f"broker {node} left the cluster")
        connection = await self._pool.get(known.address)
        wanted = {place.partition: Wanted(place.fetch_offset, place.leader_epoch) for place in places}
        bound_s = (self._config.fetch_max_wait_ms + self._config.client.request_timeout_ms) / 1_000
        request = self._request(session.ask(wanted))
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        answer = await connection.send(request, FetchResponse, timeout_s=bound_s)
        self._metrics.answered((loop.time() - since_s) * 1_000, answer.throttle_time_ms)
        return answer

    def _request(self, asked: Asked) -> FetchRequest:
        topics: dict[str, list[FetchPartition]] = defaultdict(list)
        for partition, wanted in asked.partitions.items():
            topics[partition.topic].append(
                FetchPartition(
                    partition=partition.partition,
                    current_leader_epoch=wanted.leader_epoch,
                    fetch_offset=wanted.offset,
                    partition_max_bytes=self._config.max_partition_fetch_bytes,
                )
            )
        forgotten: dict[str, list[int]] = defaultdict(list)
        for partition in asked.forgotten:
            forgotten[partition.topic].append(partition.partition)
        return FetchRequest(
            replica_id=NO_REPLICA,
            max_wait_ms=self._config.fetch_max_wait_ms,
            min_bytes=self._config.fetch_min_bytes,
            max_bytes=self._config.fetch_max_bytes,
            isolation_level=int(self._config.reads_committed),
            session_id=asked.session_id,
            session_epoch=asked.epoch,
            topics=[FetchTopic(topic=name, partitions=parts) for name, parts in topics.items()],
            forgotten_topics_data=[
                ForgottenTopic(topic=name, partitions=parts) for name, parts in forgotten.items()
            ],
            rack_id=self._config.client_rack or "",
        )

    def _failed(self, error: ClientError | KafkaError, node: int, places: list[Place]) -> None:
        """Nothing came of a fetch: ask again after a while, perhaps others."""
        log.info("fetch failed", extra={"broker": node, "reason": str(error)})
        if not is_retriable(error) and not isinstance(error, BrokerNotAvailable):
            for place in places:
                place.failure = error
            self._news.tell()
            return
        for place in places:
            place.preferred = NO_LEADER
            self._put_off(place)
        self._look_up_leaders()

    def _refused(self, node: int, code: int, places: list[Place]) -> None:
        """A whole fetch was refused: ask anew, at once where only the session is over, else after a while."""
        log.debug("fetch refused", extra={"broker": node, "code": code})
        if code not in _SESSION_OVER:
            for place in places:
                self._put_off(place)

    def _put_off(self, place: Place) -> None:
        place.not_before_s = asyncio.get_running_loop().time() + self._cluster.config.retry_backoff_ms / 1_000

    # --- one answer

    async def _read(
        self, node: int, answer: FetchResponse, asked: Mapping[TopicPartition, tuple[Place, _Since]]
    ) -> None:
        pieces: list[tuple[Place, _Since, Piece]] = []
        for partition, data in _parts(answer):
            if partition not in asked:
                continue
            place, since = asked[partition]
            if not since.holds(place):
                continue
            if data.error_code:
                self._read_error(place, node, data.error_code)
            elif (piece := self._read_data(place, data)) is not None:
                pieces.append((place, since, piece))
        await self._decompress([piece.cursor for _, _, piece in pieces])
        for place, since, piece in pieces:
            if since.holds(place):
                place.add(piece)
                self._positions.enqueue(place)
        self._news.tell()

    async def _decompress(self, cursors: list[Cursor]) -> None:
        """Do off the loop what would hold it up."""
        slow = [(cursor, ms) for cursor in cursors if (ms := decompression_ms(cursor)) > 0]
        if sum(ms for _, ms in slow) > OFF_LOOP_ABOVE_MS:
            await asyncio.to_thread(_decompress_ahead, [cursor for cursor, _ in slow])

    def _read_data(self, place: Place, data: PartitionData) -> Piece | None:
        place.high_watermark = data.high_watermark
        place.last_stable_offset = data.last_stable_offset if data.last_stable_offset >= 0 else None
        if data.log_start_offset >= 0:
            place.log_start_offset = data.log_start_offset
        if data.preferred_read_replica != NO_LEADER and data.preferred_read_replica != place.leader:
            self._prefer(place, data.preferred_read_replica)
        records = data.records
        if not records:
            return None
        end_offset, epoch, count = end_of(records, place.fetch_offset)
        self._metrics.fetched(place.partition.topic, count, len(records))
        if end_offset == place.fetch_offset:
            return self._nothing_whole(place, records)
        cursor = self._cursor(place, records, place.fetch_offset, data.aborted_transactions)
        record_bytes = max(1, len(records) // max(count, 1))
        return Piece(
            cursor,
            records,
            data.aborted_transactions,
            end_offset,
            epoch,
            data.high_watermark,
            record_bytes,
        )

    def _cursor(
        self, place: Place, records: Buffer, offset: int, aborted: Sequence[AbortedTransaction] | None
    ) -> Cursor:
        return Cursor(
            place.partition,
            records,
            offset,
            abortions(aborted),
            check_crcs=self._config.check_crcs,
            key_deserializer=self._key_deserializer,
            value_deserializer=self._value_deserializer,
        )

    def _nothing_whole(self, place: Place, records: bytes | memoryview) -> Piece | None:
        """Raise to the application what will never get any larger (before Kafka 0.10.1)."""
        try:
            Cursor(place.partition, records, place.fetch_offset).read()
        except KafkaError as error:
            place.failure = error
            return None
        place.failure = MessageTooLarge(
            f"{place.partition} at offset {place.fetch_offset}: the record is larger than "
            f"max_partition_fetch_bytes ({self._config.max_partition_fetch_bytes})"
        )
        return None

    def _prefer(self, place: Place, replica: int) -> None:
        place.preferred = replica
        until_s = asyncio.get_running_loop().time() + self._cluster.config.metadata_max_age_ms / 1_000
        place.preferred_until_s = until_s
        if replica not in self._cluster.nodes:
            self._look_up_leaders()

    # --- errors

    def _read_error(self, place: Place, node: int, code: int) -> None:
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(place, node)
        elif code in _LOOK_AGAIN:
            place.preferred = NO_LEADER
            place.leader = NO_LEADER
            self._put_off(place)
            self._look_up_leaders()
        elif code != ErrorCode.CORRUPT_MESSAGE and is_retriable(error_for(code)):
            self._put_off(place)
        elif code == ErrorCode.UNKNOWN_SERVER_ERROR:
            log.warning("broker error", extra={"broker": node, "partition": str(place.partition)})
            self._put_off(place)
        else:
            place.failure = named_error(f"{place.partition} at offset {place.fetch_offset}", code)

    def _out_of_range(self, place: Place, node: int) -> None:
        """Begin again as the policy says; but a follower may only be behind, and its leader knows better."""
        if place.preferred == node != place.leader:
            place.preferred = NO_LEADER
            return
        offset = place.fetch_offset
        log.info("offset out of range", extra={"partition": str(place.partition), "offset": offset})
        if self._config.auto_offset_reset == "none":
            place.failure = OffsetOutOfRange({place.partition: offset})
        elif place.pieces:
            self._put_off(place)  # what is at hand comes first
        else:
            place.seek_time(None)
            place.was_looked_up = True
            self._look_up_offsets()


def _decompress_ahead(cursors: list[Cursor]) -> None:
    for cursor in cursors:
        cursor.decompress_ahead()


def _parts(answer: FetchResponse) -> Iterator[tuple[TopicPartition, PartitionData]]:
    for topic in answer.responses:
        for data in topic.partitions:
            yield TopicPartition(topic.topic, data.partition_index), data
