"""Topic ids as text: 22 characters of URL-safe base64, as Kafka writes them everywhere (KIP-516)."""

import base64
from uuid import UUID

from ottla.protocol.storage.errors import CorruptStorage

__all__ = ["decode_uuid", "encode_uuid"]


def encode_uuid(value: UUID) -> str:
    """The text of a UUID."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text.rstrip("=") + "==", altchars=b"-_", validate=True)


def decode_uuid(text: str) -> UUID:
    """The UUID of a text, with or without padding. Raises CorruptStorage for anything else."""
    try:
        # the decoder would take the other alphabet's signs as well
        raw = b"" if "+" in text or "/" in text else _decode(text)
    except ValueError:
        raw = b""
    if len(raw) != 16:
        raise CorruptStorage(f"{text[:40]!r} is not a UUID in base64")
    return UUID(bytes=raw)
