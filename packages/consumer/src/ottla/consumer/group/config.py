"""The settings of group membership."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ottla.consumer.assignors import Assignor, assignors

GroupProtocol = Literal["classic", "consumer"]
DEFAULT_ASSIGNORS = ("range", "cooperative-sticky")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Settings of a consumer's membership in its group. Names are Kafka's, in snake case."""

    group_id: str
    """The group's name."""
    group_instance_id: str | None = None
    """The id of a static member: it keeps its partitions through a restart (KIP-345)."""
    group_protocol: GroupProtocol = "classic"
    """The protocol of the membership: members assign the partitions, or the coordinator does (KIP-848)."""
    group_remote_assignor: str | None = None
    """The assignor of the coordinator, with `group_protocol="consumer"`; None: its first."""
    partition_assignment_strategy: str | Assignor | Iterable[str | Assignor] = DEFAULT_ASSIGNORS
    """Assignors, preferred first: range, roundrobin, sticky, cooperative-sticky, or custom objects."""
    session_timeout_ms: int = 45_000
    """After so long without a heartbeat the coordinator removes a member."""
    heartbeat_interval_ms: int = 3_000
    """The interval of heartbeats; a rebalance is noticed within it."""
    max_poll_interval_ms: int = 300_000
    """After so long without a poll, the consumer leaves its group until the application polls again."""
    handling_grace_ms: int = 3_000
    """How long a rebalance waits for the application to finish delivered records of partitions to revoke.
    Records not finished by then are read again by the new owner."""
    client_rack: str | None = None
    """The rack of the consumer: assignors prefer partitions with a replica there (KIP-881)."""
    enable_auto_commit: bool = True
    """Whether offsets of finished records are committed automatically."""
    auto_commit_interval_ms: int = 5_000
    """The interval of automatic commits."""
    require_stable: bool = False
    """Whether committed offsets are read only after transactions with pending commits end (KIP-447)."""
    allow_auto_create_topics: bool = True
    """Whether the broker may create a missing topic that is subscribed to."""
    exclude_internal_topics: bool = True
    """Whether patterns exclude internal topics of the brokers."""
    metadata_max_age_ms: int = 300_000
    """The interval of looking for new topics and partitions."""
    close_timeout_ms: int = 30_000
    """The bound of the final commit, the listener and leaving the group together, on close."""

    def __post_init__(self) -> None:
        if not self.group_id:
            raise ValueError("group_id must not be empty; leave it out to read without a group")
        if self.group_instance_id == "":
            raise ValueError("group_instance_id must not be empty; leave it out for a dynamic member")
        if not 0 < self.heartbeat_interval_ms < self.session_timeout_ms:
            raise ValueError("heartbeat_interval_ms must be above 0 and below session_timeout_ms")
        for name in ("max_poll_interval_ms", "auto_commit_interval_ms", "close_timeout_ms"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")
        assignors(self.partition_assignment_strategy)
