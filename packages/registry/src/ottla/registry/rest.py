"""A client for services with JSON over HTTP, each wait and each answer bounded.

A service may hang, end in the middle of an answer, or answer something else: the error says which service it
was, and what it did. Redirects are not followed, proxies of the environment are not used: logins go to the
addresses of the profile alone.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from ottla.client.config_definition import SettingError
from ottla.client.errors import ClientError

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

ANSWER_S: Final = 5.0
"""How long one instance of a service may take for an answer."""
MOST_BYTES: Final = 16 << 20
"""The longest answer: a list of a hundred thousand subjects has less."""
MOST_CONNECTIONS: Final = 8
MOST_URL: Final = 8_000
_MOST_REASON: Final = 600
_BODY_IS: Final = "application/vnd.schemaregistry.v1+json, application/json"


@dataclass(frozen=True, slots=True)
class ServiceLogin:
    """How to log in at a service: by a user's password, a token, a certificate, or not at all."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    key_password: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """The header that carries a token. Raises SettingError for one that no header can carry."""
        if self.token is None:
            return {}
        if not (self.token.isascii() and self.token.isprintable()):
            raise SettingError("the token of a service has letters that a header cannot carry")
        return {"authorization": f"Bearer {self.token}"}

    @property
    def basic(self) -> tuple[str, str] | None:
        """The user and the password, if there is a user."""
        return None if self.username is None else (self.username, self.password or "")

    def tls_context(self) -> ssl.SSLContext:
        """Return the context of connections with TLS. Raises SettingError."""
        try:
            context = ssl.create_default_context(cafile=self.cafile)
            if self.certfile is not None:
                context.load_cert_chain(self.certfile, self.keyfile, self.key_password)
        except OSError as error:  # ssl.SSLError is one
            raise SettingError(f"the certificates of a service cannot be read: {error}") from None
        return context


@dataclass(frozen=True, slots=True)
class Service:
    """One service: its name, the addresses of its instances, and how to log in there."""

    name: str
    urls: tuple[str, ...]
    login: Callable[[], ServiceLogin] = ServiceLogin


def urls_of(text: str) -> tuple[str, ...]:
    """Return the addresses of a list divided by commas. Raises SettingError."""
    found = tuple(checked_url(part) for part in re.split(r"[,\s]+", text.strip()) if part)
    if not found:
        raise SettingError("an address of a service is empty: write http://HOST:PORT or https://HOST:PORT")
    return found


