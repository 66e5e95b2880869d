"""Logins through a provider of OpenID Connect: the authorization code flow with PKCE, state and nonce.

Authlib speaks OAuth 2 and checks the claims, joserfc the signature. The console keeps nothing between the two
requests of a login: the browser does, in a cookie that is signed.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from ottla.client.environment import monotonic_s, nonce, random_bytes
from ottla.client.environment import now_ms as time_of_day_ms
from ottla.client.profiles import ProfileError
from ottla.console.logins.authenticator import LoginRefused
from ottla.console.logins.files import Provider
from ottla.console.logins.sessions import Person

LASTING_MS: Final = 10 * 60_000
"""How long a person may take at the provider."""
ANSWER_S: Final = 10.0
"""How long the provider may take for one answer, however slowly it sends."""
FAILED_S: Final = 5.0
"""How long after a failure the provider's addresses are not asked for again, by however many visitors."""
FINISHING: Final = 8
"""Logins that are finished at once: each asks the provider two or three times."""
KNOWN_S: Final = 600.0
"""How long the provider's addresses are used before they are asked for again."""
MOST_ANSWER_BYTES: Final = 1 << 20
"""Bytes of one answer of the provider."""
ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519",
)  # fmt: skip
"""Signatures by a key of the provider only: with HS256 or none, others could sign."""
_LEEWAY_S: Final = 60
_MOST_NAME: Final = 128
_MOST_SUBJECT: Final = 255
_ADDRESSES: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")


class ProviderFailed(Exception):
    """The provider does not answer, or answers wrongly; the message is one line."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A login that has begun: kept by the browser until the provider sends it back."""

    state: str
    nonce: str
    verifier: str
    next: str
    until_ms: int


