"""The kinds of groups that one coordinator hosts, and the part of a group that the hosting knows.

A classic group writes a snapshot of itself. A group of the other kinds (KIP-848, KIP-932, KIP-1071) writes
records: a step changes nothing that is stored, it returns the records of the change. They are appended in one
batch, then replayed into the group, and the replies of the step are sent once all in-sync replicas have the
batch. So a group is always what the replay of its records makes, in this coordinator and in the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from ottla.zookeeper.frozen_classes import frozen

if TYPE_CHECKING:
    from random import Random

    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.config import BrokerConfig
    from ottla.broker.groups.early_heartbeats import EarlyHeartbeats
    from ottla.protocol.errors import ErrorCode
    from ottla.protocol.stored_groups import GroupKey
    from ottla.protocol.stored_messages import VersionedMessage
    from ottla.protocol.topics import TopicPartition

Token: TypeAlias = Hashable
"""Identifies a request that waits for its answer; the group only returns it with the reply."""


class GroupKind(StrEnum):
    """The kinds of groups, by the names that clients see in ListGroups."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


_KIND_OF_KEY: Final[Mapping[int, GroupKind]] = {
    **dict.fromkeys((3, 4, 5, 6, 7, 8, 16), GroupKind.CONSUMER),
    **dict.fromkeys(range(9, 16), GroupKind.SHARE),
    **dict.fromkeys(range(17, 24), GroupKind.STREAMS),
}


class KindRecord(NamedTuple):
    """One record of a group that is not classic; without a value it takes back what its key stands for."""

    group_id: str
    key: GroupKey
    value: VersionedMessage | None

    @property
    def kind(self) -> GroupKind:
        """The kind of group that the record belongs to; the version of a key says it."""
        return _KIND_OF_KEY[self.key.MIN_VERSION]


def tombstones_of_member(group_id: str, member_id: str, *keys: Callable[..., GroupKey]) -> list[KindRecord]:
    """Return the records that delete a member: the tombstones of its keys, in their order."""
    return [KindRecord(group_id, key(group_id=group_id, member_id=member_id), None) for key in keys]


def kind_of_key(version: int) -> GroupKind | None:
    """Return the kind of group that a key of this version belongs to; None for keys of other records."""
    return _KIND_OF_KEY.get(version)


# ---- steps


@frozen
class TimePassed:
    """A deadline of the group has passed."""


@frozen
class Loaded:
    """The group was loaded from the log: the sessions of its members begin now."""


@frozen
class Unloaded:
    """This broker does not coordinate the group any more."""


@frozen
class Succeeded:
    """Another group has taken the place of this one, with its members."""


@frozen
class Removed:
    """The empty group is deleted."""


@frozen
class NotWritten:
    """The records of the group's last step were refused by the log: what was due is due again."""


@frozen
class Work:
    """Long work of a group, which the loop's turns share: `steps` makes a generator, to be run to its end.

    The group is stepped with each of the `events` that are made of its result, in a turn of its own each.
    """

    name: str
    steps: Callable[[], Generator[Any, None, Any]]
    events: Callable[[Any], Iterable[object]]


@frozen
class WorkFailed:
    """Long work ended with an exception, which is in the broker's log."""

    name: str


class AnyReply(Protocol):
    """The answer to the request that `token` identifies."""

    @property
    def token(self) -> Token: ...

    @property
    def result(self) -> Any: ...


@frozen
class Reply:
    """The answer to the request that `token` identifies."""

    token: Token
    result: Any


@dataclass(slots=True)
class StepOutcome:
    """The effects of a step of any group: write `records`, then send `replies`.

    `rebalanced` counts the rebalances that the step completed. A `successor` takes the group's place once the
    records are in the log, and is stepped with the events of `then`: a group that moves to another kind.
    """

    records: list[Any] = field(default_factory=list)
    replies: list[AnyReply] = field(default_factory=list)
    rebalanced: int = 0
    work: list[Work] = field(default_factory=list)
    successor: HostableGroup | None = None
    then: Sequence[object] = ()


@frozen
class ExpiryRule:
    """When the offsets of a group expire."""

    idle_since_ms: int | None
    """Age is counted from here; None counts from each commit."""
    subscribed_topics: frozenset[str] = frozenset()
    """Offsets of these topics do not expire."""


