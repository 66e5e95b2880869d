"""Format of the broker's log lines: time, level, logger, event, and its facts."""

from __future__ import annotations

import logging
from typing import Final

_USUAL: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class FactsFormatter(logging.Formatter):
    """Appends the fields passed as `extra` to the message, as `name=value`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class' name
        facts = [f"{name}={value}" for name, value in record.__dict__.items() if name not in _USUAL]
        return " ".join([super().formatMessage(record), *facts])


def set_up_logging(level: str) -> None:
    """Send everything from `level` up to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(FactsFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if level != "debug":
        logging.getLogger("kazoo").setLevel(logging.ERROR)
