"""Errors of the data sources and pipelines, and their one-line messages, also out of Spark's stack traces."""

from __future__ import annotations

import logging
import re

from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)

_CALLED_JAVA = "py4j.protocol.Py4JJavaError: "
_SAID_BY_JAVA = re.compile(r"(?:Caused by)?: *(?=([\w$]+\.)+[\w$]+)")
_RAISED = re.compile(r"(ottla(\.\w+)+\.[A-Z]\w*|(\w+\.)*\w*(Error|Exception)): ")


class PipelineError(Exception):
    """An error that stops a data source or a pipeline."""


class OptionError(PipelineError, ValueError):
    """An option that is unknown, missing, or has an invalid value."""


class DataLoss(PipelineError):
    """Records that a query needs are lost."""

    def __init__(
        self,
        what: str,
        why: str = "Either the topic's retention was too short for the query, or the topic was deleted and "
        "created again. ",
    ) -> None:
        super().__init__(
            f'{what}. {why}With option("failOnDataLoss", "false") the query continues without these records'
        )
        self.what = what


def report_loss(loss: DataLoss, *, fails: bool) -> None:
    """Raise an error for lost records, or log it if `failOnDataLoss` is false."""
    if fails:
        raise loss
    log.warning("records are lost; continuing, because failOnDataLoss is false", extra={"loss": loss.what})


class NotSupported(PipelineError, NotImplementedError):
    """A feature of Spark's own source that this one does not have."""


class CorruptSegment(PipelineError):
    """A segment whose content violates its format."""

    def __init__(self, path: str, problem: object) -> None:
        super().__init__(
            f"{path} is damaged: {problem}. Take the file from another replica or a copy, or read "
            'this partition through its broker: format("ottla")'
        )


class UnreadableBatch(DataLoss):
    """A batch in a segment whose records cannot be read from some offset on."""

    def __init__(self, path: str, partition: TopicPartition, offset: int, problem: object) -> None:
        super().__init__(
            f"{partition} at offset {offset}: {problem} (in {path})",
            "Take the file from another replica or a copy, or read this partition through its broker. ",
        )


class SegmentsChanged(PipelineError):
    """Files that the broker replaces or deletes during the read."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Run the query again, or read a copy of the directory, which does not change"
        )


def one_line(error: BaseException) -> str:
    """Return an error as one line."""
    return " ".join(str(error).split()) or type(error).__name__


def cause(text: str) -> str:
    """Return the line of Spark's report with the cause, that of Python if there is one.

    For a call into Java, Python reports only that it failed; then the cause is the last one that Java names.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if _is_raised(line)]
    if raised and raised[-1].startswith(_CALLED_JAVA):
        raised += [line[found.end() :] for line in lines if (found := _SAID_BY_JAVA.match(line))]
    said = raised[-1] if raised else (lines[0] if lines else "Spark gives no reason")
    return said[:500]


class JavaGone(PipelineError):
    """Spark's Java process ended during the work."""

    def __init__(self) -> None:
        super().__init__(
            "Spark's Java ended or does not answer: it was killed, or had too little memory "
            "(driver.memory in [spark]). Unfinished batches are repeated at the next start"
        )


def is_java_gone(error: BaseException) -> bool:
    """Whether Java itself failed, as opposed to an error that it reports with a stack trace."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return "Py4JError" in names and "Py4JJavaError" not in names and "Trace:" not in str(error)


def is_slow_start(said: str) -> bool:
    """Whether the only failure is that a Python worker did not start in time for Spark."""
    return "Python worker failed to connect back" in said


def _is_raised(line: str) -> bool:
    """Whether this is the last line of a Python traceback: `package.Error: message`.

    Our errors have any name.
    """
    return _RAISED.match(line) is not None
