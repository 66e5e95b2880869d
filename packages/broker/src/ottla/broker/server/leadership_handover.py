"""Controlled shutdown: move leaderships to other brokers before this one stops."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ottla.broker.peers.controller_requests import ControlledShutdown
from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import KnownPartition, MetadataCache
    from ottla.broker.config import BrokerConfig
    from ottla.broker.controller.controller import Controller
    from ottla.broker.peers.active_controller import ActiveController
    from ottla.zookeeper.session import Session

TOLD_WITHIN_MS: Final = 5_000.0

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
