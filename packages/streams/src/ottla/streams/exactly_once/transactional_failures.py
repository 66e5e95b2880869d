"""Dead letters that are outputs of their record: in the transaction that commits its offset.

Dead letters are sent without their work; the work that is handled or set aside is a context variable of the
worker's task.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from ottla.producer import ProducerRecord
from ottla.streams.exactly_once.transactional_outputs import TransactionalOutputs
from ottla.streams.seams import FailurePolicy, Handler, Verdict, Work
from ottla.streams.work_state import WorkState

_CURRENT: Final[ContextVar[Work]] = ContextVar("work")


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
