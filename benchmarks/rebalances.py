"""Consumer groups of the consumer protocol (KIP-848) that rebalance together, driven by bare heartbeats.

`new_protocols.py` runs this beside Apache Kafka. A member is no client: it sends heartbeats on a connection
of its own, as a broker answers the requests of one connection one after the other, and does at once what the
answer says: it gives up only what is revoked, takes what is assigned, and confirms it with another heartbeat.
The next one comes after the interval that the answer names, as with every client. Both brokers have the
interval that they have by themselves, 5 s; so the time until a group is stable is that of the broker, and of
the intervals that it names. One change follows on another, as when programs are started anew one by one: of
the first one a group at rest hears after 5 s on any broker.

A group is stable once its members are in one epoch, have each partition once, and none has two more than
another. Meanwhile the partitions that nobody has are not read; how long, summed up, times a rate gives the
records that wait.
"""

from __future__ import annotations

import asyncio
import statistics
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Final

from contenders import Contender
from ottla.client.config import Address, ClientConfig
from ottla.client.connection import Connection
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

GROUPS: Final = 10
PARTITIONS: Final = 200
RECORDS_PER_S: Final = 10
"""Records that each partition gets in a second, for counting those that wait."""
SETTINGS: Final = {
    "offsets.topic.num.partitions": "50",
}
_BOUND_S: Final = 120.0
_LEAVES: Final = -1
_NOT_YET: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
Figures = dict[tuple[str, str], float]


@dataclass
class Group:
    """A group, what each of its members has, and since when a partition has no owner."""

    name: str
    topic: str
    members: list[Member] = field(default_factory=list)
    without_owner_s: dict[int, float] = field(default_factory=dict)
    owners: dict[int, Member] = field(default_factory=dict)
    waited_s: float = 0.0
    """Seconds without an owner, of all partitions together."""

    @property
    def is_stable(self) -> bool:
        sizes = [len(member.owned) for member in self.members]
        return (
            not self.without_owner_s
            and len({member.epoch for member in self.members}) == 1
            and max(sizes) - min(sizes) <= 1
        )

    def begin(self) -> None:
        """Count from now on how long partitions have no owner."""
        now_s = time.perf_counter()
        self.waited_s = 0.0
        self.without_owner_s = {number: now_s for number in range(PARTITIONS) if number not in self.owners}

    def give_up(self, member: Member, partitions: frozenset[int]) -> None:
        now_s = time.perf_counter()
        for number in partitions:
            if self.owners.get(number) is member:
                del self.owners[number]
                self.without_owner_s[number] = now_s

    def take(self, member: Member, partitions: frozenset[int]) -> None:
        now_s = time.perf_counter()
        for number in partitions:
            assert number not in self.owners, f"partition {number} of {self.name} has two owners"
            self.owners[number] = member
            self.waited_s += now_s - self.without_owner_s.pop(number)


class Member:
    """A member: it joins, sends heartbeats until it is told to leave, and leaves."""

    def __init__(self, group: Group, connection: Connection, first_part: float) -> None:
        self.owned: frozenset[int] = frozenset()
        self.epoch = 0
        self.waits_ms: list[float] = []
        self._group = group
        self._connection = connection
        self._first_part = first_part
        self._interval_s = 0.0
        self._id = str(uuid.uuid4())
        self._topic_id = uuid.UUID(int=0)
        self._is_over = asyncio.Event()

    async def run(self) -> None:
        """Be a member until `leave`."""
        self._group.members.append(self)
        await self._belong(self._joining())
        # Members do not beat in step: what a change costs is spread over an interval.
        pause_s = self._first_part * self._interval_s
        while not await self._is_over_within(pause_s):
            await self._belong(self._alive())
            pause_s = self._interval_s
        self._group.members.remove(self)
        self._group.give_up(self, self.owned)
        await self._send(self._request(_LEAVES))

    def leave(self) -> None:
        """End the membership."""
        self._is_over.set()

    async def _is_over_within(self, pause_s: float) -> bool:
        try:
            async with asyncio.timeout(pause_s):
                return await self._is_over.wait()
        except TimeoutError:
            return False

    async def _belong(self, request: ConsumerGroupHeartbeatRequest) -> None:
        """Send a heartbeat, and at once another one that says what has been given up and taken."""
        response = await self._send(request)
        while response.assignment is not None:
            assigned: frozenset[int] = frozenset()
            for topic in response.assignment.topic_partitions:
                self._topic_id, assigned = topic.topic_id, frozenset(topic.partitions)
            if assigned == self.owned:
                return
            self._group.give_up(self, self.owned - assigned)
            self._group.take(self, assigned - self.owned)
            self.owned = assigned
            response = await self._send(self._owning())

    async def _send(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        while True:
            begun = time.perf_counter()
            response = await self._connection.send(request, ConsumerGroupHeartbeatResponse)
            if response.error_code not in _NOT_YET:
                break
            await asyncio.sleep(0.1)
        assert not response.error_code, (response.error_code, response.error_message)
        self.waits_ms.append((time.perf_counter() - begun) * 1000)
        self.epoch = response.member_epoch
        self._interval_s = response.heartbeat_interval_ms / 1000
        return response

    def _request(self, epoch: int) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            group_id=self._group.name, member_id=self._id, member_epoch=epoch
        )

    def _joining(self) -> ConsumerGroupHeartbeatRequest:
        request = self._request(0)
        request.rebalance_timeout_ms = 60_000
        request.subscribed_topic_names = [self._group.topic]
        request.topic_partitions = []
        return request

    def _alive(self) -> ConsumerGroupHeartbeatRequest:
        return self._request(self.epoch)

    def _owning(self) -> ConsumerGroupHeartbeatRequest:
        request = self._request(self.epoch)
        owned = TopicPartitions(topic_id=self._topic_id, partitions=sorted(self.owned))
        request.topic_partitions = [owned] if self.owned else []
        return request


