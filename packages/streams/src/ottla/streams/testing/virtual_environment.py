"""The environment of a member in a test: clients of the cluster in memory, and virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

from ottla.admin import Admin
from ottla.client.config import ClientConfig
from ottla.consumer import Consumer, ConsumerConfig
from ottla.producer import Producer, ProducerConfig
from ottla.streams.testing.cluster import Life, MemoryCluster
from ottla.streams.testing.memory_admin import MemoryAdmin
from ottla.streams.testing.memory_consumer import MemoryConsumer
from ottla.streams.testing.memory_producer import MemoryProducer
from ottla.streams.testing.virtual_loop import VirtualLoop


class VirtualEnvironment:
    """Implements `Environment`, and knows the tasks that run in it."""

    # The clients have the methods that streams use, and no base class in common with the real ones, which
    # connect; tests/testing/test_signatures.py compares them.

    def __init__(
        self,
        cluster: MemoryCluster,
        life: Life,
        loop: VirtualLoop,
        now_ms: Callable[[], int],
        chance: Callable[[], float],
    ) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()
        self.now_ms = now_ms
        self.chance = chance
        self._cluster = cluster
        self._life = life
        self._loop = loop

    def consumer(self, config: ConsumerConfig) -> Consumer:
        """Return a consumer in memory."""
        return cast("Consumer", MemoryConsumer(config, self._cluster, self._life))

    def producer(self, config: ProducerConfig) -> Producer:
        """Return a producer in memory."""
        return cast("Producer", MemoryProducer(config, self._cluster, self._life, self.now_ms))

    def admin(self, config: ClientConfig) -> Admin:
        """Return an admin in memory."""
        return cast("Admin", MemoryAdmin(self._cluster.log))

    def waiting_outside(self) -> AbstractContextManager[None]:
        """Let virtual time stand still while a thread or a process is waited for."""
        return self._loop.waiting_outside()
