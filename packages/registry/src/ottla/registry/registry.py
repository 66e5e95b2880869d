"""A schema registry for applications: questions with retries, and answers that are kept.

Retries are those of all clients, `ottla.client.retry`. A question that may be repeated without harm is; a
deletion is sent once. What is kept is bounded: schemas by their letters, and the rest by numbers.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import msgspec

from ottla.client.config_definition import SettingError
from ottla.client.environment import monotonic_s
from ottla.client.retry import Backoff, retrying
from ottla.registry.client import KINDS, Reference, RegisteredSchema, RegistryClient, Verdict, schema_body
from ottla.registry.rest import RestClient, Service, ServiceLogin, urls_of
from ottla.registry.schemas import Schemas, SchemaText

T = TypeVar("T")
log = logging.getLogger(__name__)
_MOST_KEPT: Final = 1_000


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as it is registered: its text, its type, and what it imports."""

    text: str
    kind: str = "AVRO"
    references: tuple[Reference, ...] = ()
    metadata: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"a schema is one of {', '.join(KINDS)}, not {self.kind!r}")

    def body(self) -> dict[str, object]:
        """Return the body of a question about it."""
        body = schema_body(self.kind, self.text, list(self.references))
        return body if self.metadata is None else {**body, "metadata": dict(self.metadata)}

    def _key(self) -> Hashable:
        metadata = None if self.metadata is None else msgspec.json.encode(self.metadata, order="sorted")
        return self.text, self.kind, self.references, metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryConfig:
    """The settings of a registry's client."""

    url: str | Sequence[str]
    """The addresses of the registry's instances, asked in this order."""
    username: str | None = None
    """The user of a login with a password."""
    password: str | None = None
    """The password of that user."""
    token: str | None = None
    """The bearer token of a login."""
    ssl_cafile: str | None = None
    """The authorities of the registry's certificate; None: those of the system."""
    ssl_certfile: str | None = None
    """The certificate of this client."""
    ssl_keyfile: str | None = None
    """The key of that certificate, if it has a file of its own."""
    ssl_key_password: str | None = None
    """The password of that key."""
    request_timeout_s: float = 5.0
    """How long one instance may take for an answer."""
    timeout_s: float = 30.0
    """How long a question may take with all its retries."""
    retry_backoff_ms: float = 100.0
    """The wait before the first retry."""
    retry_backoff_max_ms: float = 1_000.0
    """The longest wait before a retry."""
    latest_ttl_s: float = 300.0
    """How long the latest version of a subject is kept before it is asked for again."""

    def __post_init__(self) -> None:
        self.urls()
        for name in ("request_timeout_s", "timeout_s", "retry_backoff_ms", "latest_ttl_s"):
            if not getattr(self, name) > 0:
                raise SettingError(f"{name} must be above 0, not {getattr(self, name)!r}")
        if self.username is not None and self.token is not None:
            raise SettingError("a login is by username and password, or by token: give one of them")

    def __repr__(self) -> str:
        return f"RegistryConfig(url={self.urls()!r})"  # without secrets

    def urls(self) -> tuple[str, ...]:
        """Return the addresses. Raises SettingError."""
        return urls_of(self.url if isinstance(self.url, str) else ",".join(self.url))

    def service(self) -> Service:
        """Return the service, with its login."""
        login = ServiceLogin(
            self.username, self.password, self.token, self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile,
            self.ssl_key_password,
        )  # fmt: skip
        return Service("schema registry", self.urls(), lambda: login)


