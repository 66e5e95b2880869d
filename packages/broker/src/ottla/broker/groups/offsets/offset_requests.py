"""OffsetCommit, OffsetFetch and OffsetDelete over the groups hosted here; and the expiration of offsets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from ottla.broker.coordinators.response_errors import after_failed_commit, after_failed_confirmation
from ottla.broker.groups.offsets.committed_offsets import CommittedOffset, GroupOffsets
from ottla.broker.groups.records import OffsetRecord
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.config import BrokerConfig
    from ottla.broker.coordinators.internal_topic_log import TransactionalProducer
    from ottla.broker.groups.hosting.hosted_groups import GroupPartition, HostedGroups
    from ottla.broker.groups.offsets.partition_state import HostedGroup

log = logging.getLogger(__name__)

_EPOCHS_FROM: Final = 9
"""The first version of OffsetCommit whose members may have an epoch (KIP-848)."""
_STALE_FROM: Final = 6
"""The first version of TxnOffsetCommit that knows STALE_MEMBER_EPOCH."""
_NO_OFFSET: Final = OffsetRecord("", TopicPartition("", 0), None)
"""The tombstone of an offset that cannot be committed: compaction keeps one in a partition at most."""


class OffsetRequests:
    """Commits, fetches, deletes and expires the offsets of hosted groups, in Kafka's error codes."""

    def __init__(self, hosted: HostedGroups, config: BrokerConfig) -> None:
        self._hosted = hosted
        self._max_metadata_bytes = config.offset_metadata_max_bytes
        self._retention_ms = config.offsets_retention_minutes * 60_000

    # ---- committing

    async def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
        producer: TransactionalProducer | None = None,
        version: int = 0,
    ) -> dict[TopicPartition, ErrorCode]:
        """Commit offsets; return once all in-sync replicas have them, or the error of each partition.

        Those of a `producer` are in its transaction: they become visible when that commits. `version` is that
        of the request, whose members may have an epoch in place of the generation.
        """
        groups = self._hosted
        partition = groups.partition_for(group_id, empty_id_allowed=producer is None)
        if isinstance(partition, ErrorCode):
            return dict.fromkeys(offsets, partition)
        if generation >= 0 and producer is None and group_id not in partition.state.groups:
            # The group of that generation is deleted.
            knows_not_found = version >= _EPOCHS_FROM
            error = ErrorCode.GROUP_ID_NOT_FOUND if knows_not_found else ErrorCode.ILLEGAL_GENERATION
            return dict.fromkeys(offsets, error)
        hosted = groups.find_or_create(partition, group_id)
        if hosted is None:
            return dict.fromkeys(offsets, ErrorCode.GROUP_MAX_SIZE_REACHED)
        error = hosted.group.check_commit(
            member_id,
            generation,
            instance_id,
            groups.clock.monotonic_ms(),
            transactional=producer is not None,
            version=version,
            partitions=offsets,
        )
        groups.timers.set(hosted, hosted.group.wake_at_ms)
        if error is ErrorCode.STALE_MEMBER_EPOCH and producer is not None and version < _STALE_FROM:
            error = ErrorCode.ILLEGAL_GENERATION
        if error is ErrorCode.NONE:
            results = await self._commit(partition, hosted, offsets, producer)
        else:
            try:
                await groups.until_committed(hosted)
            except KafkaError as failure:
                error = failure.code
            results = dict.fromkeys(offsets, error)
        groups.drop_if_unused(hosted)
        return results

    def partition_of(self, group_id: str) -> int | ErrorCode:
        """Return the number of the partition that keeps the offsets of a group's transactional commits."""
        partition = self._hosted.partition_for(group_id)
        return partition if isinstance(partition, ErrorCode) else partition.number

    def error_of_unknown_topics(self, group_id: str) -> ErrorCode:
        """Return the error of a commit for a topic that the metadata do not have.

        A broker that starts again may have no metadata yet, but it coordinates nothing before it has them.
        The member then asks again, here or elsewhere: some take UNKNOWN_TOPIC_OR_PARTITION for final.
        """
        partition = self._hosted.partition_for(group_id, empty_id_allowed=True)
        if partition in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR):
            return partition
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def _commit(
        self,
        partition: GroupPartition,
        hosted: HostedGroup,
        offsets: Mapping[TopicPartition, CommittedOffset],
        producer: TransactionalProducer | None,
    ) -> dict[TopicPartition, ErrorCode]:
        longest = self._max_metadata_bytes
        accepted = {tp: committed for tp, committed in offsets.items() if len(committed.metadata) <= longest}
        error = await self._write(partition, hosted, accepted, producer) if accepted else ErrorCode.NONE
        return {tp: error if tp in accepted else ErrorCode.OFFSET_METADATA_TOO_LARGE for tp in offsets}

    async def _write(
        self,
        partition: GroupPartition,
        hosted: HostedGroup,
        offsets: Mapping[TopicPartition, CommittedOffset],
        producer: TransactionalProducer | None,
    ) -> ErrorCode:
        group_id = hosted.group.group_id
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def settled(error: KafkaError | None) -> None:
            if producer is None:
                hosted.offsets.settled(offsets)
            if not answer.done():
                answer.set_result(ErrorCode.NONE if error is None else after_failed_commit(error.code))

        if producer is None:  # one of a transaction is pending from its append on, by its replay
            hosted.offsets.begin(offsets)
        records = [OffsetRecord(group_id, partition, committed) for partition, committed in offsets.items()]
        if self._hosted.writer.write(partition, records, settled, producer=producer):
            self._hosted.meters.commits.mark(len(offsets))
        return await answer

    # ---- fetching

    async def confirm_coordinators(self, group_ids: Iterable[str]) -> dict[str, ErrorCode]:
        """Return NONE for a group once no other broker can have committed offsets of it before the call.

        `fetch` answers at once from what this broker knows. Where another has taken over unnoticed, these
        are old offsets, and a transaction that begins from them repeats what others have committed. So a
        fetch of stable offsets comes after this. All partitions are confirmed at once: many groups wait no
        longer than one.
        """
        found = {
            group_id: self._hosted.partition_for(group_id, empty_id_allowed=True) for group_id in group_ids
        }
        partitions = {partition for partition in found.values() if not isinstance(partition, ErrorCode)}
        ordered = sorted(partitions, key=lambda partition: partition.number)
        codes = await asyncio.gather(*map(self._confirm, ordered))
        confirmed = dict(zip(ordered, codes, strict=True))
        return {
            group_id: partition if isinstance(partition, ErrorCode) else confirmed[partition]
            for group_id, partition in found.items()
        }

    async def _confirm(self, partition: GroupPartition) -> ErrorCode:
        error = await self._hosted.writer.confirm_leadership(partition, _NO_OFFSET)
        return ErrorCode.NONE if error is None else after_failed_confirmation(error.code)

    def fetch(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> tuple[ErrorCode, dict[TopicPartition, CommittedOffset | ErrorCode | None]]:
        """Return committed offsets, of all partitions when none are named; None where there is none.

        A partition gets UNSTABLE_OFFSET_COMMIT when an open transaction may still change its offset and the
        caller requires stable ones. A member that names its epoch gets none in another epoch.
        """
        partition = self._hosted.partition_for(group_id, empty_id_allowed=True)
        if isinstance(partition, ErrorCode):
            return partition, {}
        hosted = partition.state.groups.get(group_id)
        if hosted is None:
            return ErrorCode.NONE, dict.fromkeys(partitions or ())
        error = hosted.group.check_fetch(member_id, member_epoch)
        if error is ErrorCode.GROUP_ID_NOT_FOUND:  # a group of a kind without committed offsets
            return ErrorCode.NONE, dict.fromkeys(partitions or ())
        if error is not ErrorCode.NONE:
            return error, {}
        offsets = hosted.offsets
        fetched: dict[TopicPartition, CommittedOffset | ErrorCode | None] = {}
        if partitions is None:
            partitions = [name for name in offsets if self._committed(offsets, name) is not None]
        for name in partitions:
            unstable = require_stable and offsets.is_unstable(name)
            fetched[name] = ErrorCode.UNSTABLE_OFFSET_COMMIT if unstable else self._committed(offsets, name)
        return ErrorCode.NONE, fetched

    def _committed(self, offsets: GroupOffsets, partition: TopicPartition) -> CommittedOffset | None:
        committed = offsets.get(partition)
        if committed is None or self._hosted.stale.is_stale(partition, committed):
            return None
        return committed

    # ---- deleting

    async def delete(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        """Delete offsets of topics that no member is subscribed to."""
        partition = self._hosted.partition_for(group_id)
        if isinstance(partition, ErrorCode):
            return partition, {}
        hosted = partition.state.groups.get(group_id)
        if hosted is None:
            return ErrorCode.GROUP_ID_NOT_FOUND, {}
        group = hosted.group
        error = group.check_offset_delete()
        if error is not ErrorCode.NONE:
            return error, {}
        has_members = not group.is_empty
        subscribed = {
            partition for partition in partitions if has_members and group.is_subscribed_to(partition.topic)
        }
        deleted = [partition for partition in partitions if partition not in subscribed]
        self._hosted.forget_offsets(hosted, deleted, self._hosted.meters.deletions)
        return ErrorCode.NONE, {
            partition: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if partition in subscribed else ErrorCode.NONE
            for partition in partitions
        }

    # ---- expiring

    async def expire(self) -> int:
        """Delete offsets past their retention, and empty groups without offsets; return how many offsets.

        Offsets of deleted topics go, too.
        """
        await self._hosted.stale.drop_undecided()
        expired = 0
        turn = self._hosted.budget.turn()
        for hosted in list(self._hosted):
            expired += self._expire_group(hosted)
            await turn.yield_if_spent()
        if expired:
            log.info("offsets expired", extra={"offsets": expired})
        return expired

    def _expire_group(self, hosted: HostedGroup) -> int:
        group = hosted.group
        rule = group.expiry_rule()
        wall_ms = self._hosted.clock.now_ms()
        expired = hosted.offsets.expired(rule, wall_ms, self._retention_ms) if rule else []
        if expired:
            self._hosted.forget_offsets(hosted, expired, self._hosted.meters.expirations)
        if group.may_expire and hosted.offsets.is_idle:
            self._hosted.remove(hosted)
        return len(expired)
