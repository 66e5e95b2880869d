"""The tokens by which this broker logs in at others (OAUTHBEARER): one at the start, the next before it ends.

A token comes from an authorization server or a file, or is made here without a signature, for tests. When the
next one comes is Kafka's rule, by its settings `sasl.login.refresh.*`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ottla.broker.security.sasl.oauthbearer import ClaimRules, Claims, InvalidToken, unverified_claims
from ottla.client.errors import AuthenticationFailed
from ottla.client.oauth_tokens import AFTER_FAILURE_MS, RefreshRules, TokenUnavailable
from ottla.zookeeper.frozen_classes import frozen

if TYPE_CHECKING:
    from ottla.broker.runtime.environment import Environment

T = TypeVar("T")

_log = logging.getLogger(__name__)

UNSECURED_LOGIN: Final = "unsecuredLogin"
_CLAIMS: Final = {"StringClaim_": str, "NumberClaim_": float}
_LIFETIME_S: Final = "3600"
_RESERVED: Final = ("iat", "exp")


class NoToken(Exception):
    """There is no token for this broker; the message is one line, without a part of a secret."""


# ---- asking again


@frozen
class Backoff:
    """How a server is asked again that fails: after a pause that doubles, and for so long in all."""

    first_ms: int = 100
    within_ms: int = 10_000

    def pause_ms(self, failures: int, spent_ms: float) -> float:
        """Return the pause after so many failures; not above 0: no further attempt."""
        return min(self.first_ms * 2.0 ** min(failures - 1, 60), self.within_ms - spent_ms)


async def retried(
    attempt: Callable[[], Awaitable[T]],
    backoff: Backoff,
    now_ms: Callable[[], float],
    passes: type[Exception],
) -> T:
    """Return what an attempt returns; after an error that `passes` it is repeated."""
    began_ms, failures = now_ms(), 0
    while True:
        try:
            return await attempt()
        except passes:
            failures += 1
            if (pause_ms := backoff.pause_ms(failures, now_ms() - began_ms)) <= 0:
                raise
        await asyncio.sleep(pause_ms / 1000)


# ---- tokens


class BrokerToken:
    """The token of this broker on one listener."""

    def __init__(
        self,
        fetch: Callable[[], str],
        claim_rules: ClaimRules,
        refresh_rules: RefreshRules,
        backoff: Backoff,
        environment: Environment,
        run: Callable[[Callable[[], str]], Awaitable[str]],
    ) -> None:
        """`fetch` returns a token and may block; `run` calls it on a thread."""
        self._fetch = fetch
        self._claim_rules = claim_rules
        self._refresh_rules = refresh_rules
        self._backoff = backoff
        self._clock, self._random = environment.clock, environment.random
        self._run = run
        self._text = ""
        self._claims: Claims | None = None

    @property
    def claims(self) -> Claims:
        """The claims of the token, which `load` has read."""
        assert self._claims is not None
        return self._claims

    def token(self) -> str:
        """Return the token for a login at another broker."""
        return self._text

    async def load(self) -> None:
        """Ask for a token, again while its server does not answer. Raises `NoToken`."""
        try:
            text = await retried(
                lambda: self._run(self._fetch), self._backoff, self._clock.monotonic_ms, TokenUnavailable
            )
            self._claims = unverified_claims(text, self._claim_rules, self._clock.now_ms())
        except (TokenUnavailable, AuthenticationFailed) as error:
            raise NoToken(str(error)) from None
        except InvalidToken as error:
            raise NoToken(f"the token for this broker cannot be used: {error}") from None
        self._text = text

    async def refresh(self) -> None:
        """Replace the token before it ends, until cancelled; one that cannot be replaced stays."""
        while True:
            now_ms = self._clock.now_ms()
            due_ms = self._refresh_rules.due_ms(
                self.claims.issued_at_ms, self.claims.expires_at_ms, now_ms, self._random.random()
            )
            await asyncio.sleep(max(0.0, due_ms - now_ms) / 1000)
            await self._replace()

    async def _replace(self) -> None:
        while True:
            try:
                await self.load()
            except NoToken as error:
                _log.warning("no new token for this broker", extra={"reason": str(error)})
            else:
                return
            await asyncio.sleep(AFTER_FAILURE_MS / 1000)


def unsecured_token(options: Mapping[str, str], now_ms: float) -> str:
    """Make a token without a signature from the options `unsecuredLogin…` of a JAAS line, as Kafka does.

    Raises ValueError, which names the option.
    """
    now_s = now_ms / 1000
    claims: dict[str, Any] = {"exp": now_s + _lifetime_s(options), "iat": now_s}
    for name, value in options.items():
        kind, _, claim = name.removeprefix(UNSECURED_LOGIN).partition("_")
        if not name.startswith(UNSECURED_LOGIN) or not claim or kind == "Extension":
            continue
        if claim in _RESERVED:
            raise ValueError(f"the option {name} must not be set: the claim {claim} is made of the time")
        claims[claim] = _claim(name, f"{kind}_", value)
    return f"{_part({'alg': 'none'})}.{_part(claims)}."


def _lifetime_s(options: Mapping[str, str]) -> int:
    name = f"{UNSECURED_LOGIN}LifetimeSeconds"
    try:
        return int(options.get(name, _LIFETIME_S))
    except ValueError:
        raise ValueError(f"the option {name} must be a whole number") from None


def _claim(name: str, kind: str, value: str) -> Any:
    if kind == "ListClaim_":
        return value[1:].split(value[0]) if len(value) > 1 else []
    if kind not in _CLAIMS:
        raise ValueError(f"the option {name} is not known")
    try:
        return _CLAIMS[kind](value)
    except ValueError:
        raise ValueError(f"the option {name} must be a number") from None


def _part(content: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")