class SchemaRegistry:
    """A schema registry with Confluent's interface. Use `async with`.

        async with SchemaRegistry("http://127.0.0.1:8081") as registry: ...

    Settings are those of `RegistryConfig`. All calls raise ServiceFailed or DeadlineExceeded.
    """

    def __init__(
        self,
        url: str | Sequence[str] = "",
        *,
        config: RegistryConfig | None = None,
        now_s: Callable[[], float] = monotonic_s,
        **settings: Any,
    ) -> None:
        self.config = config or RegistryConfig(url=url, **settings)
        # Questions are few, and a client without a loop of its own has none to close connections in.
        self._rest = RestClient(
            self.config.service(), answer_s=self.config.request_timeout_s, keeps_connections=False
        )
        self._backoff = Backoff(self.config.retry_backoff_ms, self.config.retry_backoff_max_ms)
        self.client = RegistryClient(self._rest)
        """Single questions, without retries and without answers that are kept."""
        self.now_s = now_s
        self._schemas = Schemas(self.client, now_s, silent_s=0.0)
        self._serialized = Schemas(self.client, now_s, silent_s=0.0, serialized=True)
        self._registered: OrderedDict[Hashable, RegisteredSchema] = OrderedDict()
        self._latest: OrderedDict[Hashable, tuple[float, RegisteredSchema]] = OrderedDict()
        self._is_away = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._rest.close()

    async def schema(self, schema: int | str) -> SchemaText:
        """Return a schema by its id or GUID, with the texts of all that it imports."""
        return await self.ask(f"schema {schema}", lambda: self._schemas.get(schema))

    async def serialized(self, schema: int | str) -> SchemaText:
        """Return a schema of Protobuf as `schema` does, with descriptors in place of sources where it can."""
        return await self.ask(f"schema {schema}", lambda: self._serialized.get(schema))

    async def imported(self, schema: Schema) -> tuple[tuple[str, str], ...]:
        """Return the names and texts of all schemas that a schema imports."""
        return await self.ask("imported schemas", lambda: self._schemas.imported(schema.references))

    async def register(self, subject: str, schema: Schema, *, normalize: bool = False) -> RegisteredSchema:
        """Register a schema in a subject, or find it there; return it with its id."""
        return await self._once(
            ("register", subject, schema._key(), normalize), f"registering in {subject}",
            lambda: self.client.registered(subject, schema.body(), normalize=normalize),
        )  # fmt: skip

    async def lookup(self, subject: str, schema: Schema, *, normalize: bool = False) -> RegisteredSchema:
        """Return a schema of a subject by its text, with its id and version."""
        return await self._once(
            ("lookup", subject, schema._key(), normalize), f"finding a schema in {subject}",
            lambda: self.client.lookup(subject, schema.body(), normalize=normalize),
        )  # fmt: skip

    async def latest(self, subject: str, *, metadata: Mapping[str, str] | None = None) -> RegisteredSchema:
        """Return the latest version of a subject, with `metadata` the latest that has these properties.

        It is kept for `latest_ttl_s`.
        """
        key = subject, None if metadata is None else tuple(sorted(metadata.items()))
        until_s, kept = self._latest.get(key, (0.0, None))
        if kept is not None and self.now_s() < until_s:
            return kept
        found = await self.ask(
            f"the latest version of {subject}", lambda: self._asked_latest(subject, metadata)
        )
        _keep(self._latest, key, (self.now_s() + self.config.latest_ttl_s, found))
        return found

    async def version(self, subject: str, version: int, *, deleted: bool = False) -> RegisteredSchema:
        """Return a version of a subject."""
        what = f"version {version} of {subject}"
        return await self.ask(what, lambda: self.client.version(subject, version, deleted=deleted))

    async def check(self, subject: str, schema: Schema) -> Verdict:
        """Return whether a schema may become the next version of a subject."""
        return await self.ask(f"checking for {subject}", lambda: self.client.check(subject, schema.body()))

    async def ask(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Await a call of the client, again where it may succeed later. Raises DeadlineExceeded."""
        found = await retrying(
            what, call, timeout_s=self.config.timeout_s, backoff=self._backoff, before_retry=self._log_away
        )
        self._is_away = False
        return found

    async def _log_away(self, error: BaseException) -> None:
        """Log the first failure of several: a wrong address shows before the time for retries has passed."""
        if not self._is_away:
            facts = {"reason": str(error), "timeout_s": self.config.timeout_s}
            log.warning("schema registry gives no answer, asking again", extra=facts)
        self._is_away = True

    async def _asked_latest(self, subject: str, metadata: Mapping[str, str] | None) -> RegisteredSchema:
        if metadata is None:
            return await self.client.version(subject)
        return await self.client.latest_with_metadata(subject, metadata)

    async def _once(
        self, key: Hashable, what: str, call: Callable[[], Awaitable[RegisteredSchema]]
    ) -> RegisteredSchema:
        if (kept := self._registered.get(key)) is not None:
            self._registered.move_to_end(key)
            return kept
        found = await self.ask(what, call)
        _keep(self._registered, key, found)
        return found


def _keep(kept: OrderedDict[Hashable, Any], key: Hashable, found: Any) -> None:
    kept[key] = found
    kept.move_to_end(key)
    if len(kept) > _MOST_KEPT:
        kept.popitem(last=False)
