"""Dead letters of share groups on their way into their topics: as producers write, with acks=all.

A failure that may pass is tried again with growing pauses; after that, and after any other one, the records
are given up, as in Kafka: a group does not stop because its dead-letter topic cannot be written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.cluster.topics import NewTopic
from ottla.broker.runtime.log_lines import LimitedWarnings
from ottla.broker.share.letters import (
    NOTHING,
    Copied,
    LetterBatch,
    LetterTopic,
    Origin,
    copied,
    letter_batch,
)
from ottla.protocol.errors import (
    ErrorCode,
    KafkaError,
    KafkaStorageError,
    LeaderNotAvailable,
    NetworkException,
    TopicAlreadyExists,
    TopicAuthorizationFailed,
    UnknownServerError,
    error_for,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.config import BrokerConfig, LogConfig
    from ottla.broker.peers.client import Peer
    from ottla.broker.replication.hosted_partition import HostedPartition
    from ottla.broker.runtime.environment import Environment
    from ottla.broker.runtime.threads import RecordThreads
    from ottla.broker.share.in_flight import DeadLetters
    from ottla.broker.share.metrics import ShareGroupMetrics

log = logging.getLogger(__name__)

ATTEMPTS: Final = 5
FIRST_PAUSE_MS: Final = 1_000
LONGEST_PAUSE_MS: Final = 30_000
JITTER: Final = 0.2
READ_BYTES: Final = 1 << 20
"""The most bytes read of the log for one batch of letters, but at least one batch of the log."""
AT_ONCE: Final = 16
"""Share partitions whose letters are being written; the memory of each is a read and a batch."""
CREATION_WAIT_MS: Final = 5_000
NOT_PERMITTED: Final = (
    "this broker may not WRITE to {} at broker {}: add the brokers to super.users, or allow them by an ACL"
)
_ALL_ACKS: Final = -1


class Topics(Protocol):
    """Creates topics (`cluster.topics.Topics`)."""

    async def create(self, topic: NewTopic, /) -> object:
        """Create a topic. Raises KafkaError."""
        ...

    async def wait_until_led(self, name: str, partitions: int, timeout_ms: float) -> bool:
        """Wait until partitions of a topic have leaders."""
        ...


class LettersRefused(Exception):
    """The topic that a group has named takes no letters; the text is the reason."""


class DeadLetterTopics:
    """Writes letters into the topics of their groups: into partitions led here or by other brokers."""

    def __init__(
        self,
        *,
        environment: Environment,
        config: Callable[[], BrokerConfig],
        metadata: MetadataCache,
        topics: Topics,
        log_config: Callable[[str], LogConfig],
        append_here: Callable[[TopicPartition, bytes], Awaitable[None]],
        connect: Callable[[int], Peer],
        record_threads: RecordThreads,
        metrics: ShareGroupMetrics,
    ) -> None:
        """`append_here` writes to a partition that this broker leads, `connect` returns another broker."""
        self._environment = environment
        self._config = config
        self._metadata = metadata
        self._topics = topics
        self._log_config = log_config
        self._append_here = append_here
        self._connect = connect
        self._record_threads = record_threads
        self._metrics = metrics
        self._peers: dict[int, Peer] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._warnings = LimitedWarnings(log, environment.clock.monotonic_ms)

    async def close(self) -> None:
        """Close the connections to other brokers."""
        peers, self._peers = list(self._peers.values()), {}
        for peer in peers:
            await peer.close()

    async def write(
        self,
        origin: Origin,
        source: HostedPartition,
        letters: Sequence[DeadLetters],
        *,
        topic: Callable[[], tuple[str, bool]],
    ) -> Sequence[DeadLetters]:
        """Write the first letters as one batch; return those that end with it, written or given up.

        `source` is the partition of the records. `topic` returns the dead-letter topic of the group, and
        whether records are copied into it. Every letter is given up where the topic takes none.
        """
        error: KafkaError
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(self._pause_ms(attempt) / 1000)
            try:
                async with self._turns:
                    return await self._attempt(origin, source, letters, *topic())
            except LettersRefused as refused:
                self._warn(origin, str(refused))
                return letters
            except KafkaError as failure:
                error = failure
            except OSError as failure:
                error = NetworkException(str(failure))
            if not error.retriable:
                break
        self._metrics.of_group(origin.group_id).failed_letter_requests.mark()
        self._warn(origin, f"{error.code.name}: {error}")
        return letters

    def _pause_ms(self, attempt: int) -> float:
        pause: float = min(FIRST_PAUSE_MS << (attempt - 1), LONGEST_PAUSE_MS)
        return pause * self._environment.random.uniform(1 - JITTER, 1 + JITTER)

    async def _attempt(
        self,
        origin: Origin,
        source: HostedPartition,
        letters: Sequence[DeadLetters],
        name: str,
        is_copied: bool,
    ) -> Sequence[DeadLetters]:
        destination = await self._destination(name, origin.topic_partition.partition)
        max_bytes = self._log_config(name).max_message_bytes
        batch = await self._batch(origin, source, letters, max_bytes, is_copied=is_copied)
        self._metrics.of_group(origin.group_id).letter_requests.mark()
        await self._produce(destination, batch.records)
        self._metrics.of_group(origin.group_id).letters.mark(batch.size)
        return batch.ended

    # ---- the topic

    async def _destination(self, name: str, partition: int) -> TopicPartition:
        """Return the partition for letters of another one; a missing topic is created, if that is allowed.

        Raises LettersRefused or KafkaError.
        """
        config = self._config()
        topic = LetterTopic(
            name=name,
            exists=name in self._metadata,
            is_enabled=self._log_config(name).errors_deadletterqueue_group_enable,
            may_be_created=config.errors_deadletterqueue_auto_create_topics_enable,
            prefix=config.errors_deadletterqueue_topic_name_prefix,
        )
        if topic.refusal is not None:
            raise LettersRefused(f"{name or 'no topic'}: {topic.refusal}")
        if not topic.exists:
            await self._create(name)
        count = self._metadata.partition_count(name)
        if not count:
            raise LeaderNotAvailable(f"{name} is being created")
        return TopicPartition(name, partition % count)

    async def _create(self, name: str) -> None:
        configs = {"errors.deadletterqueue.group.enable": "true", "message.timestamp.type": "CreateTime"}
        with contextlib.suppress(TopicAlreadyExists):
            await self._topics.create(NewTopic(name, configs=configs))
        await self._topics.wait_until_led(name, 1, CREATION_WAIT_MS)

    # ---- the records

    async def _batch(
        self,
        origin: Origin,
        source: HostedPartition,
        letters: Sequence[DeadLetters],
        max_bytes: int,
        *,
        is_copied: bool,
    ) -> LetterBatch:
        read = self._reader(source, letters, max_bytes) if is_copied else _nothing
        now_ms = self._environment.clock.now_ms()

        def build() -> LetterBatch:
            return letter_batch(origin, letters, read(), now_ms, max_bytes)

        return await self._record_threads.run(build)

    def _reader(
        self, source: HostedPartition, letters: Sequence[DeadLetters], most_bytes: int
    ) -> Callable[[], Copied]:
        """Return the read of the first letters' records: for a thread; its place is looked up now."""
        offset = max(letters[0].first_offset, source.log.log_start_offset)
        try:
            found = source.read(offset, READ_BYTES, up_to=source.high_watermark)
        except (KafkaError, OSError):
            return _nothing
        if not found.length:
            return _nothing

        def read() -> Copied:
            try:
                return copied(found.read(), letters, found.end_offset, most_bytes)
            except (KafkaError, OSError):
                return NOTHING

        return read

    # ---- the leader

    async def _produce(self, destination: TopicPartition, records: bytes) -> None:
        leader = self._metadata.leader_of(destination)
        if leader is None:
            raise LeaderNotAvailable
        if leader == self._metadata.broker_id:
            try:
                await self._append_here(destination, records)
            except OSError as error:
                raise KafkaStorageError(str(error)) from error
            return
        request = ProduceRequest(
            acks=_ALL_ACKS,
            timeout_ms=self._config().request_timeout_ms,
            topic_data=[
                TopicProduceData(
                    topic_id=self._metadata.topic_id(destination.topic),
                    name=destination.topic,
                    partition_data=[PartitionProduceData(index=destination.partition, records=records)],
                )
            ],
        )
        response = await self._peer(leader).send(request, ProduceResponse)
        answers = [answer for topic in response.responses for answer in topic.partition_responses]
        if len(answers) != 1:
            raise UnknownServerError("the leader has not answered for the partition")
        if answers[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise TopicAuthorizationFailed(NOT_PERMITTED.format(destination.topic, leader))
        if answers[0].error_code:
            raise error_for(answers[0].error_code, answers[0].error_message)

    def _peer(self, broker_id: int) -> Peer:
        peer = self._peers.get(broker_id)
        if peer is None:
            peer = self._peers[broker_id] = self._connect(broker_id)
        return peer

    def _warn(self, origin: Origin, reason: str) -> None:
        self._warnings.warn(
            f"{origin.group_id}:{origin.topic_partition}",
            "records of a share group given up without a dead letter",
            extra={
                "group": origin.group_id,
                "partition": str(origin.topic_partition),
                "reason": reason,
            },
        )


def _nothing() -> Copied:
    return NOTHING
