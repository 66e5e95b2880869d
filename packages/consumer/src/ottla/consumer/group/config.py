"""How a consumer takes part in a group."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ottla.consumer.assignors import Assignor, assignors

DEFAULT_ASSIGNORS = ("range", "cooperative-sticky")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """How a consumer takes part in a group. Names are Kafka's, in snake case."""

    group_id: str
    """The group's name."""
    group_instance_id: str | None = None
    """A name that outlives restarts: a member that comes back by it gets what it had (KIP-345)."""
    partition_assignment_strategy: str | Assignor | Iterable[str | Assignor] = DEFAULT_ASSIGNORS
    """Assignors, best first: range, roundrobin, sticky, cooperative-sticky, or objects of one's own."""
    session_timeout_ms: int = 45_000
    """After so long without a heartbeat the group takes a member for dead."""
    heartbeat_interval_ms: int = 3_000
    """How often to send heartbeats, which is also how soon a rebalance is noticed."""
    max_poll_interval_ms: int = 300_000
    """After so long without being asked for records, the consumer leaves until it is asked again."""
    handling_grace_ms: int = 3_000
    """How long a rebalance waits for the application to finish with what it has in hand of partitions that
    are given up. What is not finished by then will be read again by their new owner."""
    client_rack: str | None = None
    """Where the consumer is: assignors prefer partitions with a replica there (KIP-881)."""
    enable_auto_commit: bool = True
    """Whether offsets of what the application is finished with are committed by themselves."""
    auto_commit_interval_ms: int = 5_000
    """How often."""
    require_stable: bool = False
    """Whether reading committed offsets waits for the end of transactions that commit some (KIP-447)."""
    allow_auto_create_topics: bool = True
    """Whether subscribing to a topic that is not there may create it, where brokers do that."""
    exclude_internal_topics: bool = True
    """Whether patterns leave out topics of the brokers themselves."""
    metadata_max_age_ms: int = 300_000
    """How often to look for new topics and partitions."""
    close_timeout_ms: int = 30_000
    """How long committing, the listener and leaving may take together as the consumer closes."""

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
