"""Formats of log lines: an event and its facts, which all packages pass as `extra`.

The event is one text for all its lines, so that it can be searched and counted. The formatters of `logging`
show it alone; these show the facts too.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Final

_USUAL: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def facts_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a line that were passed as `extra`."""
    return {name: value for name, value in record.__dict__.items() if name not in _USUAL}


class FactsFormatter(logging.Formatter):
    """Appends the facts to the event, as `name=value`; a value forges no line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class' name
        facts = [f"{name}={in_one_line(str(value))}" for name, value in facts_of(record).items()]
        return " ".join([super().formatMessage(record), *facts])


class JsonFormatter(logging.Formatter):
    """Writes a line as one JSON object: time_ms, level, logger, event, and the facts."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time_ms": round(record.created * 1_000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **facts_of(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def in_one_line(text: str) -> str:
    """Return a text, which may come from a client, so that it forges no lines and steers no terminal."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()
