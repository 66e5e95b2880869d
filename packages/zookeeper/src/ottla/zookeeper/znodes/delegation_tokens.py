"""Znodes of delegation tokens: the tokens, without their secrets, and the notifications of their changes."""

from __future__ import annotations

from typing import Final

from ottla.zookeeper import paths
from ottla.zookeeper._json import Fields, array, encode, integer, text
from ottla.zookeeper.frozen_classes import frozen, replace

VERSION: Final = 3
_NOBODY: Final[tuple[str, ...]] = ()


@frozen
class DelegationToken:
    """`/delegation_token/tokens/[id]`: a token. Principals are texts like `User:alice`.

    Its secret is derived from the id with `delegation.token.secret.key`, and stands nowhere.
    """

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_at_ms: int
    ends_at_ms: int
    """The end that no renewal moves."""
    expires_at_ms: int

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.delegation_token(self.token_id)

    def until(self, expires_at_ms: int) -> DelegationToken:
        """Return the token with another expiry."""
        return replace(self, expires_at_ms=expires_at_ms)

    def belongs_to(self, principal: str) -> bool:
        """Return whether a principal owns, has requested or may renew the token."""
        return principal in (self.owner, self.requester, *self.renewers)

    def encode(self) -> bytes:
        """Return the JSON; Kafka encodes principals as for a path."""
        return encode(
            {
                "version": VERSION,
                "owner": paths.sanitized(self.owner),
                "tokenRequester": paths.sanitized(self.requester),
                "renewers": [paths.sanitized(renewer) for renewer in self.renewers],
                "issueTimestamp": self.issued_at_ms,
                "maxTimestamp": self.ends_at_ms,
                "expiryTimestamp": self.expires_at_ms,
                "tokenId": self.token_id,
            }
        )

    @classmethod
    def decode(cls, token_id: str, data: bytes) -> DelegationToken:
        """Read version 3, or version 1, whose tokens were requested by their owners."""
        fields = Fields.of(paths.delegation_token(token_id), data)
        fields.version(1, 2, VERSION)
        owner = paths.desanitized(fields.required("owner", text))
        return cls(
            token_id=fields.required("tokenId", text),
            owner=owner,
            requester=paths.desanitized(fields.optional("tokenRequester", text, paths.sanitized(owner))),
            renewers=tuple(map(paths.desanitized, fields.optional("renewers", array(text), _NOBODY))),
            issued_at_ms=fields.required("issueTimestamp", integer),
            ends_at_ms=fields.required("maxTimestamp", integer),
            expires_at_ms=fields.required("expiryTimestamp", integer),
        )
