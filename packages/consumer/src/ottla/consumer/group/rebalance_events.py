"""Events of a member of a group, and the effects it asks for: the vocabulary of `group.rebalance`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.consumer.assignors import TopicRacks
from ottla.protocol.topics import TopicPartition

Partitions = frozenset[TopicPartition]

# --- events


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The application wants these topics from now on; None wants to be out of the group."""

    topics: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Polled:
    """The application asked for records."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """It is `wake_at_ms`, or later."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The application is done."""


@dataclass(frozen=True, slots=True)
class TopicsSeen:
    """What the metadata say of the watched topics now."""

    topics: TopicRacks


@dataclass(frozen=True, slots=True)
class TopicsFound:
    """What the metadata say of the topics that were looked up; an answer to `LookUp`."""

    token: int
    topics: TopicRacks


@dataclass(frozen=True, slots=True)
class Revoked:
    """The application is through with `Revoke`."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """The application is through with `Adopt`."""


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """Another member, or this one, as the leader is told of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to `Join`; members are told to the leader only."""

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
    """The answer to `Join`, `Sync` or `LookUp` where it is an error; or there is none, with code None.

    `member_id` comes with MEMBER_ID_REQUIRED. `failure` is an error that trying again does not help.
    """

    token: int
    code: int | None
    member_id: str = ""
    failure: Exception | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    """The answer to `Heartbeat`; None where there is none."""

    member_id: str
    generation: int
    code: int | None


Event = (
    Subscribed
    | Polled
    | TimePassed
    | Closing
    | TopicsSeen
    | TopicsFound
    | Revoked
    | Adopted
    | Joined
    | Synced
    | Refused
    | HeartbeatAnswered
)

# --- effects


@dataclass(frozen=True, slots=True)
class Revoke:
    """Take partitions from the application, then say `Revoked`.

    Those that are `lost` may be read by others already: nothing can be committed for them.
    """

    partitions: Partitions
    lost: bool


@dataclass(frozen=True, slots=True)
class Adopt:
    """Let the application have exactly these partitions, of which some are new, then say `Adopted`."""

    partitions: Partitions
    added: Partitions


@dataclass(frozen=True, slots=True)
class Join:
    """Send JoinGroup: assignors' names with what their leader shall know."""

    token: int
    member_id: str
    protocols: tuple[tuple[str, bytes], ...]
    reason: str


@dataclass(frozen=True, slots=True)
class LookUp:
    """Ask for the metadata of topics, then say `TopicsFound`."""

    token: int
    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Sync:
    """Send SyncGroup: the leader with everybody's assignment."""

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
    """Send LeaveGroup. Nobody waits for what comes of it but a consumer that closes."""

    member_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class ForgetCoordinator:
    """Look for the coordinator again before the next request."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise this to the application when it asks next."""

    error: Exception


Effect = Revoke | Adopt | Join | LookUp | Sync | Heartbeat | Leave | ForgetCoordinator | Fail
