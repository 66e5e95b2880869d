"""Requests to the transaction coordinator, and their order (KIP-98, KIP-447).

Partitions and groups are registered with the coordinator before anything is written to them, so that it knows
where to write the transaction's end. A request is repeated while the coordinator is busy, loading or moved;
each may be repeated safely. An abort repeats the registrations that were not answered, and then ends the
transaction: without that, one that the coordinator has begun would stay open until it fences the producer.

In version 2 of transactions (KIP-890) brokers register what is written to them, and the end of a transaction
brings the epoch of the next one. A transaction has the version that the cluster had at its begin. The first
one of version 2 after one of version 1 gets a new epoch before: late requests of that one would join it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TypeVar

from ottla.client.cluster import GROUP, TRANSACTION, Cluster
from ottla.client.errors import ClientError
from ottla.client.group_metadata import GroupMetadata, OffsetAndMetadata
from ottla.client.retry import Backoff, retrying
from ottla.producer.metrics import ProducerMetrics
from ottla.producer.transactions.prepared_transaction import (
    SECOND_VERSION,
    PreparedTransaction,
    end_prepared,
    raise_of_coordinator,
)
from ottla.producer.transactions.state import (
    Phase,
    ProducerFenced,
    Registrable,
    TransactionError,
    TransactionState,
    is_fatal,
)
from ottla.protocol.errors import (
    ErrorCode,
    InvalidTxnState,
    KafkaError,
    TransactionAbortable,
    UnknownTopicOrPartition,
    error_class,
)
from ottla.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from ottla.protocol.schema import Message
from ottla.protocol.topics import TopicPartition

R = TypeVar("R", bound=Message)
T = TypeVar("T")

# Later versions are for requests between brokers.
_ADD_PARTITIONS_FOR_CLIENTS = 3
_FEATURE = "transaction.version"
_PRODUCE_FOR_SECOND_VERSION = 12
_OFFSETS_FOR_SECOND_VERSION = 5
# By then a coordinator has usually written the end of the last transaction.
_SOON_MS = 20
_ERRORS_OF_PARTITIONS = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.OFFSET_METADATA_TOO_LARGE,
)

Offsets = Mapping[TopicPartition, int | OffsetAndMetadata]


class TransactionCoordinatorClient:
    """Asks the coordinator of one transactional id; owns the id, the epoch and the transaction's state.

    `on_unknown_topic` is called with a topic of which the coordinator does not know a partition to register.
    """

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        timeout_ms: int,
        metrics: ProducerMetrics,
        delivery_timeout_ms: int,
        on_unknown_topic: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self.transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._metrics = metrics
        self._delivery_timeout_ms = delivery_timeout_ms
        self._on_unknown_topic = on_unknown_topic
        self._backoff = Backoff(_SOON_MS, cluster.config.retry_backoff_max_ms)
        self._registering = asyncio.Lock()
        self.state = TransactionState()
        self.producer_id = -1
        self.producer_epoch = -1

    # --- for the application

    async def start(self) -> None:
        """Obtain id and epoch. That fences an earlier producer with this id, and aborts its transaction.

        Raises the broker's error, for instance TransactionalIdAuthorizationFailed.
        """
        self.state = TransactionState()
        self._registering = asyncio.Lock()  # the last one may belong to another event loop
        await self._obtain_epoch(keep=False)
        self.state.version = self._served_version()
        self.state.to(Phase.IDLE, "start")

    async def begin(self) -> None:
        """Begin a transaction. The coordinator begins it with the first registered partition."""
        try:
            if self.state.phase is Phase.IDLE:
                await self._choose_version()
        except (ClientError, KafkaError) as error:
            if is_fatal(error):
                self.state.failed(error)
            raise
        self.state.to(Phase.OPEN, "begin a transaction")

    async def _choose_version(self) -> None:
        async with self._registering:
            served = self._served_version()
            if self.state.phase is not Phase.IDLE:
                return  # another task has begun one meanwhile
            if served > self.state.version:
                await self._obtain_epoch(keep=True)
            self.state.version = served

    def _served_version(self) -> int:
        """Return the version of transactions that the cluster serves now, as far as its brokers said."""
        level = self._cluster.pool.feature_level(_FEATURE)
        return self.state.version if level is None else max(1, min(level, SECOND_VERSION))

    async def send_offsets(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Commit offsets of a group with the transaction. Raises what the coordinators answer."""
        if self.state.phase is not Phase.OPEN:
            self.state.refuse("send offsets")
        if not offsets:
            return
        try:
            if self.state.version == SECOND_VERSION:
                self.state.registered_by_brokers([group.group_id])
            else:
                await self._add_group(group)
            await self._store_offsets(offsets, group)
        except (ClientError, KafkaError) as error:
            self.failed(error.__cause__ or error)
            raise
        except asyncio.CancelledError:
            # The offsets may or may not be stored, so the transaction must not be committed.
            self.failed(TransactionError("sending offsets was cancelled"))
            raise

    async def commit(self) -> None:
        """Commit at the coordinator. The caller has flushed before, and may call again after a failure."""
        # Until another task's AddOffsetsToTxn is answered, it is not known whether there is anything to end.
        async with self._registering:
            self.state.to(Phase.COMMITTING, "commit")
        try:
            await self._commit()
        except (ClientError, KafkaError) as error:
            if is_fatal(error) or isinstance(error, TransactionAbortable):
                self.state.failed(error)
            raise
        self.state.to(Phase.IDLE, "commit")
        self._metrics.txn_commit_total += 1

    async def _commit(self) -> None:
        try:
            await self._end(committed=True)
        except InvalidTxnState as error:
            # In version 2 the coordinator takes the request for the repetition of an end that this producer
            # asked for, also after its own abort of what took too long. This producer asked for no abort.
            if self.state.version == SECOND_VERSION:
                raise ProducerFenced(self.transactional_id) from error
            raise

    async def prepare(self) -> PreparedTransaction:
        """Return the transaction for `end_prepared`. The caller has flushed before."""
        async with self._registering:
            self.state.to(Phase.PREPARED, "prepare")
        return self._prepared()

    def _prepared(self) -> PreparedTransaction:
        named = (self.transactional_id, self.producer_id, self.producer_epoch)
        return PreparedTransaction(*named, self.state.is_empty, self.state.version)

    async def abort(self) -> None:
        """Abort at the coordinator. No batch is in flight; the caller may call again after a failure."""
        self.state.to(Phase.ABORTING, "abort")
        try:
            # A partition that is registered after the end would begin a transaction that nothing ends.
            async with self._registering:
                await self._end_aborted_once()
            if self.state.gap:
                await self._obtain_epoch(keep=True)
                self.state.gap = False
        except (ClientError, KafkaError) as error:
            if is_fatal(error):
                self.state.failed(error)
            raise
        self.state.to(Phase.IDLE, "abort")
        self._metrics.txn_abort_total += 1

    # --- for the sender

    @property
    def produce_version(self) -> int | None:
        """The version of Produce that the transaction needs; None: any."""
        return _PRODUCE_FOR_SECOND_VERSION if self.state.version == SECOND_VERSION else None

    def sends_to(self, partition: TopicPartition) -> None:
        """Note that a batch is about to be sent to a partition: in version 2 that registers it."""
        if self.state.version == SECOND_VERSION:
            self.state.registered_by_brokers([partition])

    def is_registered(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether all of these partitions are registered with the coordinator, or are by being written to."""
        if self.state.version == SECOND_VERSION:
            return True
        return self.state.partitions.issuperset(partitions)

    async def register(self, partitions: Iterable[TopicPartition]) -> None:
        """Register partitions with the coordinator, before anything is written to them.

        Raises DeadlineExceeded before the records' `delivery_timeout_ms` is over; it may be called again
        then.
        """
        async with self._registering:
            new = self.state.unregistered(partitions)
            if not new:
                return
            bound_ms = min(self._cluster.config.default_api_timeout_ms, self._delivery_timeout_ms)
            await self._retrying("adding partitions to the transaction", lambda: self._add(new), bound_ms)

    async def meaning_of(self, rejection: KafkaError) -> Exception:
        """Return ProducerFenced for the rejection of a leader if the coordinator says so, else itself.

        A leader that rejects the epoch does not prove it in version 1 (KIP-588). The coordinator is asked to
        register a partition that it has registered already. In version 2 a leader knows a newer epoch only if
        the transaction was ended, and not by this producer.
        """
        if self.state.version == SECOND_VERSION:
            return ProducerFenced(self.transactional_id)
        async with self._registering:
            known = sorted(self.state.partitions)[:1]
            try:
                if known:
                    await self._retrying("asking whether the producer is fenced", lambda: self._add(known))
            except ProducerFenced as fenced:
                return fenced
            except (ClientError, KafkaError):
                return rejection  # the abort finds out
        return rejection

    def failed(self, error: BaseException, *, numbered: bool = False) -> None:
        """Note that a record of the transaction failed; `numbered`: its batch leaves a sequence gap."""
        self.state.gap = self.state.gap or numbered
        self.state.failed(error, of_record=True)

    # --- requests

    async def _obtain_epoch(self, *, keep: bool) -> None:
        async def ask() -> InitProducerIdResponse:
            request = InitProducerIdRequest(
                transactional_id=self.transactional_id,
                transaction_timeout_ms=self._timeout_ms,
                producer_id=self.producer_id if keep else -1,
                producer_epoch=self.producer_epoch if keep else -1,
            )
            answer = await self._ask(request, InitProducerIdResponse)
            self._raise(answer.error_code, message=self._timeout_refusal(answer.error_code))
            return answer

        answer = await self._retrying(f"obtaining an epoch for {self.transactional_id!r}", ask)
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch

    def _timeout_refusal(self, code: int) -> str | None:
        if code != ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            return None
        return f"transaction_timeout_ms={self._timeout_ms} is above the brokers' transaction.max.timeout.ms"

    async def _add(self, partitions: Collection[TopicPartition]) -> None:
        self._refuse_at_the_end("send records")
        await self._add_partitions(partitions)

    async def _add_group(self, group: GroupMetadata) -> None:
        async def add() -> None:
            self._refuse_at_the_end("send offsets")
            await self._add_offsets(group.group_id)

        async with self._registering:
            await self._retrying(f"adding group {group.group_id!r} to the transaction", add)

    def _refuse_at_the_end(self, doing: str) -> None:
        # The transaction may have failed, or its abort begun, between two attempts.
        if self.state.phase not in (Phase.OPEN, Phase.FLUSHING):
            self.state.refuse(doing)

    async def _add_partitions(self, partitions: Collection[TopicPartition]) -> None:
        topics: dict[str, list[int]] = defaultdict(list)
        for topic, index in partitions:
            topics[topic].append(index)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics.items()
            ],
        )
        answer = await self._ask(
            request, AddPartitionsToTxnResponse, max_version=_ADD_PARTITIONS_FOR_CLIENTS, registers=partitions
        )
        # The topic may have been created again with fewer partitions: then the repetition would not help.
        for topic in _unknown_topics(answer):
            self._on_unknown_topic(topic)
        self._answered(partitions, _error_of_partitions(answer))

    async def _add_offsets(self, group_id: str) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            group_id=group_id,
        )
        answer = await self._ask(request, AddOffsetsToTxnResponse, registers=[group_id])
        self._answered([group_id], answer.error_code)

    def _answered(self, what: Collection[Registrable], code: int) -> None:
        self.state.answered(what, code)
        self._raise(code)

    async def _settle(self) -> None:
        """Repeat the registrations that are in doubt until the coordinator accepts or refuses them."""
        if self.state.in_doubt:
            await self._retrying("repeating what was added to the transaction", self._add_again)

    async def _add_again(self) -> None:
        in_doubt = self.state.in_doubt
        partitions = sorted(doubtful for doubtful in in_doubt if not isinstance(doubtful, str))
        groups = sorted(doubtful for doubtful in in_doubt if isinstance(doubtful, str))
        if partitions:
            await _unless_refused(self._add_partitions(partitions))
        for group_id in groups:
            await _unless_refused(self._add_offsets(group_id))

    async def _store_offsets(self, offsets: Offsets, group: GroupMetadata) -> None:
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group.group_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            generation_id=group.generation_id,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
            topics=_offset_topics(offsets),
        )

        async def ask() -> None:
            node_id = await self._cluster.coordinator(group.group_id, GROUP)
            try:
                # Below version 3 there is no field for member and generation: only the epoch fences.
                version = _OFFSETS_FOR_SECOND_VERSION if self.state.version == SECOND_VERSION else None
                answer = await self._cluster.send(
                    node_id, request, TxnOffsetCommitResponse, min_version=version, max_version=version
                )
            except ClientError:
                self._cluster.forget_coordinator(group.group_id, GROUP)
                raise
            for code, partition in _first_of_each_error(answer).items():
                self._raise(code, group=group.group_id, message=_of_partition(code, partition))

        await self._retrying(f"sending offsets of {group.group_id!r}", ask)

    async def _end_aborted_once(self) -> None:
        # The coordinator may have raised the epoch though its answer was lost. InitProducerId may be repeated
        # in the old epoch, but EndTxn in it would find this producer fenced.
        if not self.state.is_aborted:
            await self._end_aborted()
            self.state.is_aborted = True

    async def _end_aborted(self) -> None:
        await self._settle()
        try:
            await self._end(committed=False)
        except InvalidTxnState:
            if self.state.is_begun:
                raise
            # The repetition was refused, and no earlier request was executed: no transaction is open.

    async def _end(self, *, committed: bool) -> None:
        ended = self._prepared()
        following = await end_prepared(self._cluster, ended, committed=committed, backoff=self._backoff)
        if following is not None:
            self.producer_id, self.producer_epoch = following
            self.state.gap = False  # sequences begin at 0 in the new epoch
        elif not ended.is_empty:
            self.state.version = 1  # the next one of version 2 obtains another epoch

    async def _ask(
        self,
        request: Message,
        response: type[R],
        *,
        max_version: int | None = None,
        registers: Collection[Registrable] = (),
    ) -> R:
        """Ask the coordinator. What the request `registers` is in doubt from when it is sent."""
        node_id = await self._cluster.coordinator(self.transactional_id, TRANSACTION)
        try:
            connection = await self._cluster.connection(node_id)
            self.state.asked(registers)
            return await connection.send(request, response, max_version=max_version)
        except ClientError:
            self._cluster.forget_coordinator(self.transactional_id, TRANSACTION)
            raise

    def _raise(self, code: int, *, group: str | None = None, message: str | None = None) -> None:
        raise_of_coordinator(self._cluster, self.transactional_id, code, group=group, message=message)

    async def _retrying(self, what: str, ask: Callable[[], Awaitable[T]], bound_ms: int | None = None) -> T:
        timeout_ms = self._cluster.config.default_api_timeout_ms if bound_ms is None else bound_ms
        return await retrying(what, ask, timeout_s=timeout_ms / 1_000, backoff=self._backoff)


async def _unless_refused(registering: Awaitable[None]) -> None:
    """Await the repetition of a registration, which may be refused: EndTxn shows if a transaction is open.

    A topic that was deleted meanwhile is refused, too: it is not waited for.
    """
    try:
        await registering
    except KafkaError as error:
        may_succeed = error.retriable and not isinstance(error, UnknownTopicOrPartition)
        if may_succeed or is_fatal(error):
            raise


def _error_of_partitions(answer: AddPartitionsToTxnResponse) -> int:
    """Return the error of the answer; OPERATION_NOT_ATTEMPTED only accompanies that of another partition."""
    codes = {
        part.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for part in topic.results_by_partition
    }
    return min(codes - {ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED}, default=ErrorCode.NONE)


def _unknown_topics(answer: AddPartitionsToTxnResponse) -> set[str]:
    """Return the topics that have a partition with the error UNKNOWN_TOPIC_OR_PARTITION."""
    return {
        topic.name
        for topic in answer.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
        if partition.partition_error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }


def _first_of_each_error(answer: TxnOffsetCommitResponse) -> dict[int, TopicPartition]:
    """Return the error codes of the answer, each with the first partition that has it."""
    found: dict[int, TopicPartition] = {}
    for topic in answer.topics:
        for part in topic.partitions:
            found.setdefault(part.error_code, TopicPartition(topic.name, part.partition_index))
    return found


def _of_partition(code: int, partition: TopicPartition) -> str | None:
    """Return a message with the partition for an error that is not the whole group's."""
    if code not in _ERRORS_OF_PARTITIONS:
        return None
    return f"{partition}: {error_class(code).description}"


def _offset_topics(offsets: Offsets) -> list[TxnOffsetCommitRequestTopic]:
    topics: dict[str, list[TxnOffsetCommitRequestPartition]] = defaultdict(list)
    for (topic, index), given in offsets.items():
        one = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
        topics[topic].append(
            TxnOffsetCommitRequestPartition(
                partition_index=index,
                committed_offset=one.offset,
                committed_leader_epoch=one.leader_epoch,
                committed_metadata=one.metadata,
            )
        )
    return [TxnOffsetCommitRequestTopic(name=name, partitions=parts) for name, parts in topics.items()]
