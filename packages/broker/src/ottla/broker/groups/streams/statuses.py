"""Statuses in the response to a heartbeat of a streams group, but those of its topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla.broker.groups.streams.members import StreamsMember
from ottla.broker.groups.streams.topic_configuration import Status, StatusCode

TAGS_STATUS_FROM: Final = 1
"""The version of the request whose clients know MISSING_CLIENT_TAGS."""


def stale_topology(member: StreamsMember, group_epoch: int) -> Status | None:
    """Return the status of a member whose topology is older than that of its group."""
    if member.topology_epoch >= group_epoch:
        return None
    return Status(
        StatusCode.STALE_TOPOLOGY,
        f"The member's topology epoch {member.topology_epoch} is behind the group's "
        f"topology epoch {group_epoch}.",
    )


def delayed(reason: str) -> Status:
    """Return the status of an assignment that is made later."""
    return Status(StatusCode.ASSIGNMENT_DELAYED, reason)


def shutdown(member_id: str | None) -> Status | None:
    """Return the status after a member, if any, has asked for the shutdown of its application."""
    if member_id is None:
        return None
    return Status(
        StatusCode.SHUTDOWN_APPLICATION,
        f"Streams group member {member_id} encountered a fatal error and requested a shutdown "
        "for the entire application.",
    )


def missing_tags(member: StreamsMember, required: Sequence[str], version: int) -> Status | None:
    """Return the status of a member without all tags that its group requires, for clients that know it."""
    has = dict(member.client_tags)
    missing = [tag for tag in required if tag not in has]
    if not missing or version < TAGS_STATUS_FROM:
        return None
    return Status(
        StatusCode.MISSING_CLIENT_TAGS,
        f"Missing required client tags for rack-aware standby assignment: [{', '.join(missing)}]. "
        "Configure them via 'client.tag.<tagKey>' in your Streams config.",
    )
