"""Groups under test: a driver for the pure group, and a log of groups in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from ottla.broker.groups.events import (
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
    TimePassed,
)
from ottla.broker.groups.group import Group
from ottla.broker.groups.records import KeyValue
from ottla.broker.groups.states import GroupLimits
from ottla.broker.groups.store import Written, build_batch
from ottla.protocol.errors import ErrorCode, KafkaError, NotLeaderOrFollower
from ottla.protocol.records import assign_offsets

SESSION_MS = 10_000
REBALANCE_MS = 60_000
NO_DELAY = GroupLimits(min_session_timeout_ms=100, initial_rebalance_delay_ms=0)


def range_protocol(metadata: bytes = b"range") -> tuple[tuple[str, bytes], ...]:
    """One protocol, as most members bring it."""
    return (("range", metadata),)


class GroupDriver:
    """A group with a clock and with requests by number, so that tests read like a story.

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
        """Take one event in, keep the answers, and finish its writes unless they are held."""
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
        """Let time pass, waking the group whenever it wants to be woken."""
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

    # ---- requests: each returns the number to look its answer up with

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
        """Let members leave and return the error of each."""
        token = self.token()
        identities = tuple(MemberIdentity(one) if isinstance(one, str) else one for one in members)
        self.step(Leave(token=token, members=identities))
        answer = self.answers[token]
        assert isinstance(answer, LeaveResult)
        return [error for _, error in answer.members] or [answer.error]

    # ---- answers

    def joined(self, token: int) -> JoinResult:
        """The answer to a join, which must be there."""
        answer = self.answers[token]
        assert isinstance(answer, JoinResult)
        return answer

    def synced(self, token: int) -> SyncResult:
        """The answer to a sync, which must be there."""
        answer = self.answers[token]
        assert isinstance(answer, SyncResult)
        return answer

    def stable(self, members: int, **join: object) -> list[str]:
        """Bring a group of so many new members to Stable and return their ids, the leader first."""
        tokens = [self.join(**join) for _ in range(members)]  # type: ignore[arg-type]
        self.wait(0)
        ids = [self.joined(token).member_id for token in tokens]
        leader = self.group.leader
        ids.sort(key=lambda one: one != leader)
        self.sync(leader, assignments={one: one.encode() for one in ids})
        for one in ids[1:]:
            self.sync(one)
        return ids


@dataclass(slots=True)
class _Held:
    done: asyncio.Event = field(default_factory=asyncio.Event)
    error: KafkaError | None = None


class MemoryOffsets:
    """`OffsetsStore` in memory. `hold` keeps appends uncommitted until `release`; `fail_with` refuses."""

    def __init__(self, partitions: int = 4, batches_in_a_chunk: int = 8) -> None:
        self.batches: list[list[bytes]] = [[] for _ in range(partitions)]
        self.ends = [0] * partitions
        self.hold = False
        self.fail_with: KafkaError | None = None
        self.led: set[int] = set(range(partitions))
        self.read_gate = asyncio.Event()
        self.read_gate.set()
        self._chunk = batches_in_a_chunk
        self._held: list[_Held] = []

    def partition_count(self) -> int:
        return len(self.batches)

    def append(
        self, partition: int, records: Sequence[KeyValue], wall_ms: int, *, required_acks: int = -1
    ) -> Written:
        if self.fail_with is not None:
            raise self.fail_with
        if partition not in self.led:
            raise NotLeaderOrFollower
        position = self.ends[partition]
        batch = bytearray(build_batch(records, wall_ms))
        self.ends[partition] = assign_offsets(batch, position, 0)
        self.batches[partition].append(bytes(batch))
        if not self.hold:
            return Written(position, None)
        held = _Held()
        self._held.append(held)
        return Written(position, lambda: self._wait(held))

    async def _wait(self, held: _Held) -> None:
        await held.done.wait()
        if held.error is not None:
            raise held.error

    def release(self, error: KafkaError | None = None) -> None:
        """Commit what is held, or let its waits fail."""
        for held in self._held:
            held.error = error
            held.done.set()
        self._held.clear()

    def is_blank(self, partition: int) -> bool:
        return not self.batches[partition]

    async def read(self, partition: int) -> AsyncIterator[bytes]:
        present = list(self.batches[partition])
        for start in range(0, len(present), self._chunk):
            await self.read_gate.wait()
            if partition not in self.led:
                raise NotLeaderOrFollower
            yield b"".join(present[start : start + self._chunk])
