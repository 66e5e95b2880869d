"""Tests of groups: a driver for the pure group state machine."""

from __future__ import annotations

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
from ottla.broker.groups.states import GroupLimits
from ottla.protocol.errors import ErrorCode

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
