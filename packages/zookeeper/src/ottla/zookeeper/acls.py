"""The ACLs of new znodes with `zookeeper.set.acl`, which the broker does not apply yet."""

from __future__ import annotations

from ottla.zookeeper import paths
from ottla.zookeeper.session import ALL_PERMISSIONS, OPEN_ACL, READ_PERMISSION, Acl

CREATOR_ALL: tuple[Acl, ...] = (Acl(ALL_PERMISSIONS, "auth", ""),)
CREATOR_ALL_WORLD_READ: tuple[Acl, ...] = (*CREATOR_ALL, Acl(READ_PERMISSION, "world", "anyone"))

SENSITIVE = (f"{paths.CONFIG}/users", f"{paths.CONFIG}/brokers", paths.DELEGATION_TOKEN)
"""Znodes below these paths hold secrets: only brokers may read them."""


def secure_acl(path: str) -> tuple[Acl, ...]:
    """Return the ACL of a new znode: all permissions for its creator, read permission for the world.

    Below `SENSITIVE` the world may not read; below `/consumers` everyone may write, because old consumers
    register and commit there. The session needs credentials.
    """
    if _below(path, (paths.CONSUMERS,)):
        return OPEN_ACL
    return CREATOR_ALL if _below(path, SENSITIVE) else CREATOR_ALL_WORLD_READ


def _below(path: str, tops: tuple[str, ...]) -> bool:
    return any(path == top or path.startswith(f"{top}/") for top in tops)
