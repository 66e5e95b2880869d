"""The broker's credentials for ZooKeeper: whether they can write the cluster's znodes, and their proof."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.cluster.registration import StartupRefused
from ottla.broker.cluster.zookeeper_session import retrying
from ottla.zookeeper import paths
from ottla.zookeeper.acl_migration import LockedOut, check_lock_out, check_may_write, own_identities
from ottla.zookeeper.session import OPEN_ACL, AclOperations, Create, NodeExists, NoNode, Session

if TYPE_CHECKING:
    from ottla.zookeeper.client_security import ClientSecurity

_log = logging.getLogger(__name__)
_NO_IDENTITY: Final = (
    "zookeeper.set.acl=true needs credentials, and ZooKeeper knows no identity of this broker: check "
    "zookeeper.sasl.jaas.file, zookeeper.digest.file, zookeeper.ssl.keystore.location"
    "; and authProvider of ZooKeeper"
)


class AclSession(AclOperations, Session, Protocol):
    """A session that reads and writes ACLs."""


class ZooKeeperAccess:
    """Checks a broker's credentials at its start, and keeps their proof while it is registered.

    With `zookeeper.set.acl` what it creates is closed to brokers with other credentials, or with none: so it
    does not start beside them.
    """

    def __init__(self, session: AclSession, security: ClientSecurity, *, sets_acls: bool) -> None:
        self._session = session
        self._has_credentials = security.has_credentials
        self._sets_acls = sets_acls

    async def check_may_write(self) -> None:
        """Raise NoAuth where the cluster's znodes are closed to this broker."""
        await retrying(lambda: check_may_write(self._session))

    async def check_others(self, broker_id: int) -> None:
        """Raise StartupRefused where ACLs would lock out a live broker, or this one."""
        if not self._sets_acls:
            return
        own = await own_identities(self._session)
        if not own:
            raise StartupRefused(_NO_IDENTITY)
        try:
            await check_lock_out(self._session, own, but=broker_id)
        except LockedOut as error:
            raise StartupRefused(f"zookeeper.set.acl=true: {error}") from error
        if open_roots := [root for root in paths.SECURE_ROOTS if await self._is_open(root)]:
            _log.warning(
                "znodes are open to everybody: see `ottla zookeeper secure`", extra={"znodes": open_roots}
            )

    async def prove(self, broker_id: int) -> None:
        """Create the znode whose ACL shows this broker's identities, in its present session."""
        if not self._has_credentials:
            return
        bound, path = self._session.bound(), f"{paths.CREDENTIALS}/{broker_id}"
        proof = Create(path, ephemeral=True, acl=paths.CREATOR_ALL_WORLD_READ)
        with suppress(NodeExists):
            await retrying(lambda: bound.create(paths.CREDENTIALS, make_parents=True))
        with suppress(NoNode):
            await retrying(lambda: bound.delete(path))  # of an earlier session: the registration is ours now
        with suppress(NodeExists):
            await retrying(lambda: bound.multi([proof]))

    async def _is_open(self, path: str) -> bool:
        try:
            return (await self._session.get_acl(path))[0] == OPEN_ACL
        except NoNode:
            return False
