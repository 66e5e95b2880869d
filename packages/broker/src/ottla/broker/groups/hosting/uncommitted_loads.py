"""Partitions of groups that were loaded with records which are not committed yet, and the answers that wait.

A new leader may have records of an earlier one that no later leader finds. A member that it tells of a
partition by such a record would read what is another member's by the log. Apache Kafka answers at once.
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


class UncommittedLoads:
    """Keeps the replies of loaded groups until what they were loaded from is committed."""

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

    def begin(self, partition: CoordinatorPartition[GroupsState]) -> None:
        """Keep replies until all that the log of a partition has now is committed."""
        self._waiting[partition] = []
        self._tasks.spawn(self._confirm(partition), "groups-confirm-load")

    def behind(self, partition: CoordinatorPartition[GroupsState] | None) -> list[AnyReply] | None:
        """Return the replies that wait, for others to be added; None where nothing has to wait."""
        return None if partition is None else self._waiting.get(partition)

    def end(self, partition: CoordinatorPartition[GroupsState]) -> None:
        """Refuse the replies that wait: another broker leads the partition."""
        self._refuse(self._waiting.pop(partition, ()), NotCoordinator())

    async def _confirm(self, partition: CoordinatorPartition[GroupsState]) -> None:
        while partition in self._waiting:
            error = await self._writer.until_committed(partition)
            waiting = self._waiting.pop(partition, None)
            if waiting is None:
                return
            if error is None:
                self._reply(waiting)
                return
            self._waiting[partition] = []
            self._refuse(waiting, error_for(after_failed_group_records(error.code), str(error)))
            await asyncio.sleep(RETRY_MS / 1000)
