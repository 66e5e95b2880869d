"""The shell of a group membership: carries out the effects of a `MemberStateMachine`.

A consumer creates it with an `Application`, runs `run()` as a task while it is open, forwards `subscribe` and
`unsubscribe`, calls `polled()` whenever the application asks for records and none are buffered, and awaits
`close()` in the end. The membership calls the `Application`, one call at a time. It calls `wake` when
`polled()` would raise an error or join the group again: the application may be waiting for records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, assert_never

from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, DeadlineExceeded
from ottla.client.group_metadata import GroupMetadata
from ottla.client.retry import Backoff
from ottla.consumer.assignors import RebalanceProtocol, assignors
from ottla.consumer.errors import Fenced
from ottla.consumer.group.commits import AutoCommit
from ottla.consumer.group.config import GroupConfig
from ottla.consumer.group.coordinator_connection import CoordinatorConnection, GroupRequests
from ottla.consumer.group.rebalance import NO_GENERATION, MemberStateMachine
from ottla.consumer.group.rebalance_events import (
    AWAITED_PHASES,
    Adopt,
    Adopted,
    Closing,
    Effect,
    Event,
    Fail,
    ForgetCoordinator,
    Heartbeat,
    HeartbeatAnswered,
    Join,
    Joined,
    Leave,
    LookUp,
    MemberSettings,
    Partitions,
    Phase,
    Polled,
    Refused,
    Revoke,
    Revoked,
    Sync,
    Synced,
    TimePassed,
    TopicsFound,
)
from ottla.consumer.group.session import Session
from ottla.consumer.group.subscription_metadata import SubscriptionMetadata
from ottla.consumer.metrics import ConsumerMetrics
from ottla.consumer.subscription import Subscription, tell
from ottla.protocol.errors import ErrorCode, KafkaError

# The interval of checking whether the application finished its records, while a rebalance waits.
CHECK_EVERY_S = 0.01
LEAVE_TIMEOUT_S = 5.0

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


class Membership:
    """One consumer's membership in its group."""

    def __init__(
        self,
        cluster: Cluster,
        config: GroupConfig,
        application: Application,
        auto_commit: AutoCommit | None = None,
        *,
        wake: Callable[[], None] | None = None,
        metrics: ConsumerMetrics | None = None,
    ) -> None:
        self.config = config
        self._wake = wake
        self._metrics = metrics or ConsumerMetrics()
        self._unstable_since_ms: float | None = None
        self._cluster = cluster
        self._application = application
        self._auto_commit = auto_commit
        self._listener: Any = None
        self._coordinator = CoordinatorConnection(cluster, config.group_id)
        self._requests = GroupRequests(self._coordinator, config)
        self._subscription_metadata = SubscriptionMetadata(cluster, config)
        self._member = MemberStateMachine(_member_settings(config, cluster), 0.0)
        self._inbox: asyncio.Queue[Event] = asyncio.Queue()
        self._tasks: asyncio.TaskGroup | None = None
        self._request: asyncio.Task[None] | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        self._failures: list[Exception] = []
        self._is_closing = False
        self._closed = asyncio.Event()
        self._stable = asyncio.Event()
        self._session = Session(config.session_timeout_ms)

    # --- what the consumer calls

    def subscribe(self, subscription: Subscription, listener: Any = None) -> None:
        """Join the group for topics, or change the subscription."""
        self._listener = listener
        self._subscription_metadata.subscribe(subscription)

    def unsubscribe(self) -> None:
        """Revoke all partitions and leave the group."""
        self._subscription_metadata.subscribe(None)

    def polled(self) -> None:
        """Note that the application asks for records. Raises what the group or the listener failed with."""
        if self._failures:
            # A fenced member stays out of the group, and raises each time.
            raise self._failures[0] if isinstance(self._failures[0], Fenced) else self._failures.pop(0)
        if self._member.phase is Phase.OUT:
            self._inbox.put_nowait(Polled())

    def committer(self) -> GroupMetadata | None:
        """Return the member and generation to commit for; None while the consumer is not in the group."""
        member = self._member
        if member.generation == NO_GENERATION:
            return None
        instance_id = self.config.group_instance_id
        return GroupMetadata(self.config.group_id, member.generation, member.member_id, instance_id)

    def group_metadata(self) -> GroupMetadata:
        """Return the group metadata for a producer that commits offsets of the group (KIP-447)."""
        nobody = GroupMetadata(self.config.group_id, group_instance_id=self.config.group_instance_id)
        return self.committer() or nobody

    @property
    def is_involved(self) -> bool:
        """Whether the consumer is in the group, joining it, or leaving it."""
        return self._member.phase is not Phase.OUT

    @property
    def keeps_partitions(self) -> bool:
        """Whether partitions that stay assigned are kept during a rebalance (KIP-429).

        Also while the member waits to join again, or leaves: others get them only after it joined without
        them, or has left.
        """
        member = self._member
        return member.protocol is RebalanceProtocol.COOPERATIVE and member.generation != NO_GENERATION

    @property
    def session_ends_s(self) -> float | None:
        """The loop's time until which the coordinator keeps the member, as far as it knows; None outside."""
        return None if self._member.phase is Phase.OUT else self._session.ends_s

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
                watching = tasks.create_task(
                    self._subscription_metadata.run(self._inbox.put_nowait, lambda: self._member.watched)
                )
                looking = tasks.create_task(self._look_at_session())
                await self._live()
                # Their answers are not needed any more; only LeaveGroup is completed.
                for task in (watching, looking, self._request, self._heartbeat):
                    if task is not None:
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

    # --- the loop

    async def _live(self) -> None:
        while not self._member.is_closed:
            event = await self._next_event()
            if isinstance(event, TimePassed) and self._application.was_polled():
                self._step(Polled())
            self._step(event)

    async def _next_event(self) -> Event:
        wake_at_ms = self._member.wake_at_ms
        if not self._inbox.empty():
            return self._inbox.get_nowait()
        try:
            async with asyncio.timeout(None if wake_at_ms is None else (wake_at_ms - self._now_ms()) / 1_000):
                return await self._inbox.get()
        except TimeoutError:
            return TimePassed()

    def _step(self, event: Event) -> None:
        before = self._member.phase
        effects = self._member.step(event, self._now_ms())
        if self._member.phase is not before:
            self._log_phase(event)
            self._measure(event)
        if isinstance(event, (Joined, Synced)):
            self._session.answered(asyncio.get_running_loop().time())
        if isinstance(event, TopicsFound) and not all(event.topics.values()):
            self._subscription_metadata.refresh_now()
        for effect in effects:
            self._do(effect)
        if self._member.phase is Phase.OUT and before is not Phase.OUT:
            # A poll while the member was leaving (a listener may be slow) had no effect, and the application
            # now waits for records that a member outside of the group never gets. It must poll again, which
            # makes the member join.
            self._wake_application()

    def _log_phase(self, event: Event) -> None:
        member = self._member
        (self._stable.set if member.phase is Phase.STABLE else self._stable.clear)()
        self._log(logging.DEBUG, f"group member is {member.phase.value}", after=type(event).__name__)

    def _measure(self, event: Event) -> None:
        now_ms, phase = self._now_ms(), self._member.phase
        self._metrics.join_total += isinstance(event, Joined)
        self._metrics.failed_rebalance_total += isinstance(event, Refused) and phase is not Phase.JOINING
        if phase is Phase.OUT:
            self._unstable_since_ms = None
        elif phase is not Phase.STABLE:
            self._unstable_since_ms = self._unstable_since_ms or now_ms
        elif self._unstable_since_ms is not None:
            self._metrics.rebalanced(now_ms - self._unstable_since_ms)
            self._unstable_since_ms = None

    def _do(self, effect: Effect) -> None:
        match effect:
            case Revoke():
                self._start(self._revoke(effect))
            case Adopt():
                self._start(self._adopt(effect))
            case Join():
                self._request_event(effect.token, partial(self._requests.join, effect))
            case Sync():
                self._request_event(effect.token, partial(self._requests.sync, effect))
            case LookUp():
                self._request_event(effect.token, partial(self._look_up, effect))
            case Heartbeat():
                self._heartbeat = self._start(self._beat(effect))
            case Leave():
                self._leave(effect)
            case ForgetCoordinator():
                self._coordinator.forget()
            case Fail():
                self._log(logging.INFO, "cannot join the group", reason=effect.error)
                self._fail(effect.error)
            case _:
                assert_never(effect)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._tasks is not None, "run() owns the tasks"
        return self._tasks.create_task(work)

    # --- the application

    async def _revoke(self, effect: Revoke) -> None:
        partitions = effect.partitions
        self._application.hold(partitions)
        if effect.lost:
            self._log(logging.WARNING, "partitions were lost", partitions=sorted(partitions))
            await self._tell("lost", partitions)
            await self._call_application(self._application.lost(partitions))
        else:
            await self._let_finish(partitions)
            if self._auto_commit is not None:
                await self._auto_commit.commit(partitions, timeout_s=self._commit_timeout_s)
            await self._tell("revoked", partitions)
            await self._call_application(self._application.revoke(partitions))
        if self._auto_commit is not None:
            self._auto_commit.forget(partitions)
        self._inbox.put_nowait(Revoked())

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

    # --- requests

    def _request_event(self, token: int, question: Callable[[], Awaitable[Event]]) -> None:
        async def ask() -> None:
            self._inbox.put_nowait(await _or_refusal(token, question))

        if self._request is not None:
            self._request.cancel()
        self._request = self._start(ask())

    async def _look_up(self, effect: LookUp) -> Event:
        racks = await self._cluster.retry(
            "finding the group's topics", lambda: self._subscription_metadata.racks(effect.topics)
        )
        return TopicsFound(effect.token, racks)

    async def _beat(self, effect: Heartbeat) -> None:
        sent_s = asyncio.get_running_loop().time()
        code = await self._requests.beat(effect)
        if code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self._session.kept_at(sent_s)
        self._metrics.heartbeat_total += code is not None
        self._inbox.put_nowait(HeartbeatAnswered(effect.member_id, effect.generation, code))

    async def _look_at_session(self) -> None:
        while True:
            now_s = asyncio.get_running_loop().time()
            self._session.look(now_s, is_awaiting=self._member.phase in AWAITED_PHASES)
            await asyncio.sleep(self._session.look_every_s)

    def _leave(self, effect: Leave) -> None:
        waiting, self._request = self._request, None
        if waiting is not None:
            waiting.cancel()
        self._start(self._send_leave(effect, close_connection=waiting is not None and not waiting.done()))

    async def _send_leave(self, effect: Leave, *, close_connection: bool) -> None:
        if close_connection:  # the broker would answer only after the JoinGroup that waits on this connection
            await self._coordinator.close()
        self._log(logging.INFO, "leaving the group", reason=effect.reason)
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._requests.leave(effect)
        except (TimeoutError, ClientError, KafkaError) as error:
            self._log(logging.INFO, "leaving the group failed", reason=error)

    def _log(self, level: int, what: str, **facts: object) -> None:
        member = self._member
        about = {"group": self.config.group_id, "member": member.member_id, "generation": member.generation}
        log.log(level, what, extra=about | facts)

    def _now_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1_000


async def _or_refusal(token: int, question: Callable[[], Awaitable[Event]]) -> Event:
    """Send a request and await its answer; an error becomes an event too."""
    try:
        return await question()
    except KafkaError as error:
        return Refused(token, error.code, failure=None if error.retriable else error)
    except ClientError as error:
        passing = error.retriable or isinstance(error, DeadlineExceeded)
        return Refused(token, None, failure=None if passing else error)


def _member_settings(config: GroupConfig, cluster: Cluster) -> MemberSettings:
    client = cluster.config
    return MemberSettings(
        group_id=config.group_id,
        assignors=assignors(config.partition_assignment_strategy),
        instance_id=config.group_instance_id,
        rack=config.client_rack,
        heartbeat_interval_ms=config.heartbeat_interval_ms,
        max_poll_interval_ms=config.max_poll_interval_ms,
        leave_timeout_ms=config.close_timeout_ms / 3,
        backoff=Backoff(client.retry_backoff_ms, client.retry_backoff_max_ms, jitter=0),
    )
