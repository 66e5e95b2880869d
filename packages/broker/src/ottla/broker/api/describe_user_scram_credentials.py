"""DescribeUserScramCredentials: the mechanisms and iterations of users' credentials (KIP-554)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

from ottla.broker.cluster.scram_credentials import Credentials, read_credentials, read_users
from ottla.broker.cluster.zookeeper_session import zookeeper_errors
from ottla.broker.requests.context import RequestContext
from ottla.broker.security.sasl.scram import SCRAM_HASHES
from ottla.protocol.errors import DuplicateResource, KafkaError, ResourceNotFound
from ottla.protocol.messages.scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.client_entities import ClientEntities
    from ottla.broker.cluster.configs import Configs


class Needs(Protocol):
    """The parts of the broker that DescribeUserScramCredentials uses."""

    configs: Configs


async def handle(
    services: Needs, request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    """Respond with the users asked for, or with all that have a credential."""
    with zookeeper_errors(ResourceNotFound):
        if not request.users:
            every = await read_users(services.configs.client_entities)
            results = [_found(name, credentials) async for name, credentials in context.paced(every.items())]
        else:
            times = Counter(user.name for user in request.users)
            results = [
                await _describe(services.configs.client_entities, name, count)
                async for name, count in context.paced(times.items())
            ]
    return DescribeUserScramCredentialsResponse(error_message=None, results=results)


async def _describe(entities: ClientEntities, name: str, times: int) -> DescribeUserScramCredentialsResult:
    if times > 1:
        message = "Cannot describe SCRAM credentials for the same user twice in a single request: "
        return _failed(name, DuplicateResource(message + name))
    credentials = await read_credentials(entities, name) if name else {}
    if not credentials:
        return _failed(
            name, ResourceNotFound(f"Attempt to describe a user credential that does not exist: {name}")
        )
    return _found(name, credentials)


def _failed(name: str, error: KafkaError) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(user=name, error_code=error.code, error_message=str(error))


def _found(name: str, credentials: Credentials) -> DescribeUserScramCredentialsResult:
    infos = [
        CredentialInfo(mechanism=SCRAM_HASHES[mechanism].type, iterations=credential.iterations)
        for mechanism, credential in credentials.items()
    ]
    return DescribeUserScramCredentialsResult(user=name, error_message=None, credential_infos=infos)