class OpenId:
    """Logs people in through a provider."""

    def __init__(self, provider: Provider, *, transport: Any = None, answer_s: float = ANSWER_S) -> None:
        """`transport` is that of httpx: tests put a provider there."""
        self.provider = provider
        self._transport = transport
        self._answer_s = answer_s
        self._key = random_bytes(32)
        self._addresses: Mapping[str, Any] = {}
        self._asked_s = 0.0
        self._asking = asyncio.Lock()
        self._finishing = asyncio.Semaphore(FINISHING)
        self._failure: tuple[str, float] | None = None

    async def begin(self, redirect_uri: str, then: str) -> tuple[str, str]:
        """Return the address at the provider, and the cookie for the way back. Raises ProviderFailed."""
        begun = Begun(nonce(), nonce(), nonce() + nonce(), then, time_of_day_ms() + LASTING_MS)
        addresses = await self._discovered()
        async with await self._client(redirect_uri) as client:
            url, _ = client.create_authorization_url(
                addresses["authorization_endpoint"], state=begun.state, nonce=begun.nonce,
                code_verifier=begun.verifier,
            )  # fmt: skip
        return url, self._sealed(begun)

    async def finish(
        self, query: Mapping[str, str], cookie: str, redirect_uri: str
    ) -> tuple[Person, str]:  # fmt: skip
        """Return the person whom the provider sent back, and where they wanted to go.

        Raises LoginRefused, ProviderFailed.
        """
        begun = self._opened(cookie)
        if begun is None or not hmac.compare_digest(begun.state.encode(), query.get("state", "").encode()):
            raise LoginRefused("This login did not begin in this browser, or it took too long: begin again.")
        if not (code := query.get("code", "")):
            raise LoginRefused(f"The provider refused the login ({query.get('error', 'no reason')[:80]}).")
        try:
            async with asyncio.timeout(4 * self._answer_s), self._finishing:
                claims = await self._claims(code, begun, redirect_uri)
        except TimeoutError:
            raise ProviderFailed("the provider did not answer in time") from None
        return self._person(claims), begun.next

    async def _claims(self, code: str, begun: Begun, redirect_uri: str) -> Mapping[str, Any]:
        from authlib.common.errors import AuthlibBaseError

        addresses = await self._discovered()
        async with await self._client(redirect_uri, await self._secret()) as client:
            try:
                answer = await client.fetch_token(
                    addresses["token_endpoint"], grant_type="authorization_code", code=code,
                    code_verifier=begun.verifier,
                )  # fmt: skip
            except AuthlibBaseError as error:
                raise LoginRefused(f"The provider refused the login ({error.error}).") from None
            except (self._failures(), ValueError, KeyError, TypeError, AttributeError) as error:
                raise ProviderFailed(_reason(error)) from None
            keys = await self._json(client, addresses["jwks_uri"])
            claims = self._checked(answer.get("id_token"), keys, begun.nonce, addresses["issuer"])
            if _at(claims, self.provider.role_claim) is None and "userinfo_endpoint" in addresses:
                more = await self._json(client, addresses["userinfo_endpoint"], client.token_auth)
                if more.get("sub") == claims["sub"]:
                    claims = {**more, **claims}
        return claims

    def _checked(
        self, token: object, keys: Mapping[str, Any], expected_nonce: str, issuer: str
    ) -> dict[str, Any]:
        """Return the claims of an ID token: signed by the provider, for us, now, for this login.

        The issuer is that of the provider's addresses, letter by letter: some end with a slash.
        """
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        if not isinstance(token, str):
            raise ProviderFailed("the provider sent no ID token")
        try:
            found = jwt.decode(token, KeySet.import_key_set(keys), algorithms=list(ALGORITHMS))
            claims = CodeIDToken(
                found.claims, found.header,
                options={
                    "iss": {"essential": True, "value": issuer},
                    "aud": {"essential": True, "value": self.provider.client_id},
                },
                params={"nonce": expected_nonce, "client_id": self.provider.client_id},
            )  # fmt: skip
            claims.validate(now=time_of_day_ms() // 1_000, leeway=_LEEWAY_S)
        except (JoseError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise LoginRefused(f"The provider's answer cannot be trusted ({_reason(error)}).") from None
        return dict(claims)

    def _person(self, claims: Mapping[str, Any]) -> Person:
        """Return the person of claims; the subject is a text of at most 255 letters. Raises LoginRefused."""
        subject = claims["sub"]
        if not isinstance(subject, str) or not 0 < len(subject) <= _MOST_SUBJECT:
            raise LoginRefused(
                "The provider's answer names nobody: its `sub` is no text of 1 to 255 letters."
            )
        names = (claims.get(name) for name in (self.provider.name_claim, "email"))
        name = next((name for name in names if isinstance(name, str) and name), subject)
        values = _at(claims, self.provider.role_claim)
        listed = values if isinstance(values, list) else [values]
        claimed = tuple(value for value in listed if isinstance(value, str))
        # Only roles that are mapped here are kept: a person may be in thousands of groups.
        known = {role.value for role in self.provider.roles}
        return Person(
            name[:_MOST_NAME], "oidc", claimed=tuple(value for value in claimed if value in known),
            issuer=self.provider.issuer, subject=subject,
        )  # fmt: skip

    # --- the provider

    async def _client(self, redirect_uri: str, secret: str | None = None) -> Any:
        """Return a client that follows no redirect; made on a thread, as the imports take their time."""

        def made() -> Any:
            from authlib.integrations.httpx_client import AsyncOAuth2Client

            return AsyncOAuth2Client(
                self.provider.client_id, secret, scope=self.provider.scope, redirect_uri=redirect_uri,
                code_challenge_method="S256", timeout=self._answer_s, transport=self._transport,
                token_endpoint_auth_method="client_secret_basic" if secret else "none",
                headers={"accept-encoding": "identity"}, event_hooks={"response": [_bounded]},
            )  # fmt: skip

        return await asyncio.to_thread(made)

    async def _secret(self) -> str | None:
        if self.provider.client_secret is None:
            return None
        try:
            return await asyncio.to_thread(self.provider.client_secret.read)
        except ProfileError as error:
            raise ProviderFailed(f"our client_secret: {error}") from None

    async def _discovered(self) -> Mapping[str, Any]:
        """Return the addresses that the provider names for itself; all visitors that wait ask once."""
        async with self._asking:
            now_s = monotonic_s()
            if self._addresses and now_s - self._asked_s < KNOWN_S:
                return self._addresses
            if self._failure is not None and now_s - self._failure[1] < FAILED_S:
                raise ProviderFailed(self._failure[0])
            try:
                async with asyncio.timeout(self._answer_s), await self._client("") as client:
                    self._addresses, self._asked_s = await self._described(client), now_s
            except (ProviderFailed, TimeoutError) as error:
                reason = str(error) or f"{self.provider.issuer} gave no answer within {self._answer_s:g} s"
                self._failure = reason, monotonic_s()
                raise ProviderFailed(reason) from None
            return self._addresses

    async def _described(self, client: Any) -> Mapping[str, Any]:
        url = f"{self.provider.issuer}/.well-known/openid-configuration"
        found = await self._json(client, url)
        if str(found.get("issuer", "")).rstrip("/") != self.provider.issuer:
            raise ProviderFailed(f"{url} is of another issuer, {found.get('issuer')!r}")
        scheme = self.provider.issuer.partition(":")[0]
        for name in (*_ADDRESSES, *({"userinfo_endpoint"} & found.keys())):
            if not str(found.get(name, "")).startswith((f"{scheme}://", "https://")):
                raise ProviderFailed(f"{url} names no {name}")
        return found

    async def _json(self, client: Any, url: str, auth: Any = None) -> dict[str, Any]:
        try:
            answer = await client.request("GET", url, withhold_token=True, auth=auth)
            answer.raise_for_status()
            found = answer.json()
        except (self._failures(), ValueError) as error:
            raise ProviderFailed(f"{url}: {_reason(error)}") from None
        if not isinstance(found, dict):
            raise ProviderFailed(f"{url} is no object of JSON")
        return found

    @staticmethod
    def _failures() -> type[Exception]:
        import httpx2

        found: type[Exception] = httpx2.HTTPError
        return found

    # --- the cookie

    def _sealed(self, begun: Begun) -> str:
        body = base64.urlsafe_b64encode(json.dumps(asdict(begun)).encode()).decode()
        return f"{body}.{self._signature(body)}"

    def _opened(self, cookie: str) -> Begun | None:
        body, _, signature = cookie.partition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(body).encode()):
            return None
        begun = Begun(**json.loads(base64.urlsafe_b64decode(body)))
        return begun if begun.until_ms > time_of_day_ms() else None

    def _signature(self, body: str) -> str:
        return hmac.new(self._key, body.encode(), hashlib.sha256).hexdigest()


async def _bounded(answer: Any) -> None:
    """Read an answer before anybody else does, and no more of it than its bound. Raises httpx2.HTTPError."""
    import httpx2

    if answer.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.DecodingError(
            "the answer is compressed, which was not asked for", request=answer.request
        )
    stream = answer.stream

    class Bounded(httpx2.AsyncByteStream):  # type: ignore[misc]
        """The bytes of an answer up to the bound."""

        async def __aiter__(self) -> AsyncIterator[bytes]:
            left = MOST_ANSWER_BYTES
            async for part in stream:
                if (left := left - len(part)) < 0:
                    reason = f"the answer has more than {MOST_ANSWER_BYTES >> 20} MiB"
                    raise httpx2.DecodingError(reason, request=answer.request)
                yield part

        async def aclose(self) -> None:
            await stream.aclose()

    answer.stream = Bounded()


def _at(claims: Mapping[str, Any], path: str) -> Any:
    """Return a claim; dots lead into objects, as in `realm_access.roles`, where no claim has that name."""
    if path in claims:
        return claims[path]
    found: Any = claims
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
