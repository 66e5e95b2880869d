"""The cluster's ACLs: read from ZooKeeper, followed, and changed there, as Kafka's AclAuthorizer does it.

A pattern's rules stand in one znode, which a writer changes together with a notification. The authorizer
decides by the rules in memory, so a broker without ZooKeeper decides by those that it read last.

Rules that cannot be read, of another version or damaged, stop everybody but super users on the resources of
their pattern: a denial may stand in them. Apache Kafka takes damaged ones for none, and refuses to start with
those of another version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.broker.cluster.notifications import Notifications, quietly
from ottla.broker.cluster.zookeeper_session import retrying
from ottla.broker.runtime.loop_budget import slices
from ottla.broker.security.acls.bindings import Entry, Pattern, PatternType, PermissionType
from ottla.broker.security.authorizer import Operation, ResourceType
from ottla.zookeeper import paths
from ottla.zookeeper.errors import IllegalName, MalformedZnode
from ottla.zookeeper.session import (
    BadVersion,
    Create,
    Delete,
    NodeExists,
    NoNode,
    SetData,
)
from ottla.zookeeper.znodes.acls import (
    RESOURCE_TYPES,
    AclChange,
    AclEntry,
    ResourceAcls,
    pascal_case,
    resource_type_of,
)

if TYPE_CHECKING:
    from ottla.broker.runtime.clock import Clock
    from ottla.broker.security.acls.authorizer import AclAuthorizer
    from ottla.zookeeper.session import Operation as Write
    from ottla.zookeeper.session import Session

_log = logging.getLogger(__name__)

Change = Callable[[frozenset[Entry]], frozenset[Entry]]

RETRY_BACKOFF_S: Final = 0.1
MOST_ATTEMPTS: Final = 11
"""Attempts to change the rules of one pattern while others change them, too."""
MISSING: Final = -1


class AclsBusy(Exception):
    """The rules of a pattern were changed by others in each of many attempts."""


class Acls:
    """The ACLs of the cluster. `on_change` is called after each change of what the authorizer decides by."""

    def __init__(self, session: Session, authorizer: AclAuthorizer, clock: Clock) -> None:
        self.authorizer = authorizer
        self.on_change: list[Callable[[], None]] = []
        self._session = session
        self._notifications = Notifications(
            session,
            clock,
            (paths.acl_changes(is_prefixed=False), paths.acl_changes(is_prefixed=True)),
            read_all=self._read_stored,
            read_named=self._read_named,
            about="ACLs",
        )
        self.load = self._notifications.load
        """Reads all rules. Raises ZooKeeperError."""
        self.follow = self._notifications.follow
        """Applies changes until cancelled."""
        self._is_announced = False
        self._unknown_types: set[str] = set()

    # ---- following ZooKeeper

    async def _read_stored(self) -> None:
        await _make_paths(self._session)
        await self._read_all([*await self._stored_patterns(), *self.authorizer.rules.patterns()])

    async def _read_named(self, notifications: Iterable[tuple[str, bytes]]) -> None:
        patterns: list[Pattern] = []
        for path, data in notifications:
            try:
                patterns.append(_pattern_of(AclChange.decode(path, data)))
            except MalformedZnode as error:
                _log.error("notification of ACLs ignored", extra={"path": path, "reason": str(error)})
        await self._read_all(patterns)

    async def _stored_patterns(self) -> list[Pattern]:
        found: list[Pattern] = []
        for pattern_type in (PatternType.LITERAL, PatternType.PREFIXED):
            is_prefixed = pattern_type is PatternType.PREFIXED
            top = paths.parent_of(paths.acls_of_type(is_prefixed, "Topic"))
            for step in await self._session.children(top):
                if (name := resource_type_of(step)) is None:
                    self._skip_type(f"{top}/{step}")
                    continue
                names = await self._session.children(paths.acls_of_type(is_prefixed, step))
                found += [Pattern(ResourceType[name], pattern_type, resource) for resource in names]
        return found

    def _skip_type(self, path: str) -> None:
        if path not in self._unknown_types:
            self._unknown_types.add(path)
            _log.warning("ACLs ignored: their type of resource is unknown", extra={"path": path})

    async def _read_all(self, patterns: Iterable[Pattern]) -> None:
        for some in slices(dict.fromkeys(patterns)):
            await asyncio.gather(*map(self._read, some))

    async def _read(self, pattern: Pattern) -> None:
        """Read the rules of one pattern; they are applied in the turn in which they arrive, so in order."""
        try:
            entries: frozenset[Entry] | None = (await self._stored(pattern))[0]
        except MalformedZnode as error:
            entries = None
            reason = f"{error}: until its znode is replaced, super users alone may use what it is about"
            _log.error("ACLs cannot be read", extra={"path": error.path, "reason": reason})
        if self.authorizer.rules.replace(pattern, entries):
            self._announce()

    def _announce(self) -> None:
        """Call the listeners once for the changes of one turn of the loop."""
        if not self._is_announced:
            self._is_announced = True
            asyncio.get_running_loop().call_soon(self._call_listeners)

    def _call_listeners(self) -> None:
        self._is_announced = False
        for changed in self.on_change:
            changed()

    async def _stored(self, pattern: Pattern) -> tuple[frozenset[Entry], int]:
        """Return the rules in ZooKeeper and their version. Raises MalformedZnode."""
        node = _node_of(pattern, ())
        try:
            data, stat = await self._session.get(node.path)
        except (NoNode, IllegalName):
            return frozenset(), MISSING
        read = ResourceAcls.decode(node.resource_type, node.name, node.pattern_type, data)
        return frozenset(map(_entry_of, read.entries)), stat.version

    # ---- changing

    async def alter(self, changes: Mapping[Pattern, Change]) -> list[Exception | None]:
        """Change the rules of several patterns, each at once; return the error of each, in their order.

        When it returns, this broker decides by the changed rules. A cancellation leaves some unchanged.
        """
        errors: list[Exception | None] = []
        for some in slices(changes.items()):
            found = await asyncio.gather(
                *(self._alter(pattern, change) for pattern, change in some), return_exceptions=True
            )
            errors += list(_errors(found))
        return errors

    async def _alter(self, pattern: Pattern, change: Change) -> None:
        """Change the rules of one pattern in ZooKeeper, unless the change has no effect.

        Raises ZooKeeperError, MalformedZnode for rules that cannot be read, and `AclsBusy`.
        """
        for _ in range(MOST_ATTEMPTS):
            before, version = await self._stored(pattern)
            after = change(before)
            try:
                if after != before:
                    await self._session.multi([_write(pattern, after, version), _notification(pattern)])
                    await self._read(pattern)
                return
            except NoNode:
                await _make_paths(self._session)
            except (BadVersion, NodeExists):
                await asyncio.sleep(RETRY_BACKOFF_S)
        raise AclsBusy(f"others changed the ACLs of {_named(pattern)} in each of {MOST_ATTEMPTS} attempts")


def _errors(found: Sequence[BaseException | None]) -> Iterator[Exception | None]:
    for error in found:
        if error is not None and not isinstance(error, Exception):
            raise error
        yield error


async def _make_paths(session: Session) -> None:
    """Create the parents of rules and notifications, as Kafka does."""
    needed = [paths.acl_changes(is_prefixed=False), paths.acl_changes(is_prefixed=True)]
    for is_prefixed in (False, True):
        needed += [paths.acls_of_type(is_prefixed, pascal_case(name)) for name in RESOURCE_TYPES]
    existing = await asyncio.gather(*(session.exists(path) for path in needed))
    for path, stat in zip(needed, existing, strict=True):
        if stat is None:
            create = partial(session.create, path, make_parents=True)
            await retrying(lambda create=create: quietly(create(), NodeExists))  # type: ignore[misc]


def _write(pattern: Pattern, entries: frozenset[Entry], version: int) -> Write:
    node = _node_of(pattern, sorted(entries))
    if version == MISSING:
        return Create(node.path, node.encode())
    return SetData(node.path, node.encode(), version) if entries else Delete(node.path, version)


def _notification(pattern: Pattern) -> Write:
    change = AclChange(pattern.type.name, pattern.name, pattern.pattern_type.name)
    return Create(change.path, change.encode(), sequential=True)


def _node_of(pattern: Pattern, entries: Iterable[Entry]) -> ResourceAcls:
    written = tuple(
        AclEntry(entry.principal, entry.permission.name, entry.operation.name, entry.host)
        for entry in entries
    )
    return ResourceAcls(pattern.type.name, pattern.name, pattern.pattern_type.name, written)


def _entry_of(entry: AclEntry) -> Entry:
    permission, operation = PermissionType[entry.permission_type], Operation[entry.operation]
    return Entry(entry.principal, entry.host, operation, permission)


def _pattern_of(change: AclChange) -> Pattern:
    return Pattern(ResourceType[change.resource_type], PatternType[change.pattern_type], change.name)


def _named(pattern: Pattern) -> str:
    return f"{pattern.type.name} {pattern.pattern_type.name} {pattern.name!r}"
