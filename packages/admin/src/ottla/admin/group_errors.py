"""Errors of groups, with their names."""

from __future__ import annotations

from ottla.client.errors import ClientError
from ottla.protocol.errors import GroupIdNotFound


class NoSuchGroup(GroupIdNotFound):
    """The group does not exist."""

    def __init__(self, name: str) -> None:
        super().__init__(f"group {name!r} does not exist")
        self.name = name


class CommitsNoOffsets(ClientError):
    """The group is a share group: it has start offsets in place of committed ones."""

    def __init__(self, name: str) -> None:
        super().__init__(f"group {name!r} is a share group, and commits no offsets: use share_offsets()")
        self.name = name
