"""Delegation tokens: create, renew, expire and describe them (KIP-48, KIP-373).

A token is a login that ends by itself: its id is the name and its HMAC the password of a SCRAM login with
`sasl_token_auth`. A client that logged in by a token can make no further tokens.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ottla.client.cluster import Cluster, raise_for
from ottla.client.errors import Need
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.messages.delegation_tokens import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

BROKERS_DEFAULT: Final = -1
"""The period that brokers are configured to give."""
AT_ONCE: Final = -1
"""The period after which `expire` ends a token at once."""


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A token; principals have the form `User:anna`.

    It ends at `expires_at_ms`, and cannot be renewed past `max_expires_at_ms`.
    """

    token_id: str
    hmac: bytes = field(repr=False)
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_at_ms: int
    expires_at_ms: int
    max_expires_at_ms: int

    @property
    def password(self) -> str:
        """The password of a login by this token."""
        return base64.b64encode(self.hmac).decode()


class Tokens:
    """Tokens of a cluster. Calls raise DelegationTokenAuthDisabled if the brokers have no key for them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def create(
        self,
        *,
        owner: str | None = None,
        renewers: Iterable[str] = (),
        max_lifetime_ms: int = BROKERS_DEFAULT,
    ) -> DelegationToken:
        """Create a token for the principal that this client logged in as, or for another `owner`.

        Raises DelegationTokenRequestNotAllowed on a connection that is not authenticated, or only by a token.
        """
        owner_type, owner_name = ("", "") if owner is None else principal_parts(owner)
        renewing = [principal_parts(renewer) for renewer in renewers]
        since = None if owner is None else _OWNER_SINCE
        request = CreateDelegationTokenRequest(
            owner_principal_type=owner_type,
            owner_principal_name=owner_name,
            renewers=[CreatableRenewers(principal_type=kind, principal_name=name) for kind, name in renewing],
            max_lifetime_ms=max_lifetime_ms,
        )

        async def ask() -> DelegationToken:
            response = await self._cluster.send_to_any(
                request, CreateDelegationTokenResponse, min_version=since
            )
            needs = () if owner is None else (Need(Operation.CREATE_TOKENS, ResourceType.USER, owner),)
            raise_for(response.error_code, None, *needs)
            made_for = _principal(response.principal_type, response.principal_name)
            return DelegationToken(
                response.token_id,
                response.hmac,
                made_for,
                _principal(response.token_requester_principal_type, response.token_requester_principal_name)
                or made_for,
                tuple(_principal(kind, name) for kind, name in renewing),
                response.issue_timestamp_ms,
                response.expiry_timestamp_ms,
                response.max_timestamp_ms,
            )

        return await self._cluster.retry("creating a delegation token", ask)

    async def renew(self, hmac: bytes, *, period_ms: int = BROKERS_DEFAULT) -> int:
        """Postpone the end of a token to `period_ms` from now; return the end in ms since 1970.

        Raises DelegationTokenOwnerMismatch for a principal that is neither its owner nor a renewer.
        """
        request = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)

        async def ask() -> int:
            response = await self._cluster.send_to_any(request, RenewDelegationTokenResponse)
            raise_for(response.error_code)
            return response.expiry_timestamp_ms

        return await self._cluster.retry("renewing a delegation token", ask)

    async def expire(self, hmac: bytes, *, period_ms: int = AT_ONCE) -> int:
        """End a token in `period_ms`, or at once; return the end in ms since 1970."""
        request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)

        async def ask() -> int:
            response = await self._cluster.send_to_any(request, ExpireDelegationTokenResponse)
            raise_for(response.error_code)
            return response.expiry_timestamp_ms

        return await self._cluster.retry("expiring a delegation token", ask)

    async def describe(self, owners: Iterable[str] | None = None) -> list[DelegationToken]:
        """Return the tokens of some owners, or all that this client may see, the first to end first."""
        wanted = None if owners is None else [principal_parts(owner) for owner in owners]
        request = DescribeDelegationTokenRequest(
            owners=None
            if wanted is None
            else [
                DescribeDelegationTokenOwner(principal_type=kind, principal_name=name)
                for kind, name in wanted
            ]
        )

        async def ask() -> list[DelegationToken]:
            response = await self._cluster.ask_any(request, DescribeDelegationTokenResponse)
            raise_for(response.error_code)
            return sorted(map(_token, response.tokens), key=lambda token: token.expires_at_ms)

        return await self._cluster.retry("describing delegation tokens", ask)


_OWNER_SINCE: Final = 3


def principal_parts(principal: str) -> tuple[str, str]:
    """Return the type and the name of a principal like `User:anna`. Raises ValueError."""
    kind, colon, name = principal.partition(":")
    if not kind or not colon or not name:
        raise ValueError(f"{principal!r} is no principal: write User:NAME")
    return kind, name


def _principal(kind: str, name: str) -> str:
    return f"{kind}:{name}" if name else ""


def _token(given: DescribedDelegationToken) -> DelegationToken:
    owner = _principal(given.principal_type, given.principal_name)
    requester = _principal(given.token_requester_principal_type, given.token_requester_principal_name)
    return DelegationToken(
        given.token_id,
        given.hmac,
        owner,
        requester or owner,
        tuple(_principal(renewer.principal_type, renewer.principal_name) for renewer in given.renewers),
        given.issue_timestamp,
        given.expiry_timestamp,
        given.max_timestamp,
    )
