"""Being in a group: the requests, timers and calls to the application that a `MemberStateMachine` wants done.

How a consumer uses it: make it with an `Application`, run `run()` as a task for as long as the consumer is
open, call `subscribe` and `unsubscribe` as the application does, call `asked()` whenever the application asks
for records and none are at hand, and await `close()` in the end. Everything else comes to the application
through the `Application` protocol, one call at a time. `wake` is called when `asked()` would raise something,
or lead back into the group: the application may be waiting.
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
from ottla.consumer.group.coordinator_connection import CoordinatorConnection
from ottla.consumer.group.member_rules import MemberRules, Phase
from ottla.consumer.group.rebalance import NO_GENERATION, MemberStateMachine
from ottla.consumer.group.rebalance_events import (
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
    Partitions,
    Polled,
    Refused,
    Revoke,
    Revoked,
    Sync,
    TimePassed,
    TopicsFound,
)
from ottla.consumer.group.requests import GroupRequests
from ottla.consumer.group.topic_watch import TopicWatch
from ottla.consumer.listener import tell
from ottla.consumer.metrics import ConsumerMetrics
from ottla.consumer.subscription import Subscription
from ottla.protocol.errors import KafkaError

# How often to look whether the application is through with what it has in hand, while a rebalance waits.
LOOK_EVERY_S = 0.01
LEAVE_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


class Application(Protocol):
    """What a membership needs of the consumer. Only `revoke`, `lost` and `assign` may take time."""

    def owned(self) -> Partitions:
        """Return the partitions that the consumer has."""

    def hold(self, partitions: Partitions) -> None:
        """Give out no more records of partitions, those at hand included. Positions stay."""

    def release(self, partitions: Partitions) -> None:
        """Give out records again of partitions that were held, and are still there."""

    async def revoke(self, partitions: Partitions) -> None:
        """Take partitions away. They are held, and what was finished is committed."""

    async def lost(self, partitions: Partitions) -> None:
        """Take partitions away that others may have already."""

    async def assign(self, partitions: Partitions, added: Partitions) -> None:
        """Have exactly these partitions; those that are added come held, until `release`."""

    def was_polled(self) -> bool:
        """Say whether the application asked for records since the last call of this, or waits for some."""

    def is_handling(self, partitions: Partitions) -> bool:
        """Say whether the application has records of partitions in hand that it is not finished with."""


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
        self._watch = TopicWatch(cluster, config)
        self._member = MemberStateMachine(_rules(config, cluster), 0.0)
        self._inbox: asyncio.Queue[Event] = asyncio.Queue()
        self._tasks: asyncio.TaskGroup | None = None
        self._request: asyncio.Task[None] | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        self._failures: list[Exception] = []
        self._is_closing = False
        self._closed = asyncio.Event()
        self._stable = asyncio.Event()

    # --- what the consumer calls

    def subscribe(self, subscription: Subscription, listener: Any = None) -> None:
        """Join the group for some topics, or change what one is in it for."""
        self._listener = listener
        self._watch.subscribe(subscription)

    def unsubscribe(self) -> None:
        """Give everything up and leave the group."""
        self._watch.subscribe(None)

    def polled(self) -> None:
        """Take note that the application asks. Raises what the group or the listener failed with since."""
        if self._failures:
            # Whoever was fenced stays out, and hears so each time.
            raise self._failures[0] if isinstance(self._failures[0], Fenced) else self._failures.pop(0)
        if self._member.phase is Phase.OUT:
            self._inbox.put_nowait(Polled())

    def committer(self) -> GroupMetadata | None:
        """Return for whom this consumer commits now; None while it is not in the group."""
        member = self._member
        if member.generation == NO_GENERATION:
            return None
        instance_id = self.config.group_instance_id
        return GroupMetadata(self.config.group_id, member.generation, member.member_id, instance_id)

    def group_metadata(self) -> GroupMetadata:
        """Return who speaks for the group, for a producer that commits its offsets (KIP-447)."""
        nobody = GroupMetadata(self.config.group_id, group_instance_id=self.config.group_instance_id)
        return self.committer() or nobody

    @property
    def is_involved(self) -> bool:
        """Whether the consumer is in the group, on its way in, or still giving up what it had there."""
        return self._member.phase is not Phase.OUT

    @property
    def keeps_partitions(self) -> bool:
        """Whether what stays this consumer's stays so all through a rebalance (KIP-429)."""
        member = self._member
        is_in = member.phase not in (Phase.OUT, Phase.WAITING, Phase.LEAVING)
        return member.protocol is RebalanceProtocol.COOPERATIVE and is_in

    @property
    def is_stable(self) -> bool:
        """Whether the consumer is in the group, with nothing under way."""
        return self._stable.is_set()

    async def stable(self) -> None:
        """Wait until the consumer is in the group with an assignment."""
        await self._stable.wait()

    async def run(self) -> None:
        """Be in the group, until `close` or cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                watching = tasks.create_task(
                    self._watch.run(self._inbox.put_nowait, lambda: self._member.watched)
                )
                await self._live()
                # Nobody is left to hear their answers; only leaving is seen through.
                for task in (watching, self._request, self._heartbeat):
                    if task is not None:
                        task.cancel()
        finally:
            self._closed.set()
            await self._coordinator.close()

    async def close(self) -> None:
        """Commit what is finished, give everything up, and leave, unless static; bounded by the config.

        A run that ended already, or never began, has nothing left to close.
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
            self._say(event)
            self._measure(event)
        if isinstance(event, TopicsFound) and not all(event.topics.values()):
            self._watch.look_now()
        for effect in effects:
            self._do(effect)
        if self._member.phase is Phase.OUT and before is not Phase.OUT:
            # Whoever asked on the way out (a listener may take its time) was not heard, and waits for records
            # that a member that is out will never have. It asks again, and that leads back in.
            self._wake_application()

    def _say(self, event: Event) -> None:
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
                self._ask(effect.token, partial(self._requests.join, effect))
            case Sync():
                self._ask(effect.token, partial(self._requests.sync, effect))
            case LookUp():
                self._ask(effect.token, partial(self._look_up, effect))
            case Heartbeat():
                self._heartbeat = self._start(self._beat(effect))
            case Leave():
                self._leave(effect)
            case ForgetCoordinator():
                self._coordinator.forget()
            case Fail():
                self._log(logging.ERROR, "cannot be in the group", reason=effect.error)
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
            await self._pass_on(self._application.lost(partitions))
        else:
            await self._let_finish(partitions)
            if self._auto_commit is not None:
                await self._auto_commit.commit(partitions, timeout_s=self._commit_timeout_s)
            await self._tell("revoked", partitions)
            await self._pass_on(self._application.revoke(partitions))
        if self._auto_commit is not None:
            self._auto_commit.forget(partitions)
        self._inbox.put_nowait(Revoked())

    async def _let_finish(self, partitions: Partitions) -> None:
        """Wait a little for records in hand: what is not finished now will be read by two consumers."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.config.handling_grace_ms / 1_000
        # The consumer cannot tell at each record that it gives out: that would cost more than looking here.
        while self._application.is_handling(partitions) and loop.time() < deadline:
            if self._is_closing:
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def _adopt(self, effect: Adopt) -> None:
        await self._pass_on(self._application.assign(effect.partitions, effect.added))
        await self._tell("assigned", effect.added)
        self._application.release(effect.added)
        self._inbox.put_nowait(Adopted())

    async def _tell(self, what: str, partitions: Partitions) -> None:
        if self._listener is not None:
            timeout_s = self.config.max_poll_interval_ms / 1_000
            await self._pass_on(tell(self._listener, what, partitions, timeout_s))

    async def _pass_on(self, call: Awaitable[None]) -> None:
        """Await a call into the application; what it raises reaches the application with its next call."""
        try:
            await call
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failures.append(error)
        self._wake_application()

    def _wake_application(self) -> None:
        if self._wake is not None:  # an application that waits for records would not ask for long
            self._wake()

    @property
    def _commit_timeout_s(self) -> float:
        # A rebalance is worth some patience, but the group waits for it; and leaving takes its time as well.
        patience_ms = self.config.close_timeout_ms / 2 if self._is_closing else self.config.session_timeout_ms
        return min(patience_ms, self._cluster.config.default_api_timeout_ms) / 1_000

    # --- requests

    def _ask(self, token: int, question: Callable[[], Awaitable[Event]]) -> None:
        async def ask() -> None:
            self._inbox.put_nowait(await _or_refusal(token, question))

        if self._request is not None:
            self._request.cancel()
        self._request = self._start(ask())

    async def _look_up(self, effect: LookUp) -> Event:
        racks = await self._cluster.retry(
            "finding the group's topics", lambda: self._watch.racks(effect.topics)
        )
        return TopicsFound(effect.token, racks)

    async def _beat(self, effect: Heartbeat) -> None:
        code = await self._requests.beat(effect)
        self._metrics.heartbeat_total += code is not None
        self._inbox.put_nowait(HeartbeatAnswered(effect.member_id, effect.generation, code))

    def _leave(self, effect: Leave) -> None:
        waiting, self._request = self._request, None
        if waiting is not None:
            waiting.cancel()
        self._start(self._send_leave(effect, hang_up=waiting is not None and not waiting.done()))

    async def _send_leave(self, effect: Leave, *, hang_up: bool) -> None:
        if hang_up:  # the broker would answer after the join that waits there
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
    """Ask and await the answer; what keeps it from coming is an event too."""
    try:
        return await question()
    except KafkaError as error:
        return Refused(token, error.code, failure=None if error.retriable else error)
    except ClientError as error:
        passing = error.retriable or isinstance(error, DeadlineExceeded)
        return Refused(token, None, failure=None if passing else error)


def _rules(config: GroupConfig, cluster: Cluster) -> MemberRules:
    client = cluster.config
    return MemberRules(
        group_id=config.group_id,
        assignors=assignors(config.partition_assignment_strategy),
        instance_id=config.group_instance_id,
        rack=config.client_rack,
        heartbeat_interval_ms=config.heartbeat_interval_ms,
        max_poll_interval_ms=config.max_poll_interval_ms,
        leave_patience_ms=config.close_timeout_ms / 3,
        backoff=Backoff(client.retry_backoff_ms, client.retry_backoff_max_ms, jitter=0),
    )
