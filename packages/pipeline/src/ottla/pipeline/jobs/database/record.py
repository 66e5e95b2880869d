"""The record for a row."""

from __future__ import annotations

from typing import NamedTuple

ID = "ottla-id"
"""The header with the id of a record. A row that is sent again after a crash has the same id."""


class Record(NamedTuple):
    """The record to send for a row."""

    topic: str
    key: bytes | None
    value: bytes | None
    id: str
    timestamp_ms: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def all_headers(self) -> list[tuple[str, bytes | None]]:
        """Return the headers; the id is the last one."""
        return [*self.headers, (ID, self.id.encode())]
