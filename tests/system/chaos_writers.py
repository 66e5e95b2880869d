"""Producers of the chaos rounds: one per way to send, each with a record of its acknowledgements."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow

from ottla.client.errors import ClientError
from ottla.producer import Producer, ProducerConfig
from ottla.producer.errors import BufferFull, ProducerClosed
from ottla.protocol.errors import KafkaError

PARTITIONS = 4
KEYS = 10
# The bound for closing a writer during a fault.
CLOSE_BOUND_S = 5.0
# Acknowledgements of patient writers arrive or fail within this delivery timeout.
SETTLE_BOUND_S = 45.0

FAR_AHEAD = 2_000

# The number of a record, its acknowledgement, and what to add to the offset in that.
Pending = tuple[int, Any, int]


@dataclass
class Record:
    """One record and its outcome."""

    number: int
    key: bytes | None
    partition: int | None
    place: tuple[int, int] | None = None
    error: BaseException | None = None


@dataclass
class Transaction:
    """Records that must be written all or not at all; the outcome says which, if it is known."""

    fate: str = "unknown"
    numbers: list[int] = field(default_factory=list)


class GivenUp(Exception):
    """The writer's own reason to abort a transaction."""


@dataclass
class Writer:
    """Sends numbered records in one way; `records` has the acknowledgement of each."""

    name: str
    kind: str
    topic: str
    settings: dict[str, Any]
    rng: random.Random
    patient: bool = True
    records: list[Record] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    closing_s: float = 0.0
    _pending: list[Pending] = field(default_factory=list)

    @property
    def idempotent(self) -> bool:
        return self.settings.get("enable_idempotence") is not False

    async def run(self, stopping: asyncio.Event) -> None:
        """Send until stopped or cancelled; then close, and check every acknowledgement."""
        try:
            async with self._producer() as producer:
                while not stopping.is_set():
                    if not self._is_far_ahead():
                        await self._step(producer)
                    await asyncio.sleep(self.rng.choice((0, 0.001, 0.005, 0.02)))
        finally:
            await self._settle()

    @asynccontextmanager
    async def _producer(self) -> AsyncIterator[Producer]:
        config = ProducerConfig.of(**self.settings)
        servers = self.settings["bootstrap_servers"]
        producer = await Producer(servers, config=config).__aenter__()
        begun = time.monotonic()
        try:
            yield producer
        except BaseException as error:
            begun = time.monotonic()
            await producer.__aexit__(type(error), error, error.__traceback__)
            self.closing_s = time.monotonic() - begun
            raise
        else:
            await producer.__aexit__(None, None, None)

    def _is_far_ahead(self) -> bool:
        """Whether more records are pending than can be written soon after the last fault."""
        return len(self._pending) > FAR_AHEAD and not self._pending[-FAR_AHEAD][1].done()

    async def _step(self, producer: Producer) -> None:
        try:
            await WAYS[self.kind](self, producer)
        except BufferFull:
            await asyncio.sleep(0.02)
        except (ClientError, KafkaError) as error:
            # A record that `send` rejects was not sent; only impatient writers may meet that.
            if self.patient:
                self.wrong.append(f"{self.name} ({self.kind}) could not send: {error!r}")
            await asyncio.sleep(0.05)

    def next(self, *, keyed: bool | None = None, partition: int | None = None) -> tuple[Record, bytes]:
        """Return the next record and its value."""
        use = self.rng.choice(("key", "partition", "free")) if keyed is None else "key" if keyed else "free"
        key = b"%s-%d" % (self.name.encode(), self.rng.randrange(KEYS)) if use == "key" else None
        if use == "partition" and partition is None:
            partition = self.rng.randrange(PARTITIONS)
        record = Record(len(self.records), key, partition)
        self.records.append(record)
        padding = b"." * self.rng.choice((0, 10, 100, 100, 1000))
        return record, b"%s %d %s" % (self.name.encode(), record.number, padding)

    def promised(self, record: Record, acknowledgement: Awaitable[Any], shift: int = 0) -> None:
        """Store an acknowledgement; `shift` is added to its offset."""
        self._pending.append((record.number, acknowledgement, shift))

    def unsent(self, *records: Record, error: BaseException) -> None:
        for record in records:
            record.error = error

    async def _settle(self) -> None:
        """Wait for every acknowledgement; one that never arrives is an error."""
        deadline = asyncio.get_running_loop().time() + SETTLE_BOUND_S
        for number, acknowledgement, shift in self._pending:
            record = self.records[number]
            try:
                async with asyncio.timeout_at(deadline):
                    metadata = await acknowledgement
            except TimeoutError:
                self.wrong.append(f"{self.name} ({self.kind}): the acknowledgement of {number} never came")
                return
            except (ClientError, KafkaError) as error:
                record.error = error
            else:
                record.place = (metadata.partition, metadata.offset + shift) if metadata.offset >= 0 else None
        self._pending.clear()
        for transaction in self.transactions:
            if transaction.fate != "committed":  # acknowledged without a promise
                for number in transaction.numbers:
                    self.records[number].place = None
        self._judge_errors()

    def _judge_errors(self) -> None:
        allowed: tuple[type[BaseException], ...] = (ProducerClosed, BufferFull, asyncio.CancelledError)
        if not self.patient:
            allowed += (ClientError, KafkaError)
        given_up = {
            number for each in self.transactions if each.fate != "committed" for number in each.numbers
        }
        odd = {
            repr(each.error)
            for each in self.records
            if each.error and not isinstance(each.error, allowed) and each.number not in given_up
        }
        self.wrong += [
            f"{self.name} ({self.kind}) failed a record with {error[:300]}" for error in sorted(odd)[:3]
        ]


