"""The short way of Produce: requests of one connection to one partition, appended and answered together.

The network finds the run in the bytes (`FrameReader.next_produces`), so no message object is made. Whatever
is not plain goes the long way, `handlers.produce`, which also says what is wrong with which request: a run
that cannot be appended is given back and taken again one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from ottla.broker.handlers._produce_run import Target
from ottla.broker.handlers.known_partitions import KnownPartitions
from ottla.broker.log.log import Appended
from ottla.broker.log.validation import may_have_to_be_opened
from ottla.protocol.errors import KafkaError, RequestTimedOut
from ottla.protocol.topics import INTERNAL_TOPICS

if TYPE_CHECKING:
    from ottla.broker.environment import Clock
    from ottla.broker.handlers.context import ClientSession
    from ottla.broker.handlers.topic_metrics import TopicMetrics
    from ottla.broker.replication.replicas import HostedPartition

ALL_ACKS: Final = -1


class Run(Protocol):
    """Plain Produce requests that came one behind the other (`network.frames.ProduceRun`)."""

    @property
    def key(self) -> bytes:
        """The topic's bytes and the partition's four bytes."""
        ...

    @property
    def target(self) -> Any:
        """What the index holds for the key."""
        ...

    @property
    def version(self) -> int: ...

    @property
    def acks(self) -> int: ...

    @property
    def timeout_ms(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def records(self) -> int: ...

    @property
    def size_in_bytes(self) -> int: ...

    @property
    def batches(self) -> bytearray | memoryview: ...

    def answers(self, base_offset: int, log_append_time_ms: int, log_start_offset: int) -> bytes:
        """Return all responses, framed."""
        ...

    def failures(self, error_code: int) -> bytes:
        """Return all responses, framed, with an error instead of an offset."""
        ...


class NotPlain(Exception):
    """The run has to go the long way."""


class ProduceRuns:
    """Appends runs for one broker, to the partitions that the session has in its index."""

    def __init__(self, topic_metrics: TopicMetrics, clock: Clock) -> None:
        self.known: KnownPartitions[Target] = KnownPartitions()
        self._topic_metrics = topic_metrics
        self._clock = clock

    def admit(self, session: ClientSession, partition: HostedPartition) -> None:
        """Let later produces of a session to this partition take the fast path.

        The general path calls it after an append that went well.
        """
        topic_partition = partition.topic_partition
        target = self.known.get(topic_partition)
        if target is None or target.partition is not partition:
            config = partition.log.config
            if topic_partition.topic in INTERNAL_TOPICS or config.flush_before_acknowledge:
                return
            if may_have_to_be_opened(config):
                return
            meters = self._topic_metrics
            target = Target(partition, meters.of(topic_partition.topic), meters.all_topics)
            self.known.put(topic_partition, target)
        session.admit_produces(target)

    def pour(self) -> None:
        """Bring the topics' meters up to date with the requests that took the fast path."""
        for target in self.known:
            target.pour()

    def append(self, run: Run) -> bytes | Coroutine[Any, Any, bytes]:
        """Append a run; returns the responses, or a wait for them where replicas are behind.

        Raises `NotPlain`, and then nothing has been appended and the session has to drop the partition.
        """
        target: Target = run.target
        if target.retired:
            raise NotPlain
        partition, now_ms = target.partition, self._clock.now_ms()
        try:
            answers = target.append_alone(run, now_ms)
            if answers is not None:
                return answers
            if partition.log.config.flush_before_acknowledge:
                raise NotPlain
            appended = partition.append(run.batches, required_acks=run.acks, now_ms=now_ms)
        except (KafkaError, OSError):
            raise NotPlain from None
        if appended.duplicate and run.count > 1:
            raise NotPlain  # one of them is a retry; taken one by one, each gets its own offset
        target.count(run)
        if run.acks == ALL_ACKS and partition.core.high_watermark <= appended.last_offset:
            return self._when_replicated(run, partition, appended)
        return run.answers(appended.base_offset, appended.log_append_time_ms, appended.log_start_offset)

    async def _when_replicated(self, run: Run, partition: HostedPartition, appended: Appended) -> bytes:
        try:
            async with asyncio.timeout(run.timeout_ms / 1000):
                await partition.replicated(appended.last_offset + 1)
        except KafkaError as error:
            return run.failures(int(error.code))
        except TimeoutError:
            return run.failures(int(RequestTimedOut.code))
        return run.answers(appended.base_offset, appended.log_append_time_ms, appended.log_start_offset)
