"""SaslHandshake: agree on the mechanism of a login, for the first time or again (KIP-43, KIP-368)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.api.sasl_authenticate import end_login
from ottla.broker.requests.context import RequestContext
from ottla.broker.security.sasl.login import LoginState
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.sasl import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from ottla.broker.security.sasl.login import Login


class Needs(Protocol):
    """SaslHandshake uses no part of the broker but the session of its connection."""


async def handle(
    services: Needs, request: SaslHandshakeRequest, context: RequestContext
) -> SaslHandshakeResponse:
    """Accept the mechanism; else list those there are, and close the connection behind the response."""
    session, login = context.session, context.session.login
    if login is None:
        return SaslHandshakeResponse(error_code=int(ErrorCode.ILLEGAL_SASL_STATE))
    try:
        login.handshake(request.mechanism, context.api_version)
    except KafkaError as error:
        if login.state is LoginState.REFUSED:
            await end_login(login, context)
        return SaslHandshakeResponse(error_code=error.code, mechanisms=_mechanisms(login, error))
    session.begin_login()
    return SaslHandshakeResponse(mechanisms=list(login.rules.mechanisms))


def _mechanisms(login: Login, error: KafkaError) -> list[str]:
    return list(login.rules.mechanisms) if error.code == ErrorCode.UNSUPPORTED_SASL_MECHANISM else []