class Rebalances:
    """All groups on one broker: their start, and changes of their members."""

    def __init__(self, contender: Contender, groups: Sequence[Group], connections: list[Connection]) -> None:
        self._contender = contender
        self._groups = groups
        self._connections = connections
        self._random = Random(1)
        self.figures: Figures = {}

    async def run(self, members: int, cycles: int) -> Figures:
        """Start the groups; then, so many times, a member of each leaves, and a new one joins."""
        left: list[Figures] = []
        joined: list[Figures] = []
        async with asyncio.TaskGroup() as tasks:
            begun = self._begin()
            # The first one gets everything, and the others have their share after its next heartbeat: it is
            # the same member on every broker, and beats at the same time.
            for group in self._groups:
                tasks.create_task(self._member(group).run())
            await self._until(lambda: all(group.owners for group in self._groups))
            for group in self._groups:
                for _ in range(members - 1):
                    tasks.create_task(self._member(group).run())
            self._note("start", [await self._until_stable(begun)])
            for _ in range(cycles):
                begun = self._begin()
                gone = [group.members[0] for group in self._groups]
                for member in gone:
                    member.leave()
                left.append(await self._until_stable(begun))
                begun = self._begin()
                for group in self._groups:
                    tasks.create_task(self._member(group).run())
                joined.append(await self._until_stable(begun))
            self._note("a member leaves each", left)
            self._note("a member joins each", joined)
            for group in self._groups:
                for member in list(group.members):
                    member.leave()
        return self.figures

    def _member(self, group: Group) -> Member:
        return Member(group, self._connections.pop(), self._random.random())

    def _begin(self) -> tuple[float, float]:
        for group in self._groups:
            group.begin()
            for member in group.members:
                member.waits_ms.clear()
        return time.perf_counter(), self._contender.cpu_seconds()

    async def _until_stable(self, begun: tuple[float, float]) -> Figures:
        """Return the time, the records that waited, and the broker's CPU, once every group is stable."""
        await asyncio.sleep(0.02)  # those that leave or join have begun to
        await self._until(lambda: all(group.is_stable for group in self._groups))
        took_s = time.perf_counter() - begun[0]
        waits = [wait for group in self._groups for member in group.members for wait in member.waits_ms]
        return {
            ("stable after", "s"): took_s,
            ("not read meanwhile", "records"): sum(group.waited_s for group in self._groups) * RECORDS_PER_S,
            ("broker's CPU", "s"): self._contender.cpu_seconds() - begun[1],
            ("heartbeat, p99", "ms"): statistics.quantiles(waits, n=100)[98],
        }

    async def _until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(_BOUND_S):
            while not is_so():  # noqa: ASYNC110 - many members change it
                await asyncio.sleep(0.01)

    def _note(self, what: str, rounds: Sequence[Figures]) -> None:
        """Keep the means: a change of members is over in steps of heartbeats, which chance moves."""
        for measure, unit in rounds[0]:
            mean = statistics.fmean(figures[measure, unit] for figures in rounds)
            self.figures[f"{what}: {measure}", unit] = mean


async def measure(contender: Contender, topic: str, run: str, members: int, cycles: int) -> Figures:
    """Measure groups with so many members together; `run` is new each time, it begins the groups' names."""
    groups = [Group(f"{run}-{number}", topic) for number in range(GROUPS)]
    connections: list[Connection] = []
    async with AsyncExitStack() as stack:
        for _ in range(members + GROUPS * cycles):
            connection = Connection(Address("127.0.0.1", contender.port), ClientConfig(client_id="rebalance"))
            await connection.connect()
            stack.push_async_callback(connection.close)
            connections.append(connection)
        await _coordinator_is_there(connections[0])
        return await Rebalances(contender, groups, connections).run(members // GROUPS, cycles)


async def _coordinator_is_there(connection: Connection) -> None:
    async with asyncio.timeout(_BOUND_S):
        request = FindCoordinatorRequest(key="any")
        while (await connection.send(request, FindCoordinatorResponse, max_version=3)).error_code:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
