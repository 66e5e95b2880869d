"""Members of a group as clients are: they send heartbeats, give partitions up before they take, and commit.

A member of the consumer protocol sends what has changed, and all after a failure; one that is fenced gives
everything up and joins again. A classic member reads eagerly (it gives up everything before it joins) or
cooperatively; the leader of a generation assigns.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar
from uuid import UUID

from ottla.broker.groups.consumer.heartbeats import ConsumerHeartbeat, HeartbeatAnswer
from ottla.broker.groups.kinds import GroupKind
from ottla.broker.groups.offsets.committed_offsets import CommittedOffset
from ottla.protocol.errors import ErrorCode, KafkaError, error_for
from ottla.protocol.topics import TopicPartition
from simulation.group_cluster import GROUP, REQUEST_TIMEOUT_S
from simulation.invariant_violated import InvariantViolated

if TYPE_CHECKING:
    from ottla.broker.groups.hosting.coordinator import GroupCoordinator
    from simulation.consumer_groups import Schedule

T = TypeVar("T")
Partition: TypeAlias = tuple[UUID, int]

BEAT_S: Final = 1.0
REBALANCE_MS: Final = 8_000
NOT_HERE: Final = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}
LATER: Final = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.UNRELEASED_INSTANCE_ID}
LOST: Final = {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}
DIES_OF: Final = {ErrorCode.FENCED_INSTANCE_ID, ErrorCode.GROUP_ID_NOT_FOUND}
"""Errors that end a client: its program starts again, as another member."""
_COMMIT_EPOCHS: Final = 9


class Member(ABC):
    """The part that members of both protocols share: requests, what they read, and commits."""

    is_classic = False

    def __init__(self, schedule: Schedule, member_id: str, instance_id: str | None = None) -> None:
        self.schedule, self.member_id, self.instance_id = schedule, member_id, instance_id
        self.chance, self.cluster = schedule.chance, schedule.cluster
        self.topics: frozenset[str] = frozenset()
        self.epoch = 0
        self.owned: dict[Partition, int] = {}
        """The partitions that it reads, each with its next offset; -1 where it has not asked yet."""
        self.is_over = False
        self.is_hung = False
        """Whether it never gives a partition up, though it sends heartbeats."""
        self.paused_until_s = 0.0
        self.lost = 0
        """How often it was fenced."""
        self.removals = 0
        """How often it had been removed from the group when that confirmed last that it is a member."""
        self.confirmed_in = -1
        """The epoch in which its coordinator led then."""
        self._broker = self.cluster.guess_coordinator()
        self._wakes = asyncio.Event()
        self.task = self.cluster.spawn(self._live())

    @property
    @abstractmethod
    def is_at_rest(self) -> bool:
        """Whether it reads what it was assigned."""

    @abstractmethod
    async def leave(self, epoch: int = -1) -> None:
        """Leave the group, and end."""

    def __str__(self) -> str:
        return self.member_id or "a new member"

    async def _live(self) -> None:
        while not self.is_over:
            await self._paused()
            self._wakes.clear()
            if not self.is_over:
                await self.turn()
            try:
                async with asyncio.timeout(BEAT_S):
                    await self._wakes.wait()
            except TimeoutError:
                pass

    async def _paused(self) -> None:
        left_s = self.paused_until_s - asyncio.get_running_loop().time()
        if left_s > 0:
            await asyncio.sleep(left_s)

    async def turn(self) -> None:
        """Do what is due, and send a heartbeat."""
        raise NotImplementedError

    def wake(self) -> None:
        """Send the next heartbeat at once."""
        self._wakes.set()

    def end(self) -> None:
        """Die: nothing is sent any more."""
        self.is_over = True
        self.owned.clear()
        self.task.cancel()

    # ---- requests

    async def ask(
        self, request: Callable[[GroupCoordinator], Awaitable[T]], timeout_s: float = REQUEST_TIMEOUT_S
    ) -> T | None:
        """Send a request; None where there is no answer. Raises KafkaError."""
        try:
            answer = await self.cluster.call(self._broker, request, timeout_s)
        except TimeoutError:
            self._broker = self.cluster.guess_coordinator()
            return None
        except KafkaError as error:
            if error.code in NOT_HERE:
                self._broker = self.cluster.guess_coordinator()
            raise
        await self._paused()
        return None if self.is_over else answer

    def lose_all(self) -> None:
        """Be fenced: it has nothing any more."""
        self.lost += 1
        self.owned.clear()

    def take(self, partitions: Mapping[Partition, object]) -> None:
        """Begin to read partitions."""
        self.schedule.reports.check_taken(self, partitions)
        for partition in partitions:
            self.owned.setdefault(partition, -1)

    def give_up(self, partitions: Mapping[Partition, object]) -> None:
        """End to read partitions."""
        for partition in partitions:
            self.owned.pop(partition, None)

    # ---- offsets

    async def commit(self, epoch: int | None = None) -> None:
        """Commit one more offset of each partition that it reads, perhaps in an epoch of its past."""
        reports, used = self.schedule.reports, self.epoch if epoch is None else epoch
        names = {p: name for p in self.owned if (name := self.cluster.topics.name_of(p[0])) is not None}
        if not names or used <= 0 or not await self._ask_offsets(names):
            return
        offsets = {p: self.owned[p] + 1 for p in names if p in self.owned and self.owned[p] >= 0}
        if not offsets:
            return
        attempt = reports.committing(self, used, offsets)
        records = {
            TopicPartition(names[p], p[1]): CommittedOffset(offset=offset, topic_id=p[0])
            for p, offset in offsets.items()
        }
        try:
            results = await self.ask(lambda groups: groups.offsets.commit(
                GROUP, records, member_id=self.member_id, generation=used,
                instance_id=self.instance_id, version=_COMMIT_EPOCHS,
            ))  # fmt: skip
        except KafkaError:
            return
        if results is None:
            return
        reports.committed(self, attempt, next(iter(results.values())))
        if set(results.values()) == {ErrorCode.NONE}:
            self.owned.update({p: offset for p, offset in offsets.items() if p in self.owned})

    async def _ask_offsets(self, names: Mapping[Partition, str]) -> bool:
        """Fetch the committed offsets of partitions that it has begun with; return whether it has them."""
        wanted = {p: TopicPartition(names[p], p[1]) for p in names if self.owned.get(p) == -1}
        if not wanted:
            return True
        least = {p: self.schedule.reports.acknowledged.get(p, 0) for p in wanted}

        async def fetch(groups: GroupCoordinator) -> Any:
            confirmed = await groups.offsets.confirm_coordinators([GROUP])
            if confirmed[GROUP]:
                raise error_for(confirmed[GROUP])
            code, offsets = groups.offsets.fetch(GROUP, wanted.values())
            if code:
                raise error_for(code)
            return offsets

        try:
            offsets = await self.ask(fetch)
        except KafkaError:
            return False
        if offsets is None:
            return False
        for partition, name in wanted.items():
            committed = offsets[name]
            known = committed.offset if isinstance(committed, CommittedOffset) else 0
            self.schedule.reports.check_fetched(partition, known, least[partition])
            if partition in self.owned:
                self.owned[partition] = known
        return True


class ConsumerMember(Member):
    """A member of the consumer protocol (KIP-848)."""

    def __init__(self, schedule: Schedule, member_id: str, topics: frozenset[str], **fields: Any) -> None:
        self.expression: str | None = fields.pop("expression", None)
        self.rack_id: str | None = fields.pop("rack_id", None)
        self.assignor: str | None = fields.pop("assignor", None)
        self._assigned: dict[Partition, int] | None = None
        """The last assignment, with the epoch in which it came; None before there is one."""
        self._revokes_at_s: float | None = None
        self._goal: dict[Partition, int] = {}
        self._sent: dict[str, Any] = {}
        super().__init__(schedule, member_id, fields.pop("instance_id", None))
        self.topics = topics

    @property
    def is_at_rest(self) -> bool:
        """Whether it reads what it was assigned."""
        return self._revokes_at_s is None and self._assigned is not None and self.epoch > 0

    async def turn(self) -> None:
        self._reconcile()
        if self.epoch > 0 and self.chance.random() < 0.3:
            await self.commit()
        await self._beat()
        self._reconcile()

    # ---- heartbeats

    def _heartbeat(self) -> ConsumerHeartbeat:
        owned: dict[UUID, set[int]] = {}
        for topic, index in self.owned:
            owned.setdefault(topic, set()).add(index)
        state: dict[str, Any] = {
            "rebalance_timeout_ms": REBALANCE_MS,
            "topics": self.topics,
            "expression": self.expression,
            "assignor": self.assignor,
            "rack_id": self.rack_id,
            "owned": {topic: frozenset(indexes) for topic, indexes in owned.items()},
        }
        changed = {
            name: value
            for name, value in state.items()
            if name not in self._sent or self._sent[name] != value
        }
        self._sent = state
        return ConsumerHeartbeat(
            member_id=self.member_id, epoch=self.epoch, instance_id=self.instance_id, **changed
        )

    async def _beat(self) -> None:
        event, is_joining = self._heartbeat(), self.epoch == 0
        reports = self.schedule.reports
        confirmation, epochs = reports.confirmation(self), reports.epochs(self)
        try:
            answer: HeartbeatAnswer | None = await self.ask(
                lambda groups: groups.request(GROUP, GroupKind.CONSUMER, event, creates=is_joining)
            )
        except KafkaError as error:
            self._sent = {}
            self._failed(error.code)
            return
        if answer is None:
            self._sent = {}
            return
        reports.heartbeat_answered(self, event.epoch, epochs)
        if not is_joining and answer.epoch < self.epoch:
            raise InvariantViolated(f"the epoch of {self} goes back from {self.epoch} to {answer.epoch}")
        if answer.epoch <= 0:
            raise InvariantViolated(f"{self} is in epoch {answer.epoch}")
        self.epoch, (self.removals, self.confirmed_in) = answer.epoch, confirmation
        if answer.assignment is not None:
            before = self._assigned or {}
            self._assigned = {
                (topic, index): before.get((topic, index), answer.epoch)
                for topic, indexes in answer.assignment.items()
                for index in indexes
            }

    def _failed(self, code: ErrorCode) -> None:
        if code in LOST:
            self.lose_all()
            self.wake()
        elif code in DIES_OF:
            self.schedule.restart(self)
        elif code not in NOT_HERE and code not in LATER:
            raise InvariantViolated(f"{self} gets an error that no client expects: {code.name}")

    def lose_all(self) -> None:
        super().lose_all()
        self.epoch, self._assigned, self._revokes_at_s = 0, None, None

    # ---- reconciliation

    def _reconcile(self) -> None:
        """Give up, which takes its time, and take then."""
        now_s = asyncio.get_running_loop().time()
        if self._revokes_at_s is None:
            if self._assigned is None or self._assigned.keys() == self.owned.keys():
                return
            self._goal = dict(self._assigned)
            gives_up = bool(self.owned.keys() - self._goal.keys())
            slow_s = self.chance.choice([0, 0, 0.5, 2.5])
            self._revokes_at_s = now_s + (slow_s if gives_up else 0)
        if now_s < self._revokes_at_s or (self.is_hung and self.owned.keys() - self._goal.keys()):
            return
        self._revokes_at_s = None
        self.give_up(dict.fromkeys(self.owned.keys() - self._goal.keys()))
        self.take({p: since for p, since in self._goal.items() if p not in self.owned})
        self.wake()

    # ---- leaving

    async def leave(self, epoch: int = -1) -> None:
        """Give everything up and leave; a static one, with -2, for a while."""
        self.is_over = True
        self.owned.clear()
        self.task.cancel()
        event = ConsumerHeartbeat(member_id=self.member_id, epoch=epoch, instance_id=self.instance_id)
        try:
            await self.cluster.call(
                self._broker,
                lambda groups: groups.request(GROUP, GroupKind.CONSUMER, event),
                REQUEST_TIMEOUT_S,
            )
        except (KafkaError, TimeoutError):
            return
