"""The fast path of Produce: requests of one connection to one partition, appended and answered together.

The run is taken from the received bytes (`protocol.native.produce`), so no message object is made. Requests
that are not plain take the general path (`general`), which also answers with the error of each: a run that
cannot be appended is left there, and its requests take the general path one by one.

Both paths append through `HostedPartition`, by the same steps: `docs/design/request-path.md`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from ottla.broker.api.known_partitions import KnownPartitions
from ottla.broker.api.produce._fast_path import NativeProduceFastPath, Target, charge
from ottla.broker.api.produce.delayed import ALL_ACKS, FIRST_BY_ID, Placed
from ottla.broker.log.append.batch_preparation import may_have_to_be_opened
from ottla.broker.log.append.record_checks import takes_long
from ottla.broker.log.log import Appended
from ottla.broker.requests.fast_path import Outcome
from ottla.protocol.errors import KafkaError, RequestTimedOut
from ottla.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from ottla.protocol.topics import INTERNAL_TOPICS

if TYPE_CHECKING:
    from ottla.broker.api.topic_metrics import TopicMetrics
    from ottla.broker.replication.replicas import HostedPartition
    from ottla.broker.requests.context import ClientSession, RequestContext
    from ottla.broker.requests.fast_path import FastAnswers
    from ottla.protocol.native import ProduceRun
    from ottla.protocol.topics import TopicPartition


NameLeaders: TypeAlias = Callable[[str, int, ProduceResponse], ProduceResponse]
"""Names the leaders of misdirected partitions in a response: listener, version, response -> response."""


class ProduceFastPath(NativeProduceFastPath):
    """Appends runs for one broker, to the partitions that the session has in its index."""

    def __init__(self, topic_metrics: TopicMetrics, name_leaders: NameLeaders) -> None:
        self.known: KnownPartitions[Target] = KnownPartitions()
        self._name_leaders = name_leaders
        self._topic_metrics = topic_metrics

    def admit(self, context: RequestContext, partition: HostedPartition) -> None:
        """Admit later produces of the session to this partition to the fast path.

        The general path calls it after an append that went well.
        """
        topic_partition = partition.topic_partition
        target = self.known.get(topic_partition)
        if target is None or target.partition is not partition:
            config = partition.log.config
            if topic_partition.topic in INTERNAL_TOPICS or config.flush_before_acknowledge:
                return
            if may_have_to_be_opened(config) or not partition.leads:
                return
            meters = self._topic_metrics
            target = Target(partition, meters.of(topic_partition.topic), meters.all_topics)
            self.known.put(topic_partition, target)
        key = target.key if context.api_version < FIRST_BY_ID else target.id_key()
        if key is not None:
            context.session.admit(self, key, target, context.index_epoch)

    def flush(self) -> None:
        """Bring the topics' meters up to date with the requests that took the fast path."""
        for target in self.known:
            target.flush()

    def append(self, run: ProduceRun, session: ClientSession, now_ms: int, answers: FastAnswers) -> Outcome:
        """Append a run whose responses may have to wait for replicas.

        `Outcome.GENERAL`, and nothing was appended, where its requests have to take the general path.
        """
        target: Target = run.target
        if target.retired or target.partition.log.config.flush_before_acknowledge:
            return Outcome.GENERAL
        partition = target.partition
        try:
            if takes_long(run.batches, partition.log.config):
                return Outcome.GENERAL  # which opens records on a thread, or one request after the other
            appended = partition.append(run.batches, required_acks=run.acks, now_ms=now_ms)
        except (KafkaError, OSError):
            return Outcome.GENERAL
        if appended.duplicate and run.count > 1:
            return Outcome.GENERAL  # one of them is a retry; taken one by one, each gets its own offset
        target.count(run)
        charge(run, answers.quotas)
        if run.acks == ALL_ACKS and partition.core.high_watermark <= appended.last_offset:
            answers.awaited = self._when_replicated(run, partition, appended, session.listener_name)
            return Outcome.BEGUN
        answers.put(run.answers(appended.base_offset, appended.log_append_time_ms, appended.log_start_offset))
        return Outcome.ANSWERED

    async def _when_replicated(
        self, run: ProduceRun, partition: HostedPartition, appended: Appended, listener_name: str
    ) -> bytes:
        try:
            async with asyncio.timeout(run.timeout_ms / 1000):
                await partition.replicated(appended.last_offset + 1)
        except KafkaError as error:
            return self._failures(run, partition.topic_partition, error, listener_name)
        except TimeoutError:
            return self._failures(run, partition.topic_partition, RequestTimedOut(), listener_name)
        return run.answers(appended.base_offset, appended.log_append_time_ms, appended.log_start_offset)

    def _failures(
        self, run: ProduceRun, topic_partition: TopicPartition, error: KafkaError, listener_name: str
    ) -> bytes:
        answer = Placed(PartitionProduceResponse(index=topic_partition.partition))
        answer.failed(error)
        topic = TopicProduceResponse(name=topic_partition.topic, partition_responses=[answer.response])
        if run.version >= FIRST_BY_ID:
            topic.topic_id = UUID(bytes=run.key[1:-4])
        response = ProduceResponse(responses=[topic], throttle_time_ms=run.throttle_time_ms)
        response = self._name_leaders(listener_name, run.version, response)
        return run.repeated(response.encode(run.version))
