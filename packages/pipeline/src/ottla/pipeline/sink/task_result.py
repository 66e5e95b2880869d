"""The result of a task, which a worker sends to the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.pipeline.sink.task_identity import TaskIdentity

if TYPE_CHECKING:
    from ottla.pipeline.sink.sink_client import PendingTransaction


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task, for the driver."""

    task: TaskIdentity
    rows: int
    """The rows of the task that are written, now or by an earlier run."""
    is_replay: bool = False
    """Whether an earlier run has written part of the batch."""
    pending: PendingTransaction | None = None
    """The open transaction with the rows, if the driver has to commit it."""
