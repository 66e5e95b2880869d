"""The members of a group, the protocols that all of them support, and the joins that wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ottla.broker.groups.classic.events import JoinedMember, MemberSnapshot
from ottla.broker.groups.kinds import Token


@dataclass(slots=True, kw_only=True)
class GroupMember:
    """One member of a group. `join` and `sync` are its requests that wait for an answer."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    join: Token | None = None
    sync: Token | None = None
    is_new: bool = False
    """The member does not have its id yet, so it cannot send heartbeats."""

    @property
    def is_static(self) -> bool:
        """Whether the member keeps its assignment across restarts (KIP-345)."""
        return self.instance_id is not None

    def metadata(self, protocol: str | None) -> bytes:
        """The member's metadata for that protocol; empty when it does not support it."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def vote(self, candidates: set[str]) -> str | None:
        """The first of the member's protocols that is a candidate."""
        return next((name for name, _ in self.protocols if name in candidates), None)

    def snapshot(self, protocol: str | None, assignment: bytes) -> MemberSnapshot:
        """The member as the log stores it."""
        return MemberSnapshot(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=assignment,
        )


def metadata_bytes(protocols: tuple[tuple[str, bytes], ...]) -> int:
    """Return how many bytes a member's metadata has, for all of its protocols."""
    return sum(len(metadata) for _, metadata in protocols)


class Members:
    """The members by id, in the order of their joins, with counts of protocols and waiting joins.

    Only its methods change a member's protocols or waiting join.
    """

    def __init__(self) -> None:
        self._members: dict[str, GroupMember] = {}
        self._static: dict[str, str] = {}
        self._supporters: Counter[str] = Counter()
        self.awaiting_join = 0
        self.metadata_bytes = 0
        """The bytes of all members' metadata, for every protocol that they support."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[GroupMember]:
        return iter(list(self._members.values()))

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> GroupMember:
        return self._members[member_id]

    def get(self, member_id: str) -> GroupMember | None:
        """A member by its id, or None."""
        return self._members.get(member_id)

    def static_member_id(self, instance_id: str) -> str | None:
        """The present member id of an instance id."""
        return self._static.get(instance_id)

    def first(self) -> str | None:
        """The id of the oldest member."""
        return next(iter(self._members), None)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of any member; 0 without members."""
        return max((member.rebalance_timeout_ms for member in self._members.values()), default=0)

    # ---- changing

    def add(self, member: GroupMember) -> None:
        """Add a member."""
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        self._count_protocols(member)
        self.awaiting_join += member.join is not None

    def remove(self, member: GroupMember) -> None:
        """Remove a member."""
        del self._members[member.member_id]
        if member.instance_id is not None:
            self._static.pop(member.instance_id, None)
        self._forget_protocols(member)
        self.awaiting_join -= member.join is not None

    def replace(self, member: GroupMember, new_member_id: str) -> None:
        """Give a static member another id; it keeps its place in the order."""
        old = member.member_id
        member.member_id = new_member_id
        self._members = {
            (new_member_id if key == old else key): value for key, value in self._members.items()
        }
        if member.instance_id is not None:
            self._static[member.instance_id] = new_member_id

    def set_join(self, member: GroupMember, token: Token | None) -> Token | None:
        """Set or clear the join that the member waits with; returns the previous one."""
        previous, member.join = member.join, token
        self.awaiting_join += (token is not None) - (previous is not None)
        return previous

    def set_protocols(self, member: GroupMember, protocols: tuple[tuple[str, bytes], ...]) -> None:
        """Replace the protocols of a member."""
        self._forget_protocols(member)
        member.protocols = protocols
        self._count_protocols(member)

    def _count_protocols(self, member: GroupMember) -> None:
        self.metadata_bytes += metadata_bytes(member.protocols)
        self._supporters.update({name for name, _ in member.protocols})

    def _forget_protocols(self, member: GroupMember) -> None:
        self.metadata_bytes -= metadata_bytes(member.protocols)
        for name in {name for name, _ in member.protocols}:
            self._supporters[name] -= 1
            if not self._supporters[name]:
                del self._supporters[name]

    # ---- deciding

    def supports_one_of(self, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Whether at least one of these protocols is supported by every member."""
        return any(self._supporters[name] == len(self._members) for name, _ in protocols)

    def elect_protocol(self) -> str:
        """Elect the protocol most members prefer among those that all support; ties go to the first vote."""
        candidates = {name for name, count in self._supporters.items() if count == len(self._members)}
        if len(candidates) == 1:
            return candidates.pop()
        votes = Counter(member.vote(candidates) for member in self._members.values())
        winner = votes.most_common(1)[0][0]
        assert winner is not None, "a member was admitted that supports no protocol of the group"
        return winner

    def joined(self, protocol: str | None) -> tuple[JoinedMember, ...]:
        """The members, as the leader gets them."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(protocol))
            for member in self._members.values()
        )
