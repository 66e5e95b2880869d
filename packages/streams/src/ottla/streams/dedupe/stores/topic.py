"""A store in compacted topics, one for each topic that is handled: it needs no other server than the brokers.

Marks of partition n are in partition n of the marks topic. The member that is assigned a partition reads its
marks to the end, keeps them in memory, and appends the marks that it makes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self

from ottla.client.errors import ClientError
from ottla.consumer import ConsumerConfig
from ottla.producer import Producer, ProducerConfig
from ottla.protocol.errors import KafkaError, TopicAlreadyExists
from ottla.protocol.topics import TopicPartition
from ottla.streams.dedupe.errors import DedupeMisconfigured, StoreUnavailable
from ottla.streams.dedupe.store import Claim, Scope
from ottla.streams.dedupe.window import DAY_MS, Window, WindowLimits
from ottla.streams.environment import environment, now_ms

PRESENT: Final = b"1"
READ_TIMEOUT_MS: Final = 1_000
RESTORE_TIMEOUT_S: Final = 30.0
"""How long reading may take without a record."""


class TopicStore:
    """Remembers identities in topics named `<name>.<topic>.marks`, by default for a day.

    `name` is that of the application. The topics are created if they do not exist, compacted, with as many
    partitions as the topic that is handled. A mark is acknowledged by all in-sync replicas. All identities of
    assigned partitions are in memory, up to `max_ids` each, about 300 bytes each. Settings besides those
    named are the client's, such as `security_protocol`.
    """

    claims = False
    has_topic_scope = False
    is_remote = False

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        name: str,
        ttl_ms: int | None = DAY_MS,
        max_ids: int | None = 1_000_000,
        replication_factor: int = -1,
        clock: Callable[[], int] = now_ms,
        **settings: Any,
    ) -> None:
        self._limits = WindowLimits(ttl_ms, max_ids)
        self._servers = bootstrap_servers
        self._name = name
        self._replication_factor = replication_factor
        self._clock = clock
        self._settings: Mapping[str, Any] = {"bootstrap_servers": bootstrap_servers, **settings}
        # Without idempotence, whose producer fails for good after some errors: a mark that is written twice
        # is one.
        self._producing = ProducerConfig.from_properties(
            {}, enable_idempotence=False, linger_ms=0, delivery_timeout_ms=5_000, max_block_ms=5_000,
            **{"request_timeout_ms": 3_000, **self._settings},
        )  # fmt: skip
        self._windows: dict[Scope, Window] = {}
        self._existing: set[str] = set()
        self._producer: Producer | None = None
        self._open = AsyncExitStack()

    @property
    def limits(self) -> WindowLimits:
        """The window in which the store remembers."""
        return self._limits

    def __str__(self) -> str:
        return f"{self._name}.*.marks at {self._servers}"

    def topic(self, handled: str) -> str:
        """Return the name of the topic with the marks of a topic."""
        return f"{self._name}.{handled}.marks"

    async def __aenter__(self) -> Self:
        self._producer = await self._open.enter_async_context(environment().producer(self._producing))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.__aexit__(None, None, None)

    async def assign(self, scope: Scope) -> None:
        """Read the marks of a partition to their end."""
        if scope.partition is None:
            raise DedupeMisconfigured("TopicStore knows one partition at a time: use scope='partition'")
        try:
            await self._create(scope.topic)
            self._windows[scope] = await self._read(TopicPartition(self.topic(scope.topic), scope.partition))
        except (ClientError, KafkaError, OSError, TimeoutError) as error:
            raise self._unavailable(error) from error

    def revoke(self, scope: Scope) -> None:
        """Drop the identities of a partition from memory; its next member reads them from the topic."""
        self._windows.pop(scope, None)

    @property
    def remembered(self) -> int:
        """The number of identities in memory."""
        return sum(len(window) for window in self._windows.values())

    async def seen(self, scope: Scope, identities: Collection[bytes]) -> set[bytes]:
        """Return those of the identities that were marked within the window."""
        window, at_ms = self._window(scope), self._clock()
        return {identity for identity in identities if window.contains(identity, at_ms)}

    async def mark(self, scope: Scope, identities: Collection[bytes]) -> None:
        """Append marks and wait for their acknowledgement. After an error some may have been written."""
        at_ms, window = self._clock(), self._window(scope)
        await self._append(scope, dict.fromkeys(identities, PRESENT), at_ms)
        evicted = [old for identity in identities for old in window.add(identity, at_ms)]
        if evicted:
            # One that was marked again since then stays.
            gone = [identity for identity in evicted if not window.contains(identity, at_ms)]
            await self._append(scope, dict.fromkeys(gone), at_ms)

    async def claim(self, scope: Scope, identity: bytes, owner: str, lease_ms: int) -> Claim:
        """Return whether an identity is new; a partition has one member."""
        return Claim.DONE if await self.seen(scope, (identity,)) else Claim.NEW

    async def release(self, scope: Scope, identity: bytes, owner: str) -> None:
        """Do nothing: there are no claims between members."""

    async def identities(self, scope: Scope) -> AsyncIterator[Sequence[bytes]]:
        """Yield all identities within the window, in parts."""
        yield list(self._window(scope).identities(self._clock()))

    def _window(self, scope: Scope) -> Window:
        """Return the window of a partition; one of its own to a mark that ends after the partition went."""
        window = self._windows.get(scope)
        return Window(self._limits) if window is None else window

    async def _append(self, scope: Scope, marks: Mapping[bytes, bytes | None], at_ms: int) -> None:
        assert self._producer is not None, "use the store in `async with`"
        topic = self.topic(scope.topic)
        try:
            sent = [
                await self._producer.send(
                    topic, value, key=key, partition=scope.partition, timestamp_ms=at_ms
                )
                for key, value in marks.items()
            ]
            for acknowledgement in sent:
                await acknowledgement
        except (ClientError, KafkaError, OSError, TimeoutError) as error:
            raise self._unavailable(error) from error

    async def _create(self, handled: str) -> None:
        """Create the topic of marks, unless it exists."""
        if handled in self._existing:
            return
        assert self._producer is not None, "use the store in `async with`"
        count = len(await self._producer.partitions_for(handled))
        configs = {"cleanup.policy": "compact"}
        if self._limits.ttl_ms is not None:
            configs = {"cleanup.policy": "compact,delete", "retention.ms": str(self._limits.ttl_ms)}
        try:
            async with environment().admin(self._producing.client) as admin:
                await admin.topics.create(
                    self.topic(handled), partitions=count, replication_factor=self._replication_factor,
                    configs=configs,
                )  # fmt: skip
        except TopicAlreadyExists:
            pass
        self._existing.add(handled)

    async def _read(self, partition: TopicPartition) -> Window:
        window = Window(self._limits)
        config = ConsumerConfig.from_properties(
            {}, enable_auto_commit=False, auto_offset_reset="earliest", **self._settings
        )
        async with environment().consumer(config) as consumer:
            consumer.assign([partition])
            end = (await consumer.end_offsets([partition]))[partition]
            await consumer.seek_to_beginning(partition)
            progress_s = _time_s()
            while (position := await consumer.position(partition)) < end:
                for record in (await consumer.getmany(timeout_ms=READ_TIMEOUT_MS)).get(partition, ()):
                    self._apply(window, record.key, record.value, record.timestamp_ms)
                if await consumer.position(partition) > position:
                    progress_s = _time_s()
                elif _time_s() - progress_s > RESTORE_TIMEOUT_S:
                    raise TimeoutError(f"{partition} was read to {position} and not to its end at {end}")
        return window

    def _apply(self, window: Window, key: bytes | None, value: bytes | None, marked_ms: int) -> None:
        if key is None:
            return
        if value is None:
            window.discard(key)
        else:
            window.add(key, marked_ms)

    def _unavailable(self, error: BaseException) -> StoreUnavailable:
        return StoreUnavailable(str(self), str(error) or type(error).__name__)


def _time_s() -> float:
    return asyncio.get_running_loop().time()
