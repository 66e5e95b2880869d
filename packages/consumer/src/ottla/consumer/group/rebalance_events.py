"""A member's phases, settings, intent, events and effects: the vocabulary of `group.rebalance`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ottla.client.retry import Backoff
from ottla.consumer.assignors import Assignor, TopicRacks
from ottla.consumer.errors import GroupFailed
from ottla.protocol.topics import TopicPartition

Partitions = frozenset[TopicPartition]

# --- the member


class Phase(Enum):
    """The phase of a member."""

    OUT = "out"
    PREPARING = "preparing"
    JOINING = "joining"
    LOOKING_UP = "looking up"
    SYNCING = "syncing"
    REVOKING = "revoking"
    ADOPTING = "adopting"
    STABLE = "stable"
    WAITING = "waiting"
    LEAVING = "leaving"


JOIN_PHASES = (Phase.JOINING, Phase.LOOKING_UP, Phase.SYNCING)
AWAITED_PHASES = (Phase.JOINING, Phase.SYNCING)
HEARTBEAT_PHASES = frozenset(Phase) - {Phase.OUT, *AWAITED_PHASES, Phase.WAITING, Phase.LEAVING}
"""Not while a JoinGroup or SyncGroup is outstanding: the coordinator regards its sender as alive, and answers
a heartbeat on the same connection only after it. That would be too late, and close the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """The settings of a member; they never change."""

    group_id: str
    assignors: tuple[Assignor, ...]
    instance_id: str | None = None
    rack: str | None = None
    heartbeat_interval_ms: float = 3_000
    max_poll_interval_ms: float = 300_000
    leave_timeout_ms: float = 10_000
    backoff: Backoff = field(default_factory=lambda: Backoff(jitter=0))

    def assignor(self, name: str) -> Assignor:
        """Return the assignor that the group chose. Raises GroupFailed if this member lacks it."""
        for assignor in self.assignors:
            if assignor.name == name:
                return assignor
        raise GroupFailed(f"the group chose the assignor {name!r}, which this member lacks")


# --- events


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The application subscribed to these topics; None: it unsubscribed.

    With `pattern` the coordinator finds the topics, and `topics` are none.
    """

    topics: frozenset[str] | None
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class Polled:
    """The application asked for records."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """`wake_at_ms` is reached."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The application closes the consumer."""


@dataclass(frozen=True, slots=True)
class TopicsSeen:
    """The current metadata of the watched topics."""

    topics: TopicRacks


@dataclass(frozen=True, slots=True)
class TopicsFound:
    """The metadata of the topics of all members; the answer to `LookUp`."""

    token: int
    topics: TopicRacks


@dataclass(frozen=True, slots=True)
class Revoked:
    """The application carried out `Revoke`."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """The application carried out `Adopt`."""


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """A member of the group, as JoinGroup describes it to the leader."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to `Join`; only the leader receives `members`."""

    token: int
    member_id: str
    generation: int
    protocol_name: str
    leader_id: str
    members: tuple[MemberMetadata, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class Synced:
    """The answer to `Sync`."""

    token: int
    assignment: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """`Join`, `Sync` or `LookUp` failed with an error code, or without an answer: code None.

    `member_id` is set with MEMBER_ID_REQUIRED. `failure` is an error that a retry does not help.
    """

    token: int
    code: int | None
    member_id: str = ""
    failure: Exception | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    """The answer to `Heartbeat`; code None without an answer."""

    member_id: str
    generation: int
    code: int | None


CommonEvent = Subscribed | Polled | TimePassed | Closing | Revoked | Adopted
"""The events of a member of any protocol."""

ClassicEvent = TopicsSeen | TopicsFound | Joined | Synced | Refused | HeartbeatAnswered

Event = CommonEvent | ClassicEvent

# --- effects


@dataclass(frozen=True, slots=True)
class Revoke:
    """Take partitions from the application, then send `Revoked`.

    Partitions that are `lost` may be read by others already: no commit for them is possible.
    """

    partitions: Partitions
    lost: bool


@dataclass(frozen=True, slots=True)
class Adopt:
    """Assign exactly these partitions to the application, then send `Adopted`."""

    partitions: Partitions
    added: Partitions


@dataclass(frozen=True, slots=True)
class Join:
    """Send JoinGroup with the names of assignors and their subscription metadata."""

    token: int
    member_id: str
    protocols: tuple[tuple[str, bytes], ...]
    reason: str


@dataclass(frozen=True, slots=True)
class LookUp:
    """Request the metadata of topics, then send `TopicsFound`."""

    token: int
    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Sync:
    """Send SyncGroup; the leader sends the assignments of all members."""

    token: int
    member_id: str
    generation: int
    protocol_name: str
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Send Heartbeat."""

    member_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Send LeaveGroup. Only a consumer that closes waits for the answer."""

    member_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class ForgetCoordinator:
    """Find the coordinator again before the next request."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise this error to the application with its next poll."""

    error: Exception


Effect = Revoke | Adopt | Join | LookUp | Sync | Heartbeat | Leave | ForgetCoordinator | Fail


class Intent:
    """The subscription, the polls and the end, as the application asks for them.

    A member that `is_staying` takes part in rebalances; each of the reasons against it is one attribute.
    """

    def __init__(self, max_poll_interval_ms: float, now_ms: float) -> None:
        self.topics: frozenset[str] | None = None
        """The subscription; None without one."""
        self.is_closing = False
        self.must_leave = False
        """It unsubscribed, and has not left yet."""
        self.is_fenced = False
        """Another process has its instance id: it stays out for good."""
        self.is_idle = False
        """It left after a failure, or because no records were asked for; the next poll ends that."""
        self._max_poll_interval_ms = max_poll_interval_ms
        self._polled_ms = now_ms

    @property
    def is_staying(self) -> bool:
        """Whether this member wants to be in the group."""
        is_over = self.is_closing or self.must_leave or self.is_idle or self.is_fenced
        return self.topics is not None and not is_over

    @property
    def idle_at_ms(self) -> float:
        """When the member leaves, unless the application asks for records before."""
        return self._polled_ms + self._max_poll_interval_ms

    def subscribe(self, topics: frozenset[str]) -> bool:
        """Return whether a member that is out of its group joins it now."""
        self.topics = topics
        return not (self.is_closing or self.is_fenced)

    def poll(self, now_ms: float) -> None:
        """Count the time until the member is idle from now."""
        self._polled_ms = now_ms

    def end_idleness(self) -> bool:
        """Return whether a member that is out of its group because it was idle joins it now."""
        joins = self.is_idle and self.topics is not None and not self.is_closing
        if joins:
            self.is_idle = False
        return joins

    def exclude(self, since_ms: float, now_ms: float) -> None:
        """Do not count the time since then, of a rebalance, as time without a poll."""
        self._polled_ms += now_ms - max(since_ms, self._polled_ms)

    def fail(self, *, is_fenced: bool) -> None:
        """Stay out of the group until the application polls; if fenced, for good."""
        self.is_fenced = self.is_fenced or is_fenced
        self.is_idle = not self.is_fenced
