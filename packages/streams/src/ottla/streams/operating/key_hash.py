"""Hashes of keys for log lines and status: equal keys have equal hashes, and no key is shown."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

_BYTES: Final = 8


def key_hash(key: bytes | None) -> str | None:
    """Return 16 hexadecimal digits that are equal for equal keys; None for a record without a key."""
    return None if key is None else blake2b(key, digest_size=_BYTES).hexdigest()
