"""AlterUserScramCredentials: set and delete the credentials of users, at the controller (KIP-554)."""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.cluster.scram_credentials import alter_credentials
from ottla.broker.cluster.zookeeper_session import zookeeper_errors
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import ALTER
from ottla.broker.security.authorizer import CLUSTER
from ottla.broker.security.sasl.scram import MAX_ITERATIONS, SCRAM_HASHES, ScramCredential, ScramHash
from ottla.protocol.errors import (
    ClusterAuthorizationFailed,
    DuplicateResource,
    KafkaError,
    NotController,
    UnacceptableCredential,
    UnsupportedSaslMechanism,
)
from ottla.protocol.messages.scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.configs import Configs
    from ottla.broker.controller.controller import Controller

_log = logging.getLogger(__name__)
_BY_TYPE: Final = {kind.type: kind for kind in SCRAM_HASHES.values()}


class Needs(Protocol):
    """The parts of the broker that AlterUserScramCredentials uses."""

    configs: Configs
    controller: Controller


@dataclass(slots=True)
class _Changes:
    """The changes of one user in a request."""

    upserted: list[ScramCredentialUpsertion] = field(default_factory=list)
    deleted: list[ScramCredentialDeletion] = field(default_factory=list)


async def handle(
    services: Needs, request: AlterUserScramCredentialsRequest, context: RequestContext
) -> AlterUserScramCredentialsResponse:
    """Change each user in one step; a failure of one does not affect the others."""
    users: defaultdict[str, _Changes] = defaultdict(_Changes)
    async for deletion in context.paced(request.deletions):
        users[deletion.name].deleted.append(deletion)
    async for upsertion in context.paced(request.upsertions):
        users[upsertion.name].upserted.append(upsertion)
    results = [
        await _alter(services, name, changes, context) async for name, changes in context.paced(users.items())
    ]
    return AlterUserScramCredentialsResponse(results=results)


async def _alter(
    services: Needs, name: str, changes: _Changes, context: RequestContext
) -> AlterUserScramCredentialsResult:
    try:
        if not services.controller.is_active:
            raise NotController
        if not context.allows(ALTER, CLUSTER):
            raise ClusterAuthorizationFailed
        upserted, deleted = _checked(name, changes)
        with zookeeper_errors(UnacceptableCredential):
            await alter_credentials(services.configs.client_entities, name, upserted, deleted)
    except KafkaError as error:
        return AlterUserScramCredentialsResult(user=name, error_code=error.code, error_message=str(error))
    _log.info(
        "credentials of a user changed", extra={"user": name, "set": list(upserted), "deleted": deleted}
    )
    return AlterUserScramCredentialsResult(user=name, error_message=None)


def _checked(name: str, changes: _Changes) -> tuple[dict[str, ScramCredential], list[str]]:
    """Return the credentials to set and the mechanisms to delete. Raises the error of the user."""
    if not name:
        raise UnacceptableCredential("Username must not be empty")
    kinds = [_kind_of(upsertion.mechanism) for upsertion in changes.upserted]
    kinds += [_kind_of(deletion.mechanism) for deletion in changes.deleted]
    for upsertion in changes.upserted:
        if upsertion.iterations > MAX_ITERATIONS:
            raise UnacceptableCredential("Too many iterations")
        if upsertion.iterations < _kind_of(upsertion.mechanism).min_iterations:
            raise UnacceptableCredential("Too few iterations")
    if len(set(kinds)) < len(kinds):
        raise DuplicateResource("A user credential cannot be altered twice in the same request")
    return (
        {_kind_of(upsertion.mechanism).name: _credential(upsertion) for upsertion in changes.upserted},
        [_kind_of(deletion.mechanism).name for deletion in changes.deleted],
    )


def _kind_of(mechanism: int) -> ScramHash:
    if (kind := _BY_TYPE.get(mechanism)) is None:
        raise UnsupportedSaslMechanism("Unknown SCRAM mechanism")
    return kind


def _credential(upsertion: ScramCredentialUpsertion) -> ScramCredential:
    return ScramCredential.from_salted_password(
        _kind_of(upsertion.mechanism),
        bytes(upsertion.salt),
        bytes(upsertion.salted_password),
        upsertion.iterations,
    )