class HostableGroup(Protocol):
    """A group of any kind, as its coordinator hosts it. Only `step` and `replay` change it."""

    @property
    def kind(self) -> GroupKind: ...

    @property
    def group_id(self) -> str: ...

    @property
    def state(self) -> Enum:
        """The present state; its value is the name that clients see."""
        ...

    @property
    def protocol_type(self) -> str | None: ...

    @property
    def member_count(self) -> int: ...

    @property
    def is_empty(self) -> bool:
        """Whether the group has no member, so that it may be deleted."""
        ...

    @property
    def is_unused(self) -> bool:
        """Whether the log has no record of the group, and no member is about to join."""
        ...

    @property
    def may_expire(self) -> bool:
        """Whether the group goes once it has no offset any more."""
        ...

    @property
    def wake_at_ms(self) -> float | None:
        """When `TimePassed` is due; None when the group waits for no deadline."""
        ...

    def step(self, event: Any, now_ms: float, wall_ms: int) -> StepOutcome:
        """Process one event, and return what the caller must do. Raises KafkaError to refuse a request."""
        ...

    def replay(self, record: KindRecord) -> None:
        """Apply one record of the log."""
        ...

    def tombstones(self) -> Sequence[Any]:
        """Return the records that delete the group from the log."""
        ...

    def topics_changed(self, names: Set[str]) -> None:
        """Look at these topics again: a controller has published them, or they were deleted."""
        ...

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members may consume `topic`; true when that is not known."""
        ...

    def expiry_rule(self) -> ExpiryRule | None:
        """Return how the offsets of the group expire now; None when they do not."""
        ...

    def check_commit(
        self,
        member_id: str,
        epoch: int,
        instance_id: str | None,
        now_ms: float,
        *,
        transactional: bool = False,
        version: int = 0,
        partitions: Collection[TopicPartition] = (),
    ) -> ErrorCode:
        """Return whether this member may commit offsets of these partitions, by a request of this version.

        The `epoch` of a classic member is its generation.
        """
        ...

    def check_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Return whether this member may fetch offsets now."""
        ...

    def check_offset_delete(self) -> ErrorCode:
        """Return whether offsets of topics that no member is subscribed to may be deleted."""
        ...


@frozen(kw_only=True)
class GroupLimits:
    """The limits of classic groups in the broker's configuration."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1
    max_metadata_bytes: int = 2**31 - 1
    """The most bytes of metadata that all members of a group together may have."""


class GroupSurroundings(NamedTuple):
    """The parts of the broker that a group reads: settings, topics, and chance."""

    config: BrokerConfig
    limits: GroupLimits
    """Those of classic groups, for a group that becomes one."""
    group_settings: Callable[[str], Mapping[str, str]]
    """The settings of a group itself, a `GROUP` resource."""
    metadata: MetadataCache
    random: Random
    early: Callable[[], EarlyHeartbeats]
    """The one of this broker, which is imported for the first group whose members heartbeat early."""


NewGroup: TypeAlias = Callable[[str, GroupSurroundings], HostableGroup]


class GroupOf:
    """The `new_group` of a module of `ottla.broker.groups`, which is imported for its first group."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __call__(self, group_id: str, surroundings: GroupSurroundings) -> HostableGroup:
        module = import_module(f"ottla.broker.groups.{self._module}")
        group: HostableGroup = module.new_group(group_id, surroundings)
        return group

    def successor_of(
        self, classic: HostableGroup, surroundings: GroupSurroundings
    ) -> tuple[HostableGroup, list[KindRecord]] | None:
        """Make the group that a classic group with members becomes, and its records; None if it cannot.

        Raises GroupIdNotFound for a group that may not.
        """
        module = import_module(f"ottla.broker.groups.{self._module}")
        make = getattr(module, "successor_of", None)
        made: tuple[HostableGroup, list[KindRecord]] | None = make and make(classic, surroundings)
        return made


KINDS: Final[Mapping[GroupKind, NewGroup]] = {
    GroupKind.CONSUMER: GroupOf("consumer.group"),
    GroupKind.SHARE: GroupOf("share.group"),
    GroupKind.STREAMS: GroupOf("streams.group"),
}
"""The kinds that are hosted beside the classic one. Records of another kind are skipped."""
