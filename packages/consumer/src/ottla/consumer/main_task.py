"""The one task of a consumer, in which all its others live."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ottla.client.cluster import Cluster
from ottla.consumer.errors import ConsumerClosed, ConsumerStopped

_NOT_OPEN = "the consumer is not open; use it inside `async with`"


class MainTask:
    """Runs the tasks of a consumer in one task group, inside the one task that `start` creates.

    `run` is awaited with the task group and a function that ends the start; it returns some time after
    `stopping` is set. A failure of any task ends the consumer, and `check_usable` raises it; `ended` is
    called then, and at the end.
    """

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        run: Callable[[asyncio.TaskGroup, Callable[[], None]], Awaitable[None]],
        ended: Callable[[], None],
    ) -> None:
        self.stopping = asyncio.Event()
        self.tasks: asyncio.TaskGroup | None = None
        """The task group while the consumer runs."""
        self._name = name
        self._cluster = cluster
        self._run_parts = run
        self._ended = ended
        self._main: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    def check_usable(self) -> None:
        """Raise what ended the consumer, or ConsumerStopped."""
        if self._failure is not None:
            raise self._failure

    def check_open(self) -> None:
        """Raise as `check_usable`; ConsumerClosed before the start."""
        self.check_usable()
        if self.tasks is None:
            raise ConsumerClosed(_NOT_OPEN)

    async def start(self) -> None:
        """Connect, and return once `run` is ready. Raises what prevents it."""
        self.check_usable()
        if self._main is not None:
            raise ConsumerClosed("a consumer starts only once")
        loop = asyncio.get_running_loop()
        started: asyncio.Future[None] = loop.create_future()
        self._main = loop.create_task(self._run(started), name=self._name)
        try:
            await started
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Set `stopping`, and wait until `run` has returned and all connections are closed."""
        if self._main is None:
            self._failure = self._failure or ConsumerStopped("the consumer was closed")
            return
        self.stopping.set()
        try:
            await asyncio.shield(self._main)
        except asyncio.CancelledError:
            self._main.cancel()
            with suppress(asyncio.CancelledError):
                await self._main
            raise

    async def _run(self, started: asyncio.Future[None]) -> None:
        def ready() -> None:
            if not started.done():
                started.set_result(None)

        try:
            async with self._cluster, asyncio.TaskGroup() as tasks:
                self.tasks = tasks
                await self._run_parts(tasks, ready)
        except BaseExceptionGroup as group:
            self._fail(group.exceptions[0] if len(group.exceptions) == 1 else group, started)
        except asyncio.CancelledError:
            self._fail(ConsumerClosed("the consumer was cancelled"), started)
            raise
        except Exception as error:
            self._fail(error, started)
        finally:
            self.tasks = None
            self._fail(ConsumerStopped("the consumer was closed"), started)

    def _fail(self, error: BaseException, started: asyncio.Future[None]) -> None:
        self._failure = self._failure or error
        if not started.done():
            started.set_exception(error)
        self._ended()
