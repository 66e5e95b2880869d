"""The part of a membership that every protocol has: its tasks, its clock, and its calls of the application.

A consumer creates a membership with an `Application`, runs `run()` as a task while it is open, forwards
`subscribe` and `unsubscribe`, calls `polled()` whenever the application asks for records and none are
buffered, and awaits `close()` in the end. The membership calls the `Application`, one call at a time. It
calls `wake` when `polled()` would raise an error or join the group again: the application may be waiting.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from ottla.client.cluster import Cluster
from ottla.client.group_metadata import GroupMetadata
from ottla.consumer.errors import Fenced
from ottla.consumer.group.commits import AutoCommit
from ottla.consumer.group.config import GroupConfig
from ottla.consumer.group.coordinator_connection import CoordinatorConnection
from ottla.consumer.group.rebalance_events import (
    Adopt,
    Adopted,
    Closing,
    CommonEvent,
    Partitions,
    Phase,
    Polled,
    Revoke,
    Revoked,
    TimePassed,
)
from ottla.consumer.group.session import Session
from ottla.consumer.metrics import ConsumerMetrics
from ottla.consumer.subscription import Subscription, tell

# The interval of checking whether the application finished its records, while a rebalance waits.
CHECK_EVERY_S = 0.01

E = TypeVar("E")
F = TypeVar("F")
E_contra = TypeVar("E_contra", contravariant=True)
F_co = TypeVar("F_co", covariant=True)

log = logging.getLogger(__name__)


class Application(Protocol):
    """The part of the consumer that a membership uses. Only `revoke`, `lost` and `assign` may wait."""

    def owned(self) -> Partitions:
        """Return the assigned partitions."""

    def hold(self, partitions: Partitions) -> None:
        """Stop the delivery of partitions, buffered records included. Positions stay."""

    def release(self, partitions: Partitions) -> None:
        """Resume the delivery of held partitions that are still assigned."""

    async def revoke(self, partitions: Partitions) -> None:
        """Unassign partitions. They are held, and finished records are committed."""

    async def lost(self, partitions: Partitions) -> None:
        """Unassign partitions that other members may own already."""

    async def assign(self, partitions: Partitions, added: Partitions) -> None:
        """Assign exactly these partitions; added ones are held until `release`."""

    def was_polled(self) -> bool:
        """Return whether the application asked for records since the last call of this, or waits for some."""

    def is_handling(self, partitions: Partitions) -> bool:
        """Return whether the application has unfinished records of partitions."""

    def has_lost_records(self) -> bool:
        """Return whether a partition was taken away with unfinished records, until more are asked for."""


class MemberMachine(Protocol[E_contra, F_co]):
    """The state machine of a member, as its shell uses it."""

    phase: Phase

    @property
    def wake_at_ms(self) -> float | None:
        """When to send `TimePassed`; None if only another event can change something."""

    @property
    def is_closed(self) -> bool:
        """Whether the member has left after `Closing`."""

    def step(self, event: CommonEvent | E_contra, now_ms: float) -> Sequence[F_co]:
        """Apply an event; return its effects, to be carried out in that order."""


class Participation(ABC, Generic[E, F]):
    """One consumer's membership in its group, without the requests of a protocol."""

    def __init__(
        self,
        cluster: Cluster,
        config: GroupConfig,
        application: Application,
        machine: MemberMachine[E, F],
        auto_commit: AutoCommit | None,
        wake: Callable[[], None] | None,
        metrics: ConsumerMetrics | None,
    ) -> None:
        self.config = config
        self._cluster = cluster
        self._application = application
        self._machine = machine
        self._auto_commit = auto_commit
        self._wake = wake
        self._metrics = metrics or ConsumerMetrics()
        self._coordinator = CoordinatorConnection(cluster, config.group_id)
        self._session = Session(config.session_timeout_ms)
        self._listener: Any = None
        self._adopted_as: GroupMetadata | None = None
        """The member as which the partitions were assigned."""
        self._lost_as: GroupMetadata | None = None
        """The member as which partitions were had whose unfinished records the application has."""
        self._inbox: asyncio.Queue[CommonEvent | E] = asyncio.Queue()
        self._tasks: asyncio.TaskGroup | None = None
        self._unstable_since_ms: float | None = None
        self._failures: list[Exception] = []
        self._is_closing = False
        self._closed = asyncio.Event()
        self._stable = asyncio.Event()

    # --- what the consumer calls

    @abstractmethod
    def subscribe(self, subscription: Subscription, listener: Any = None) -> None:
        """Join the group for topics, or change the subscription."""

    @abstractmethod
    def unsubscribe(self) -> None:
        """Revoke all partitions and leave the group."""

    def polled(self) -> None:
        """Note that the application asks for records. Raises what the group or the listener failed with."""
        if self._failures:
            # A fenced member stays out of the group, and raises each time.
            raise self._failures[0] if isinstance(self._failures[0], Fenced) else self._failures.pop(0)
        if self._machine.phase is Phase.OUT:
            self._inbox.put_nowait(Polled())

    @abstractmethod
    def committer(self) -> GroupMetadata | None:
        """Return the member to commit for; None while the consumer is not in the group."""

    def group_metadata(self) -> GroupMetadata:
        """Return the group metadata for a producer that commits offsets of the group (KIP-447).

        They are those of an earlier generation, which the coordinator refuses, while the application has
        records of it whose partitions were taken away: these are read again, maybe by the same member.
        """
        if self._lost_as is not None and self._application.has_lost_records():
            return self._lost_as
        nobody = GroupMetadata(self.config.group_id, group_instance_id=self.config.group_instance_id)
        return self.committer() or nobody

    @property
    def is_involved(self) -> bool:
        """Whether the consumer is in the group, joining it, or leaving it."""
        return self._machine.phase is not Phase.OUT

    @property
    @abstractmethod
    def keeps_partitions(self) -> bool:
        """Whether partitions that stay assigned are kept during a rebalance (KIP-429)."""

    @property
    def session_ends_s(self) -> float | None:
        """The loop's time until which the coordinator keeps the member, as far as it knows; None outside."""
        return None if self._machine.phase is Phase.OUT else self._session.ends_s

    @property
    def is_stable(self) -> bool:
        """Whether the consumer is in the group, without a rebalance."""
        return self._stable.is_set()

    async def stable(self) -> None:
        """Wait until the consumer is in the group with an assignment."""
        await self._stable.wait()

    async def run(self) -> None:
        """Take part in the group, until `close` or cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                watching = [tasks.create_task(watch) for watch in self._watches()]
                await self._live()
                # Their answers are not needed any more; only the request to leave is completed.
                for task in (*watching, *self._requests_in_flight()):
                    task.cancel()
        finally:
            self._closed.set()
            await self._coordinator.close()

    async def close(self) -> None:
        """Commit finished records, revoke all partitions, and leave unless static, within a timeout.

        Does nothing if `run` has ended or never started.
        """
        if self._tasks is None or self._closed.is_set():
            return
        self._is_closing = True
        self._inbox.put_nowait(Closing())
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.close_timeout_ms / 1_000):
                await self._closed.wait()

    # --- what a protocol adds

    @abstractmethod
    def _watches(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Return what runs beside the loop, until the member has left."""

    @abstractmethod
    def _requests_in_flight(self) -> Sequence[asyncio.Task[None]]:
        """Return the requests whose answers a member that has left does not need."""

    @abstractmethod
    def _do(self, effect: F) -> None:
        """Carry out an effect."""

    def _applied(self, event: CommonEvent | E, before: Phase) -> None:
        """Note an event that the machine applied in a phase, before its effects are carried out."""

    @abstractmethod
    def _about(self) -> dict[str, object]:
        """Return the facts about the member that log lines carry."""

    # --- the loop

    async def _live(self) -> None:
        while not self._machine.is_closed:
            event = await self._next_event()
            if isinstance(event, TimePassed) and self._application.was_polled():
                self._step(Polled())
            self._step(event)

    async def _next_event(self) -> CommonEvent | E:
        wake_at_ms = self._machine.wake_at_ms
        if not self._inbox.empty():
            return self._inbox.get_nowait()
        try:
            async with asyncio.timeout(None if wake_at_ms is None else (wake_at_ms - self._now_ms()) / 1_000):
                return await self._inbox.get()
        except TimeoutError:
            return TimePassed()

    def _step(self, event: CommonEvent | E) -> None:
        before = self._machine.phase
        effects = self._machine.step(event, self._now_ms())
        if self._machine.phase is not before:
            self._log(logging.DEBUG, "group member changed its phase", phase=self._machine.phase.value)
            self._measure_rebalance()
        self._applied(event, before)
        for effect in effects:
            self._do(effect)
        if self._machine.phase is Phase.OUT and before is not Phase.OUT:
            # A poll while the member was leaving (a listener may be slow) had no effect, and the application
            # now waits for records that a member outside of the group never gets. It must poll again, which
            # makes the member join.
            self._wake_application()

    def _measure_rebalance(self) -> None:
        phase = self._machine.phase
        (self._stable.set if phase is Phase.STABLE else self._stable.clear)()
        if phase is Phase.OUT:
            self._unstable_since_ms = None
        elif phase is not Phase.STABLE:
            self._unstable_since_ms = self._unstable_since_ms or self._now_ms()
        elif self._unstable_since_ms is not None:
            self._metrics.rebalanced(self._now_ms() - self._unstable_since_ms)
            self._unstable_since_ms = None

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._tasks is not None, "run() owns the tasks"
        return self._tasks.create_task(work)

    # --- the application

    async def _revoke(self, effect: Revoke) -> None:
        partitions = effect.partitions
        self._application.hold(partitions)
        if effect.lost:
            self._log(logging.WARNING, "partitions were lost", partitions=sorted(partitions))
            self._note_unfinished(partitions)
            await self._tell("lost", partitions)
            await self._call_application(self._application.lost(partitions))
        else:
            await self._let_finish(partitions)
            if self._auto_commit is not None:
                await self._auto_commit.commit(partitions, timeout_s=self._commit_timeout_s)
            await self._tell("revoked", partitions)
            self._note_unfinished(partitions)
            await self._call_application(self._application.revoke(partitions))
        if self._auto_commit is not None:
            self._auto_commit.forget(partitions)
        self._inbox.put_nowait(Revoked())

    def _note_unfinished(self, partitions: Partitions) -> None:
        if self._application.is_handling(partitions):
            self._lost_as = self._adopted_as

    async def _let_finish(self, partitions: Partitions) -> None:
        """Wait for unfinished records, within a bound: those that remain are read by two consumers."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.config.handling_grace_ms / 1_000
        # Polled here: a notification per delivered record would cost more.
        while self._application.is_handling(partitions) and loop.time() < deadline:
            if self._is_closing:
                return
            await asyncio.sleep(CHECK_EVERY_S)

    async def _adopt(self, effect: Adopt) -> None:
        await self._call_application(self._application.assign(effect.partitions, effect.added))
        self._adopted_as = self.committer()
        await self._tell("assigned", effect.added)
        self._application.release(effect.added)
        self._inbox.put_nowait(Adopted())

    async def _tell(self, what: str, partitions: Partitions) -> None:
        if self._listener is not None:
            timeout_s = self.config.max_poll_interval_ms / 1_000
            await self._call_application(tell(self._listener, what, partitions, timeout_s))

    async def _call_application(self, call: Awaitable[None]) -> None:
        """Await a call into the application; its exception is raised by the application's next call."""
        try:
            await call
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failures.append(error)
        self._wake_application()

    def _wake_application(self) -> None:
        if self._wake is not None:  # the application may be waiting for records
            self._wake()

    @property
    def _commit_timeout_s(self) -> float:
        # The group waits for this commit during a rebalance; on close, leaving needs time as well.
        timeout_ms = self.config.close_timeout_ms / 2 if self._is_closing else self.config.session_timeout_ms
        return min(timeout_ms, self._cluster.config.default_api_timeout_ms) / 1_000

    def _log(self, level: int, what: str, **facts: object) -> None:
        log.log(level, what, extra={"group": self.config.group_id} | self._about() | facts)

    def _now_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1_000
