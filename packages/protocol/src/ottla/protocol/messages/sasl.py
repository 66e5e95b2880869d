"""Agree on a SASL mechanism, and exchange its tokens."""

from __future__ import annotations

from ottla.protocol.schema import Message, array, blob, int16, int64, message, nullable_string, string


@message(api_key=17, versions=(0, 1))
class SaslHandshakeRequest(Message):
    """Proposes a mechanism.

    After version 0 the tokens follow without any framing, after 1 in SaslAuthenticate (KIP-152).
    """

    mechanism: str = string()


@message(api_key=17, versions=(0, 1))
class SaslHandshakeResponse(Message):
    """Accepts the mechanism, or lists those there are."""

    error_code: int = int16()
    mechanisms: list[str] = array(string)


@message(api_key=36, versions=(0, 2), flexible_from=2)
class SaslAuthenticateRequest(Message):
    """Carries the client's token (KIP-152)."""

    auth_bytes: bytes = blob()


@message(api_key=36, versions=(0, 2), flexible_from=2)
class SaslAuthenticateResponse(Message):
    """Carries the broker's token; version 1 adds how long the session lasts (KIP-368)."""

    error_code: int = int16()
    error_message: str | None = nullable_string()
    auth_bytes: bytes = blob()
    session_lifetime_ms: int = int64(since=1, ignorable=True)
