"""Outputs of handlers, dead letters too, kept until their handler finished and a transaction takes them.

Memory is bounded by `max_bytes` of finished outputs: above it `send` waits, handlers stand still, and the
budgets of records that are handled fill, so that partitions are paused. Waiting cannot last for ever: of each
partition the lowest offset that waits goes on after a while, because commits may wait for just that one.

Dead letters are sent without their work; the work that is handled or set aside is a context variable of the
worker's task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Protocol

from ottla.client.interceptors import Interceptors
from ottla.client.serialization import RecordSerializers, SentHeader, UnpreparedField, when_prepared
from ottla.producer import ProducerConfig, ProducerRecord, RecordTooLarge
from ottla.protocol.topics import TopicPartition
from ottla.streams.errors import StreamsError
from ottla.streams.exactly_once.buffered_outputs import BufferedOutputs, Headers, Output
from ottla.streams.seams import FailurePolicy, Handler, Verdict, Work, WorkState, state_of

GivenHeaders = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]
_AS_BYTES: Final = RecordSerializers("bytes", "bytes")
_CURRENT: Final[ContextVar[Work]] = ContextVar("work")


class SentRecord(Protocol):
    """A record as a handler gives it to its context."""

    @property
    def topic(self) -> str:
        """The topic."""

    @property
    def value(self) -> Any:
        """The type that the serializer of values takes."""

    @property
    def key(self) -> Any:
        """The type that the serializer of keys takes."""

    @property
    def partition(self) -> int | None:
        """The partition; None: by the key."""

    @property
    def timestamp_ms(self) -> int | None:
        """The time of creation; None: when the transaction is written."""

    @property
    def headers(self) -> GivenHeaders:
        """The headers, in order."""


class OutputsTooLarge(StreamsError):
    """One call of a handler sent more than `max_buffered_output_bytes`."""

    def __init__(self, partition: TopicPartition, offset: int, limit_bytes: int) -> None:
        super().__init__(
            f"the handler sent more than {limit_bytes} bytes for one call (topic {partition.topic}, "
            f"partition {partition.partition}, offset {offset}); raise max_buffered_output_bytes"
        )
        self.partition = partition
        self.offset = offset
        self.limit_bytes = limit_bytes


class _Held:
    """The outputs of an attempt that runs."""

    __slots__ = ("outputs", "partition", "size_bytes")

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.outputs: list[Output] = []
        self.size_bytes = 0


class TransactionalOutputs:
    """Keeps what handlers send, serialized. Implements `Outputs` of a processor, and `send` of contexts.

    An output that cannot be serialized, or is larger than `max_request_size`, raises in the handler.
    """

    def __init__(
        self, finished: BufferedOutputs, config: ProducerConfig, *, max_bytes: int, turn_ms: int = 1_000
    ) -> None:
        self._finished = finished
        self._serializers = config.serializers()
        self._interceptors = Interceptors(config.interceptors)
        self._on_create = self._interceptors.methods("on_create")
        self._preparation_timeout_s = None if config.max_block_ms < 0 else config.max_block_ms / 1_000
        self._max_record_bytes = config.max_request_size
        self._max_bytes = max_bytes
        self._turn_s = turn_ms / 1_000
        # By the state of a work, which it shares with a part of it that is handled without its duplicates.
        self._held: dict[WorkState, _Held] = {}
        self._waiting: dict[TopicPartition, dict[Work, int]] = {}
        self._admitted: dict[TopicPartition, WorkState] = {}
        self._room = asyncio.Event()

    @property
    def size_bytes(self) -> int:
        """The bytes of all outputs that no transaction has committed."""
        return self._finished.size_bytes + sum(held.size_bytes for held in self._held.values())

    async def send(self, work: Work, record: SentRecord) -> None:
        """Keep a record until the handler of `work` has finished; waits while too much is kept.

        Raises SerializationFailed, RecordTooLarge and OutputsTooLarge.
        """
        if self._on_create:  # now: the producer sends it when this handler has long ended
            made = ProducerRecord(
                record.topic, record.value, record.key, record.partition, record.timestamp_ms, record.headers
            )
            record = self._interceptors.transform(self._on_create, made, ProducerRecord)
        serialize = partial(self._serialized, record, self._serializers)
        try:
            output = serialize()
        except UnpreparedField:
            output = await when_prepared(serialize, self._preparation_timeout_s)
        await self._keep(work, output)

    async def send_bytes(self, work: Work, record: SentRecord) -> None:
        """Keep a record of bytes, as `send` does one that is serialized: a dead letter, for instance."""
        await self._keep(work, self._serialized(record, _AS_BYTES))

    async def _keep(self, work: Work, output: Output) -> None:
        if self._finished.size_bytes >= self._max_bytes:
            await self._wait_for_room(work)
        state = state_of(work)
        held = self._held.get(state)
        if held is None:
            held = self._held[state] = _Held(work.partition)
        held.size_bytes += output.size_bytes
        held.outputs.append(output)
        if held.size_bytes > self._max_bytes:
            raise OutputsTooLarge(work.partition, work.offset, self._max_bytes)

    def settle(self, work: Work) -> asyncio.Future[None] | None:
        """Give the outputs of a handler that finished to the next transaction, without waiting for it."""
        held = self._release(work)
        if held is not None:
            offsets = tuple(record.offset for record in work.records)
            self._finished.finish(
                work.partition,
                offsets,
                tuple(held.outputs),
                work.records,
                attempts=work.attempt,
                changelogs=state_of(work).changelogs,
            )
        return None

    def discard(self, work: Work) -> None:
        """Forget what an attempt sent that failed or was abandoned."""
        self._release(work)

    def revoked(self, partition: TopicPartition) -> None:
        """Forget the outputs of a partition that is no longer assigned."""
        self._finished.drop({partition})
        for state in [state for state, held in self._held.items() if held.partition == partition]:
            del self._held[state]
        self._admitted.pop(partition, None)

    def committed(self) -> None:
        """Wake handlers that wait for room."""
        self._room.set()
        self._room = asyncio.Event()

    # --- inside

    async def _wait_for_room(self, work: Work) -> None:
        waiting = self._waiting.setdefault(work.partition, {})
        waiting[work] = work.offset
        try:
            while self._finished.size_bytes >= self._max_bytes and not self._is_admitted(work):
                if not await self._is_woken() and work.offset == min(waiting.values()):
                    self._admitted.setdefault(work.partition, state_of(work))
        finally:
            del waiting[work]
            if not waiting:
                self._waiting.pop(work.partition, None)

    def _is_admitted(self, work: Work) -> bool:
        return self._admitted.get(work.partition) is state_of(work)

    def _release(self, work: Work) -> _Held | None:
        state = work.context
        if not isinstance(state, WorkState):
            return None
        if self._admitted.get(work.partition) is state:
            del self._admitted[work.partition]
        return self._held.pop(state, None)

    async def _is_woken(self) -> bool:
        """Wait for the next commit; return false if none comes for a while."""
        try:
            async with asyncio.timeout(self._turn_s):
                return await self._room.wait()
        except TimeoutError:
            return False

    def _serialized(self, record: SentRecord, serializers: RecordSerializers) -> Output:
        given = record.headers
        pairs = given.items() if isinstance(given, Mapping) else given
        key, value, headers = serializers.serialize(record.topic, record.key, record.value, pairs)
        output = Output(record.topic, value, key, record.partition, record.timestamp_ms, _headers(headers))
        if output.size_bytes > self._max_record_bytes:
            raise RecordTooLarge(output.size_bytes, self._max_record_bytes)
        return output


def _headers(pairs: Iterable[SentHeader]) -> Headers:
    return tuple((name, data.encode() if isinstance(data, str) else data) for name, data in pairs)


class TransactionalDeadLetters:
    """Sends dead letters through `TransactionalOutputs`."""

    def __init__(self, outputs: TransactionalOutputs) -> None:
        self._outputs = outputs

    async def send(self, record: ProducerRecord) -> None:
        """Keep a dead letter for the transaction of the current work."""
        await self._outputs.send_bytes(_CURRENT.get(), record)

    def wrap(self, handler: Handler) -> Handler:
        """Return a handler whose dead letters, of records that cannot be decoded, belong to its work."""

        async def handle(work: Work) -> None:
            _CURRENT.set(work)
            if isinstance(work.context, WorkState):
                # An attempt that failed took them along: they were no more than kept.
                work.context.set_aside_offsets.clear()
            await handler(work)

        return handle


class TransactionalFailures:
    """Implements `FailurePolicy` by another one, whose dead letters are transactional."""

    def __init__(self, policy: FailurePolicy, outputs: TransactionalOutputs) -> None:
        self._policy = policy
        self._outputs = outputs

    def decide(self, work: Work, error: BaseException, now_ms: int) -> Verdict:
        """Return what the policy decides."""
        return self._policy.decide(work, error, now_ms)

    async def set_aside(self, work: Work, error: BaseException) -> None:
        """Give the dead letters of a work to the next transaction: its offset is committed with them."""
        _CURRENT.set(work)
        try:
            await self._policy.set_aside(work, error)
        except BaseException:
            self._outputs.discard(work)
            raise
        self._outputs.settle(work)
