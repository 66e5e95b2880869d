"""A record made of a row."""

from __future__ import annotations

from typing import NamedTuple

ID = "ottla-id"
"""The header with the id of a record. A row that is sent again, after a crash, has the same."""


class Record(NamedTuple):
    """What is sent for a row."""

    topic: str
    key: bytes | None
    value: bytes | None
    id: str
    timestamp_ms: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def all_headers(self) -> list[tuple[str, bytes | None]]:
        """Return the headers, the id last."""
        return [*self.headers, (ID, self.id.encode())]
