"""The shell of a membership in a classic group: carries out the effects of a `MemberStateMachine`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, assert_never

from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, DeadlineExceeded
from ottla.client.group_metadata import GroupMetadata
from ottla.client.retry import Backoff
from ottla.consumer.assignors import RebalanceProtocol, assignors
from ottla.consumer.group.commits import AutoCommit
from ottla.consumer.group.config import GroupConfig
from ottla.consumer.group.coordinator_connection import GroupRequests
from ottla.consumer.group.participation import Application, Participation
from ottla.consumer.group.rebalance import NO_GENERATION, MemberStateMachine
from ottla.consumer.group.rebalance_events import (
    AWAITED_PHASES,
    Adopt,
    ClassicEvent,
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
    Phase,
    Refused,
    Revoke,
    Sync,
    Synced,
    TopicsFound,
)
from ottla.consumer.group.subscription_metadata import SubscriptionMetadata
from ottla.consumer.metrics import ConsumerMetrics
from ottla.consumer.subscription import Subscription
from ottla.protocol.errors import ErrorCode, KafkaError

__all__ = ["Application", "Membership"]

LEAVE_TIMEOUT_S = 5.0


class Membership(Participation[ClassicEvent, Effect]):
    """One consumer's membership in a classic group."""

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
        self._member = MemberStateMachine(_member_settings(config, cluster), 0.0)
        super().__init__(cluster, config, application, self._member, auto_commit, wake, metrics)
        self._requests = GroupRequests(self._coordinator, config)
        self._subscription_metadata = SubscriptionMetadata(cluster, config)
        self._request: asyncio.Task[None] | None = None
        self._heartbeat: asyncio.Task[None] | None = None

    # --- what the consumer calls

    def subscribe(self, subscription: Subscription, listener: Any = None) -> None:
        """Join the group for topics, or change the subscription."""
        self._listener = listener
        self._subscription_metadata.subscribe(subscription)

    def unsubscribe(self) -> None:
        """Revoke all partitions and leave the group."""
        self._subscription_metadata.subscribe(None)

    def committer(self) -> GroupMetadata | None:
        """Return the member and generation to commit for; None while the consumer is not in the group."""
        member = self._member
        if member.generation == NO_GENERATION:
            return None
        instance_id = self.config.group_instance_id
        return GroupMetadata(self.config.group_id, member.generation, member.member_id, instance_id)

    @property
    def keeps_partitions(self) -> bool:
        """Whether partitions that stay assigned are kept during a rebalance (KIP-429).

        Also while the member waits to join again, or leaves: others get them only after it joined without
        them, or has left.
        """
        member = self._member
        return member.protocol is RebalanceProtocol.COOPERATIVE and member.generation != NO_GENERATION

    # --- the loop

    def _watches(self) -> Sequence[Coroutine[Any, Any, None]]:
        metadata = self._subscription_metadata
        return (
            metadata.run(self._inbox.put_nowait, lambda: self._member.watched),
            self._look_at_session(),
        )

    def _requests_in_flight(self) -> Sequence[asyncio.Task[None]]:
        return [task for task in (self._request, self._heartbeat) if task is not None]

    def _applied(self, event: Event, before: Phase) -> None:
        if (phase := self._member.phase) is not before:
            self._metrics.join_total += isinstance(event, Joined)
            self._metrics.failed_rebalance_total += isinstance(event, Refused) and phase is not Phase.JOINING
        if isinstance(event, (Joined, Synced)):
            self._session.answered(asyncio.get_running_loop().time())
        if isinstance(event, TopicsFound) and not all(event.topics.values()):
            self._subscription_metadata.refresh_now()

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

    def _about(self) -> dict[str, object]:
        return {"member": self._member.member_id, "generation": self._member.generation}


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
