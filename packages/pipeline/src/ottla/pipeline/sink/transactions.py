"""What a task does for exactly-once: one transaction for its rows and the marker that says they are written.

The steps, and why in this order:

1. Obtain the epoch of the transactional id of this place. Whoever began before, an attempt that is thought
   dead say, can commit nothing from here on; what it had committed is complete.
2. Look the marker up. Only now, because only now it cannot come any more behind one's back. Where it stands,
   the rows are written: those that came again are counted, and left alone.
3. Write rows, the marker last, and commit.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import chain
from typing import TYPE_CHECKING

from ottla.client.blocking import LoopThread
from ottla.client.cluster import Cluster
from ottla.client.errors import UnsupportedByBroker
from ottla.pipeline.errors import OptionError
from ottla.pipeline.sink.columns import Columns
from ottla.pipeline.sink.config import SinkConfig
from ottla.pipeline.sink.errors import NoTransactions, ReplayChanged, TakenOver
from ottla.pipeline.sink.identity import Place
from ottla.pipeline.sink.kept import Kept
from ottla.pipeline.sink.marker_topic import PARTITION, MarkerTopic
from ottla.pipeline.sink.markers import Marker, is_written
from ottla.pipeline.sink.outbox import Outbox
from ottla.pipeline.sink.writing import put_all
from ottla.producer import Producer, ProducerLost
from ottla.producer.config import ProducerConfig
from ottla.protocol.errors import (
    InvalidProducerEpoch,
    InvalidTransactionTimeout,
    ProducerFenced,
    TransactionalIdAuthorizationFailed,
    UnsupportedVersion,
)

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 10.0
"""How long the end of a transaction that failed may take, its abort included."""


def write_once(batches: Iterator[pa.RecordBatch], columns: Columns, config: SinkConfig, place: Place) -> int:
    """Write the rows of a task in a transaction, unless they are written already; return how many.

    Raises NoTransactions, TakenOver, ReplayChanged, SetBack, MarkersUnreadable, and what else kept rows from
    being written: none of them is seen then by readers of committed records.
    """
    rows = _from_first(batches)
    if rows is None:
        return 0  # as nothing would be when it came again
    with _desk(config) as desk, desk.producer(place) as producer:
        known = desk.latest(place)
        if known is not None and is_written(known, place):
            return _count_again(rows, known, place, config)
        return _write(desk, producer, rows, columns, place)


def _write(
    desk: Desk, producer: Producer, rows: Iterator[pa.RecordBatch], columns: Columns, place: Place
) -> int:
    thread = desk.thread
    thread.call(producer.begin_transaction)
    outbox = Outbox(thread, producer)
    count = put_all(outbox, rows, columns)
    outbox.finish()
    marker = Marker(place.batch, count).encoded(place)
    thread.call(lambda: producer.send(desk.config.markers_topic, marker, place.key, PARTITION))
    thread.call(producer.commit_transaction)
    return count


def forget_places(places: Iterable[Place], config: SinkConfig) -> None:
    """Delete the markers of a write that is over, and that nobody will do again."""
    keys = [place.key for place in places]
    if keys:
        with _desk(config) as desk:
            desk.thread.call(lambda: desk.delete(keys))


def _from_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch] | None:
    """Return rows from the first batch on that has any; None where there are none."""
    for batch in batches:
        if batch.num_rows:
            return chain([batch], batches)
    return None


def _count_again(rows: Iterator[pa.RecordBatch], known: Marker, place: Place, config: SinkConfig) -> int:
    """Return how many rows are written. Raises ReplayChanged where others came this time."""
    if config.fail_on_changed_replay:
        count = sum(each.num_rows for each in rows)
        if count != known.rows:
            raise ReplayChanged(str(place), known.rows, count)
    return known.rows


class Desk:
    """What the exactly-once tasks of a worker process share: a thread, and what is known of markers."""

    def __init__(self, config: SinkConfig) -> None:
        self.config = config
        self._client = config.producer_config().client
        self.thread: LoopThread[MarkerTopic] = LoopThread(self._opened, name="an exactly-once sink of Spark")

    def close(self, timeout_s: float | None = None) -> None:
        """End the thread."""
        self.thread.close(timeout_s)

    def latest(self, place: Place) -> Marker | None:
        """Return the marker of what a place, or one of an earlier batch, wrote last."""
        topic = self.thread.start()
        return self.thread.call(lambda: topic.latest(place.key))

    @contextmanager
    def producer(self, place: Place) -> Iterator[Producer]:
        """Open a producer that fences off all earlier ones of a place; what is not committed is aborted.

        Raises NoTransactions, OptionError for a timeout that brokers refuse; TakenOver from the block.
        """
        transactional_id = place.transactional_id(self.config.transactional_id_prefix)
        settings = self.config.producer_config(transactional_id)
        self.thread.start()
        producer = self.thread.call(lambda: _begun(settings))
        try:
            yield producer
        except (ProducerFenced, InvalidProducerEpoch, ProducerLost) as error:
            raise TakenOver(transactional_id, settings.transaction_timeout_ms) from error
        finally:
            self._stop(producer)

    def _stop(self, producer: Producer) -> None:
        # What was committed is committed; and the next epoch of this place aborts what this does not.
        try:
            self.thread.call(producer.stop, STOP_TIMEOUT_S)
        except Exception as error:
            log.warning("closing the producer of %r failed: %s", producer.config.transactional_id, error)

    async def delete(self, keys: Iterable[bytes]) -> None:
        """Delete markers: a record without a value does, where a topic is compacted."""
        async with Producer(config=self.config.producer_config()) as producer:
            topic = self.config.markers_topic
            for sent in [await producer.send(topic, None, key, PARTITION) for key in keys]:
                await sent

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[MarkerTopic]:
        async with Cluster(self._client.bootstrap_servers, self._client) as cluster:
            yield MarkerTopic(cluster, self.config.markers_topic)


async def _begun(config: ProducerConfig) -> Producer:
    producer = Producer(config=config)
    try:
        await producer.start()
    except (TransactionalIdAuthorizationFailed, UnsupportedByBroker, UnsupportedVersion) as error:
        raise NoTransactions(error) from error
    except InvalidTransactionTimeout as error:
        raise OptionError(
            f"option 'kafka.transaction.timeout.ms' is {config.transaction_timeout_ms} ms, more than the "
            "brokers allow with transaction.max.timeout.ms"
        ) from error
    return producer


_desks: Kept[Desk] = Kept("what exactly-once tasks share", 4)


@contextmanager
def _desk(config: SinkConfig) -> Iterator[Desk]:
    """Return the desk of this process for a configuration; after an error the next one begins anew."""
    key = (*sorted(config.producer.items()), config.markers_topic, config.transactional_id_prefix)
    try:
        yield _desks.get(key, lambda: Desk(config))
    except BaseException:
        _desks.forget(key)
        raise
