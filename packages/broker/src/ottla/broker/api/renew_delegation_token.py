"""RenewDelegationToken: move the expiry of a token, within its longest life (KIP-48)."""

from __future__ import annotations

from ottla.broker.api.expire_delegation_token import Needs, tokens_for
from ottla.broker.cluster.zookeeper_session import zookeeper_errors
from ottla.broker.requests.context import RequestContext
from ottla.protocol.errors import InvalidRequest, KafkaError
from ottla.protocol.messages.delegation_tokens import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)


async def handle(
    services: Needs, request: RenewDelegationTokenRequest, context: RequestContext
) -> RenewDelegationTokenResponse:
    """Respond with the token's new expiry."""
    try:
        tokens = tokens_for(services, context)
        with zookeeper_errors(InvalidRequest):
            expires_at_ms = await tokens.renew(
                bytes(request.hmac), str(context.principal), request.renew_period_ms
            )
    except KafkaError as error:
        return RenewDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=-1)
    return RenewDelegationTokenResponse(expiry_timestamp_ms=expires_at_ms)
