"""The SDK engine of mirrors: one process, with clients only."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from ottla.consumer import Consumer, OffsetOutOfRange, UnreadableBatch
from ottla.pipeline.errors import DataLoss, report_loss
from ottla.pipeline.jobs.mirroring.mirror_session import MirrorSession, open_session
from ottla.pipeline.jobs.mirroring.partition_copy import COLUMNS, OriginalLost
from ottla.pipeline.jobs.mirroring.record_copier import RecordCopier, open_copier
from ottla.pipeline.jobs.progress_report import Interval
from ottla.pipeline.lazy import pa
from ottla.pipeline.source.range_reader import unreadable
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.pipeline.jobs.mirroring.mirror_declaration import MirrorDeclaration
    from ottla.pipeline.jobs.run import Run

log = logging.getLogger(__name__)

_WAIT_MS = 500.0
_ROUND_BYTES = 4 * 1024 * 1024
"""The approximate bytes that are read and then written in one round."""
_READ = ("topic", "partition", "offset", *COLUMNS)

EndOffsets = dict[TopicPartition, int]


def mirror_on_sdk(mirror: MirrorDeclaration, run: Run) -> None:
    """Copy until `run.stopping`, or until all records of the start are copied."""
    asyncio.run(_mirror(mirror, run))


async def _mirror(mirror: MirrorDeclaration, run: Run) -> None:
    async with AsyncExitStack() as stack:
        opened = await stack.enter_async_context(open_session(mirror))
        consumer = await stack.enter_async_context(Consumer(config=opened.clusters.source_config()))
        writing = open_copier(opened.clusters, opened.mapping, opened.target)
        await SdkMirror(mirror, run, opened, consumer, await stack.enter_async_context(writing)).copy_all()


class SdkMirror:
    """Copies in rounds: fetched records are written together with their offset mapping."""

    def __init__(
        self,
        mirror: MirrorDeclaration,
        run: Run,
        opened: MirrorSession,
        consumer: Consumer,
        writing: RecordCopier,
    ) -> None:
        self._mirror = mirror
        self._run = run
        self._session = opened
        self._consumer = consumer
        self._copier = writing
        self._batches = run.state("mirror.batches")
        self._refreshes = Interval(mirror.refresh)

    async def copy_all(self) -> None:
        """Copy until the run ends."""
        self._run.begin()
        await self._refresh()
        ends = await self._consumer.end_offsets(list(self._copier.copies))
        self._refuse_lost(ends)
        await self._go_on(ends if self._run.once else None)
        await self._session.move_groups(now=True)

    async def _go_on(self, ends: EndOffsets | None) -> None:
        while not self._run.stopping.is_set():
            rows = await self._fetch(ends)
            if rows is not None and rows.num_rows:
                await self._copy(rows)
            elif ends is not None and await self._is_read(ends):
                break
            await self._session.move_groups()
            if ends is None and self._refreshes.is_due(time.monotonic() * 1_000):
                await self._refresh()

    async def _refresh(self) -> None:
        """Find new topics and partitions and begin to copy them; drop those that were deleted."""
        found = set(await self._session.partitions())
        self._refreshes.restart(time.monotonic() * 1_000)
        copies = self._copier.copies
        if found == copies.keys():
            return
        for partition in copies.keys() - found:
            log.warning("partition no longer exists in the source", extra={"partition": str(partition)})
            del copies[partition]
        await self._copier.open(sorted(found))
        self._consumer.assign(copies)
        for partition, copy in copies.items():
            self._consumer.seek(partition, copy.next_source)

    async def _fetch(self, ends: EndOffsets | None) -> pa.RecordBatch | None:
        """Return the next records, at most up to `ends`; None if there are none for a while."""
        if not self._copier.copies:
            await asyncio.sleep(_WAIT_MS / 1_000)
            return None
        most = self._mirror.source.max_records_per_batch
        while True:
            try:
                return await self._consumer.fetch_arrow(
                    timeout_ms=_WAIT_MS, max_records=most, max_bytes=_ROUND_BYTES, columns=_READ, until=ends
                )
            except OffsetOutOfRange as error:
                await self._leave_out(error)
            except UnreadableBatch as error:
                report_loss(unreadable(error), fails=self._mirror.fails_on_data_loss)
                self._copier.copies[error.partition].next_source = error.next_offset
                self._consumer.seek(error.partition, error.next_offset)

    async def _leave_out(self, error: OffsetOutOfRange) -> None:
        """Skip lost offsets if that is allowed. Raises DataLoss, OriginalLost."""
        copies = self._copier.copies
        self._refuse_lost(await self._consumer.end_offsets(list(copies)))
        beginnings = await self._consumer.beginning_offsets(list(copies))
        for partition, first in beginnings.items():
            copy = copies[partition]
            if copy.next_source < first:
                gone = f"offsets of {partition} from {copy.next_source} up to {first} are lost"
                report_loss(DataLoss(gone), fails=self._mirror.fails_on_data_loss)
                copy.next_source = first
                self._consumer.seek(partition, first)
                return
        raise error

    def _refuse_lost(self, ends: EndOffsets) -> None:
        for partition, end in ends.items():
            copied = self._copier.copies[partition].next_source
            if copied > end:
                raise OriginalLost(partition, end, copied)

    async def _copy(self, rows: pa.RecordBatch) -> None:
        begun = time.monotonic()
        copied = await self._copier.copy(rows)
        await self._session.thin_out()
        batch = int(self._batches.read().get("next", 0))
        self._batches.write({"next": batch + 1}, durable=False)
        spent_ms = (time.monotonic() - begun) * 1_000
        self._run.report(batch, rows=copied, batch_ms=spent_ms, lag=self._lag())

    def _lag(self) -> int:
        lags = [self._consumer.lag(partition) for partition in self._copier.copies]
        return sum(lag for lag in lags if lag is not None)

    async def _is_read(self, ends: EndOffsets) -> bool:
        return all([await self._consumer.position(partition) >= end for partition, end in ends.items()])
