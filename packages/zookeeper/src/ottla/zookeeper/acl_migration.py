"""Closing the znodes of a cluster to all but its brokers, and opening them again.

As Kafka's `zookeeper-security-migration.sh` does it: on the chroot itself, and on the roots of brokers with
all below them; old consumers write below `/consumers`, which stays open. A plan is made first, and a tree is
not closed to a live broker: its identities are those that may write its registration, or the proof that each
broker with credentials keeps in `/ottla/credentials`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from ottla.zookeeper import paths
from ottla.zookeeper.errors import InvalidAcl, NoAuth, NoNode, ZooKeeperError
from ottla.zookeeper.session import ALL_PERMISSIONS, OPEN_ACL, Acl, AclOperations, Create

Identities = frozenset[tuple[str, str]]
_AT_ONCE = 256
_PASSES = 5
_CREATE = 4
_KEYS = "zookeeper.sasl.jaas.file, zookeeper.digest.file or zookeeper.ssl.keystore.location"


class Change(NamedTuple):
    """A znode whose ACL differs from the wanted one, and the version of that ACL."""

    path: str
    wanted: tuple[Acl, ...]
    aversion: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes of a migration, and how many znodes need none."""

    changes: tuple[Change, ...]
    unchanged: int

    def by_root(self) -> Mapping[str, int]:
        """Count the changes below each root."""
        return Counter(f"/{change.path.split('/')[1]}" for change in self.changes)

    @property
    def sensitive(self) -> int:
        """How many of the znodes hold secrets, which the world may not read once they are closed."""
        return sum(paths.is_sensitive(change.path) for change in self.changes)


class LockedOut(ZooKeeperError):
    """A live broker could no longer write its znodes; nothing was changed."""

    def __init__(self, brokers: Iterable[int], own: Identities) -> None:
        self.brokers = sorted(brokers)
        super().__init__("", described(own))

    def __str__(self) -> str:
        names = ", ".join(map(str, self.brokers))
        which = f"broker {names} runs" if len(self.brokers) == 1 else f"brokers {names} run"
        return (
            f"{which} without the credentials of {self.detail or 'this one, which has none'}, and could "
            f"change nothing in a closed ZooKeeper: restart with them ({_KEYS}; Apache Kafka's brokers with "
            "zookeeper.set.acl=true), then try again"
        )


def described(identities: Identities) -> str:
    """Return identities for a message."""
    return ", ".join(f"{scheme}:{identity}" for scheme, identity in sorted(identities))


async def own_identities(operations: AclOperations) -> Identities:
    """Return the identities that ZooKeeper knows of this session, of those that ACLs can name."""
    probe = Create("/ottla-identity-", ephemeral=True, sequential=True, acl=paths.CREATOR_ALL)
    try:
        (path,) = await operations.multi([probe])
    except InvalidAcl:
        return frozenset()
    acl, _ = await operations.get_acl(str(path))
    with suppress(NoNode):
        await operations.delete(str(path))
    return owners(acl)


async def identities_of_brokers(operations: AclOperations) -> dict[int, Identities]:
    """Return the identities that each live broker is known to have."""
    try:
        names = await operations.children(paths.BROKER_IDS)
    except NoNode:
        return {}
    found: dict[int, Identities] = {}
    for name in names:
        if name.isdigit():
            proofs = [
                await _owners_of(operations, f"{place}/{name}")
                for place in (paths.BROKER_IDS, paths.CREDENTIALS)
            ]
            found[int(name)] = frozenset().union(*proofs)
    return found


async def check_lock_out(operations: AclOperations, own: Identities, but: int | None = None) -> None:
    """Raise LockedOut where a live broker, `but` one, has none of the identities `own`."""
    brokers = await identities_of_brokers(operations)
    locked_out = [broker for broker, identities in brokers.items() if broker != but and not identities & own]
    if locked_out:
        raise LockedOut(locked_out, own)


async def check_may_write(operations: AclOperations) -> None:
    """Raise NoAuth where the znodes of brokers are closed to this session."""
    try:
        acl, _ = await operations.get_acl(paths.BROKER_IDS)
    except NoNode:
        return
    if any(entry.scheme == "world" and entry.permissions & _CREATE for entry in acl):
        return
    if not await _identities_or_none(operations) & owners(acl):
        raise NoAuth(
            paths.BROKER_IDS,
            f"the znodes of this cluster are closed to all but {described(owners(acl))}: give this broker "
            f"its credentials ({_KEYS})",
        )


