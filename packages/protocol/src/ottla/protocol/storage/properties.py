"""Java's properties format: comments, escapes, continued lines."""

from collections.abc import Mapping

import javaproperties

from ottla.protocol.storage.errors import CorruptStorage

__all__ = ["decode_properties", "encode_properties"]


def decode_properties(data: bytes) -> dict[str, str]:
    """The keys and values of a properties file; the last of two equal keys counts, as in Java.

    UTF-8 is read where the file is that (Kafka's tools write plain ASCII), else Latin-1 as the format has it.
    Raises CorruptStorage for a malformed unicode escape.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    try:
        return javaproperties.loads(text)
    except javaproperties.InvalidUEscapeError as error:
        raise CorruptStorage(f"malformed properties: {error}") from None


def encode_properties(values: Mapping[str, str]) -> bytes:
    """A properties file without comments, in the mapping's order, in ASCII."""
    return javaproperties.dumps(dict(values), timestamp=False).encode("ascii")
