"""Delegation tokens (KIP-48): in ZooKeeper as Kafka keeps them, and in the memory of every broker.

A token is a name and a password for logins by SCRAM, which an owner hands to its workers. The password is
derived from the token's id with `delegation.token.secret.key`, which all brokers have.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from ottla.broker.cluster.notifications import Notifications, quietly
from ottla.broker.cluster.placement import new_id
from ottla.broker.runtime.loop_budget import slices
from ottla.broker.security.sasl.mechanisms import Identity
from ottla.broker.security.sasl.scram import SCRAM_HASHES, ScramCredential, ScramHash, ScramUser
from ottla.protocol.errors import (
    DelegationTokenExpired,
    DelegationTokenNotFound,
    DelegationTokenOwnerMismatch,
)
from ottla.zookeeper import paths
from ottla.zookeeper.errors import IllegalName, MalformedZnode
from ottla.zookeeper.session import NodeExists, NoNode
from ottla.zookeeper.znodes.delegation_tokens import DelegationToken
from ottla.zookeeper.znodes.topics import encode_topic_id

if TYPE_CHECKING:
    from ottla.broker.config import BrokerConfig
    from ottla.broker.runtime.environment import Environment
    from ottla.zookeeper.session import Session

_log = logging.getLogger(__name__)


class DelegationTokens:
    """The delegation tokens of a cluster whose brokers have a key for them."""

    def __init__(self, session: Session, config: BrokerConfig, environment: Environment) -> None:
        self._session = session
        self._config = config
        self._environment = environment
        self._key = (config.token_key or "").encode()
        self._tokens: dict[str, DelegationToken] = {}
        self._by_secret: dict[bytes, str] = {}
        """The ids of all tokens. A look-up compares hashes first, so its time says nothing of a secret."""
        self._credentials: dict[tuple[str, str], ScramCredential] = {}
        """By token and mechanism: made with the first login, because it takes milliseconds."""
        self._notifications = Notifications(
            session,
            environment.clock,
            (paths.DELEGATION_TOKEN_CHANGES,),
            read_all=self._read_stored,
            read_named=self._read_named,
            about="delegation tokens",
        )
        self.load = self._notifications.load
        """Reads all tokens. Raises ZooKeeperError."""
        self.follow = self._notifications.follow
        """Applies changes until cancelled."""

    # ---- following ZooKeeper

    async def _read_stored(self) -> None:
        await quietly(self._session.create(paths.DELEGATION_TOKENS, make_parents=True), NodeExists)
        await self._read_all({*await self._session.children(paths.DELEGATION_TOKENS), *self._tokens})

    async def _read_named(self, notifications: Iterable[tuple[str, bytes]]) -> None:
        await self._read_all({data.decode(errors="replace") for _, data in notifications})

    async def _read_all(self, token_ids: Iterable[str]) -> None:
        for some in slices(sorted(token_ids)):
            await asyncio.gather(*map(self._read, some))

    async def _read(self, token_id: str) -> None:
        try:
            data, _ = await self._session.get(paths.delegation_token(token_id))
            token = DelegationToken.decode(token_id, data)
        except (NoNode, IllegalName):
            self._forget(token_id)
        except MalformedZnode as error:
            _log.error("delegation token ignored", extra={"path": error.path, "reason": str(error)})
            self._forget(token_id)
        else:
            if token_id not in self._tokens:
                self._by_secret[self.secret_of(token_id)] = token_id
            self._tokens[token_id] = token

    def _forget(self, token_id: str) -> None:
        if self._tokens.pop(token_id, None) is not None:
            del self._by_secret[self.secret_of(token_id)]
        for name in SCRAM_HASHES:
            self._credentials.pop((token_id, name), None)

    # ---- logins

    def secret_of(self, token_id: str) -> bytes:
        """Return the secret of a token."""
        return hmac.digest(self._key, token_id.encode("utf-8", "surrogatepass"), "sha512")

    def find(self, kind: ScramHash, token_id: str) -> ScramUser | None:
        """Return the owner of a token that is not over, with the credential of the token.

        It is called on threads, because the first login by a token takes milliseconds.
        """
        token = self._tokens.get(token_id)
        if token is None or self._is_over(token):
            return None
        credential = self._credentials.get((token_id, kind.name))
        if credential is None:
            password = base64.b64encode(self.secret_of(token_id)).decode()
            salt = self._environment.random.randbytes(24)
            credential = ScramCredential.from_password(kind, password, salt)
            if token_id in self._tokens:  # else it was removed meanwhile
                self._credentials[token_id, kind.name] = credential
        name = token.owner.partition(":")[2]
        return ScramUser(credential, Identity(name, token.expires_at_ms, is_of_delegation_token=True))

    def _is_over(self, token: DelegationToken) -> bool:
        now_ms = self._environment.clock.now_ms()
        return min(token.ends_at_ms, token.expires_at_ms) < now_ms

    # ---- requests

    def all(self) -> list[DelegationToken]:
        """Return all tokens."""
        return list(self._tokens.values())

    async def create(
        self, owner: str, requester: str, renewers: Iterable[str], lifetime_ms: int
    ) -> DelegationToken:
        """Create a token; `lifetime_ms` of 0 or less asks for the longest."""
        now_ms = int(self._environment.clock.now_ms())
        longest_ms = self._config.delegation_token_max_lifetime_ms
        ends_at_ms = now_ms + (longest_ms if lifetime_ms <= 0 else min(lifetime_ms, longest_ms))
        token = DelegationToken(
            token_id=encode_topic_id(new_id(self._environment.random)),
            owner=owner,
            requester=requester,
            renewers=tuple(renewers),
            issued_at_ms=now_ms,
            ends_at_ms=ends_at_ms,
            expires_at_ms=min(ends_at_ms, now_ms + self._config.delegation_token_expiry_time_ms),
        )
        await self._session.create(token.path, token.encode(), make_parents=True)
        await self._notify(token.token_id)
        return token

    async def renew(self, secret: bytes, principal: str, period_ms: int) -> int:
        """Move the expiry of a token; a negative period asks for the usual one. Returns the expiry."""
        token = self._found(secret, principal)
        period_ms = self._config.delegation_token_expiry_time_ms if period_ms < 0 else period_ms
        return await self._move(token, period_ms)

    async def expire(self, secret: bytes, principal: str, period_ms: int) -> int:
        """End a token after a period, or now for a negative one. Returns the expiry."""
        token = self._found(secret, principal)
        if period_ms >= 0:
            return await self._move(token, period_ms)
        await self._remove(token.token_id)
        return int(self._environment.clock.now_ms())

    def _found(self, secret: bytes, principal: str) -> DelegationToken:
        """Return the token of a secret. Raises the error of a request for it."""
        found = self._tokens.get(self._by_secret.get(secret, ""))
        if found is None:
            raise DelegationTokenNotFound
        if not found.belongs_to(principal):
            raise DelegationTokenOwnerMismatch
        if self._is_over(found):
            raise DelegationTokenExpired
        return found

    async def _move(self, token: DelegationToken, period_ms: int) -> int:
        now_ms = int(self._environment.clock.now_ms())
        moved = token.until(min(token.ends_at_ms, now_ms + period_ms))
        try:
            await self._session.set(moved.path, moved.encode())
        except NoNode:
            raise DelegationTokenNotFound from None
        await self._notify(token.token_id)
        return moved.expires_at_ms

    async def _remove(self, token_id: str) -> None:
        with suppress(NoNode):
            await self._session.delete(paths.delegation_token(token_id))
        await self._notify(token_id)

    async def _notify(self, token_id: str) -> None:
        await self._read(token_id)
        prefix = paths.DELEGATION_TOKEN_CHANGE_PREFIX
        await self._session.create(prefix, token_id.encode(), sequential=True, make_parents=True)

    async def remove_expired(self, is_controller: bool) -> None:
        """Remove the tokens that are over, on the controller."""
        for token in self.all():
            if is_controller and self._is_over(token):
                _log.info("delegation token removed: it is over", extra={"owner": token.owner})
                await self._remove(token.token_id)
