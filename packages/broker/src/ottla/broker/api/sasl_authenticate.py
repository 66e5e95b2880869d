"""SaslAuthenticate: exchange the tokens of a login's mechanism (KIP-152, KIP-368).

A refused login is answered after `connection.failed.authentication.delay.ms`, and its connection closed
behind the answer. The tokens that follow version 0 of SaslHandshake come here, too; they have no place for an
error.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from ottla.broker.requests.context import CloseConnection, RequestContext
from ottla.broker.security.sasl.login import LoginState
from ottla.broker.security.sasl.mechanisms import LoginInterrupted
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse

if TYPE_CHECKING:
    from ottla.broker.security.sasl.login import Answer, Login


class Needs(Protocol):
    """SaslAuthenticate uses no part of the broker but the session of its connection."""


async def handle(
    services: Needs, request: SaslAuthenticateRequest, context: RequestContext
) -> SaslAuthenticateResponse | None:
    """Answer a token; with the last one the session gets its principal."""
    login = context.session.login
    if login is None:
        return _refusal(
            ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate request received after successful authentication"
        )
    is_raw = login.takes_raw_tokens
    try:
        token = bytes(request.auth_bytes)
        work = login.begin(token)
        evaluation = await login.rules.run(work) if login.may_block(token) else work()
        answer = login.finish(evaluation, may_log_in_again=context.api_version > 0 and not is_raw)
    except LoginInterrupted as error:
        await end_login(login, context)
        raise CloseConnection from error
    except KafkaError as error:
        if login.state is LoginState.REFUSED:
            await end_login(login, context)
        return _refusal(error.code, str(error))
    if answer.principal is not None:
        _admit(context, login, answer)
    if answer.token is None and is_raw:
        return None
    return SaslAuthenticateResponse(auth_bytes=answer.token or b"", session_lifetime_ms=answer.lifetime_ms)


def _refusal(code: int, message: str) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=int(code), error_message=message)


def _admit(context: RequestContext, login: Login, answer: Answer) -> None:
    assert answer.principal is not None
    ends_after_ms = answer.lifetime_ms if answer.ends else None
    context.session.authenticated(answer.principal, ends_after_ms=ends_after_ms)


async def end_login(login: Login, context: RequestContext) -> None:
    """Log a refused login, wait for the delay of its answer, and close the connection behind that."""
    session = context.session
    session.refuse()
    facts = {
        "connection": session.connection_id,
        "listener": session.listener_name,
        "mechanism": login.mechanism_name,
        "reason": login.failure,
    }
    login.rules.warnings.warn(session.client_host, "login refused", extra=facts)
    await asyncio.sleep(login.rules.failed_delay_ms / 1000)
