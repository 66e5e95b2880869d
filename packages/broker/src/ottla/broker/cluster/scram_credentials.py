"""SCRAM credentials of users: in `/config/users/<user>` as Kafka keeps them, and in each broker's memory.

Each mechanism is a key of the user's settings, for example `SCRAM-SHA-256`, and its value is
`salt=…,stored_key=…,server_key=…,iterations=…`. A writer changes the znode and then adds a notification, by
which every broker reads the user again (`cluster.client_entities`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ottla.broker.cluster.client_entities import USERS
from ottla.broker.cluster.zookeeper_session import retrying
from ottla.broker.security.sasl.mechanisms import Identity
from ottla.broker.security.sasl.scram import SCRAM_HASHES, ScramCredential, ScramHash, ScramUser, UnknownUsers
from ottla.protocol.errors import InvalidRequest, ResourceNotFound
from ottla.zookeeper import paths
from ottla.zookeeper.errors import IllegalName
from ottla.zookeeper.session import NodeExists, NoNode

if TYPE_CHECKING:
    from random import Random

    from ottla.broker.cluster.client_entities import ClientEntities
    from ottla.zookeeper.session import Session

_log = logging.getLogger(__name__)

Credentials = Mapping[str, ScramCredential]
"""The credentials of one user, by the mechanism's name."""


def credentials_in(user: str, settings: Mapping[str, str]) -> dict[str, ScramCredential]:
    """Read the credentials among a user's settings; a damaged one is named in the log and left out."""
    found: dict[str, ScramCredential] = {}
    for name in SCRAM_HASHES:
        if (text := settings.get(name)) is None:
            continue
        try:
            found[name] = ScramCredential.decode(text)
        except ValueError as error:
            _log.error("credential ignored", extra={"user": user, "mechanism": name, "reason": f"it {error}"})
    return found


class ScramCredentials:
    """The credentials of all users, as this broker knows them."""

    def __init__(self) -> None:
        self._by_user: dict[str, Credentials] = {}

    def entity_changed(self, entity_path: str, settings: Mapping[str, str]) -> None:
        """Take the settings of a user, by the path of its entity; those of client ids hold no credentials."""
        _, name, *of_client = entity_path.split("/")
        if of_client:
            return
        user = paths.desanitized(name)
        if credentials := credentials_in(user, settings):
            self._by_user[user] = credentials
        else:
            self._by_user.pop(user, None)

    def find(self, kind: ScramHash, user: str) -> ScramUser | None:
        """Return a user that may log in by a mechanism."""
        credential = self._by_user.get(user, {}).get(kind.name)
        return None if credential is None else ScramUser(credential, Identity(user))


# ---- the znodes


def entity_of(user: str) -> str:
    """Return the path of a user's entity below `/config`. Raises InvalidRequest for no name of a znode."""
    try:
        return f"{USERS}/{paths.sanitized(user)}"
    except IllegalName as error:
        raise InvalidRequest(f"{user!r} cannot be the name of a user") from error


async def read_credentials(entities: ClientEntities, user: str) -> dict[str, ScramCredential]:
    """Read the credentials of one user."""
    settings, _ = await entities.read(entity_of(user))
    return credentials_in(user, settings)


async def read_users(entities: ClientEntities) -> dict[str, dict[str, ScramCredential]]:
    """Read the credentials of every user that has one."""
    found = await entities.paths_of(USERS)
    names = [paths.desanitized(path.partition("/")[2]) for path in sorted(found) if path.count("/") == 1]
    credentials = await asyncio.gather(*(read_credentials(entities, name) for name in names))
    return {name: of_user for name, of_user in zip(names, credentials, strict=True) if of_user}


async def alter_credentials(
    entities: ClientEntities, user: str, upserted: Credentials, deleted: Collection[str]
) -> None:
    """Change the credentials of a user in one step. Raises ResourceNotFound if one to delete is not there."""

    def change(settings: dict[str, str]) -> dict[str, str]:
        if not settings.keys() >= set(deleted):
            raise ResourceNotFound("Attempt to delete a user credential that does not exist")
        kept = {key: text for key, text in settings.items() if key not in deleted}
        return kept | {mechanism: credential.encode() for mechanism, credential in upserted.items()}

    await entities.alter(entity_of(user), change)


async def shared_unknown_users(session: Session, random: Random) -> UnknownUsers:
    """Return the credentials of unknown users, which all brokers of a cluster derive from one secret.

    Waits while ZooKeeper is unreachable: a listener that was added would stay closed until its next change.
    """
    return UnknownUsers(await retrying(lambda: _secret_of_unknown_users(session, random)))


async def _secret_of_unknown_users(session: Session, random: Random) -> bytes:
    while True:
        try:
            secret, _ = await session.get(paths.OTTLA_UNKNOWN_USERS)
            return secret
        except NoNode:
            pass
        try:
            await session.create(paths.OTTLA_UNKNOWN_USERS, random.randbytes(32), make_parents=True)
        except NodeExists:
            continue
