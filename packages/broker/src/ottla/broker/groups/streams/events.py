"""The requests that step a streams group, its deadlines, and the answers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from ottla.broker.coordinators.timers import Deadlines
from ottla.broker.groups.streams.tasks import Tasks
from ottla.broker.groups.streams.topology import InternalTopic
from ottla.protocol.messages.streams_groups import StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResponse
from ottla.zookeeper.frozen_classes import frozen


class Wait(StrEnum):
    """The kinds of deadlines of a group."""

    SESSION = "session"
    REBALANCE = "rebalance"
    INITIAL_REBALANCE = "initial rebalance"


GroupDeadlines = Deadlines[tuple[Wait, str]]


@frozen(kw_only=True)
class Heartbeat:
    """StreamsGroupHeartbeat of a member that joins or stays."""

    token: Any
    request: StreamsGroupHeartbeatRequest
    client_id: str = ""
    client_host: str = ""
    version: int = 0


@frozen
class HeartbeatResult:
    """The answer to a heartbeat, and the internal topics that are to be created for it."""

    response: StreamsGroupHeartbeatResponse
    missing_topics: Mapping[str, InternalTopic] = {}


@frozen
class Leave:
    """StreamsGroupHeartbeat of a member that leaves, for good or, a static one, for a while."""

    token: Any
    member_id: str
    epoch: int
    instance_id: str | None = None
    shutdown_application: bool = False


@frozen
class AssignmentPart:
    """The targets of some members, of an assignment that was made in steps; the last part has its epoch.

    `number` tells the assignments of a group apart that were begun.
    """

    tasks: Mapping[str, Tasks]
    number: int
    epoch: int | None = None
