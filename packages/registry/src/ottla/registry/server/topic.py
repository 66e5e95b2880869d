"""The topic of a registry: read to its end into the state, and written by one registry at a time.

Writes are safe by Kafka's transactions. All registries of a topic use one transactional id. To write, a
registry opens a producer: that fences the one that wrote before, whose open transaction is ended first.
Then it reads to the end of the topic: it has seen everything that was ever committed. Until another
registry does the same nothing else can be committed, so that which is decided by the state holds when it is
written. A registry that was fenced begins again with its decision.

Records have a header with a token, so that a registry whose commit was left without an answer finds out, once
it writes again, whether the records are there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from ottla.admin import TOPIC, Admin
from ottla.client.config import ClientConfig
from ottla.client.environment import unique_suffix
from ottla.client.errors import ClientError
from ottla.consumer import Consumer, ConsumerConfig
from ottla.producer import Acknowledgement, Producer, ProducerConfig
from ottla.protocol.errors import KafkaError, TopicAlreadyExists
from ottla.protocol.topics import TopicPartition
from ottla.registry.server.errors import STORE_FAILED, STORE_TIMEOUT, Refused
from ottla.registry.server.state import Record

log = logging.getLogger(__name__)

TOKEN_HEADER: Final = "ottla-write"
READ_S: Final = 20.0
"""How long a registry waits for its own record to come back."""
_POLL_MS: Final = 500
_MOST_TOKENS: Final = 1_000
_CLOSE_S: Final = 5.0


class NotWritten(ClientError):
    """Records could not be committed, or perhaps were; `token` says so once the topic was read on."""

    def __init__(self, token: str, cause: Exception) -> None:
        super().__init__(f"the records could not be written: {cause}")
        self.token = token


class SchemasTopic:
    """The topic, while `schemas_topic` is open."""

    def __init__(
        self,
        name: str,
        client: ClientConfig,
        consumer: Consumer,
        apply: Callable[[bytes, bytes | None], None],
    ) -> None:
        self.name = name
        self.partition = TopicPartition(name, 0)
        self._client = client
        self._consumer = consumer
        self._apply = apply
        self._producer: Producer | None = None
        self._position = 0
        self._tokens: deque[str] = deque(maxlen=_MOST_TOKENS)
        """The tokens of the latest records that were read."""
        self._moved = asyncio.Event()

    @property
    def is_leading(self) -> bool:
        """Whether this registry was the last to write, as far as it knows."""
        return self._producer is not None

    # --- reading

    async def read(self) -> None:
        """Apply records as they come, until cancelled."""
        while True:
            found = await self._consumer.getmany(timeout_ms=_POLL_MS)
            for record in found.get(self.partition, ()):
                self._applied(record.key, record.value, record.headers)
            self._position = await self._consumer.position(self.partition)
            self._moved.set()
            self._moved = asyncio.Event()

    def _applied(
        self, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
    ) -> None:
        try:
            if key is not None:
                self._apply(key, value)
        except ValueError as error:
            log.warning("record of the registry's topic passed over", extra={"reason": str(error)[:300]})
        token = next((content for name, content in headers if name == TOKEN_HEADER), None)
        if token is not None:
            self._tokens.append(token.decode("ascii", "replace"))

    async def catch_up(self) -> None:
        """Return once all was read that is in the topic now. Raises Refused."""
        end = (await self._consumer.end_offsets([self.partition]))[self.partition]
        await self._until(lambda: self._position >= end)

    def was_written(self, token: str) -> bool:
        """Return whether records that were written with a token were committed, and are in the state."""
        return token in self._tokens

    async def _until(self, is_done: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(READ_S):
                while not is_done():
                    await self._moved.wait()
        except TimeoutError:
            raise Refused(STORE_TIMEOUT, f"topic {self.name} was not read within {READ_S:g} s") from None

    # --- writing

    async def lead(self) -> None:
        """Become the registry that writes, with all that others wrote in the state. Raises Refused."""
        if self._producer is not None:
            return
        config = ProducerConfig(
            client=self._client, transactional_id=f"ottla-registry-{self.name}", linger_ms=0
        )
        self._producer = producer = Producer(config=config)
        try:
            await producer.start()
            await self.catch_up()
        except Refused:
            await self.stop_leading()
            raise
        except (ClientError, KafkaError) as error:
            await self.stop_leading()
            raise Refused(STORE_FAILED, f"the registry's topic cannot be written: {error}") from None
        except BaseException:
            await self.stop_leading()
            raise

    async def append(self, records: Sequence[Record]) -> None:
        """Write records in one transaction, and return once they are in the state.

        Raises NotWritten, after which this registry does not lead, and Refused.
        """
        await self._wait_for(await self._write(records))

    async def _write(self, records: Sequence[Record]) -> str:
        producer, token = self._producer, unique_suffix() + unique_suffix()
        assert producer is not None
        sent: list[Acknowledgement] = []
        try:
            async with producer.transaction():
                for key, value in records:
                    headers = [(TOKEN_HEADER, token.encode())]
                    sent.append(await producer.send(self.name, value, key=key, partition=0, headers=headers))
        except (ClientError, KafkaError) as error:
            await self.stop_leading()
            for acknowledgement in sent:  # their errors are this one: the producer need not log them
                if acknowledgement.done():
                    acknowledgement.exception()
            raise NotWritten(token, error) from None
        except BaseException:  # the end of the transaction is not known
            await self.stop_leading()
            raise
        return token

    async def _wait_for(self, token: str) -> None:
        try:
            await self._until(lambda: self.was_written(token))
        except BaseException:
            await self.stop_leading()
            raise

    async def stop_leading(self) -> None:
        """Close the producer; the next write opens another one."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(ClientError, KafkaError, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await producer.stop()


@asynccontextmanager
async def schemas_topic(
    name: str,
    client: ClientConfig,
    apply: Callable[[bytes, bytes | None], None],
    *,
    replication_factor: int = 3,
) -> AsyncIterator[SchemasTopic]:
    """Open the topic, made if it is not there, and read it to its end; read on until the block is left."""
    await _ensure(name, client, replication_factor)
    config = ConsumerConfig(
        client=client,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        enable_auto_commit=False,
    )
    consumer = Consumer(config=config)
    topic = SchemasTopic(name, client, consumer, apply)
    consumer.assign([topic.partition])
    async with consumer, asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(topic.read())
        try:
            await topic.catch_up()
            yield topic
        finally:
            await topic.stop_leading()
            reading.cancel()


async def _ensure(name: str, client: ClientConfig, replication_factor: int) -> None:
    async with Admin(client.bootstrap_servers, client) as admin:
        brokers = len((await admin.brokers.describe()).brokers)
        try:
            await admin.topics.create(
                name, partitions=1, replication_factor=min(replication_factor, brokers),
                configs={"cleanup.policy": "compact"},
            )  # fmt: skip
        except TopicAlreadyExists:
            await _check(name, admin)


async def _check(name: str, admin: Admin) -> None:
    """Raise Refused for a topic that would lose schemas."""
    described = await admin.topics.describe(name)
    if len(described.partitions) != 1:
        raise Refused(STORE_FAILED, f"topic {name} has {len(described.partitions)} partitions, and needs one")
    entries = await admin.configs.describe(TOPIC, name)
    policy = next((entry.value for entry in entries if entry.name == "cleanup.policy"), None)
    if policy != "compact":
        raise Refused(
            STORE_FAILED,
            f"topic {name} would lose schemas: set its cleanup.policy to compact, it is {policy}",
        )
