"""Shared resources of a process's exactly-once tasks: a thread, connections, and the markers read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from ottla.client.blocking import LoopThread
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, UnsupportedByBroker
from ottla.pipeline.errors import OptionError
from ottla.pipeline.sink.config import WAITING_TIMEOUT_MS, SinkConfig
from ottla.pipeline.sink.errors import NoTransactions, TransactionFenced, WaitedTooLong
from ottla.pipeline.sink.markers import PARTITION, Markers, MarkerTopic
from ottla.pipeline.sink.tasks import PendingTransaction, TaskIdentity
from ottla.pipeline.spark_workers import ProcessCache
from ottla.producer import Producer, ProducerLost, TransactionFailed, end_prepared
from ottla.producer.config import ProducerConfig
from ottla.producer.transactions.prepared_transaction import SECOND_VERSION
from ottla.protocol.errors import (
    InvalidProducerEpoch,
    InvalidTransactionTimeout,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    TransactionalIdAuthorizationFailed,
    UnsupportedVersion,
)
from ottla.protocol.messages.transactions import EndTxnRequest

log = logging.getLogger(__name__)

T = TypeVar("T")

STOP_TIMEOUT_S = 10.0
"""The time limit for closing a producer after a failure, its abort included."""


@dataclass(frozen=True, slots=True)
class _Open:
    cluster: Cluster
    markers: MarkerTopic


class SinkClient:
    """A thread with a cluster and its markers, for one configuration."""

    def __init__(self, config: SinkConfig) -> None:
        self.config = config
        self._client = config.producer_config().client
        self.thread: LoopThread[_Open] = LoopThread(self._opened, name="an exactly-once sink of Spark")

    def close(self, timeout_s: float | None = None) -> None:
        """Stop the thread."""
        self.thread.close(timeout_s)

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the thread and wait for its result."""
        self.thread.start()
        return self.thread.call(make)

    def markers(self, query: str) -> Markers:
        """Return the last markers of a query. Raises MarkersUnreadable."""
        markers = self.thread.start().markers
        return self.thread.call(lambda: markers.of(query))

    def end(self, pending: Sequence[PendingTransaction], *, committed: bool) -> list[Exception]:
        """End transactions that tasks have written; an error of one does not stop the others.

        Returns the errors: WaitedTooLong, and others that `end_prepared` raises.
        """
        cluster = self.thread.start().cluster

        async def ended() -> list[Exception | None]:
            # All at once, so that an unresponsive coordinator costs one timeout and not one for each
            # transaction.
            return await asyncio.gather(*(_ended(cluster, transaction, committed) for transaction in pending))

        return [error for error in self.thread.call(ended) if error is not None]

    @contextmanager
    def producer(self, task: TaskIdentity, *, waits: bool = False) -> Iterator[Producer]:
        """Open a producer that fences all earlier producers of a task; their open transactions are aborted.

        With `waits` its transactions get the brokers' default maximum as timeout.

        Raises NoTransactions, OptionError for a timeout that brokers refuse, TransactionFenced.
        """
        transactional_id = task.transactional_id(self.config.transactional_id_prefix)
        producer = self.call(lambda: self._begun(transactional_id, waits))
        try:
            yield producer
        except (ProducerFenced, InvalidProducerEpoch, ProducerLost) as error:
            raise TransactionFenced(transactional_id, producer.config.transaction_timeout_ms) from error
        except TransactionFailed as error:
            # A batch in flight may hear of the fence before the call that is refused because of it.
            if isinstance(error.__cause__, ProducerFenced | InvalidProducerEpoch):
                raise TransactionFenced(transactional_id, producer.config.transaction_timeout_ms) from error
            raise
        finally:
            self._stop(producer)

    async def _begun(self, transactional_id: str, waits: bool) -> Producer:
        settings = self.config.producer_config(transactional_id)
        patient = self.config.producer_config(transactional_id, timeout_ms=WAITING_TIMEOUT_MS)
        if waits and patient != settings:
            try:
                return await _begun(patient)
            except OptionError:  # these brokers have a lower maximum
                log.info("brokers refuse a transaction timeout", extra={"timeout_ms": WAITING_TIMEOUT_MS})
        return await _begun(settings)

    def _stop(self, producer: Producer) -> None:
        # Committed transactions stay; the next epoch of this task aborts a transaction that this call leaves
        # open.
        try:
            self.thread.call(producer.stop, STOP_TIMEOUT_S)
        except Exception as error:
            log.warning(
                "closing a producer failed",
                extra={"transactional_id": producer.config.transactional_id, "reason": str(error)},
            )

    def delete(self, tasks: Iterable[TaskIdentity]) -> None:
        """Delete the markers of tasks."""
        self.call(lambda: self._delete([task.key for task in tasks]))

    async def _delete(self, keys: Iterable[bytes]) -> None:
        # A record without a value is a tombstone in a compacted topic.
        async with Producer(config=self.config.producer_config()) as producer:
            topic = self.config.markers_topic
            for sent in [await producer.send(topic, None, key, PARTITION) for key in keys]:
                await sent

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[_Open]:
        async with Cluster(self._client.bootstrap_servers, self._client) as cluster:
            yield _Open(cluster, MarkerTopic(cluster, self.config.markers_topic))


async def _ended(cluster: Cluster, pending: PendingTransaction, committed: bool) -> Exception | None:
    transaction = pending.transaction
    try:
        await end_prepared(cluster, transaction, committed=committed)
    except (ProducerFenced, InvalidTxnState) as error:
        # A commit of version 2 does not tell the coordinator's abort from that of another attempt.
        if isinstance(error, InvalidTxnState) and not (committed and transaction.version == SECOND_VERSION):
            return error
        late = WaitedTooLong(transaction.transactional_id, pending.timeout_ms)
        late.__cause__ = error
        return late
    except (ClientError, KafkaError) as error:
        return error
    return None


async def _begun(config: ProducerConfig) -> Producer:
    producer = Producer(config=config)
    try:
        await producer.start()
    except (UnsupportedByBroker, UnsupportedVersion):
        raise NoTransactions from None
    except TransactionalIdAuthorizationFailed as error:
        if await _have_transactions(config):
            raise NoTransactions(error) from error
        # Brokers that do not know EndTxn may answer so, too: all clients understand it as final.
        raise NoTransactions from None
    except InvalidTransactionTimeout as error:
        raise OptionError(
            f"option 'kafka.transaction.timeout.ms' is {config.transaction_timeout_ms} ms, more than the "
            "brokers allow with transaction.max.timeout.ms"
        ) from error
    return producer


async def _have_transactions(config: ProducerConfig) -> bool:
    """Whether a broker can end transactions, apart from the rights of users."""
    async with Cluster(config.client.bootstrap_servers, config.client) as cluster:
        connection = await cluster.connection(min(cluster.nodes))
        return EndTxnRequest.API_KEY in connection.versions


_sink_clients: ProcessCache[SinkClient] = ProcessCache("what exactly-once tasks share", 4)


@contextmanager
def sink_client_for(config: SinkConfig) -> Iterator[SinkClient]:
    """Return this process's sink client for a configuration; after an error the next one is new."""
    key = (
        *sorted(config.producer.items()),
        config.markers_topic,
        config.transactional_id_prefix,
        config.fail_on_changed_replay,
    )
    try:
        yield _sink_clients.get(key, lambda: SinkClient(config))
    except BaseException:
        _sink_clients.forget(key)
        raise
