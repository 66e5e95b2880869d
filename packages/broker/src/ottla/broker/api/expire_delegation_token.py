"""ExpireDelegationToken: end a token, now or after a period (KIP-48)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.cluster.zookeeper_session import zookeeper_errors
from ottla.broker.requests.context import RequestContext
from ottla.broker.security.principal import ANONYMOUS
from ottla.protocol.errors import (
    DelegationTokenAuthDisabled,
    DelegationTokenRequestNotAllowed,
    InvalidRequest,
    KafkaError,
)
from ottla.protocol.messages.delegation_tokens import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.delegation_tokens import DelegationTokens


class Needs(Protocol):
    """The parts of the broker that requests for tokens use."""

    delegation_tokens: DelegationTokens | None


async def handle(
    services: Needs, request: ExpireDelegationTokenRequest, context: RequestContext
) -> ExpireDelegationTokenResponse:
    """Respond with the token's end."""
    try:
        tokens = tokens_for(services, context)
        with zookeeper_errors(InvalidRequest):
            expires_at_ms = await tokens.expire(
                bytes(request.hmac), str(context.principal), request.expiry_time_period_ms
            )
    except KafkaError as error:
        return ExpireDelegationTokenResponse(error_code=error.code, expiry_timestamp_ms=-1)
    return ExpireDelegationTokenResponse(expiry_timestamp_ms=expires_at_ms)


def tokens_for(services: Needs, context: RequestContext) -> DelegationTokens:
    """Return the tokens, for a client that may ask for them.

    Raises DelegationTokenRequestNotAllowed for one that is anonymous, or logged in by a token itself, which
    could make itself last for ever; DelegationTokenAuthDisabled where brokers have no key.
    """
    login = context.session.login
    is_by_token = login is not None and login.identity is not None and login.identity.is_of_delegation_token
    if is_by_token or (login is None and context.principal == ANONYMOUS):
        raise DelegationTokenRequestNotAllowed
    if services.delegation_tokens is None:
        raise DelegationTokenAuthDisabled
    return services.delegation_tokens
