"""Partitions of groups whose states have records that may never be committed, and the answers that wait.

A new leader may have loaded records of an earlier one that no later leader finds; one that was replaced
unnoticed has its own. A member that is told of a partition by such a record would read what is another
member's by the log. Apache Kafka answers after a load at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.coordinators.response_errors import after_failed_group_records
from ottla.protocol.errors import KafkaError, NotCoordinator, error_for

if TYPE_CHECKING:
    from ottla.broker.coordinators.coordinator_partitions import CoordinatorPartition
    from ottla.broker.coordinators.record_writer import RecordWriter
    from ottla.broker.groups.kinds import AnyReply
    from ottla.broker.groups.offsets.partition_state import GroupsState
    from ottla.broker.runtime.background_tasks import BackgroundTasks

RETRY_MS: Final = 500


class UncommittedRecords:
    """Keeps the replies of the groups of a partition until what these have replayed is committed."""

    def __init__(
        self,
        writer: RecordWriter[GroupsState, Any],
        tasks: BackgroundTasks,
        *,
        reply: Callable[[Iterable[AnyReply]], None],
        refuse: Callable[[Iterable[AnyReply], KafkaError], None],
    ) -> None:
        self._writer = writer
        self._tasks = tasks
        self._reply = reply
        self._refuse = refuse
        self._waiting: dict[CoordinatorPartition[GroupsState], list[AnyReply]] = {}
        self._again: set[CoordinatorPartition[GroupsState]] = set()
        """The partitions that have got more records while their replies waited for the last ones."""

    def begin(self, partition: CoordinatorPartition[GroupsState]) -> None:
        """Keep replies until all that the log of a partition has now is committed."""
        if partition in self._waiting:
            self._again.add(partition)
            return
        self._waiting[partition] = []
        self._tasks.spawn(self._confirm(partition), "groups-confirm-records")

    def behind(self, partition: CoordinatorPartition[GroupsState] | None) -> list[AnyReply] | None:
        """Return the replies that wait, for others to be added; None where nothing has to wait."""
        return None if partition is None else self._waiting.get(partition)

    def end(self, partition: CoordinatorPartition[GroupsState]) -> None:
        """Refuse the replies that wait: another broker leads the partition."""
        self._again.discard(partition)
        self._refuse(self._waiting.pop(partition, ()), NotCoordinator())

    async def _confirm(self, partition: CoordinatorPartition[GroupsState]) -> None:
        while partition in self._waiting:
            self._again.discard(partition)
            error = await self._writer.until_committed(partition)
            if partition not in self._waiting:
                return
            if error is None and partition in self._again:
                continue
            waiting = self._waiting.pop(partition)
            if error is None:
                self._reply(waiting)
                return
            self._waiting[partition] = []
            self._refuse(waiting, error_for(after_failed_group_records(error.code), str(error)))
            await asyncio.sleep(RETRY_MS / 1000)
