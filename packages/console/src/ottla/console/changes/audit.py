"""The audit log: one line of JSON for each change, tried or done, in a file that only its owner may read."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from ottla.console.logins.access import Viewer

_log = logging.getLogger(__name__)

_MOST_VALUE: Final = 200
_MOST_OUTCOME: Final = 2_000
_LOGGED: Final = ("user", "identity", "client", "cluster", "change", "outcome")


class AuditLog:
    """Writes changes to the log of the process, and to a file where there is one.

    `user` is the name of the person, "" at a console without logins, and `identity` is theirs alone; `client`
    is the address.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._turn = asyncio.Lock()

    async def write(
        self, now_ms: int, viewer: Viewer, client: str, cluster: str, change: str, form: Mapping[str, str],
        outcome: str, hides: Collection[str] = (),
    ) -> None:  # fmt: skip
        """Write one change. Raises OSError where the file cannot be written.

        `hides` are the fields that may be secret, as the data of records are: the log has their length only.
        """
        at = datetime.fromtimestamp(now_ms / 1_000, UTC).isoformat(timespec="milliseconds")
        facts = {
            "at": at, "user": viewer.name, "identity": viewer.identity, "client": client,
            "cluster": cluster, "change": change,
            "form": {
                _cut(name): f"{len(value.encode())} bytes" if name in hides else _cut(value)
                for name, value in form.items()
                if value
            },
            "outcome": _cut(outcome, _MOST_OUTCOME),
        }  # fmt: skip
        _log.info("a change of a cluster", extra={name: facts[name] for name in _LOGGED})
        if self._path is not None:
            async with self._turn:
                await asyncio.to_thread(self._append, json.dumps(facts, ensure_ascii=False))

    def _append(self, line: str) -> None:
        assert self._path is not None
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(line + "\n")


def _cut(text: str, most: int = _MOST_VALUE) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
