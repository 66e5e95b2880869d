"""CreateDelegationToken: a name and a password for logins as its owner (KIP-48, KIP-373)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.expire_delegation_token import Needs, tokens_for
from ottla.broker.cluster.zookeeper_session import zookeeper_errors
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import CREATE_TOKENS
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.broker.security.principal import Principal
from ottla.protocol.errors import (
    DelegationTokenAuthorizationFailed,
    InvalidPrincipalType,
    InvalidRequest,
    KafkaError,
)
from ottla.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.delegation_tokens import DelegationTokens

NAMES_REQUESTER = 3
"""The version from which responses name who asked for a token."""


async def handle(
    services: Needs, request: CreateDelegationTokenRequest, context: RequestContext
) -> CreateDelegationTokenResponse:
    """Create a token of the client, or of a user on whose behalf it may ask."""
    requester, owner = context.principal, context.principal
    if request.owner_principal_name:
        owner = Principal(request.owner_principal_type or "", request.owner_principal_name)
    response = CreateDelegationTokenResponse(
        principal_type=owner.type,
        principal_name=owner.name,
    )
    if context.api_version >= NAMES_REQUESTER:
        response.token_requester_principal_type = requester.type
        response.token_requester_principal_name = requester.name
    try:
        tokens = tokens_for(services, context)
        await _create(tokens, request, context, owner, response)
    except KafkaError as error:
        response.error_code = error.code
        response.issue_timestamp_ms = response.expiry_timestamp_ms = response.max_timestamp_ms = -1
    return response


async def _create(
    tokens: DelegationTokens,
    request: CreateDelegationTokenRequest,
    context: RequestContext,
    owner: Principal,
    response: CreateDelegationTokenResponse,
) -> None:
    requester = context.principal
    if owner != requester and not context.allows(CREATE_TOKENS, Resource(ResourceType.USER, str(owner))):
        raise DelegationTokenAuthorizationFailed
    renewers = [Principal(renewer.principal_type, renewer.principal_name) for renewer in request.renewers]
    if any(renewer.type != "User" for renewer in renewers) or owner.type != "User":
        raise InvalidPrincipalType
    with zookeeper_errors(InvalidRequest):
        token = await tokens.create(str(owner), str(requester), map(str, renewers), request.max_lifetime_ms)
    response.issue_timestamp_ms = token.issued_at_ms
    response.expiry_timestamp_ms = token.expires_at_ms
    response.max_timestamp_ms = token.ends_at_ms
    response.token_id = token.token_id
    response.hmac = tokens.secret_of(token.token_id)
