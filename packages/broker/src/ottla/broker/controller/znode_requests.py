"""Requests and notifications that tools and brokers leave in ZooKeeper for the controller.

Each is read, performed and then removed. What is written again between the read and the removal fires no
watch, so every removal is followed by another look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

from ottla.broker.controller.controller_state import ControllerState
from ottla.broker.controller.events import AlterReassignments, ElectLeaders, Event, ReplicasFailed, StatesRead
from ottla.broker.controller.zookeeper_store import Store
from ottla.broker.peers.controller_requests import Answers
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.errors import MalformedZnode
from ottla.zookeeper.session import Watch
from ottla.zookeeper.znodes import IsrChange, LogDirEvent, PreferredReplicaElection, ReassignPartitions

_log = logging.getLogger("controller")
_T = TypeVar("_T")

REASSIGN: Final = "reassign"
PREFERRED: Final = "preferred"
ISR_CHANGES: Final = "isr changes"
LOG_DIRS: Final = "log dirs"

SIGNALS: Final = {
    REASSIGN: ControllerState.ALTER_PARTITION_REASSIGNMENT,
    PREFERRED: ControllerState.MANUAL_LEADER_BALANCE,
    ISR_CHANGES: ControllerState.ISR_CHANGE,
    LOG_DIRS: ControllerState.LOG_DIR_CHANGE,
}

Perform = Callable[[Event], Awaitable[Answers]]


class ZnodeRequests:
    """Follows the znodes of one controllership at a time; `signal` has `follow` called again soon."""

    def __init__(self, watch: Callable[[str], Watch], signal: Callable[[str], None]) -> None:
        self._watch = watch
        self._signal = signal
        self._reassigned: set[TopicPartition] = set()
        """The partitions in the old tool's znode, as it was last read."""

    async def follow(self, signal: str, store: Store, perform: Perform) -> None:
        """Read what a signal stands for, perform it and remove it."""
        match signal:
            case "reassign":
                await self._reassignments(store, perform)
            case "preferred":
                await self._preferred_elections(store, perform)
            case "isr changes":
                await self._isr_changes(store, perform)
            case "log dirs":
                await self._log_dir_events(store, perform)

    # ---- /admin

    async def _reassignments(self, store: Store, perform: Perform) -> None:
        """Begin the reassignments that the old tool asks for; each stays in the znode until it is done."""
        data = await store.data_of(paths.REASSIGN_PARTITIONS, self._watch(REASSIGN))
        self._reassigned.clear()
        if data is None:
            return
        node = ReassignPartitions({})
        try:
            node = ReassignPartitions.decode(data)
        except MalformedZnode as error:
            _log.error("reassignment ignored", extra={"reason": str(error)})
        if not node.replicas:
            await store.delete(paths.REASSIGN_PARTITIONS)
            self._signal(REASSIGN)
            return
        targets = {TopicPartition(*partition): replicas for partition, replicas in node.replicas.items()}
        self._reassigned = set(targets)
        answers = await perform(AlterReassignments(targets, from_znode=True))
        for partition, error_code in answers.partitions.items():
            if error_code:
                reason = answers.messages.get(partition) or ErrorCode(error_code).name
                _log.error("reassignment refused", extra={"partition": str(partition), "reason": reason})

    async def drop_reassignments(self, store: Store, partitions: frozenset[TopicPartition]) -> None:
        """Remove partitions from the old tool's znode, and the znode when it names no more."""
        if not partitions & self._reassigned:
            return

        def without(data: bytes) -> bytes | None:
            node = ReassignPartitions.decode(data)
            rest = {name: to for name, to in node.replicas.items() if TopicPartition(*name) not in partitions}
            return ReassignPartitions(rest).encode() if rest else None

        with suppress(MalformedZnode):  # read again below, and named there
            await store.change_request(paths.REASSIGN_PARTITIONS, without)
        self._reassigned -= partitions
        self._signal(REASSIGN)

    async def _preferred_elections(self, store: Store, perform: Perform) -> None:
        """Elect the preferred leaders that the election tool's znode names."""
        data = await store.data_of(paths.PREFERRED_REPLICA_ELECTION, self._watch(PREFERRED))
        if data is None:
            return
        try:
            node = PreferredReplicaElection.decode(data)
            partitions = frozenset(TopicPartition(topic, number) for topic, number in node.partitions)
            await perform(ElectLeaders(partitions))
        except MalformedZnode as error:
            _log.error("preferred replica election ignored", extra={"reason": str(error)})
        await store.delete(paths.PREFERRED_REPLICA_ELECTION)
        self._signal(PREFERRED)

    # ---- notifications

    async def _isr_changes(self, store: Store, perform: Perform) -> None:
        """Read the states again that leaders without AlterPartition have written themselves."""
        root = paths.ISR_CHANGE_NOTIFICATION
        read = await self._children(store, root, ISR_CHANGES, IsrChange.decode)
        partitions = {
            TopicPartition(*partition)
            for change in read.values()
            if change
            for partition in change.partitions
        }
        if partitions:
            await perform(StatesRead(await store.states(sorted(partitions))))
        await asyncio.gather(*(store.delete(path) for path in read))

    async def _log_dir_events(self, store: Store, perform: Perform) -> None:
        """Ask brokers that lost a log directory which replicas were there."""
        read = await self._children(store, paths.LOG_DIR_EVENT_NOTIFICATION, LOG_DIRS, LogDirEvent.decode)
        for broker in sorted({event.broker_id for event in read.values() if event}):
            await perform(ReplicasFailed(broker))
        await asyncio.gather(*(store.delete(path) for path in read))

    async def _children(
        self, store: Store, root: str, signal: str, decode: Callable[[bytes], _T]
    ) -> dict[str, _T | None]:
        """The notifications below a path, None for what cannot be read; the watch is on their list."""
        found = [f"{root}/{name}" for name in await store.children_of(root, self._watch(signal))]
        read: dict[str, _T | None] = {}
        for path, data in zip(found, await asyncio.gather(*map(store.data_of, found)), strict=True):
            try:
                read[path] = None if data is None else decode(data)
            except MalformedZnode as error:
                _log.error("notification ignored", extra={"path": path, "reason": str(error)})
                read[path] = None
        return read
