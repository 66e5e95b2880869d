"""Failures in one line, extracted from Spark's long stack traces. Pure."""

from __future__ import annotations

import re

from ottla.pipeline.errors import PipelineError

_CALLED_JAVA = "py4j.protocol.Py4JJavaError: "
_SAID_BY_JAVA = re.compile(r"(?:Caused by)?: *(?=([\w$]+\.)+[\w$]+)")
_RAISED = re.compile(r"(ottla(\.\w+)+\.[A-Z]\w*|(\w+\.)*\w*(Error|Exception)): ")


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
