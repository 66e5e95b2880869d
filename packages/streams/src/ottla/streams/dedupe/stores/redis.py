"""A store in Redis or Valkey, which all members share: marks of a partition are one sorted set, by time.

A key per identity would be simpler, but the prefilter of a newly assigned partition would then have to scan
all keys of the server, and a window by count would be impossible.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ottla.streams.dedupe.errors import DedupeMisconfigured, StoreUnavailable
from ottla.streams.dedupe.store import Batcher, Claim, Scope
from ottla.streams.dedupe.window import DAY_MS, WindowLimits
from ottla.streams.environment import now_ms

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import Pipeline

_CLAIM: Final = """
local marked = redis.call('ZSCORE', KEYS[1], ARGV[1])
if marked and tonumber(marked) > tonumber(ARGV[2]) then return 0 end
if redis.call('SET', KEYS[2], ARGV[3], 'NX', 'PX', ARGV[4]) then return 1 end
if redis.call('GET', KEYS[2]) ~= ARGV[3] then return 2 end
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return 1
"""
_RELEASE: Final = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
)
_CLAIMS: Final = (Claim.DONE, Claim.NEW, Claim.TAKEN)
PART_LENGTH: Final = 1_000
MAX_BATCH: Final = 500
CONNECTION_TIMEOUT_S: Final = 5.0

Operation = Callable[["Pipeline"], Callable[[list[Any]], Any]]
"""Adds commands to a pipeline, and returns the function that reads its result off the answers."""


class RedisStore:
    """Remembers identities in a Redis server, by default for a day. Needs `pip install ottla-streams[redis]`.

    `name` is that of the application: applications with the same name share marks. The server must not evict
    keys (`maxmemory-policy noeviction`), and keeps what its persistence keeps. Commands of concurrent
    handlers go in one pipeline. While there is no connection, or no memory, calls raise StoreUnavailable.
    """

    claims = True
    has_topic_scope = True
    is_remote = True

    def __init__(
        self,
        url: str,
        *,
        name: str,
        ttl_ms: int | None = DAY_MS,
        max_ids: int | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        if not name or any(brace in name for brace in "{}"):
            raise DedupeMisconfigured(f"name must be that of the application, without braces, not {name!r}")
        self._limits = WindowLimits(ttl_ms, max_ids)
        self._url = url
        self._name = name
        self._clock = clock
        self._redis: Redis | None = None
        self._batcher: Batcher[Operation, Any] | None = None
        self._open = AsyncExitStack()

    @property
    def limits(self) -> WindowLimits:
        """The window in which the store remembers."""
        return self._limits

    def __str__(self) -> str:
        scheme, _, rest = self._url.partition("://")
        # Without user and password, which stand in front of the server or among the options.
        return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"

    async def __aenter__(self) -> Self:
        redis = self._redis = self._client()
        self._open.push_async_callback(redis.aclose)
        self._batcher = await self._open.enter_async_context(Batcher(self._run, max_ops=MAX_BATCH))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.__aexit__(None, None, None)

    async def assign(self, scope: Scope) -> None:
        """Do nothing: what other members marked is in the server."""

    def revoke(self, scope: Scope) -> None:
        """Do nothing: marks are in the server."""

    async def seen(self, scope: Scope, identities: Collection[bytes]) -> set[bytes]:
        """Return those of the identities that were marked within the window."""
        key, oldest_ms, asked = self._key(scope), self._limits.oldest_ms(self._clock()), list(identities)

        def add(pipeline: Pipeline) -> Callable[[list[Any]], set[bytes]]:
            for identity in asked:
                pipeline.zscore(key, identity)
            return lambda answers: {
                identity
                for identity, marked_ms in zip(asked, answers, strict=True)
                if marked_ms is not None and marked_ms > oldest_ms
            }

        found: set[bytes] = await self._submit(add)
        return found

    async def mark(self, scope: Scope, identities: Collection[bytes]) -> None:
        """Remember identities, all or none, and end the claims on them."""
        key, at_ms, limits = self._key(scope), self._clock(), self._limits
        claims = (
            [self._claim_key(scope, identity) for identity in identities] if scope.partition is None else []
        )

        def add(pipeline: Pipeline) -> Callable[[list[Any]], None]:
            # One command for all of the marks, so that the server has all of them or none.
            pipeline.zadd(key, dict.fromkeys(identities, at_ms))
            if limits.ttl_ms is not None:
                pipeline.zremrangebyscore(key, "-inf", limits.oldest_ms(at_ms))
                pipeline.pexpire(key, limits.ttl_ms)
            if limits.max_ids is not None:
                pipeline.zremrangebyrank(key, 0, -limits.max_ids - 1)
            if claims:
                pipeline.delete(*claims)
            return lambda answers: None

        await self._submit(add)

    async def claim(self, scope: Scope, identity: bytes, owner: str, lease_ms: int) -> Claim:
        """Mark an identity as being handled by `owner`, unless it is marked or claimed by another one."""
        keys = (self._key(scope), self._claim_key(scope, identity))
        arguments = (identity, self._limits.oldest_ms(self._clock()), owner, lease_ms)

        def add(pipeline: Pipeline) -> Callable[[list[Any]], Claim]:
            pipeline.eval(_CLAIM, 2, *keys, *arguments)
            return lambda answers: _CLAIMS[answers[0]]

        found: Claim = await self._submit(add)
        return found

    async def release(self, scope: Scope, identity: bytes, owner: str) -> None:
        """End a claim of `owner` without a mark."""

        def add(pipeline: Pipeline) -> Callable[[list[Any]], None]:
            pipeline.eval(_RELEASE, 1, self._claim_key(scope, identity), owner)
            return lambda answers: None

        await self._submit(add)

    async def identities(self, scope: Scope) -> AsyncIterator[Sequence[bytes]]:
        """Yield all identities within the window, in parts; some of them twice."""
        key, oldest_ms, cursor = self._key(scope), self._limits.oldest_ms(self._clock()), 0
        while True:
            # In a pipeline like all others: after the marks that were submitted before it.
            cursor, part = await self._submit(partial(_add_scan, key, cursor))
            yield [identity for identity, marked_ms in part if marked_ms > oldest_ms]
            if not cursor:
                return

    async def _submit(self, operation: Operation) -> Any:
        assert self._batcher is not None, "use the store in `async with`"
        return await self._batcher.submit(operation)

    async def _run(self, operations: list[Operation]) -> Sequence[Any]:
        assert self._redis is not None
        pipeline = self._redis.pipeline(transaction=False)
        reads, ends = [], []
        for operation in operations:
            reads.append(operation(pipeline))
            ends.append(len(pipeline))
        answers = await self._answer(pipeline.execute())
        return [
            read(answers[start:end]) for read, start, end in zip(reads, [0, *ends[:-1]], ends, strict=True)
        ]

    async def _answer(self, command: Awaitable[Any]) -> Any:
        from redis.exceptions import RedisError

        try:
            return await command
        except (RedisError, OSError) as error:
            raise StoreUnavailable(str(self), str(error) or type(error).__name__) from error

    def _key(self, scope: Scope) -> str:
        # In braces, because a Redis cluster keeps keys with the same text in braces on one server.
        return f"{{{self._name}:{scope}}}:marks"

    def _claim_key(self, scope: Scope, identity: bytes) -> bytes:
        return f"{{{self._name}:{scope}}}:claim:".encode() + identity

    def _client(self) -> Redis:
        try:
            from redis.asyncio import Redis
        except ImportError:
            raise DedupeMisconfigured(
                "RedisStore needs the Redis client: pip install 'ottla-streams[redis]'"
            ) from None
        return Redis.from_url(
            self._url, socket_timeout=CONNECTION_TIMEOUT_S, socket_connect_timeout=CONNECTION_TIMEOUT_S
        )


def _add_scan(key: str, cursor: int, pipeline: Pipeline) -> Callable[[list[Any]], Any]:
    pipeline.zscan(key, cursor, count=PART_LENGTH)
    return lambda answers: answers[0]
