"""Znodes as the console shows them: read-only, and without secrets; and the groups that are kept in them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ottla.admin import LATEST, Admin, GroupDescription, GroupProgress, MemberDescription, PartitionProgress
from ottla.client.errors import ClientError
from ottla.console.settings import ZooKeeperSettings
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.errors import NoNode, ZooKeeperError
from ottla.zookeeper.session import Acl, AclOperations, Session, Stat

if TYPE_CHECKING:
    from ottla.zookeeper.kazoo_session import KazooSession

T = TypeVar("T")

CONNECT_MS: Final = 5_000
_PERMISSIONS: Final = ((4, "create"), (8, "delete"), (1, "read"), (2, "write"), (16, "change ACL"))
_SECRET_KEY: Final = re.compile(
    r"password|passwd|secret|credential|jaas|token|hmac|salt|private|scram|(^|[._-])key$", re.IGNORECASE
)
_HARMLESS: Final = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?|true|false")
_HIDDEN: Final = "hidden"


class ZooKeeperRefused(ClientError):
    """ZooKeeper cannot be read as asked; the message is one line."""


@dataclass(frozen=True, slots=True)
class Znode:
    """A znode: its data without secrets, and as each part may be refused by its ACL, the reasons of those.

    `hidden` counts the secrets that were taken out; with `data` None all of it is one.
    """

    path: str
    children: tuple[str, ...] = ()
    data: bytes | None = b""
    hidden: int = 0
    stat: Stat | None = None
    acl: tuple[tuple[str, str, str], ...] = ()
    failures: tuple[str, ...] = ()


async def connected(settings: ZooKeeperSettings) -> KazooSession:
    """Return a session that is still to be entered. Raises ZooKeeperRefused: no znode is made for it."""
    # Most consoles show no znodes, and this takes megabytes.
    from ottla.zookeeper.client_security import NO_SECURITY, client_security_from, settings_in
    from ottla.zookeeper.kazoo_session import KazooSession

    hosts, slash, chroot = settings.connect.partition("/")
    security = NO_SECURITY
    try:
        if settings.properties is not None:
            found = await asyncio.to_thread(settings_in, settings.properties)
            security = client_security_from(found)
        if chroot.strip("/"):
            async with KazooSession(hosts, connection_timeout_ms=CONNECT_MS, security=security) as probe:
                if await probe.exists(slash + chroot.strip("/")) is None:
                    raise ZooKeeperRefused(f"ZooKeeper at {hosts} has no znode /{chroot.strip('/')}")
    except (ZooKeeperError, OSError) as error:
        raise ZooKeeperRefused(" ".join(str(error).split())) from None
    return KazooSession(settings.connect, connection_timeout_ms=CONNECT_MS, security=security)


async def read_znode(session: AclOperations, path: str) -> Znode:
    """Return a znode. Raises ZooKeeperRefused for one that does not exist, or a path that is none."""
    if (why := paths.why_illegal_path(path)) is not None:
        raise ZooKeeperRefused(f"{path!r} is no path of a znode: {why}")
    data, children, acl = await asyncio.gather(
        _part(session.get(path)), _part(session.children(path)), _part(session.get_acl(path))
    )
    found = Znode(path, failures=tuple(part for part in (data, children, acl) if isinstance(part, str)))
    if not isinstance(data, str):
        shown, hidden = without_secrets(path, data[0])
        found = replace(found, data=shown, hidden=hidden, stat=data[1])
    if not isinstance(children, str):
        found = replace(found, children=tuple(children))
    if not isinstance(acl, str):
        found = replace(found, acl=tuple(map(_shown_acl, acl[0])), stat=found.stat or acl[1])
    return found


async def _part(call: Awaitable[T]) -> T | str:
    """Return one part of a znode, or the reason why it cannot be read. Raises ZooKeeperRefused."""
    try:
        return await call
    except NoNode:
        raise ZooKeeperRefused("there is no such znode") from None
    except ZooKeeperError as error:
        return " ".join(str(error).split())


def _shown_acl(acl: Acl) -> tuple[str, str, str]:
    """Return scheme, identity and permissions; the hash of a password is left out."""
    user, colon, _ = acl.identity.partition(":")
    identity = f"{user}:{_HIDDEN}" if acl.scheme == "digest" and colon else acl.identity
    return acl.scheme, identity, ", ".join(name for bit, name in _PERMISSIONS if acl.permissions & bit)


def without_secrets(path: str, data: bytes) -> tuple[bytes | None, int]:
    """Return the data of a znode without secrets, and how many were taken out; None where it may be all one.

    Below the paths of secrets only numbers and yes or no are shown, elsewhere all but the values of keys that
    name a secret.
    """
    is_sensitive = paths.is_sensitive(path) or path.startswith(f"{paths.DELEGATION_TOKEN}/")
    if not data:
        return data, 0
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        is_secret = is_sensitive or _SECRET_KEY.search(data.decode("utf-8", "replace")) is not None
        return (None, 1) if is_secret else (data, 0)
    shown, hidden = _clean(given, "", is_sensitive)
    return (json.dumps(shown, ensure_ascii=False).encode("utf-8", "replace"), hidden) if hidden else (data, 0)


def _clean(value: Any, key: str, is_sensitive: bool) -> tuple[Any, int]:
    match value:
        case dict():
            parts = {name: _clean(part, name, is_sensitive) for name, part in value.items()}
            return {name: part for name, (part, _) in parts.items()}, sum(
                count for _, count in parts.values()
            )
        case list():
            items = [_clean(part, key, is_sensitive) for part in value]
            return [part for part, _ in items], sum(count for _, count in items)
        case str() if _SECRET_KEY.search(key) or (is_sensitive and not _HARMLESS.fullmatch(value)):
            return _HIDDEN, 1
        case _:
            return value, 0


async def read_zookeeper_groups(session: Session) -> list[str]:
    """Return the names of the groups in ZooKeeper."""
    from ottla.consumer.zookeeper import group_admin

    return sorted(await group_admin.groups(session))


async def read_zookeeper_progress(session: Session, admin: Admin, name: str) -> GroupProgress:
    """Return a group in ZooKeeper with its offsets, and the ends of the partitions. Raises ClientError."""
    from ottla.consumer.zookeeper import group_admin

    znodes = group_admin.group_znodes_of(session, name)
    offsets = (await group_admin.read_offsets(session, [name]))[name]
    view = await znodes.view()
    read = {TopicPartition(topic, index) for topic, some in view.partitions.items() for index in some}
    chosen = sorted({*offsets, *read})
    owners = await znodes.owners(chosen)
    known = {topic.name: topic.partitions for topic in await admin.topics.list(internal=True)}
    there = [partition for partition in chosen if partition.partition in known.get(partition.topic, ())]
    ends = await admin.offsets.find_reachable(dict.fromkeys(there, LATEST))
    members = {
        member.consumer_id: _member(member.consumer_id, member.subscription, owners)
        for member in view.members
    }
    by_partition = {partition: member for member in members.values() for partition in member.partitions}
    progress = tuple(
        PartitionProgress(
            partition, offsets.get(partition), ends.get(partition), by_partition.get(partition),
            (by_partition[partition],) if partition in by_partition else (),
        )
        for partition in chosen
    )  # fmt: skip
    state = "Stable" if members else "Empty"
    description = GroupDescription(name, state, "consumer", "", -1, tuple(members.values()), "zookeeper")
    return GroupProgress(description, progress)


def _member(
    consumer_id: str, topics: Iterable[str], owners: Mapping[TopicPartition, str]
) -> MemberDescription:
    """Return a member; its threads, `ID-0` and so on, own the partitions."""
    own = tuple(
        partition for partition, thread in sorted(owners.items()) if thread.rpartition("-")[0] == consumer_id
    )
    return MemberDescription(consumer_id, None, consumer_id, "", own, topics=tuple(sorted(topics)))
