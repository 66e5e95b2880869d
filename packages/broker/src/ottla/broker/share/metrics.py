"""The meters of share groups, under the names of Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ottla.broker.metrics import Metrics
    from ottla.broker.metrics.registry import Meter

_GROUP: Final = "kafka.server"
_TYPE: Final = "ShareGroupMetrics"
_LETTERS: Final = "DeadLetterQueueRecordCount"
_SENT: Final = "DeadLetterQueueTotalProduceRequestsPerSec"
_FAILED: Final = "DeadLetterQueueFailedProduceRequestsPerSec"


class ShareGroupMetrics:
    """The meters of the groups whose share partitions are here; they go with the last of a group."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def dead_letters_written(self, group_id: str, count: int) -> None:
        """Count records that are in the dead-letter topic."""
        self._of(_LETTERS, group_id).mark(count)

    def dead_letters_sent(self, group_id: str) -> None:
        """Count a request to write dead letters."""
        self._of(_SENT, group_id).mark()

    def dead_letters_failed(self, group_id: str) -> None:
        """Count letters that could not be written, and were given up."""
        self._of(_FAILED, group_id).mark()

    def _of(self, name: str, group_id: str) -> Meter:
        return self._metrics.meter(_GROUP, _TYPE, name, group=group_id)

    def forget_group(self, group_id: str) -> None:
        """Drop the meters of a group."""
        for name in (_LETTERS, _SENT, _FAILED):
            self._metrics.remove(_GROUP, _TYPE, name, group=group_id)
