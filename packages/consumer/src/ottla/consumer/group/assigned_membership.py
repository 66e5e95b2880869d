"""The shell of a membership whose coordinator assigns: carries out the effects of an `AssignedMember`."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol, assert_never
from uuid import UUID

from ottla.client.cluster import Cluster
from ottla.client.environment import chance, random_bytes
from ottla.client.errors import ClientError, DeadlineExceeded, UnsupportedByBroker
from ottla.client.group_metadata import GroupMetadata
from ottla.client.retry import Backoff
from ottla.consumer.errors import GroupFailed
from ottla.consumer.group.assigned_member import (
    JOINING,
    Answered,
    AssignedEffect,
    AssignedEvent,
    AssignedMember,
    AssignedSettings,
    Assignment,
    Beat,
    LeaveGroup,
    MatchTopics,
    NameTopics,
    TopicsNamed,
)
from ottla.consumer.group.commits import AutoCommit
from ottla.consumer.group.config import GroupConfig
from ottla.consumer.group.coordinator_connection import CoordinatorConnection
from ottla.consumer.group.participation import Application, Participation
from ottla.consumer.group.rebalance_events import (
    Adopt,
    CommonEvent,
    Fail,
    ForgetCoordinator,
    Phase,
    Revoke,
    Subscribed,
    TopicsSeen,
)
from ottla.consumer.group.subscription_metadata import SubscriptionMetadata
from ottla.consumer.metrics import ConsumerMetrics
from ottla.consumer.subscription import Subscription, TopicFilter
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

WITH_PATTERNS = 1
LEAVE_TIMEOUT_S = 5.0


class Heartbeats(Protocol):
    """Sends the heartbeats of one type of groups."""

    async def beat(self, effect: Beat) -> Answered:
        """Send a heartbeat, and return its answer. Raises the errors of the connection."""

    async def leave(self, effect: LeaveGroup) -> None:
        """Send the last heartbeat."""

    async def matches_patterns(self) -> bool:
        """Return whether the coordinator matches regular expressions."""


class AssignedMembership(Participation[AssignedEvent, AssignedEffect]):
    """One consumer's membership in a group whose coordinator assigns."""

    def __init__(
        self,
        cluster: Cluster,
        config: GroupConfig,
        application: Application,
        auto_commit: AutoCommit | None = None,
        *,
        wake: Callable[[], None] | None = None,
        metrics: ConsumerMetrics | None = None,
        heartbeats: Callable[[CoordinatorConnection, GroupConfig], Heartbeats] | None = None,
    ) -> None:
        self._member = AssignedMember(_member_settings(config, cluster), 0.0)
        super().__init__(cluster, config, application, self._member, auto_commit, wake, metrics)
        self._heartbeats = (heartbeats or ConsumerHeartbeats)(self._coordinator, config)
        self._may_match_there = True
        self._metadata = SubscriptionMetadata(cluster, config, self._find_pattern)
        self._beating: asyncio.Task[None] | None = None
        self._naming: asyncio.Task[None] | None = None

    # --- what the consumer calls

    def subscribe(self, subscription: Subscription, listener: Any = None) -> None:
        """Join the group for topics, or change the subscription."""
        self._listener = listener
        self._may_match_there = True
        self._metadata.subscribe(subscription)

    def unsubscribe(self) -> None:
        """Revoke all partitions and leave the group."""
        self._metadata.subscribe(None)

    def committer(self) -> GroupMetadata | None:
        """Return the member and its epoch to commit for; None while the consumer is not in the group."""
        member = self._member
        if member.epoch <= JOINING:
            return None
        instance_id = self.config.group_instance_id
        return GroupMetadata(self.config.group_id, member.epoch, member.member_id, instance_id)

    @property
    def keeps_partitions(self) -> bool:
        """Whether partitions that stay assigned are kept during a rebalance: as long as it is a member."""
        return self._member.epoch > JOINING

    @property
    def member_id(self) -> str:
        """The name of the member, which it keeps as long as it lives."""
        return self._member.member_id

    # --- the loop

    def _watches(self) -> Sequence[Coroutine[Any, Any, None]]:
        return (self._metadata.run(self._seen, dict),)  # it assigns no topics

    def _seen(self, event: Subscribed | TopicsSeen) -> None:
        if isinstance(event, Subscribed):  # the coordinator watches their partitions
            self._inbox.put_nowait(event)

    async def _find_pattern(self, wanted: TopicFilter) -> str | None:
        """Return the expression that the coordinator matches; None where topics are matched here."""
        expression = wanted.re2_expression(exclude_internal=self.config.exclude_internal_topics)
        if expression is None or not self._may_match_there:
            return None
        return expression if await self._heartbeats.matches_patterns() else None

    def _requests_in_flight(self) -> Sequence[asyncio.Task[None]]:
        return [task for task in (self._beating, self._naming) if task is not None]

    def _applied(self, event: CommonEvent | AssignedEvent, before: Phase) -> None:
        if isinstance(event, Answered) and event.code is not None:
            self._metrics.heartbeat_total += 1
            self._metrics.join_total += before is Phase.JOINING and event.code == ErrorCode.NONE
            self._metrics.failed_rebalance_total += (
                before is Phase.JOINING and self._member.phase is not Phase.JOINING and bool(event.code)
            )

    def _do(self, effect: AssignedEffect) -> None:
        match effect:
            case Revoke():
                self._start(self._revoke(effect))
            case Adopt():
                self._start(self._adopt(effect))
            case Beat():
                self._beating = self._start(self._beat(effect))
            case LeaveGroup():
                self._leave(effect)
            case NameTopics():
                if self._naming is not None:
                    self._naming.cancel()
                self._naming = self._start(self._name_topics(effect.topic_ids))
            case MatchTopics():
                self._may_match_there = False
                self._metadata.refresh_now()
            case ForgetCoordinator():
                self._coordinator.forget()
            case Fail():
                self._log(logging.INFO, "cannot join the group", reason=effect.error)
                self._fail(effect.error)
            case _:
                assert_never(effect)

    # --- requests

    async def _beat(self, effect: Beat) -> None:
        sent_s = asyncio.get_running_loop().time()
        answer = await _answered(effect, self._heartbeats)
        if answer.code == ErrorCode.NONE:
            self._session.kept_at(sent_s)
        self._inbox.put_nowait(answer)

    def _leave(self, effect: LeaveGroup) -> None:
        if self._beating is not None:  # its answer is of no use any more, and would be waited for
            self._beating.cancel()
        self._start(self._send_leave(effect))

    async def _send_leave(self, effect: LeaveGroup) -> None:
        self._log(logging.INFO, "leaving the group", reason=effect.reason)
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._heartbeats.leave(effect)
        except (TimeoutError, ClientError, KafkaError) as error:
            self._log(logging.INFO, "leaving the group failed", reason=error)

    async def _name_topics(self, topic_ids: frozenset[UUID]) -> None:
        """Look up names until all are known: a broker may not know a new topic yet."""
        left, attempt = set(topic_ids), 0
        while True:
            try:
                names = await self._cluster.topic_names(left)
            except (ClientError, KafkaError) as error:
                self._log(logging.INFO, "topics cannot be looked up", reason=error)
                names = {}
            if names:
                self._inbox.put_nowait(TopicsNamed(names))
                left -= names.keys()
            if not left:
                return
            await asyncio.sleep(self._cluster.backoff.delay_ms(attempt, chance()) / 1_000)
            attempt += 1

    def _about(self) -> dict[str, object]:
        return {"member": self._member.member_id, "epoch": self._member.epoch}