def checked_url(url: str) -> str:
    """Return the address of a service without a slash at its end. Raises SettingError."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or parts.query or parts.fragment:
        raise SettingError(f"{url!r} is no address of a service, such as http://127.0.0.1:8081")
    if parts.username is not None or parts.password is not None:
        shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        raise SettingError(f"the address {shown} has a login in it: use ..._username and ..._password")
    return url.rstrip("/")


class ServiceFailed(ClientError):
    """A service gave no usable answer; the message says which one, and why."""


class ServiceUnreached(ServiceFailed):
    """An instance of a service took no connection: nothing was asked of it."""

    retriable = True


class ServiceSilent(ServiceFailed):
    """An instance of a service took a question and gave no answer: it may have done what it was asked."""

    retriable = True


class ServiceRefused(ServiceFailed):
    """A service answered with an error: its HTTP status, its own code, and its words."""

    def __init__(self, name: str, url: str, status: int, code: int | None, message: str) -> None:
        self.status = status
        self.code = code
        self.message = message
        shown = "" if code is None or code == status else f", {code}"
        super().__init__(f"the {name} at {url} refuses ({status}{shown}): {message or 'no reason given'}")


class ServiceUnavailable(ServiceRefused):
    """A service cannot answer now: its status is 429 or above 499."""

    retriable = True


class _Refusal(msgspec.Struct):
    error_code: int | None = None
    message: str | None = None


class RestClient:
    """Asks one service; connected with the first question, until `close`."""

    def __init__(
        self,
        service: Service,
        name: str = "",
        *,
        answer_s: float = ANSWER_S,
        most_bytes: int = MOST_BYTES,
        keeps_connections: bool = True,
    ) -> None:
        """`name` is that of the service in messages, if it is not the service's own.

        Without `keeps_connections` each question has a connection of its own, and nothing is left to close.
        """
        self._keeps_connections = keeps_connections
        self.name = name or service.name
        self.urls = service.urls
        self._service = service
        self._answer_s = answer_s
        self._most_bytes = most_bytes
        self._stack = AsyncExitStack()
        self._http: httpx2.AsyncClient | None = None
        self._connecting = asyncio.Lock()
        self._turns = asyncio.Semaphore(MOST_CONNECTIONS)

    async def close(self) -> None:
        """Close the connections."""
        await self._stack.aclose()

    async def get(self, path: str, as_: type[T], **query: object) -> T:
        """Return an answer, of the first instance of the service that gives one. Raises ServiceFailed."""
        failure: ServiceFailed | None = None
        for url in self.urls:
            try:
                return await self._ask("GET", url, path, as_, query)
            except ServiceRefused as error:
                if error.status < 500 or url == self.urls[-1]:
                    raise
                failure = error
            except ServiceFailed as error:
                failure = error
        assert failure is not None
        raise failure

    async def get_text(self, url: str, path: str) -> str:
        """Return the answer of one instance as it is, which need not be JSON. Raises ServiceFailed."""
        content = await self._answered("GET", url, path, {})
        return content.decode(errors="replace")

    async def send(self, method: str, path: str, as_: type[T], body: object = None, **query: object) -> T:
        """Ask for a change, of the first instance that can be reached. Raises ServiceFailed.

        Without an answer it may be done all the same, so no other instance is asked then.
        """
        for url in self.urls[:-1]:
            try:
                return await self._ask(method, url, path, as_, query, body)
            except ServiceUnreached:
                continue
        return await self._ask(method, self.urls[-1], path, as_, query, body)

    async def _ask(
        self, method: str, url: str, path: str, as_: type[T], query: Mapping[str, object], body: object = None
    ) -> T:
        return self._decoded(url, await self._answered(method, url, path, query, body), as_)

    async def _answered(
        self, method: str, url: str, path: str, query: Mapping[str, object], body: object = None
    ) -> bytes:
        try:
            async with asyncio.timeout(self._answer_s), self._turns:
                status, content = await self._content(method, url, path, query, body)
        except TimeoutError:
            raise ServiceSilent(
                f"the {self.name} at {url} gave no answer within {self._answer_s:g} s"
            ) from None
        if status >= 400:
            raise self._refused(url, status, content)
        return content

    async def _content(
        self, method: str, url: str, path: str, query: Mapping[str, object], body: object
    ) -> tuple[int, bytes]:
        if not {".", ".."}.isdisjoint(path.partition("?")[0].split("/")):  # a path would lose it
            raise ServiceFailed(f"the {self.name} at {url} cannot be asked: '.' and '..' cannot be a name")
        client = await self._client()
        import httpx2

        request = client.build_request(
            method, f"{url}/{path}", params={name: _texts(value) for name, value in query.items()} or None,
            content=None if body is None else msgspec.json.encode(body),
            headers={} if body is None else {"content-type": "application/json"},
        )  # fmt: skip
        if len(str(request.url)) > MOST_URL:
            raise ServiceFailed(f"the {self.name} at {url} cannot be asked: the name is too long")
        try:
            answer = await client.send(request, stream=True)
            try:
                return answer.status_code, await self._body(url, answer)
            finally:
                await answer.aclose()
        except httpx2.ConnectError as error:
            reason = " ".join(str(error).split())[:_MOST_REASON]
            raise ServiceUnreached(f"the {self.name} at {url} cannot be reached: {reason}") from None
        except httpx2.HTTPError as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ServiceSilent(f"the {self.name} at {url} gave no answer: {reason[:_MOST_REASON]}") from None
        except httpx2.InvalidURL as error:
            raise ServiceFailed(f"the {self.name} at {url} cannot be asked: {error}") from None

    async def _body(self, url: str, answer: httpx2.Response) -> bytes:
        if 300 <= answer.status_code < 400:
            to = answer.headers.get("location", "nowhere")[:200]
            raise ServiceFailed(
                f"the {self.name} at {url} leads to {to}: name the right address in the profile"
            )
        if answer.headers.get("content-encoding", "identity") != "identity":
            raise ServiceFailed(f"the {self.name} at {url} compresses its answer, which was not asked for")
        body = bytearray()
        async for part in answer.aiter_raw():
            body += part
            if len(body) > self._most_bytes:
                raise ServiceFailed(
                    f"the {self.name} at {url} answers with more than {self._most_bytes >> 20} MiB"
                )
        return bytes(body)

    def _refused(self, url: str, status: int, content: bytes) -> ServiceRefused:
        try:
            found = msgspec.json.decode(content, type=_Refusal)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            found = _Refusal()
        message = " ".join((found.message or "").split())[:_MOST_REASON]
        refusal = ServiceUnavailable if status == 429 or status >= 500 else ServiceRefused
        return refusal(self.name, url, status, found.error_code, message)

    def _decoded(self, url: str, content: bytes, as_: type[T]) -> T:
        if as_ is type(None):
            return None
        try:
            return msgspec.json.decode(content, type=as_)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())[:_MOST_REASON]
            raise ServiceFailed(
                f"the {self.name} at {url} answers something else than was asked for: {reason}"
            ) from None

    async def _client(self) -> httpx2.AsyncClient:
        async with self._connecting:
            if self._http is None:
                # Secrets may come from a command, and the import takes longer than the loop may stand.
                try:
                    keeps = self._keeps_connections
                    made = await asyncio.to_thread(lambda: _client(self._service.login(), keeps=keeps))
                except (ValueError, OSError) as error:
                    reason = " ".join(str(error).split())
                    raise ServiceFailed(f"the {self.name} cannot be asked: {reason}") from None
                self._http = await self._stack.enter_async_context(made)
            return self._http


def _client(login: ServiceLogin, *, keeps: bool) -> httpx2.AsyncClient:
    import httpx2

    return httpx2.AsyncClient(
        auth=login.basic, verify=login.tls_context(), trust_env=False, follow_redirects=False, timeout=None,
        headers={"accept": _BODY_IS, "accept-encoding": "identity", "user-agent": "ottla"}
        | login.headers,
        limits=httpx2.Limits(
            max_connections=MOST_CONNECTIONS, keepalive_expiry=30,
            max_keepalive_connections=None if keeps else 0,
        ),
    )  # fmt: skip


def _texts(value: object) -> str | list[str]:
    if isinstance(value, list):
        return [str(part) for part in value]
    return str(value).lower() if isinstance(value, bool) else str(value)