async def plan(operations: AclOperations, own: Identities, *, close: bool) -> Plan:
    """Return the changes that close the znodes to all but `own`, or that open them."""
    changes: list[Change] = []
    unchanged = 0
    async for path, acl, aversion in _walk(operations):
        wanted = resolved(paths.secure_acl(path), own) if close else OPEN_ACL
        if set(wanted) == set(acl):
            unchanged += 1
        else:
            changes.append(Change(path, wanted, aversion))
    return Plan(tuple(sorted(changes)), unchanged)


async def migrate(
    operations: AclOperations, own: Identities, *, close: bool, checks_brokers: bool = True
) -> int:
    """Close or open the znodes, also those that come meanwhile; return how many ACLs were changed.

    Raises LockedOut before anything is changed, NoAuth for a znode that belongs to others. It can be repeated
    after an error. An embedded coordinator has one secret for all its brokers, which need no check.
    """
    changed = 0
    for _ in range(_PASSES):
        if close and checks_brokers:
            await check_lock_out(operations, own)
        todo = (await plan(operations, own, close=close)).changes
        if not todo:
            break
        for begin in range(0, len(todo), _AT_ONCE):
            part = todo[begin : begin + _AT_ONCE]
            changed += sum(await asyncio.gather(*(_apply(operations, change) for change in part)))
    return changed


def resolved(acl: Sequence[Acl], own: Identities) -> tuple[Acl, ...]:
    """Replace `auth` by identities, as ZooKeeper does."""
    return tuple(
        Acl(entry.permissions, scheme, identity)
        for entry in acl
        for scheme, identity in (sorted(own) if entry.scheme == "auth" else [(entry.scheme, entry.identity)])
    )


def owners(acl: Iterable[Acl]) -> Identities:
    """Return the identities that have all permissions, the world left out."""
    return frozenset(
        (entry.scheme, entry.identity)
        for entry in acl
        if entry.permissions == ALL_PERMISSIONS and entry.scheme != "world"
    )


async def _owners_of(operations: AclOperations, path: str) -> Identities:
    try:
        acl, _ = await operations.get_acl(path)
    except (NoNode, NoAuth):
        return frozenset()
    return owners(acl)


async def _identities_or_none(operations: AclOperations) -> Identities:
    """Return the own identities; none where nothing may be made below the chroot to learn them."""
    try:
        return await own_identities(operations)
    except NoAuth:
        return frozenset()


async def _apply(operations: AclOperations, change: Change) -> bool:
    try:
        await operations.set_acl(change.path, change.wanted, change.aversion)
    except NoNode:
        return False
    except NoAuth as error:
        acl, _ = await operations.get_acl(change.path)
        raise NoAuth(change.path, f"it belongs to {described(owners(acl))}: use their credentials") from error
    return True


async def _walk(operations: AclOperations) -> AsyncIterator[tuple[str, tuple[Acl, ...], int]]:
    """Yield path, ACL and its version of the chroot, and of all znodes below the roots of brokers."""
    acl, stat = await operations.get_acl("/")
    yield "/", acl, stat.aversion
    level = list(paths.SECURE_ROOTS)
    while level:
        below: list[str] = []
        for begin in range(0, len(level), _AT_ONCE):
            part = level[begin : begin + _AT_ONCE]
            looks = await asyncio.gather(*(_look(operations, path) for path in part))
            for path, found in zip(part, looks, strict=True):
                if found is not None:
                    yield path, *found[0]
                    below += found[1]
        level = below


async def _look(operations: AclOperations, path: str) -> tuple[tuple[tuple[Acl, ...], int], list[str]] | None:
    """Return the ACL with its version, and the children's paths, None for a znode that has gone."""
    try:
        acl, stat = await operations.get_acl(path)
        # A proof of identity is its broker's own.
        names = await operations.children(path) if stat.num_children and path != paths.CREDENTIALS else []
    except NoNode:
        return None
    except NoAuth as error:
        raise NoAuth(path, "it belongs to others, and is closed: use their credentials") from error
    return (acl, stat.aversion), [f"{path}/{name}" for name in names]