async def _send(writer: Writer, producer: Producer) -> None:
    for _ in range(writer.rng.randrange(1, 30)):
        record, value = writer.next()
        try:
            sent = await producer.send(writer.topic, value, key=record.key, partition=record.partition)
        except BaseException as error:
            writer.unsent(record, error=error)
            raise
        writer.promised(record, sent)


async def _send_and_wait(writer: Writer, producer: Producer) -> None:
    record, value = writer.next()
    try:
        metadata = await producer.send_and_wait(
            writer.topic, value, key=record.key, partition=record.partition
        )
    except BaseException as error:
        record.error = error
        if writer.patient and isinstance(error, (ClientError, KafkaError)):
            raise
        if not isinstance(error, (ClientError, KafkaError)):
            raise
    else:
        record.place = (metadata.partition, metadata.offset)


async def _send_nowait(writer: Writer, producer: Producer) -> None:
    for _ in range(writer.rng.randrange(1, 60)):
        record, value = writer.next()
        try:
            sent = producer.send_nowait(writer.topic, value, key=record.key, partition=record.partition)
        except BaseException as error:
            writer.unsent(record, error=error)
            raise
        writer.promised(record, sent)


async def _send_many(writer: Writer, producer: Producer) -> None:
    keyed = writer.rng.random() < 0.5
    partition = None if keyed else writer.rng.choice((None, *range(PARTITIONS)))
    made = [writer.next(keyed=keyed, partition=partition) for _ in range(writer.rng.randrange(1, 200))]
    records, values = [record for record, _ in made], [value for _, value in made]
    keys = [record.key for record in records] if keyed else None
    try:
        sent = await producer.send_many(writer.topic, values, keys=keys, partition=partition)
    except BaseException as error:
        writer.unsent(*records, error=error)
        raise
    for record, acknowledgement in zip(records, sent, strict=True):
        writer.promised(record, acknowledgement)


async def _send_arrow(writer: Writer, producer: Producer) -> None:
    made = [writer.next(keyed=True) for _ in range(writer.rng.randrange(1, 200))]
    columns = {
        "key": pyarrow.array([record.key for record, _ in made], pyarrow.binary()),
        "value": pyarrow.array([value for _, value in made], pyarrow.binary()),
    }
    records = [record for record, _ in made]
    try:
        sent = await producer.send_arrow(writer.topic, pyarrow.table(columns))
    except BaseException as error:
        writer.unsent(*records, error=error)
        raise
    for record, acknowledgement in zip(records, sent, strict=True):
        writer.promised(record, acknowledgement)


async def _send_batch(writer: Writer, producer: Producer) -> None:
    batch = producer.create_batch()
    partition = writer.rng.randrange(PARTITIONS)
    records: list[Record] = []
    for _ in range(writer.rng.randrange(1, 50)):
        record, value = writer.next(keyed=False, partition=partition)
        records.append(record)
        if batch.append(key=None, value=value, timestamp=None) is None:
            writer.records.pop()
            records.pop()
            break
    batch.close()
    try:
        sent = await producer.send_batch(batch, writer.topic, partition=partition)
    except BaseException as error:
        writer.unsent(*records, error=error)
        raise
    for shift, record in enumerate(records):
        writer.promised(record, sent, shift)


async def _transact(writer: Writer, producer: Producer) -> None:
    transaction, gives_up = Transaction(), writer.rng.random() < 0.25
    writer.transactions.append(transaction)
    try:
        async with producer.transaction():
            for _ in range(writer.rng.randrange(1, 20)):
                record, value = writer.next()
                transaction.numbers.append(record.number)
                sent = await producer.send(writer.topic, value, key=record.key, partition=record.partition)
                writer.promised(record, sent)
            if gives_up:
                raise GivenUp
    except GivenUp:
        transaction.fate = "aborted"
    else:
        transaction.fate = "committed"


WAYS: dict[str, Callable[[Writer, Producer], Awaitable[None]]] = {
    "send": _send,
    "send_and_wait": _send_and_wait,
    "send_nowait": _send_nowait,
    "send_many": _send_many,
    "send_arrow": _send_arrow,
    "send_batch": _send_batch,
    "transaction": _transact,
}


def available_ways() -> list[str]:
    """Return the ways to send that the producer has."""
    return [way for way in WAYS if hasattr(Producer, way)]
