"""The format of log lines of `ottla streams run`: text with facts, or JSON objects."""

from __future__ import annotations

import json
import logging
from typing import Any, Final

_USUAL: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class FactsFormatter(logging.Formatter):
    """Appends the fields passed as `extra` to the message, as `name=value`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class' name
        facts = [f"{name}={value}" for name, value in _facts(record).items()]
        return " ".join([super().formatMessage(record), *facts])


class JsonFormatter(logging.Formatter):
    """Writes a line as one JSON object: time, level, logger, event, and the fields passed as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time_ms": round(record.created * 1_000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_facts(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def set_up_logging(level: str, *, as_json: bool = False) -> None:
    """Send everything from `level` up to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else FactsFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in record.__dict__.items() if name not in _USUAL}
