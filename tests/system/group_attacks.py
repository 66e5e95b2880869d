"""Attacks by groups of thousands of members: all of them join, read much, and fall silent."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from attack_costs import attack
from connections import Client
from measured_broker import MeasuredBroker

from ottla.broker.api.consumer_group_heartbeat import MOST_TOPICS
from ottla.broker.groups.consumer.migration import MOST_MEMBERS
from ottla.broker.testing import BrokerProcess
from ottla.protocol.api import ApiKey, request_class, response_class
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.groups import ListGroupsRequest
from ottla.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from ottla.protocol.messages.share_groups import ShareGroupDescribeRequest, ShareGroupHeartbeatRequest
from ottla.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from ottla.protocol.messages.streams_groups import (
    StreamsGroupHeartbeatRequest,
    Subtopology,
    Topology,
)
from ottla.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.schema import Message
from ottla.protocol.stored_messages import ConsumerProtocolSubscription

T = TypeVar("T")

MEMBERS: Final = 10_000
SHARE_MEMBERS: Final = 1_000
"""No share group may have more."""
TOPICS: Final = 2_000
LINKS: Final = 20
SESSION_MS: Final = 120_000
"""Longer than a round of all members takes beside other work."""
BOUND_S: Final = 900.0
SETTINGS: Final = {
    "group.share.max.size": str(SHARE_MEMBERS),
    "group.initial.rebalance.delay.ms": "1000",
    **{f"group.{kind}.min.session.timeout.ms": "1000" for kind in ("consumer", "share", "streams")},
    **{
        f"group.{kind}.{name}": str(SESSION_MS)
        for kind in ("consumer", "share", "streams")
        for name in ("session.timeout.ms", "max.session.timeout.ms")
    },
}
_NO_FIELD: Final = object()


class CrowdedBroker(MeasuredBroker):
    """A broker for groups of as many members as there may be, whose silence is noticed soon."""

    def __init__(self, data_dir: Path, more: Mapping[str, str] | None = None) -> None:
        super().__init__(data_dir, SETTINGS | dict(more or {}))


def crowd(name: str, **more: str) -> Callable[[Callable[[Crowd], Awaitable[None]]], None]:
    """Register an attack by a crowd, on a broker with `more` settings."""
    settings = {key.replace("_", "."): value for key, value in more.items()}

    def register(run: Callable[[Crowd], Awaitable[None]]) -> None:
        async def on(broker: BrokerProcess) -> None:
            async with asyncio.timeout(BOUND_S), Crowd(broker) as members:
                await members.until_coordinated("g")
                await run(members)

        attack(name, partial(CrowdedBroker, more=settings))(lambda broker: asyncio.run(on(broker)))

    return register


class Crowd:
    """Members of groups on some connections."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self._links = [Client(broker.port) for _ in range(LINKS)]

    async def __aenter__(self) -> Crowd:
        for link in self._links:
            await link.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        for link in self._links:
            link.close()

    async def until_coordinated(self, group_id: str) -> None:
        """Wait until the broker coordinates a group."""
        while True:
            await self.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id]))
            if (await self.ask(ListGroupsRequest())).error_code == 0:
                return
            await asyncio.sleep(0.1)

    async def ask(self, request: Message, version: int | None = None, link: int = 0) -> Any:
        """Send one request, by default in its newest version, and return its answer."""
        key = ApiKey(request.API_KEY)
        version = request.MAX_VERSION if version is None else version
        is_flexible = version >= request_class(key).FLEXIBLE_FROM
        answer = await self._links[link].ask(key, version, request.encode(version), is_flexible)
        return response_class(key).decode(answer[1:] if is_flexible else answer, version)

    async def each(self, numbers: Sequence[int], ask: Callable[[int, int], Awaitable[T]]) -> dict[int, T]:
        """Call `ask(number, link)` for all numbers, on each connection one after the other."""
        answers: dict[int, T] = {}

        async def on(link: int) -> None:
            for number in numbers[link::LINKS]:
                answers[number] = await ask(number, link)

        async with asyncio.TaskGroup() as group:
            for link in range(LINKS):
                group.create_task(on(link))
        return answers

    async def make_topics(self, count: int, partitions: int) -> None:
        for first in range(0, count, 100):
            topics = [
                CreatableTopic(name=topic(number), num_partitions=partitions, replication_factor=1)
                for number in range(first, min(count, first + 100))
            ]
            answer = await self.ask(CreateTopicsRequest(topics=topics, timeout_ms=120_000), 4)
            assert all(made.error_code == 0 for made in answer.topics), answer.topics[0]

    async def rounds(self, heartbeat: Callable[[int, Any], Message], count: int, rounds: int) -> None:
        """Send heartbeats of each member again and again; a heartbeat is made of the last answer."""
        last: dict[int, Any] = dict.fromkeys(range(count))

        async def beat(number: int, link: int) -> Any:
            answer = await self.ask(heartbeat(number, last[number]), link=link)
            assert answer.error_code == 0, (ErrorCode(answer.error_code), answer.error_message)
            return answer

        for _ in range(rounds):
            for number, answer in (await self.each(range(count), beat)).items():
                if last[number] is not None and getattr(answer, "assignment", _NO_FIELD) is None:
                    answer.assignment = last[number].assignment
                last[number] = answer

    async def until_empty(self, describe: Message) -> None:
        """Wait until a group has no member left; list the groups meanwhile."""
        while (await self.ask(describe)).groups[0].members:
            await self.ask(ListGroupsRequest(states_filter=["stable", "empty"]))
            await asyncio.sleep(0.5)


