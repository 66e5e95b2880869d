"""What went wrong, in one line: Spark reports it with pages of stack. Pure."""

from __future__ import annotations

import re

_RAISED = re.compile(r"(ottla(\.\w+)+\.[A-Z]\w*|(\w+\.)*\w*(Error|Exception)): ")


def one_line(error: BaseException) -> str:
    """Return an error as one line."""
    return " ".join(str(error).split()) or type(error).__name__


def cause(text: str) -> str:
    """Return the line of Spark's report that says what went wrong: that of Python, where there is one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if _is_raised(line)]
    said = raised[-1] if raised else (lines[0] if lines else "Spark does not say why")
    return said[:500]


def is_slow_start(said: str) -> bool:
    """Whether all that went wrong is that Spark did not wait for a Python to start."""
    return "Python worker failed to connect back" in said


def _is_raised(line: str) -> bool:
    """Whether this is the last line of a Python traceback: `package.Error: what`. Ours have any name."""
    return _RAISED.match(line) is not None
