"""DescribeDelegationToken: the tokens that the client may see, with their secrets (KIP-48)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.create_delegation_token import NAMES_REQUESTER
from ottla.broker.api.expire_delegation_token import Needs, tokens_for
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import DESCRIBE_TOKEN, DESCRIBE_TOKENS
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.delegation_tokens import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)

if TYPE_CHECKING:
    from ottla.zookeeper.znodes.delegation_tokens import DelegationToken


async def handle(
    services: Needs, request: DescribeDelegationTokenRequest, context: RequestContext
) -> DescribeDelegationTokenResponse:
    """Respond with the client's own tokens, and with those of others that it may describe."""
    try:
        tokens = tokens_for(services, context)
    except KafkaError as error:
        return DescribeDelegationTokenResponse(error_code=error.code)
    asked = None
    if request.owners is not None:
        asked = {f"{owner.principal_type}:{owner.principal_name}" for owner in request.owners}
    return DescribeDelegationTokenResponse(
        tokens=[
            _described(token, tokens.secret_of(token.token_id), context.api_version)
            async for token in context.paced(tokens.all())
            if (asked is None or any(map(token.belongs_to, asked))) and _may_see(context, token)
        ]
    )


def _may_see(context: RequestContext, token: DelegationToken) -> bool:
    """Whether a token is the client's, or the client may describe it, or all tokens of its owner."""
    return (
        token.belongs_to(str(context.principal))
        or context.allows(DESCRIBE_TOKEN, Resource(ResourceType.DELEGATION_TOKEN, token.token_id))
        or context.allows(DESCRIBE_TOKENS, Resource(ResourceType.USER, token.owner))
    )


def _described(token: DelegationToken, secret: bytes, version: int) -> DescribedDelegationToken:
    owner = token.owner.partition(":")
    requester = token.requester.partition(":") if version >= NAMES_REQUESTER else ("", "", "")
    renewers = [renewer.partition(":") for renewer in token.renewers]
    return DescribedDelegationToken(
        principal_type=owner[0],
        principal_name=owner[2],
        token_requester_principal_type=requester[0],
        token_requester_principal_name=requester[2],
        issue_timestamp=token.issued_at_ms,
        expiry_timestamp=token.expires_at_ms,
        max_timestamp=token.ends_at_ms,
        token_id=token.token_id,
        hmac=secret,
        renewers=[
            DescribedDelegationTokenRenewer(principal_type=kind, principal_name=name)
            for kind, _, name in renewers
        ],
    )
