"""Sends proposed ISRs to the controller (AlterPartition) until each has a committed outcome.

A try that ends without an answer may have been applied. So may one that is refused because the controller
knows a later state: most often it is the state that a lost answer had told. The partition's state znode says
what is committed. Only while it holds the state that the proposal started from, the proposal is sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.broker.peers.controller_requests import AlterPartition, Answers, ProposedIsr
from ottla.protocol.errors import ErrorCode, KafkaError, error_for
from ottla.zookeeper.errors import ZooKeeperError

if TYPE_CHECKING:
    from ottla.broker.cluster.partition_znodes import Leadership
    from ottla.broker.replication.partition import IsrProposed
    from ottla.broker.replication.replicas import Replicas
    from ottla.protocol.topics import TopicPartition

_log = logging.getLogger(__name__)

RETRY_BACKOFF_S: Final = 0.1
MAX_RETRY_BACKOFF_S: Final = 5.0
COPIES_TRAVEL_S: Final = 60.0
"""How long copies of a request without an answer may be on their way."""

NOT_ATTEMPTED: Final = frozenset({ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED})
"""Errors that say that the controller did not write the proposed ISR, and did not find it written."""

AskController = Callable[[AlterPartition], Awaitable[Answers]]
ReadCommitted = Callable[["TopicPartition"], Awaitable["Leadership | None"]]


@dataclass(slots=True)
class _Sending:
    """A proposal, how often it was sent without a definite answer, and when it is due (loop time)."""

    proposal: IsrProposed
    unanswered: int = 0
    due_s: float = 0.0
    confirmed_s: float | None = None
    """When the controller first answered with the committed state."""


class AlterPartitionRequests:
    """Sends proposals one batch at a time; a partition's newest proposal replaces one that still waits.

    `read_committed` reads a partition's state from ZooKeeper, None when there is none. `refused` is called
    for each proposal that the controller refuses.
    """

    def __init__(
        self,
        broker_id: int,
        ask: AskController,
        broker_epoch: Callable[[], int],
        read_committed: ReadCommitted,
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._broker_id = broker_id
        self._ask = ask
        self._broker_epoch = broker_epoch
        self._read_committed = read_committed
        self._refused = refused
        self._waiting: dict[TopicPartition, _Sending] = {}
        self._something = asyncio.Event()

    def propose(self, partition: TopicPartition, proposal: IsrProposed) -> None:
        """Send a proposal soon."""
        self._waiting[partition] = _Sending(proposal)
        self._something.set()

    async def run(self, replicas: Replicas) -> None:
        """Send proposals until cancelled."""
        while True:
            due = await self._due()
            await self._carry(due, replicas)
            self._repeat(due, replicas)

    async def _due(self) -> dict[TopicPartition, _Sending]:
        """Wait for proposals that are due, and take them."""
        loop = asyncio.get_running_loop()
        while True:
            self._something.clear()
            now_s = loop.time()
            due = {
                partition: sending for partition, sending in self._waiting.items() if sending.due_s <= now_s
            }
            if due:
                self._waiting = {p: sending for p, sending in self._waiting.items() if p not in due}
                return due
            next_s = min((sending.due_s for sending in self._waiting.values()), default=None)
            try:
                async with asyncio.timeout_at(next_s):
                    await self._something.wait()
            except TimeoutError:
                continue

    async def _carry(self, due: dict[TopicPartition, _Sending], replicas: Replicas) -> None:
        """Send proposals once, and hand back their outcomes as far as they are known."""
        answers = await self._answers(due)
        unknown = []
        for partition, sending in due.items():
            if not self._hand_back(partition, sending, answers, replicas):
                unknown.append(partition)
        await asyncio.gather(*(self._read_back(partition, replicas) for partition in unknown))

    async def _answers(self, due: dict[TopicPartition, _Sending]) -> Answers:
        proposals = {
            partition: ProposedIsr(
                sending.proposal.leader_epoch, sending.proposal.partition_epoch, sending.proposal.isr
            )
            for partition, sending in due.items()
        }
        try:
            return await self._ask(AlterPartition(self._broker_id, self._broker_epoch(), proposals))
        except KafkaError as error:
            return Answers(top=error.code)
        except OSError:
            return Answers(top=ErrorCode.BROKER_NOT_AVAILABLE)

    def _hand_back(
        self, partition: TopicPartition, sending: _Sending, answers: Answers, replicas: Replicas
    ) -> bool:
        """Pass a partition its answer; return whether the answer names the committed state."""
        token, now = sending.proposal.token, answers.leaderships.get(partition)
        if now is not None and not answers.top:
            replicas.isr_answered(partition, token, now.isr, now.partition_epoch)
            self._outlive_copies(partition, sending, replicas)
            return True
        code = answers.top or answers.partitions.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
        error = type(error_for(code)).__name__
        if not answers.top:
            self._refused()
        _log.info("proposed isr not confirmed", extra={"partition": str(partition), "error": error})
        if answers.top or code not in NOT_ATTEMPTED:
            sending.unanswered += 1
            return False
        if sending.unanswered:
            replicas.isr_retracted(partition, token)
            self._inherit(partition, sending)
        else:
            replicas.isr_refused(partition, token)
        return True

    def _outlive_copies(self, partition: TopicPartition, sending: _Sending, replicas: Replicas) -> None:
        """Drop a proposal that an answer did not settle, once no copy of the one before can be under way.

        Apache Kafka's controller writes nothing for an ISR that is committed already, so that the partition
        epoch stays.
        """
        now_s = asyncio.get_running_loop().time()
        if sending.confirmed_s is None:
            sending.confirmed_s = now_s
        if now_s - sending.confirmed_s >= COPIES_TRAVEL_S:
            replicas.isr_refused(partition, sending.proposal.token)

    def _inherit(self, partition: TopicPartition, before: _Sending) -> None:
        """Copies of the proposal before may be under way, too, when the one that retracts it is refused."""
        retraction = self._waiting.get(partition)
        if retraction is not None:
            retraction.unanswered = before.unanswered + 1
            retraction.due_s = self._later_s(before)

    def _later_s(self, sending: _Sending) -> float:
        backoff_s = min(MAX_RETRY_BACKOFF_S, RETRY_BACKOFF_S * (1 << min(sending.unanswered, 10)))
        return asyncio.get_running_loop().time() + backoff_s

    async def _read_back(self, partition: TopicPartition, replicas: Replicas) -> None:
        """Take over the committed state, if it can be read and is later than the known one."""
        try:
            now = await self._read_committed(partition)
        except ZooKeeperError as error:
            _log.info("isr not read", extra={"partition": str(partition), "reason": str(error)})
            return
        if now is not None:
            replicas.isr_read(partition, now.leader_epoch, now.isr, now.partition_epoch)

    def _repeat(self, carried: dict[TopicPartition, _Sending], replicas: Replicas) -> None:
        """Queue the proposals that are still open once more, each later than the last time."""
        for partition in replicas.still_proposed(
            (partition, sending.proposal.token) for partition, sending in carried.items()
        ):
            sending = carried[partition]
            sending.due_s = self._later_s(sending)
            self._waiting.setdefault(partition, sending)
