"""Sends proposed ISRs to the controller (AlterPartition) and hands back its answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from ottla.broker.controller.events import AlterPartition, Answers, ProposedIsr
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.replication.partition import IsrProposed
    from ottla.broker.replication.replicas import Replicas
    from ottla.protocol.topics import TopicPartition

_log = logging.getLogger(__name__)

RETRY_BACKOFF_S: Final = 0.1

AskController = Callable[[AlterPartition], Awaitable[Answers]]


class AlterPartitionRequests:
    """Sends proposals one batch at a time; a partition's newest proposal replaces one that still waits."""

    def __init__(self, broker_id: int, ask: AskController, broker_epoch: Callable[[], int]) -> None:
        self._broker_id = broker_id
        self._ask = ask
        self._broker_epoch = broker_epoch
        self._waiting: dict[TopicPartition, IsrProposed] = {}
        self._something = asyncio.Event()

    def propose(self, partition: TopicPartition, proposal: IsrProposed) -> None:
        """Send a proposal soon."""
        self._waiting[partition] = proposal
        self._something.set()

    async def run(self, replicas: Replicas) -> None:
        """Send proposals until cancelled."""
        while True:
            await self._something.wait()
            self._something.clear()
            proposals, self._waiting = self._waiting, {}
            if proposals:
                await self._carry(proposals, replicas)

    async def _carry(self, proposals: dict[TopicPartition, IsrProposed], replicas: Replicas) -> None:
        request = AlterPartition(
            self._broker_id,
            self._broker_epoch(),
            {
                partition: ProposedIsr(one.leader_epoch, one.partition_epoch, one.isr)
                for partition, one in proposals.items()
            },
        )
        try:
            answers = await self._ask(request)
        except KafkaError as error:
            answers = Answers(top=error.code)
        if answers.top != ErrorCode.NONE:
            # No controller decided: the same proposals are sent to the next controller.
            await asyncio.sleep(RETRY_BACKOFF_S)
            self._waiting = {**proposals, **self._waiting}
            self._something.set()
            return
        for partition, proposal in proposals.items():
            self._hand_back(partition, proposal, answers, replicas)

    def _hand_back(
        self, partition: TopicPartition, proposal: IsrProposed, answers: Answers, replicas: Replicas
    ) -> None:
        now = answers.leaderships.get(partition)
        if now is not None:
            replicas.isr_answered(partition, proposal.token, now.isr, now.partition_epoch)
            return
        error = ErrorCode(answers.partitions.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR))
        _log.info("proposed isr refused", extra={"partition": str(partition), "error": error.name})
        replicas.isr_refused(partition, proposal.token)