async def _answered(effect: Beat, heartbeats: Heartbeats) -> Answered:
    """Send a heartbeat and await its answer; an error becomes an answer too."""
    try:
        return await heartbeats.beat(effect)
    except UnsupportedByBroker as error:
        failure = GroupFailed(
            'the brokers do not serve this type of groups: use group_protocol="classic" here, or switch on '
            f"the feature that it needs (`ottla feature upgrade`): {error}"
        )
        return Answered(effect.token, None, failure=failure)
    except KafkaError as error:  # the coordinator was not found
        return Answered(effect.token, error.code, failure=None if error.retriable else error)
    except ClientError as error:
        passing = error.retriable or isinstance(error, DeadlineExceeded)
        return Answered(effect.token, None, failure=None if passing else error)


class ConsumerHeartbeats:
    """The heartbeats of consumer groups (KIP-848)."""

    def __init__(self, coordinator: CoordinatorConnection, config: GroupConfig) -> None:
        self._coordinator = coordinator
        self._config = config

    async def matches_patterns(self) -> bool:
        """Return whether the coordinator matches regular expressions."""
        return await self._coordinator.version(ConsumerGroupHeartbeatRequest) >= WITH_PATTERNS

    async def beat(self, effect: Beat) -> Answered:
        """Send a heartbeat with what changed since the last one, and return its answer."""
        answer = await self._coordinator.send(
            self._request(effect), ConsumerGroupHeartbeatResponse, timeout_s=self._timeout_s
        )
        return Answered(
            effect.token, answer.error_code, answer.error_message, answer.member_id or "",
            answer.member_epoch, answer.heartbeat_interval_ms,
            None if answer.assignment is None else assignment_of(answer.assignment.topic_partitions),
        )  # fmt: skip

    def _request(self, effect: Beat) -> ConsumerGroupHeartbeatRequest:
        now, before = effect.report, effect.before
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._config.group_id,
            member_id=effect.member_id,
            member_epoch=effect.epoch,
            instance_id=self._config.group_instance_id,
        )
        if before is None:
            request.rack_id = self._config.client_rack
            request.rebalance_timeout_ms = self._config.max_poll_interval_ms
            request.server_assignor = self._config.group_remote_assignor
        if before is None or before.topics != now.topics:
            request.subscribed_topic_names = list(now.topics)
        if before is not None and before.pattern != now.pattern:
            request.subscribed_topic_regex = now.pattern or ""  # empty: there is none any more
        elif before is None:
            request.subscribed_topic_regex = now.pattern
        if before is None or before.owned != now.owned:
            request.topic_partitions = [
                TopicPartitions(topic_id=topic_id, partitions=list(partitions))
                for topic_id, partitions in now.owned
            ]
        return request

    async def leave(self, effect: LeaveGroup) -> None:
        """Send the last heartbeat."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._config.group_id,
            member_id=effect.member_id,
            member_epoch=effect.epoch,
            instance_id=self._config.group_instance_id,
        )
        await self._coordinator.send(request, ConsumerGroupHeartbeatResponse)

    @property
    def _timeout_s(self) -> float:
        # Half of a session: a heartbeat to another coordinator must still come in time.
        bound_ms = min(
            self._coordinator.cluster.config.request_timeout_ms, self._config.session_timeout_ms / 2
        )
        return bound_ms / 1_000


class _TopicOfAssignment(Protocol):
    topic_id: UUID
    partitions: list[int]


def assignment_of(topics: Iterable[_TopicOfAssignment]) -> Assignment:
    """Return an assignment by topic id."""
    return {topic.topic_id: tuple(topic.partitions) for topic in topics}


def new_member_id() -> str:
    """Return a new name of a member, as Kafka writes ids: in base 64."""
    return base64.urlsafe_b64encode(random_bytes(16)).decode().rstrip("=")


def _member_settings(config: GroupConfig, cluster: Cluster) -> AssignedSettings:
    client = cluster.config
    return AssignedSettings(
        group_id=config.group_id,
        member_id=new_member_id(),
        instance_id=config.group_instance_id,
        max_poll_interval_ms=config.max_poll_interval_ms,
        backoff=Backoff(client.retry_backoff_ms, client.retry_backoff_max_ms, jitter=0),
    )
