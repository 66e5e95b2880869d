"""One running instance of the tested program and its environment: started, stopped in order, or killed."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractContextManager
from typing import Any, Final, cast

from ottla.admin import Admin
from ottla.client.config import ClientConfig
from ottla.consumer import Consumer, ConsumerConfig
from ottla.producer import Producer, ProducerConfig
from ottla.streams.app import App
from ottla.streams.environment import using
from ottla.streams.processing.processor import Processor
from ottla.streams.testing.cluster import Life, MemoryCluster
from ottla.streams.testing.memory_consumer import MemoryConsumer
from ottla.streams.testing.memory_log import MemoryAdmin
from ottla.streams.testing.memory_producer import MemoryProducer
from ottla.streams.testing.records import DriverMisused
from ottla.streams.testing.virtual_loop import NeverSettles, VirtualLoop

Program = App | Processor
Target = App | Callable[[], Program] | Callable[[], Coroutine[Any, Any, object]]
KILL_TURNS: Final = 100
"""How often the tasks of a killed member are cancelled, for some go on in spite of it."""


class Member:
    """A member of the group: an app or a processor, or a coroutine that runs them."""

    def __init__(self, number: int, target: Target, life: Life, environment: VirtualEnvironment) -> None:
        self.number = number
        self.life = life
        self.is_started = False
        self.task: asyncio.Task[None] | None = None
        self._target = target
        self._environment = environment
        self._program: Program | None = None

    @property
    def is_done(self) -> bool:
        """Whether it ended."""
        return self.task is not None and self.task.done()

    @property
    def failure(self) -> BaseException | None:
        """The error that ended it."""
        if self.task is None or not self.task.done() or self.task.cancelled():
            return None
        return self.task.exception()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start it, in an environment of its own."""
        with using(self._environment):
            self.task = loop.create_task(self._run(), name=f"member {self.number}")

    async def _run(self) -> None:
        made = self._target if isinstance(self._target, App) else self._target()
        if inspect.iscoroutine(made):
            self.is_started = True
            await made
        elif isinstance(made, App | Processor):
            self._program = made
            await self._run_program(made)
        else:
            raise DriverMisused(f"what makes a member must return an App or a Processor, not {made!r}")

    async def _run_program(self, program: Program) -> None:
        address = program.status_address if isinstance(program, App) else None
        if isinstance(program, App):
            program.status_address = None  # a test has no page
        try:
            async with program:
                self.is_started = True
                await program.wait()
        finally:
            if isinstance(program, App):
                program.status_address = address

    def stop(self) -> None:
        """Ask it to drain and to stop."""
        if self._program is not None and self.is_started:
            self._program.stop()
        elif self.task is not None:
            self.task.cancel()

    def kill(self, turn: Callable[[], None]) -> None:
        """End it as a crash does: it commits, sends and drains nothing any more. Time does not pass."""
        self.life.end()
        ended: set[asyncio.Task[Any]] = set()
        for _ in range(KILL_TURNS):
            left = [task for task in self._environment.tasks if not task.done()]
            if not left:
                break
            ended.update(left)
            for member in left:
                member.cancel()
            turn()
        else:
            raise NeverSettles(f"tasks of a killed member go on: {_names(left)}")
        for member in ended:
            if member.done() and not member.cancelled():
                member.exception()  # nobody wants to know


def _names(tasks: Iterable[asyncio.Task[Any]]) -> str:
    return ", ".join(task.get_name() for task in tasks)


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
        """Stop virtual time while a thread or a process is waited for."""
        return self._loop.waiting_outside()
