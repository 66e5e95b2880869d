"""A member of a classic group as clients are: it reads eagerly or cooperatively, and may assign."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from ottla.broker.groups.classic.events import (
    Heartbeat,
    Join,
    JoinResult,
    Leave,
    MemberIdentity,
    Sync,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.stored_messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
)
from simulation.group_cluster import GROUP, REQUEST_TIMEOUT_S, SESSION_MS
from simulation.invariant_violated import InvariantViolated

if TYPE_CHECKING:
    from ottla.broker.groups.hosting.coordinator import GroupCoordinator
    from simulation.consumer_groups import Schedule

from simulation.group_members import DIES_OF, LATER, NOT_HERE, REBALANCE_MS, Member, Partition


class ClassicMember(Member):
    """A member of the classic protocol."""

    is_classic = True

    def __init__(
        self,
        schedule: Schedule,
        name: str,
        topics: frozenset[str],
        *,
        is_eager: bool,
        instance_id: str | None,
    ) -> None:
        self._name, self._is_eager, self._must_join = name, is_eager, True
        self._seen: dict[str, int] = {}
        self._leads = False
        self._joined_topics = topics
        super().__init__(schedule, "", instance_id)
        self.topics = topics

    def __str__(self) -> str:
        return self.member_id or self._name

    @property
    def is_at_rest(self) -> bool:
        """Whether it reads what it was assigned."""
        return not self._must_join and self.epoch > 0

    async def turn(self) -> None:
        if self.epoch > 0 and not self._must_join and self.chance.random() < 0.3:
            await self.commit()
        if self.topics != self._joined_topics or (self._leads and self._seen != self._counts(self._seen)):
            self._must_join = True
        if not self._must_join:
            await self._beat()
        if self._must_join and not self.is_over and not self.is_hung:
            await self._rejoin()

    def _counts(self, topics: Mapping[str, object] | frozenset[str]) -> dict[str, int]:
        return {name: len(self.cluster.topics.partitions(name)) for name in topics}

    async def _classic(self, request: Callable[[GroupCoordinator], Awaitable[Any]], timeout_s: float) -> Any:
        """Send a request; None where it has no answer, or an error that is dealt with here."""
        answer = await self.ask(request, timeout_s)
        if answer is None:
            return None
        code = answer if isinstance(answer, ErrorCode) else answer.error
        if code is ErrorCode.NONE:
            return answer
        if code in NOT_HERE:
            self._broker = self.cluster.guess_coordinator()
        elif code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self.wake()
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._must_join = True
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.lose_all()
            self.member_id = "" if code is ErrorCode.UNKNOWN_MEMBER_ID else self.member_id
            self.epoch, self._must_join = 0, True
        elif code in DIES_OF or code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            self.schedule.restart(self)
        elif code not in LATER:
            raise InvariantViolated(f"{self} gets an error that no client expects: {code.name}")
        return None

    async def _beat(self) -> None:
        event = Heartbeat(
            token=None, member_id=self.member_id, generation=self.epoch, instance_id=self.instance_id
        )
        await self._classic(lambda groups: groups.heartbeat(GROUP, event), REQUEST_TIMEOUT_S)

    # ---- joining

    async def _rejoin(self) -> None:
        if self._is_eager:
            await self.commit()
            self.owned.clear()
        self._joined_topics = self.topics
        join = Join(
            token=None,
            member_id=self.member_id,
            new_member_id=f"{self._name}-{self.schedule.next_number()}",
            instance_id=self.instance_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=(("range" if self._is_eager else "cooperative-sticky", self._subscription()),),
            require_known_member_id=self.instance_id is None,
        )
        joined = await self._classic(lambda groups: groups.join(GROUP, join), REBALANCE_MS / 1000 + 5)
        if joined is None:
            return
        self.member_id, self.epoch = joined.member_id, joined.generation
        self._leads = joined.leader_id == joined.member_id and not joined.skip_assignment
        assignments = self._assign(joined) if self._leads else {}
        sync = Sync(
            token=None,
            member_id=self.member_id,
            generation=self.epoch,
            instance_id=self.instance_id,
            assignments=assignments,
        )
        confirmation = self.schedule.reports.confirmation(self)
        synced = await self._classic(lambda groups: groups.sync(GROUP, sync), REBALANCE_MS / 1000 + 5)
        if synced is not None:
            self._must_join, (self.removals, self.confirmed_in) = False, confirmation
            self._take_assignment(synced.assignment)

    def _subscription(self) -> bytes:
        owned: dict[str, set[int]] = {}
        for topic_id, index in self.owned:  # by names: it does not know yet which topics were deleted
            owned.setdefault(self.cluster.topics.names[topic_id], set()).add(index)
        partitions = [TopicPartitions(topic=name, partitions=sorted(owned[name])) for name in sorted(owned)]
        subscription = ConsumerProtocolSubscription(topics=sorted(self.topics), owned_partitions=partitions)
        return subscription.to_bytes(0 if self._is_eager else 1)

    def _take_assignment(self, encoded: bytes) -> None:
        named = ConsumerProtocolAssignment.from_bytes(encoded).assigned_partitions if encoded else ()
        present = self.cluster.topics.present
        assigned: dict[Partition, int] = {
            (present[topic.topic][0], index): self.epoch
            for topic in named
            if topic.topic in present
            for index in topic.partitions
        }
        gone = self.owned.keys() - assigned.keys()
        self.give_up(dict.fromkeys(gone))
        if gone:  # another member waits for them
            self._must_join = True
            self.wake()
        self.take({p: since for p, since in assigned.items() if p not in self.owned})

    def _assign(self, joined: JoinResult) -> dict[str, bytes]:
        """Assign in turns; cooperatively a partition stays with its owner, or goes to none in this round."""
        readers: dict[str, list[str]] = {}
        owners: dict[tuple[str, int], list[str]] = {}
        for member in joined.members:
            subscription = ConsumerProtocolSubscription.from_bytes(member.metadata)
            for name in subscription.topics:
                readers.setdefault(name, []).append(member.member_id)
            for topic in subscription.owned_partitions:
                for index in topic.partitions:
                    owners.setdefault((topic.topic, index), []).append(member.member_id)
        given: dict[str, dict[str, list[int]]] = {member.member_id: {} for member in joined.members}
        self._seen = self._counts(frozenset(readers))
        turn = 0
        for name in sorted(readers):
            for index in range(self._seen[name]):
                member_id = sorted(readers[name])[turn % len(readers[name])]
                turn += 1
                if all(owner == member_id for owner in owners.get((name, index), ())):
                    given[member_id].setdefault(name, []).append(index)
        return {
            member_id: ConsumerProtocolAssignment(
                assigned_partitions=[TopicPartitions(topic=t, partitions=p) for t, p in topics.items()]
            ).to_bytes(0)
            for member_id, topics in given.items()
        }

    async def leave(self, epoch: int = -1) -> None:
        """Give everything up and leave; a static one stays a member until its session ends."""
        self.is_over = True
        self.owned.clear()
        self.task.cancel()
        if self.instance_id is not None or not self.member_id:
            return
        event = Leave(token=None, members=(MemberIdentity(self.member_id),))
        try:
            await self.cluster.call(
                self._broker, lambda groups: groups.leave(GROUP, event), REQUEST_TIMEOUT_S
            )
        except (KafkaError, TimeoutError):
            return