def topic(number: int) -> str:
    return f"crowded-{number}"


# --- consumer groups


def _consumer(number: int, last: Any, **reads: Any) -> ConsumerGroupHeartbeatRequest:
    if last is None:
        return ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=f"m{number}",
            rebalance_timeout_ms=10_000,
            topic_partitions=[],
            **reads,
        )
    has = [] if last.assignment is None else last.assignment.topic_partitions
    owned = [TopicPartitions(topic_id=part.topic_id, partitions=part.partitions) for part in has]
    return ConsumerGroupHeartbeatRequest(
        group_id="g", member_id=f"m{number}", member_epoch=last.member_epoch, topic_partitions=owned
    )


@crowd("10,000 members of a consumer group, each with another subscription")
async def different_subscriptions(members: Crowd) -> None:
    chance = random.Random(1)
    await members.make_topics(TOPICS, 2)
    names = [[topic(number) for number in chance.sample(range(TOPICS), 5)] for _ in range(MEMBERS)]
    await members.rounds(
        lambda number, last: _consumer(number, last, subscribed_topic_names=names[number]), MEMBERS, 4
    )
    await members.until_empty(ConsumerGroupDescribeRequest(group_ids=["g"]))


@crowd("1,000 members of a consumer group that read 2,000 topics each")
async def long_subscriptions(members: Crowd) -> None:
    await members.make_topics(TOPICS, 5)
    names = [[topic(number) for number in range(TOPICS) if number != member] for member in range(1_000)]
    await members.rounds(
        lambda number, last: _consumer(number, last, subscribed_topic_names=names[number]), 1_000, 3
    )
    await members.until_empty(ConsumerGroupDescribeRequest(group_ids=["g"]))


@crowd("heartbeats of a consumer group with 99,000 topics, and with as many as there may be")
async def endless_subscriptions(members: Crowd) -> None:
    for count, expected in ((99_000, ErrorCode.INVALID_REQUEST), (MOST_TOPICS, ErrorCode.NONE)):
        names = [f"{number:x}" for number in range(count)]
        for number in range(20):
            answer = await members.ask(_consumer(number, None, subscribed_topic_names=names))
            assert answer.error_code == expected, (ErrorCode(answer.error_code), answer.error_message)


