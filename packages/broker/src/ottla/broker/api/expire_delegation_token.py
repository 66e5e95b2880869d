"""ExpireDelegationToken: end a token, now or after a period (KIP-48)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from ottla.broker.cluster.zookeeper_session import zookeeper_errors
from ottla.broker.requests.context import RequestContext
from ottla.broker.security.principal import ANONYMOUS
from ottla.protocol.errors import (
    DelegationTokenAuthDisabled,
    DelegationTokenRequestNotAllowed,
    ErrorCode,
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
    period_ms, secret = request.expiry_time_period_ms, bytes(request.hmac)
    error, expires_at_ms = await changed_expiry(
        services, context, lambda tokens: tokens.expire(secret, str(context.principal), period_ms)
    )
    return ExpireDelegationTokenResponse(error_code=error, expiry_timestamp_ms=expires_at_ms)


async def changed_expiry(
    services: Needs, context: RequestContext, change: Callable[[DelegationTokens], Awaitable[int]]
) -> tuple[int, int]:
    """Change the expiry of a token; return the error code, and the expiry or -1."""
    try:
        tokens = tokens_for(services, context)
        with zookeeper_errors(InvalidRequest):
            return ErrorCode.NONE, await change(tokens)
    except KafkaError as error:
        return error.code, -1


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
