"""Tests of groups: a driver for the pure group state machine, and a coordinator in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any
from uuid import UUID

from ottla.broker.cluster.metadata import MetadataCache
from ottla.broker.config import load_broker_config
from ottla.broker.controller.testing import LoopClock
from ottla.broker.coordinators.testing import MemoryStore
from ottla.broker.groups.classic.events import (
    Event,
    Heartbeat,
    HeartbeatResult,
    Join,
    JoinResult,
    Leave,
    LeaveResult,
    MemberIdentity,
    Outcome,
    Persist,
    Persisted,
    Result,
    Sync,
    SyncResult,
)
from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.hosting.coordinator import GroupCoordinator
from ottla.broker.groups.kinds import KINDS, GroupKind, GroupLimits, NewGroup, TimePassed
from ottla.broker.groups.offsets.committed_offsets import CommittedOffset
from ottla.broker.metrics import Metrics
from ottla.broker.runtime.environment import Environment
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.control_requests import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TopicPartition

BROKER = 1
SESSION_MS = 10_000
REBALANCE_MS = 60_000
NO_DELAY = GroupLimits(min_session_timeout_ms=100, initial_rebalance_delay_ms=0)


def range_protocol(metadata: bytes = b"range") -> tuple[tuple[str, bytes], ...]:
    """One protocol, as most members send it."""
    return (("range", metadata),)


class GroupDriver:
    """A group with a clock, and with requests by number.

    Writes succeed at once unless `hold_writes` is set; then `written()` finishes the oldest.
    """

    def __init__(self, limits: GroupLimits = NO_DELAY, group: Group | None = None) -> None:
        self.group = group or Group("group", limits, wall_ms=0)
        self.now_ms = 0.0
        self.hold_writes = False
        self.writes: list[Persist] = []
        self.persisted: list[Persist] = []
        self.answers: dict[int, Result] = {}
        self.asked: set[int] = set()
        self._tokens = count(1)
        self._ids = count(1)

    def step(self, event: Event) -> Outcome:
        """Step the group, store its answers, and finish its writes unless they are held."""
        outcome = self.group.step(event, self.now_ms, int(self.now_ms))
        for reply in outcome.replies:
            assert isinstance(reply.token, int)
            assert reply.token not in self.answers, "a request is answered once"
            self.answers[reply.token] = reply.result
        self.writes += outcome.persist
        if not self.hold_writes:
            while self.writes:
                self.written()
        return outcome

    def written(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Finish the oldest write."""
        persist = self.writes.pop(0)
        if error is ErrorCode.NONE:
            self.persisted.append(persist)
        self.step(Persisted(persist, error))

    def wait(self, ms: float) -> None:
        """Pass time, with `TimePassed` at each deadline of the group."""
        end_ms = self.now_ms + ms
        while (wake_ms := self.group.wake_at_ms) is not None and wake_ms <= end_ms:
            self.now_ms = max(self.now_ms, wake_ms)
            self.step(TimePassed())
        self.now_ms = end_ms

    def token(self) -> int:
        """Number a new request."""
        token = next(self._tokens)
        self.asked.add(token)
        return token

    # ---- requests: each returns the number of its answer

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = range_protocol(),
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        require_id: bool = False,
        may_skip_assignment: bool = False,
    ) -> int:
        """Send a join."""
        token = self.token()
        self.step(
            Join(
                token=token,
                member_id=member_id,
                instance_id=instance_id,
                client_id="client",
                client_host="/host",
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=rebalance_ms,
                protocol_type=protocol_type,
                protocols=protocols,
                require_known_member_id=require_id,
                may_skip_assignment=may_skip_assignment,
                new_member_id=f"{instance_id or 'member'}-{next(self._ids)}",
            )
        )
        return token

    def sync(
        self,
        member_id: str,
        generation: int | None = None,
        assignments: dict[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> int:
        """Send a sync."""
        token = self.token()
        self.step(
            Sync(
                token=token,
                member_id=member_id,
                generation=self.group.generation if generation is None else generation,
                instance_id=instance_id,
                protocol_type=protocol_type,
                protocol_name=protocol_name,
                assignments=assignments or {},
            )
        )
        return token

    def heartbeat(
        self, member_id: str, generation: int | None = None, instance_id: str | None = None
    ) -> ErrorCode:
        """Send a heartbeat and return its answer."""
        token = self.token()
        generation = self.group.generation if generation is None else generation
        self.step(Heartbeat(token=token, member_id=member_id, generation=generation, instance_id=instance_id))
        answer = self.answers[token]
        assert isinstance(answer, HeartbeatResult)
        return answer.error

    def leave(self, *members: MemberIdentity | str) -> list[ErrorCode]:
        """Send LeaveGroup and return the error of each member."""
        token = self.token()
        identities = tuple(
            MemberIdentity(member) if isinstance(member, str) else member for member in members
        )
        self.step(Leave(token=token, members=identities))
        answer = self.answers[token]
        assert isinstance(answer, LeaveResult)
        return [error for _, error in answer.members] or [answer.error]

    # ---- answers

    def joined(self, token: int) -> JoinResult:
        """The answer to a join, which must have been given."""
        answer = self.answers[token]
        assert isinstance(answer, JoinResult)
        return answer

    def synced(self, token: int) -> SyncResult:
        """The answer to a sync, which must have been given."""
        answer = self.answers[token]
        assert isinstance(answer, SyncResult)
        return answer

    def stable(self, members: int, **join: object) -> list[str]:
        """Bring a group of so many new members to Stable and return their ids, the leader first."""
        tokens = [self.join(**join) for _ in range(members)]  # type: ignore[arg-type]
        self.wait(0)
        ids = [self.joined(token).member_id for token in tokens]
        leader = self.group.leader_id
        assert leader is not None
        ids.sort(key=lambda member_id: member_id != leader)
        self.sync(leader, assignments={member_id: member_id.encode() for member_id in ids})
        for member_id in ids[1:]:
            self.sync(member_id)
        return ids


# ---- the coordinator

PARTITIONS = 4
MINUTE_MS = 60_000
TOPIC_0, TOPIC_1 = TopicPartition("topic", 0), TopicPartition("topic", 1)
SETTINGS = {
    "log.dirs": "/nowhere",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "offsets.retention.minutes": "10",
    "offsets.retention.check.interval.ms": "60000",
    "offset.metadata.max.bytes": "10",
}


class FakeTopics:
    """The metadata of one broker, and the topics in ZooKeeper; None while that does not answer."""

    def __init__(self, *, is_told: bool = True) -> None:
        self.metadata = MetadataCache(BROKER)
        self.names: set[str] | None = None
        if is_told:
            self.publish({})

    def publish(self, topics: Mapping[str, UUID]) -> None:
        """Publish topics of two partitions each, with their ids."""
        self.publish_partitions({name: (topic_id, 2) for name, topic_id in topics.items()})

    def publish_partitions(self, topics: Mapping[str, tuple[UUID, int]]) -> None:
        """Publish topics with their ids, and how many partitions they have."""
        self.metadata.update(
            UpdateMetadataRequest(
                controller_id=BROKER,
                live_brokers=[UpdateMetadataBroker(id=BROKER, endpoints=[])],
                topic_states=[
                    UpdateMetadataTopicState(
                        topic_name=name,
                        topic_id=topic_id,
                        partition_states=[
                            UpdateMetadataPartitionState(partition_index=index, leader=BROKER)
                            for index in range(partitions)
                        ],
                    )
                    for name, (topic_id, partitions) in topics.items()
                ],
            )
        )

    async def existing(self) -> frozenset[str] | None:
        return None if self.names is None else frozenset(self.names)

    async def published(self) -> dict[str, int] | None:
        return None if self.names is None else dict.fromkeys(self.names, 2)


def make(
    store: MemoryStore,
    metrics: Metrics | None = None,
    topics: FakeTopics | None = None,
    kinds: Mapping[GroupKind, NewGroup] = KINDS,
    **settings: str,
) -> GroupCoordinator:
    """A coordinator of groups on this store, not entered yet."""
    topics = topics or FakeTopics()
    named = {key.replace("_", "."): value for key, value in settings.items()}
    return GroupCoordinator(
        config=load_broker_config(SETTINGS | named).config,
        environment=Environment(clock=LoopClock()),
        metrics=Metrics() if metrics is None else metrics,
        store=store,
        metadata=topics.metadata,
        topics=topics,
        kinds=kinds,
    )


@asynccontextmanager
async def leading(
    store: MemoryStore,
    metrics: Metrics | None = None,
    topics: FakeTopics | None = None,
    kinds: Mapping[GroupKind, NewGroup] = KINDS,
    **settings: str,
) -> AsyncIterator[GroupCoordinator]:
    """A coordinator that runs and leads every partition."""
    async with make(store, metrics, topics, kinds, **settings) as groups:
        elect(groups)
        await asyncio.sleep(0.01)
        yield groups


def elect(groups: GroupCoordinator, epoch: int = 0) -> None:
    """Lead every partition."""
    groups.leadership_changed(
        [(TopicPartition(GROUP_METADATA_TOPIC, p), epoch) for p in range(PARTITIONS)], []
    )


def resign(groups: GroupCoordinator, epoch: int = 0) -> None:
    """Give every partition up."""
    groups.leadership_changed(
        [], [(TopicPartition(GROUP_METADATA_TOPIC, p), epoch) for p in range(PARTITIONS)]
    )


def subscription(*topics: str) -> bytes:
    """The metadata of a consumer that subscribes to these topics."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\0\0\0\0"


def a_join(member_id: str = "", new_member_id: str = "m", **more: Any) -> Join:
    """A join of a consumer of `topic`."""
    return Join(
        token=None,
        member_id=member_id,
        new_member_id=new_member_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=(("range", subscription("topic")),),
        **more,
    )


async def settle(groups: GroupCoordinator, group_id: str, names: list[str]) -> list[str]:
    """Bring a group to Stable; return its member ids, the leader first."""
    joins = await asyncio.gather(*(groups.join(group_id, a_join(new_member_id=name)) for name in names))
    leader_id = joins[0].leader_id
    ids = sorted((join.member_id for join in joins), key=lambda member_id: member_id != leader_id)
    assignments = {member_id: member_id.encode() for member_id in ids}
    await asyncio.gather(
        *(
            groups.sync(
                group_id,
                Sync(
                    token=None,
                    member_id=member_id,
                    generation=joins[0].generation,
                    assignments=assignments,
                ),
            )
            for member_id in ids
        )
    )
    return ids


def offset(number: int, metadata: str = "", **more: Any) -> CommittedOffset:
    """A committed offset."""
    return CommittedOffset(offset=number, metadata=metadata, **{"commit_timestamp_ms": 0} | more)
