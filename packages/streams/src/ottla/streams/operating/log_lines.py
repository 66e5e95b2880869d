"""The log lines of a processor: one for each change of state, with the record it is about."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ottla.protocol.topics import TopicPartition
from ottla.streams.handlers.context import key_hash
from ottla.streams.seams import DeadLetter, Plan, Retry, Skip, Verdict, Work

log = logging.getLogger("ottla.streams")


class LogLines:
    """Logs assignments, failures and the recovery of commits of one processor, named by its group."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._commits_fail = False

    def assigned(self, partition: TopicPartition, offset: int | None) -> None:
        """A partition was assigned."""
        log.info("partition assigned", extra=self._of_partition(partition) | {"offset": offset})

    def revoked(self, partition: TopicPartition, *, lost: bool) -> None:
        """A partition was revoked or lost."""
        if lost:
            log.warning("partition lost, without a last commit", extra=self._of_partition(partition))
        else:
            log.info("partition revoked", extra=self._of_partition(partition))

    def failed(self, work: Work, error: BaseException, verdict: Verdict) -> None:
        """An attempt failed. Attempts between the first and the last are logged at INFO."""
        facts = self._of_work(work) | {"error": f"{type(error).__name__}: {error}"}
        match verdict:
            case Retry():
                level = logging.WARNING if work.attempt == 1 else logging.INFO
                log.log(level, "the handler failed and is called again later", extra=facts)
            case DeadLetter():
                log.warning("the handler failed, the record becomes a dead letter", extra=facts)
            case Skip():
                log.warning("the handler failed, the record is skipped", extra=facts)
            case _:
                log.error("the handler failed, the processor stops", extra=facts, exc_info=error)

    def set_aside(self, work: Work) -> None:
        """Dead letters were acknowledged."""
        log.info("dead letter written", extra=self._of_work(work))

    def commits(self, plans: Sequence[Plan], error: BaseException | None) -> None:
        """Log when commits succeed again; the processor itself logs refused ones."""
        if self._commits_fail and error is None:
            where = ", ".join(f"{each.partition}@{each.offset}" for each in plans)
            log.info("offsets are committed again", extra={"group": self._group_id, "offsets": where})
        self._commits_fail = error is not None

    def _of_partition(self, partition: TopicPartition) -> dict[str, Any]:
        return {"group": self._group_id, "topic": partition.topic, "partition": partition.partition}

    def _of_work(self, work: Work) -> dict[str, Any]:
        record = {"offset": work.offset, "key_hash": key_hash(work.record.key), "attempt": work.attempt}
        return self._of_partition(work.partition) | record
