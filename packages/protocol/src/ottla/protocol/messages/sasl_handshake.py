"""Agree on a SASL mechanism."""

from __future__ import annotations

from ottla.protocol.schema import Message, array, int16, message, string


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
