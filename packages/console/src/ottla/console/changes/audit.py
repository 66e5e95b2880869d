"""The audit log: one line of JSON for each change, tried or done, in a file that only its owner may read."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_log = logging.getLogger(__name__)

_MOST_VALUE: Final = 200
_LOGGED: Final = ("user", "client", "cluster", "change", "outcome")
_SHORTENED: Final = frozenset({"value", "key", "headers", "config"})
"""Fields of records, and settings of connectors: the log has their length only, as they may be secret."""


class AuditLog:
    """Writes changes to the log of the process, and to a file where there is one.

    `user` is the name of the person, "" at a console without logins; `client` is the address.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._turn = asyncio.Lock()

    async def write(
        self, now_ms: int, user: str, client: str, cluster: str, change: str, form: Mapping[str, str],
        outcome: str,
    ) -> None:  # fmt: skip
        """Write one change. Raises OSError where the file cannot be written."""
        at = datetime.fromtimestamp(now_ms / 1_000, UTC).isoformat(timespec="milliseconds")
        facts = {
            "at": at, "user": user, "client": client, "cluster": cluster, "change": change,
            "form": {name: _shown(name, value) for name, value in form.items() if value}, "outcome": outcome,
        }  # fmt: skip
        _log.info("a change of a cluster", extra={name: facts[name] for name in _LOGGED})
        if self._path is not None:
            async with self._turn:
                await asyncio.to_thread(self._append, json.dumps(facts, ensure_ascii=False))

    def _append(self, line: str) -> None:
        assert self._path is not None
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "a", encoding="utf-8") as file:
            file.write(line + "\n")


def _shown(name: str, value: str) -> str:
    if name in _SHORTENED:
        return f"{len(value.encode())} bytes"
    return value if len(value) <= _MOST_VALUE else f"{value[:_MOST_VALUE]}…"
