"""RenewDelegationToken: move the expiry of a token, within its longest life (KIP-48)."""

from __future__ import annotations

from ottla.broker.api.expire_delegation_token import Needs, changed_expiry
from ottla.broker.requests.context import RequestContext
from ottla.protocol.messages.delegation_tokens import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)


async def handle(
    services: Needs, request: RenewDelegationTokenRequest, context: RequestContext
) -> RenewDelegationTokenResponse:
    """Respond with the token's new expiry."""
    period_ms, secret = request.renew_period_ms, bytes(request.hmac)
    error, expires_at_ms = await changed_expiry(
        services, context, lambda tokens: tokens.renew(secret, str(context.principal), period_ms)
    )
    return RenewDelegationTokenResponse(error_code=error, expiry_timestamp_ms=expires_at_ms)
