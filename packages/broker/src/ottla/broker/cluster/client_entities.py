"""The configuration of users, client ids and addresses in ZooKeeper: quotas, and the credentials of users.

Kafka keeps both in the znodes of `/config/users`. A writer replaces single keys of a znode and keeps the
others, so that a change of a quota loses no credentials. Names are URL-encoded as Kafka does it; `<default>`
stands for every name without a znode of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

from ottla.broker.cluster.topic_settings import MISSING, write_entity
from ottla.zookeeper import paths
from ottla.zookeeper.errors import IllegalName, MalformedZnode
from ottla.zookeeper.session import BadVersion, NodeExists, NoNode
from ottla.zookeeper.znodes import ConfigEntity

if TYPE_CHECKING:
    from ottla.zookeeper.session import Session

_log = logging.getLogger(__name__)

USERS: Final = "users"
CLIENTS: Final = "clients"
IPS: Final = "ips"
CLIENT_KINDS: Final = (USERS, CLIENTS, IPS)

EntityChanged = Callable[[str, Mapping[str, str]], Awaitable[None] | None]
"""Takes the path of an entity below `/config`, and its settings; without any it has none any more."""


class ClientEntities:
    """Reads, changes and follows `users/u`, `users/u/clients/c`, `clients/c` and `ips/i` below `/config`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._listeners: dict[str, list[EntityChanged]] = {}
        self._named: set[str] = set()
        """The entities whose settings the listeners were given."""

    def subscribe(self, kind: str, changed: EntityChanged) -> None:
        """Call `changed` for each entity of a kind when it is read first, and when it is announced."""
        self._listeners.setdefault(kind, []).append(changed)

    # ---- following

    async def load(self) -> None:
        """Read every entity of the kinds that are followed."""
        for kind in self._listeners:
            gone = {path for path in self._named if path.partition("/")[0] == kind}
            found = await self.paths_of(kind)
            await asyncio.gather(*(self.refresh(path) for path in sorted({*found, *gone})))

    async def refresh(self, entity_path: str) -> None:
        """Read an entity and give its settings to those that follow its kind."""
        listeners = self._listeners.get(entity_path.partition("/")[0])
        if not listeners:
            return
        settings, _ = await self.read(entity_path)
        if settings:
            self._named.add(entity_path)
        else:
            self._named.discard(entity_path)
        for changed in listeners:
            if (done := changed(entity_path, settings)) is not None:
                await done

    # ---- reading and changing

    async def paths_of(self, kind: str) -> list[str]:
        """Return the paths of all entities of a kind; those of users' client ids are among the users'."""
        names = [f"{kind}/{name}" for name in await self._children(f"{paths.CONFIG}/{kind}")]
        if kind != USERS:
            return names
        clients = await asyncio.gather(*(self._children(f"{paths.CONFIG}/{user}/clients") for user in names))
        return names + [
            f"{user}/clients/{client}" for user, found in zip(names, clients, strict=True) for client in found
        ]

    async def read(self, entity_path: str) -> tuple[dict[str, str], int]:
        """Read the settings of an entity, and the version of its znode.

        A malformed znode has no settings, and is named in the log without its content, which may be secret.
        """
        try:
            data, stat = await self._session.get(paths.config_of(entity_path))
        except NoNode:
            return {}, MISSING
        except IllegalName as error:
            _log.error("settings ignored", extra={"entity": entity_path, "reason": str(error)})
            return {}, MISSING
        try:
            return dict(ConfigEntity.decode(entity_path, data).config), stat.version
        except MalformedZnode as error:
            _log.error("settings ignored", extra={"entity": entity_path, "reason": type(error).__name__})
            return {}, stat.version

    async def alter(self, entity_path: str, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Replace the settings of an entity by the result of `change`, and announce it to all brokers.

        `change` is called again when another writer was faster. What it raises leaves everything as it was.
        """
        while True:
            present, version = await self.read(entity_path)
            node = ConfigEntity(entity_path, change(dict(present)))
            try:
                await write_entity(self._session, node, version)
            except (BadVersion, NodeExists):
                continue
            await self.refresh(entity_path)
            return

    async def _children(self, path: str) -> list[str]:
        try:
            return await self._session.children(path)
        except NoNode:
            return []
