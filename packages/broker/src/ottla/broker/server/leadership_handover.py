"""Move leaderships to other brokers: before this one stops, and while a log directory has no room."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ottla.broker.peers.controller_requests import ControlledShutdown
from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import KnownPartition, MetadataCache
    from ottla.broker.config import BrokerConfig
    from ottla.broker.controller.controller import Controller
    from ottla.broker.log.hosting.registry import LogRegistry
    from ottla.broker.peers.active_controller import ActiveController
    from ottla.broker.replication.replicas import Replicas
    from ottla.broker.runtime.background_tasks import BackgroundTasks
    from ottla.zookeeper.session import Session

TOLD_WITHIN_MS: Final = 5_000.0
LOOK_EVERY_MS: Final = 1_000.0
FIRST_PAUSE_MS: Final = 2_000.0
MAX_PAUSE_MS: Final = 60_000.0
"""A controller that was told, and did not act, is told again after such pauses, each twice as long."""

_log = logging.getLogger(__name__)


class LeadershipHandover:
    """Asks the controller to elect other leaders, as often as `controlled.shutdown.max.retries` allows."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata: MetadataCache,
        controller: Controller,
        active_controller: ActiveController,
        session: Session,
        broker_id: int,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._controller = controller
        self._active_controller = active_controller
        self._session = session
        self._broker_id = broker_id

    async def run(self) -> None:
        """Move all leaderships and wait until this broker knows it, or log a warning if that fails."""
        if not self._config.controlled_shutdown_enable:
            return
        for attempt in range(self._config.controlled_shutdown_max_retries):
            if attempt:
                if not self._session.connected:
                    break  # without ZooKeeper there is no election, however long this broker waits
                await asyncio.sleep(self._config.controlled_shutdown_retry_backoff_ms / 1000)
            if await self.try_once():
                # The controller answers before its requests arrive here. A broker that took none of them
                # would not answer the records that it appended last: no follower copies them any more.
                await self._metadata.within(TOLD_WITHIN_MS, lambda: not self._leads())
                return
        _log.warning("controlled shutdown failed: leaderships move once the registration has expired")

    async def try_once(self) -> bool:
        """Ask the controller once; return whether this broker leads nothing any more."""
        if self._metadata.alive_broker_ids == [self._broker_id]:
            return True  # there is no other broker to lead
        try:
            async with asyncio.timeout(self._config.controller_socket_timeout_ms / 1000):
                answers = await self._active_controller.ask(
                    ControlledShutdown(self._broker_id, self._controller.broker_epoch)
                )
        except (KafkaError, TimeoutError):
            return False
        return not answers.top and not answers.remaining

    def _leads(self) -> bool:
        """Return whether metadata name this broker as the leader of a partition that another could lead."""
        return any(
            partition.leader == self._broker_id and self._has_others(partition)
            for topic in self._metadata.topics()
            for partition in topic.partitions.values()
        )

    def _has_others(self, partition: KnownPartition) -> bool:
        return any(
            replica != self._broker_id and self._metadata.is_alive(replica) for replica in partition.replicas
        )


class FullDirectoryHandover:
    """Announces to the controller which replicas have no room, or have it again (`FullDirectories`)."""

    def __init__(
        self,
        logs: LogRegistry,
        replicas: Replicas,
        announce: Callable[[], object],
        now_ms: Callable[[], float],
    ) -> None:
        """`announce` has the controller repeat the assignments of this broker; it does not wait."""
        self._changed: dict[Path, None] = {}
        """Directories whose partitions have not been looked at since they were full, or had room again."""
        self._has_changed = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._logs = logs
        self._replicas = replicas
        self._announce = announce
        self._now_ms = now_ms
        self._due_ms = float("-inf")
        self._pause_ms = FIRST_PAUSE_MS
        logs.on_room_changed.append(self._room_changed)

    def _room_changed(self, directory: Path, is_full: bool) -> None:
        self._replicas.full_directories.note(directory, is_full=is_full)
        self._due_ms, self._pause_ms = float("-inf"), FIRST_PAUSE_MS
        self._changed[directory] = None
        self._has_changed.set()

    def schedule(self, tasks: BackgroundTasks) -> None:
        """Start to announce changes of room, and to look for it."""
        tasks.lasting(self.run(), "full-log-directories-announced")
        tasks.every("full-log-directories", LOOK_EVERY_MS, self.look)

    async def run(self) -> None:
        """Announce until cancelled, at once, which directories are full, or have room again."""
        while True:
            await self._has_changed.wait()
            self._has_changed.clear()
            await self._announce_news()

    async def look(self) -> None:
        """Look for room where there was none, and repeat what the controller has not acted on."""
        self._replicas.full_directories.note_room(await self._logs.look_for_room())
        await self._announce_news()

    async def _announce_news(self) -> None:
        async with self._one_at_a_time:
            while self._changed:
                directory, _ = self._changed.popitem()
                await self._replicas.copy_where_room_is(directory)
            if self._now_ms() >= self._due_ms:
                await self._announce_if_due()

    async def _announce_if_due(self) -> None:
        has_news, now_ms = await self._replicas.has_news_of_room(), self._now_ms()
        if self._changed:  # meanwhile, and all was not looked at since: `run` goes on at once
            return
        if not has_news:
            self._due_ms, self._pause_ms = float("-inf"), FIRST_PAUSE_MS
            return
        self._due_ms = now_ms + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, MAX_PAUSE_MS)
        self._announce()
