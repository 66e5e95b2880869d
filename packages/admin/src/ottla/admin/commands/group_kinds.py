"""Kinds of groups in commands: `ottla group` is for groups of every kind, `ottla share-group` for one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.client.errors import ClientError

if TYPE_CHECKING:
    from ottla.admin import Admin

SHARE: Final = "share"


class WrongKindOfGroup(ClientError):
    """The command is for groups of another kind; the message names the one for this kind."""

    def __init__(self, name: str, kind: str, command: str) -> None:
        super().__init__(f"group {name!r} is a {kind} group: use `ottla {command}`")
        self.name = name
        self.kind = kind


def check_share_group(name: str, kind: str, command: str) -> None:
    """Check that a group is a share group; the others need `ottla group`. Raises WrongKindOfGroup."""
    if kind != SHARE:
        raise WrongKindOfGroup(name, kind, f"group {command}")


def check_no_share_group(name: str, kind: str, command: str) -> None:
    """Check that a group is no share group: those have a command of their own. Raises WrongKindOfGroup."""
    if kind == SHARE:
        raise WrongKindOfGroup(name, kind, f"share-group {command}")


async def kind_of(admin: Admin, name: str) -> str:
    """Return the kind of a group. Raises GroupIdNotFound."""
    return (await admin.groups.describe(name)).type
