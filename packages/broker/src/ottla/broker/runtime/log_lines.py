"""Log lines of the broker: an event and its facts, and warnings limited in rate that clients cause."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from ottla.client.log_formats import FactsFormatter

_log = logging.getLogger(__name__)

SERVER_LOG: Final = "server.log"
LOG_FILES: Final = {
    "controller": "controller.log",
    "state-change": "state-change.log",
    "log-cleaner": "log-cleaner.log",
    "request": "kafka-request.log",
    "authorizer": "kafka-authorizer.log",
}
"""The files of the loggers that have one of their own, as in Kafka; all others are in `SERVER_LOG`."""

EVERY_MS: Final = 10_000
MOST_SUBJECTS: Final = 10
MOST_STACKS: Final = 100


class LogFiles(NamedTuple):
    """A directory with a file per logger; each is rotated by its size, and the oldest files are deleted."""

    directory: Path
    max_bytes: int = 64 << 20
    most_files: int = 10

    def handler(self, name: str) -> logging.Handler:
        """Open a file. Raises OSError.

        A line that the file does not take, when the disk is full for example, goes to standard error.
        """
        from logging.handlers import (
            RotatingFileHandler,
        )  # brings pickle, which a start without files need not

        handler = RotatingFileHandler(
            self.directory / name, maxBytes=self.max_bytes, backupCount=self.most_files - 1, encoding="utf-8"
        )
        handler.setFormatter(FactsFormatter())
        handler.handleError = partial(_write_to_stderr, handler)  # type: ignore[method-assign]
        return handler


def _write_to_stderr(handler: logging.Handler, record: logging.LogRecord) -> None:
    sys.stderr.write(handler.format(record) + "\n")


def set_up_logging(level: str, files: LogFiles | None = None) -> None:
    """Send everything from `level` up to standard error, or to files. Raises OSError."""
    if files is None:
        handler: logging.Handler = logging.StreamHandler()
        handler.setFormatter(FactsFormatter())
    else:
        files.directory.mkdir(0o755, parents=True, exist_ok=True)
        handler = files.handler(SERVER_LOG)
        for logger, name in LOG_FILES.items():
            logging.getLogger(logger).addHandler(files.handler(name))
            logging.getLogger(logger).propagate = False
    logging.basicConfig(level=level.upper(), handlers=[handler], force=files is not None)
    if level != "debug":
        logging.getLogger("kazoo").setLevel(logging.ERROR)


class LimitedWarnings:
    """Logs one kind of warning: once per subject and interval, and of few subjects per interval.

    A subject is what the warning is about, an address for example, so that one noisy client does not hide
    another. Lines left out are counted: `more_not_logged` of the next line.
    """

    def __init__(
        self,
        log: logging.Logger,
        now_ms: Callable[[], float],
        *,
        every_ms: float = EVERY_MS,
        most_subjects: int = MOST_SUBJECTS,
    ) -> None:
        """`now_ms` is a clock that never goes back: `clock.monotonic_ms`."""
        self._log = log
        self._now_ms = now_ms
        self._every_ms = every_ms
        self._most_subjects = most_subjects
        self._began_ms = float("-inf")
        self._subjects: set[str] = set()
        self._left_out = 0

    def warn(
        self,
        subject: str,
        event: str,
        *,
        extra: Mapping[str, object] | None = None,
        exc_info: BaseException | None = None,
    ) -> None:
        """Log an event and its facts, unless this interval has a line about the subject, or enough lines."""
        now_ms = self._now_ms()
        if now_ms - self._began_ms >= self._every_ms:
            self._began_ms = now_ms
            self._subjects.clear()
        if subject in self._subjects or len(self._subjects) >= self._most_subjects:
            self._left_out += 1
            return
        self._subjects.add(subject)
        facts = dict(extra or {})
        if self._left_out:
            facts["more_not_logged"] = self._left_out
            self._left_out = 0
        self._log.warning(event, extra=facts, exc_info=exc_info)


@contextmanager
def limited_transport_errors(now_ms: Callable[[], float]) -> Iterator[None]:
    """Log the errors with which transports of the running loop close once in a while for each kind.

    Where there is no memory to receive a request, all connections may close so, each with a traceback.
    """
    loop = asyncio.get_running_loop()
    before, warnings = loop.get_exception_handler(), LimitedWarnings(_log, now_ms)

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and "transport" in context:
            facts = {"during": context.get("message"), "transport": repr(context["transport"])}
            warnings.warn(repr(error), "connection failed", extra=facts, exc_info=error)
        elif before is not None:
            before(loop, context)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
    try:
        yield
    finally:
        if loop.get_exception_handler() is handle:
            loop.set_exception_handler(before)


def print_tasks() -> None:
    """Write the stacks of the tasks of the running loop to standard error: where each waits."""
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    sys.stderr.write(f"{len(tasks)} tasks; the first {MOST_STACKS} of them:\n")
    for task in tasks[:MOST_STACKS]:
        sys.stderr.write(f"task {task.get_name()}\n")
        task.print_stack(limit=8, file=sys.stderr)
    sys.stderr.flush()
