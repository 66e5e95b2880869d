"""Writes rows to copies together with their offset mapping: each record once, also after a kill."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext

from ottla.admin import LATEST, Admin
from ottla.client.cluster import TRANSACTION, Cluster
from ottla.client.errors import DeadlineExceeded, UnsupportedByBroker
from ottla.consumer import Consumer
from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.mirroring.cluster_pair import ClusterPair
from ottla.pipeline.jobs.mirroring.offset_mapping import READ_TIMEOUT_S, Found, MappingWriter, OffsetMapping
from ottla.pipeline.jobs.mirroring.partition_copy import (
    COLUMNS,
    ForeignRecords,
    OriginalLost,
    PartitionCopy,
    RecoveredCopy,
    by_partition,
    recover_copy,
    with_partition,
)
from ottla.pipeline.lazy import pa, pc
from ottla.producer import Producer, ProducerConfig, ProducerLost
from ottla.protocol.errors import (
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    ProducerFenced,
    TransactionalIdAuthorizationFailed,
    UnsupportedVersion,
)
from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)

_WAIT_MS = 500.0
_COORDINATOR_BOUND_S = 30.0

Part = tuple[TopicPartition, PartitionCopy, "pa.RecordBatch"]


class MirrorFenced(PipelineError):
    """Another process writes under the name of this mirror."""

    def __init__(self, name: str | None) -> None:
        super().__init__(
            f"another mirror began to write as {name!r}, so this one is fenced: two mirrors of the "
            "same name must not run at once"
        )


class NoTransactionCoordinator(PipelineError):
    """The target has transactions, but none of its brokers coordinates them."""

    def __init__(self, said: str) -> None:
        super().__init__(
            f"the target's brokers answer that no transaction coordinator is available ({said}). Set "
            "transaction.state.log.replication.factor there to at most the number of brokers, or start the "
            'brokers that are missing; or set delivery = "dedupe" here, which needs no transactions'
        )


class RecordCopier:
    """Copies rows of partitions that it opened. Made by `open_copier`."""

    def __init__(
        self, clusters: ClusterPair, producer: Producer, mapping: OffsetMapping, target: Admin
    ) -> None:
        self.copies: dict[TopicPartition, PartitionCopy] = {}
        self._clusters = clusters
        self._producer = producer
        self._mapping = mapping
        self._writer = MappingWriter(mapping, clusters.mapping_topic, producer)
        self._target = target

    # --- opening

    async def open(self, partitions: Iterable[TopicPartition]) -> None:
        """Recover the state of partitions, and compare unfinished spans with the originals.

        Raises CopyLost, OriginalLost, ForeignRecords.
        """
        new = [partition for partition in partitions if partition not in self.copies]
        ends = await self._target.offsets.find(
            {self._clusters.copy_of(partition): LATEST for partition in new}
        )
        for partition in new:
            copy = self._clusters.copy_of(partition)
            recovered = recover_copy(
                copy, self._mapping.spans[partition], self._mapping.sure(partition), ends[copy]
            )
            await self._check(partition, recovered)
            if recovered.changed or recovered.gone:
                async with self._transaction():
                    await self._writer.correct(partition, copy.topic, recovered.changed, recovered.gone)
            self.copies[partition] = PartitionCopy(copy, recovered.next_source, recovered.end)

    async def _check(self, original: TopicPartition, recovered: RecoveredCopy) -> None:
        if recovered.first_target == recovered.end:
            return
        async with Consumer(config=self._clusters.copies_config()) as copies:
            theirs = await _all(copies, recovered.copy, recovered.first_target, recovered.next_target)
            strange = await _first(copies, recovered.copy, recovered.next_target, recovered.end)
        if strange is not None:
            raise ForeignRecords(recovered.copy, strange)
        if theirs is None:
            return
        async with Consumer(config=self._clusters.source_config()) as originals:
            end = (await originals.end_offsets([original]))[original]
            if end < recovered.next_source:
                raise OriginalLost(original, end, recovered.next_source)
            ours = await _all(originals, original, recovered.first_source, recovered.next_source)
        if ours is not None:
            recovered.check(theirs, ours)

    # --- copying

    async def copy(self, rows: pa.RecordBatch) -> int:
        """Write rows that are not copied yet; return their number once all are acknowledged.

        Raises ForeignRecords, MirrorFenced, and the producer's errors.
        """
        parts = list(self._parts(rows))
        if not parts:
            return 0
        with _taken_over(self._producer):
            async with self._transaction():
                if not self._clusters.transactional:
                    await self._plan(parts)
                spans = await self._write(parts)
                if self._clusters.transactional:
                    await self._writer.add(self._names(parts), spans, {})
        return sum(some.num_rows for _, _, some in parts)

    def _parts(self, rows: pa.RecordBatch) -> Iterator[Part]:
        for partition, some in by_partition(rows).items():
            if partition.topic in self._clusters.ignored:
                continue
            left = self.copies[partition].left(some)
            if left.num_rows:
                yield partition, self.copies[partition], left

    async def _plan(self, parts: list[Part]) -> None:
        # Before the records: then the end of a copy tells how many of them are written.
        spans = [(partition, span) for partition, copy, rows in parts for span in copy.planned(rows)]
        sure = {partition: copy.next_target for partition, copy, _ in parts}
        await self._writer.add(self._names(parts), spans, sure)

    async def _write(self, parts: list[Part]) -> Found:
        sent = []
        for _, copy, rows in parts:
            records = with_partition(rows, copy.copy.partition)
            sent.append(await self._producer.send_arrow(copy.copy.topic, records))
        spans: Found = []
        for (partition, copy, rows), written in zip(parts, sent, strict=True):
            await written
            first, last = written[0].offset, written[len(written) - 1].offset
            found = copy.written(rows, first, last, as_planned=not self._clusters.transactional)
            spans += [(partition, span) for span in found]
        return spans

    def _names(self, parts: list[Part]) -> dict[str, str]:
        return {partition.topic: copy.copy.topic for partition, copy, _ in parts}

    def _transaction(self) -> AbstractAsyncContextManager[object]:
        return self._producer.transaction() if self._clusters.transactional else nullcontext()


@asynccontextmanager
async def open_copier(
    clusters: ClusterPair, mapping: OffsetMapping, target: Admin, part: str | None = None
) -> AsyncIterator[RecordCopier]:
    """Open a copier; with transactions, fence all earlier ones of this mirror, or of the same part of it."""
    async with Producer(config=clusters.producer_config(part)) as producer:
        yield RecordCopier(clusters, producer, mapping, target)


@contextmanager
def _taken_over(producer: Producer) -> Iterator[None]:
    try:
        yield
    except (ProducerFenced, InvalidProducerEpoch, ProducerLost) as error:
        raise MirrorFenced(producer.config.transactional_id) from error


async def require_coordinator(config: ProducerConfig) -> None:
    """Return once a broker coordinates transactions, or where `fence` gives the reason why none can.

    The first request has brokers create `__transaction_state`. Raises NoTransactionCoordinator where they
    have not done so within 30 s, or less if the client's calls may take less.
    """
    client, transactional_id = config.client, config.transactional_id
    assert transactional_id is not None
    bound_s = min(_COORDINATOR_BOUND_S, client.default_api_timeout_ms / 1_000)
    try:
        async with Cluster(client.bootstrap_servers, client) as cluster:
            await cluster.retry(
                "finding the transaction coordinator",
                lambda: cluster.coordinator(transactional_id, TRANSACTION),
                timeout_s=bound_s,
            )
    except DeadlineExceeded as error:
        if isinstance(error.__cause__, CoordinatorNotAvailable):
            raise NoTransactionCoordinator(str(error.__cause__)) from error
        raise
    except (UnsupportedByBroker, UnsupportedVersion, TransactionalIdAuthorizationFailed):
        return


async def fence(config: ProducerConfig) -> bool:
    """End open transactions of earlier producers of this name; return whether transactions are available."""
    try:
        async with Producer(config=config):
            return True
    except (UnsupportedByBroker, UnsupportedVersion, TransactionalIdAuthorizationFailed) as error:
        log.info("transactions are not available", extra={"reason": str(error)})
        return False


# --- reading copies and originals


async def _all(consumer: Consumer, partition: TopicPartition, begin: int, end: int) -> pa.RecordBatch | None:
    """Return the existing records between two offsets; None if there are none."""
    found: list[pa.RecordBatch] = []
    async with asyncio.timeout(READ_TIMEOUT_S):
        await _go_to(consumer, partition, begin)
        while await consumer.position(partition) < end:
            found.append(await _some(consumer, partition, end))
    found = [rows for rows in found if rows.num_rows]
    return pa.concat_batches(found) if found else None


async def _first(consumer: Consumer, partition: TopicPartition, begin: int, end: int) -> int | None:
    """Return the offset of the first record between two offsets."""
    async with asyncio.timeout(READ_TIMEOUT_S):
        await _go_to(consumer, partition, begin)
        while await consumer.position(partition) < end:
            rows = await _some(consumer, partition, end)
            if rows.num_rows:
                return int(rows.column("offset")[0].as_py())
    return None


async def _go_to(consumer: Consumer, partition: TopicPartition, offset: int) -> None:
    consumer.assign([partition])
    first = (await consumer.beginning_offsets([partition]))[partition]
    consumer.seek(partition, max(offset, first))


async def _some(consumer: Consumer, partition: TopicPartition, end: int) -> pa.RecordBatch:
    rows = await consumer.fetch_arrow(
        timeout_ms=_WAIT_MS, columns=("offset", *COLUMNS), until={partition: end}
    )
    return rows.filter(pc.less(rows.column("offset"), end))