@crowd("10,000 members of a consumer group, each with another expression that matches everything")
async def different_expressions(members: Crowd) -> None:
    await members.make_topics(TOPICS, 2)
    await members.rounds(
        lambda number, last: _consumer(number, last, subscribed_topic_regex=f".*|x{number}"), MEMBERS, 3
    )
    await members.until_empty(ConsumerGroupDescribeRequest(group_ids=["g"]))


# --- share groups


def _share(group: str, number: int, last: Any, names: list[str]) -> ShareGroupHeartbeatRequest:
    return ShareGroupHeartbeatRequest(
        group_id=group,
        member_id=f"m{number}",
        member_epoch=0 if last is None else last.member_epoch,
        subscribed_topic_names=names if last is None else None,
    )


@crowd("1,000 members of a share group on 1,000 partitions")
async def shared_partitions(members: Crowd) -> None:
    await members.make_topics(10, 100)
    names = [topic(number) for number in range(10)]
    await members.rounds(lambda number, last: _share("g", number, last, names), SHARE_MEMBERS, 8)
    await members.until_empty(ShareGroupDescribeRequest(group_ids=["g"]))


@crowd("1,000 members of a share group, each with 200 of 2,000 topics")
async def shared_topics(members: Crowd) -> None:
    chance = random.Random(1)
    await members.make_topics(TOPICS, 1)
    names = [[topic(number) for number in chance.sample(range(TOPICS), 200)] for _ in range(SHARE_MEMBERS)]
    await members.rounds(lambda number, last: _share("g", number, last, names[number]), SHARE_MEMBERS, 8)
    await members.until_empty(ShareGroupDescribeRequest(group_ids=["g"]))


# --- streams groups


@crowd("10,000 members of a streams group")
async def streams(members: Crowd) -> None:
    await members.make_topics(10, 500)
    topology = Topology(
        epoch=1,
        subtopologies=[
            Subtopology(subtopology_id=str(number), source_topics=[topic(number)]) for number in range(10)
        ],
    )

    def heartbeat(number: int, last: Any) -> StreamsGroupHeartbeatRequest:
        if last is None:
            return StreamsGroupHeartbeatRequest(
                group_id="g",
                member_id=f"m{number}",
                rebalance_timeout_ms=10_000,
                topology=topology,
                active_tasks=[],
                standby_tasks=[],
                warmup_tasks=[],
                process_id=f"p{number}",
            )
        return StreamsGroupHeartbeatRequest(
            group_id="g",
            member_id=f"m{number}",
            member_epoch=last.member_epoch,
            endpoint_information_epoch=last.endpoint_information_epoch,
        )

    await members.rounds(heartbeat, MEMBERS, 3)
    await members.until_empty(StreamsGroupDescribeRequest(group_ids=["g"]))


# --- classic groups


@crowd("10,000 members of a classic group, and one of the consumer protocol")
async def too_many_to_upgrade(members: Crowd) -> None:
    assert await upgraded(members, MEMBERS) is ErrorCode.GROUP_ID_NOT_FOUND


@crowd("1,000 members of a classic group, and one of the consumer protocol")
async def upgradable(members: Crowd) -> None:
    assert await upgraded(members, MOST_MEMBERS) is ErrorCode.NONE


async def upgraded(members: Crowd, count: int) -> ErrorCode:
    """Join so many members by the classic protocol and one by the other; return the error of this one."""
    await members.make_topics(10, 100)
    subscription = ConsumerProtocolSubscription(topics=[topic(number) for number in range(3)]).to_bytes(1)

    opening = asyncio.Semaphore(LINKS)

    async def join() -> None:
        link = Client(members.broker.port)
        async with opening:
            await link.open()
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=60_000,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription)],
        )
        with contextlib.closing(link):
            answer = await link.ask(ApiKey.JOIN_GROUP, 3, request.encode(3), False)
        assert JoinGroupResponse.decode(answer, 3).error_code == 0

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(join())
    began_s = time.monotonic()
    answer = await members.ask(_consumer(0, None, subscribed_topic_names=[topic(0)]))
    print(f"    answered after {time.monotonic() - began_s:.1f} s: {answer.error_message}")
    return ErrorCode(answer.error_code)
