"""The log lines of a processor: one for each change of state, and the format of their facts.

Failures and dead letters come with every record while something that handlers need is down: of those with the
same exception type and outcome one line is written per second, and the next says how many were left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from ottla.client.log_formats import FactsFormatter as FactsFormatter
from ottla.client.log_formats import JsonFormatter as JsonFormatter
from ottla.protocol.topics import TopicPartition
from ottla.streams.errors import DeadLetterDelayed, RecordUndecodable
from ottla.streams.handlers.context import key_hash
from ottla.streams.seams import DeadLetter, Plan, Retry, Skip, Verdict, Work

EVERY_MS: Final = 1_000
MOST_SUBJECTS: Final = 1_000


class LineLimit:
    """Admits one line per subject and second, or `every_ms`, and counts those between.

    A subject is what lines have in common, the type of an exception for example. Of more than 1,000 subjects
    the oldest is forgotten, with its count.
    """

    def __init__(self, now_ms: Callable[[], float], *, every_ms: int = EVERY_MS) -> None:
        """`now_ms` is a clock that never goes back."""
        self._now_ms = now_ms
        self._every_ms = every_ms
        self._next_ms: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def admit(self, subject: str) -> int | None:
        """Return how many lines about a subject were left out before this one; None: leave this out too."""
        now_ms = self._now_ms()
        if now_ms < self._next_ms.get(subject, now_ms):
            self._left_out[subject] = self._left_out.get(subject, 0) + 1
            return None
        self._next_ms[subject] = now_ms + self._every_ms
        if len(self._next_ms) > MOST_SUBJECTS:
            oldest = next(iter(self._next_ms))
            del self._next_ms[oldest]
            self._left_out.pop(oldest, None)
        return self._left_out.pop(subject, 0)


log = logging.getLogger("ottla.streams")
_PACKAGE: Final = str(Path(__file__).parent.parent)


class LogLines:
    """Logs assignments, failures and the recovery of commits of one processor, named by its group."""

    def __init__(
        self, group_id: str, *, now_ms: Callable[[], float], dead_letter_topic: str | None = None
    ) -> None:
        self._group_id = group_id
        self._dead_letter_topic = dead_letter_topic
        self._limit = LineLimit(now_ms)
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
        """Log an attempt that failed. Attempts between the first and the last are logged at INFO."""
        if isinstance(error, RecordUndecodable):
            self._undecodable(work, error, verdict)
            return
        match verdict:
            case Retry() if isinstance(error, DeadLetterDelayed):
                self._failure(logging.WARNING, "a dead letter is sent again later", work, error)
            case Retry():
                level = logging.WARNING if work.attempt == 1 else logging.INFO
                self._failure(level, "the handler failed and is called again later", work, error)
            case DeadLetter():
                self._failure(
                    logging.WARNING, "the handler failed, the record becomes a dead letter", work, error
                )
            case Skip():
                self._failure(logging.WARNING, "the handler failed, the record is skipped", work, error)
            case _:
                self._failure(logging.ERROR, "the handler failed, the processor stops", work, error)

    def _undecodable(self, work: Work, error: RecordUndecodable, verdict: Verdict) -> None:
        """Log that a record was not handled, and where it goes; if it stops the processor, that is raised."""
        match verdict:
            case DeadLetter():
                event, topic = "a record cannot be decoded, it becomes a dead letter", self._dead_letter_topic
                self._failure(logging.WARNING, event, work, error, dead_letter_topic=topic)
            case Skip():
                self._failure(logging.WARNING, "a record cannot be decoded, it is skipped", work, error)

    def set_aside(self, work: Work) -> None:
        """Dead letters were acknowledged."""
        self._limited(logging.INFO, "dead letter written", "", self._of_work(work))

    def commits(self, plans: Sequence[Plan], error: BaseException | None) -> None:
        """Log when commits succeed again; the processor itself logs refused ones."""
        if self._commits_fail and error is None:
            where = ", ".join(f"{plan.partition}@{plan.offset}" for plan in plans)
            log.info("offsets are committed again", extra={"group": self._group_id, "offsets": where})
        self._commits_fail = error is not None

    def _failure(self, level: int, event: str, work: Work, error: BaseException, **more: object) -> None:
        kind = type(error).__name__
        facts = self._of_work(work) | more | {"error": f"{kind}: {error}"}
        self._limited(level, event, kind, facts, error if level == logging.ERROR else None)

    def _limited(
        self, level: int, event: str, kind: str, facts: dict[str, Any], error: BaseException | None = None
    ) -> None:
        left_out = self._limit.admit(f"{level} {event} {kind}")
        if left_out is not None:
            facts = facts | ({"left_out": left_out} if left_out else {})
            log.log(level, event, extra=facts, exc_info=None if error is None else _own_frames(error))

    def _of_partition(self, partition: TopicPartition) -> dict[str, Any]:
        return {"group": self._group_id, "topic": partition.topic, "partition": partition.partition}

    def _of_work(self, work: Work) -> dict[str, Any]:
        record = {"offset": work.offset, "key_hash": key_hash(work.record.key), "attempt": work.attempt}
        return self._of_partition(work.partition) | record


def _own_frames(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType] | None:
    """Return an error with the frames of the handler, without those that called it; None without any."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        frames = frames.tb_next
    return None if frames is None else (type(error), error, frames)


def set_up_logging(level: str, *, as_json: bool = False) -> None:
    """Send everything from `level` up to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else FactsFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
