"""The interface of the steps of `PositionResolver`, and how steps treat errors."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Protocol

from ottla.client.errors import DeadlineExceeded
from ottla.client.retry import is_retriable
from ottla.consumer.fetch.positions import PartitionState
from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)


class ResolutionStep(Protocol):
    """Sends one kind of request to resolve or validate positions."""

    def is_needed(self, state: PartitionState) -> bool:
        """Return whether a partition needs this step."""

    async def resolve(self, states: list[PartitionState]) -> bool:
        """Send the request for partitions; return whether none of them must be tried again."""


def is_transient(error: Exception) -> bool:
    """Return whether to retry. An outage may outlast the timeout of one call: reading continues after it."""
    return is_retriable(error) or isinstance(error, DeadlineExceeded)


def fail(states: Iterable[PartitionState], error: Exception) -> None:
    """Raise an error to the application through the partitions, unless a retry may help."""
    is_retried = is_transient(error)
    if is_retried:
        log.info("positions were not resolved", extra={"reason": str(error)})
    for state in states:
        if is_retried:
            state.last_retried = error
        else:
            state.failure = error


def settle(states: list[PartitionState], failed: Mapping[TopicPartition, Exception]) -> bool:
    """Apply errors by partition; return whether none of them must be retried."""
    for state in states:
        if (error := failed.get(state.partition)) is not None:
            fail([state], error)
    return not any(is_retriable(error) for error in failed.values())
