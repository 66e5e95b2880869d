"""Java's properties format: comments, escapes, continued lines."""

import re
from collections.abc import Mapping

from ottla.protocol.storage.errors import CorruptStorage

__all__ = ["decode_properties", "encode_properties"]

_WORD = r"[A-Za-z0-9_.\-]"
_PLAIN_WORD = re.compile(f"{_WORD}*")
_PLAIN_LINE = re.compile(rf"({_WORD}+)=({_WORD}*)")
_PLAIN_TEXT = re.compile(rf"(?:(?:#[^\n\r\\]*|{_WORD}+={_WORD}*)?\n)*")
"""What nothing needs unescaping in. A broker's own small files are of this kind, and reading them so spares
its start the import of javaproperties, which brings XML and HTTP with it."""


def decode_properties(data: bytes) -> dict[str, str]:
    """The keys and values of a properties file; the last of two equal keys counts, as in Java.

    UTF-8 is read where the file is that (Kafka's tools write plain ASCII), else Latin-1 as the format has it.
    Raises CorruptStorage for a malformed unicode escape.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    if _PLAIN_TEXT.fullmatch(text):
        return dict(_PLAIN_LINE.findall(re.sub("#.*", "", text)))
    import javaproperties

    try:
        return javaproperties.loads(text)
    except javaproperties.InvalidUEscapeError as error:
        raise CorruptStorage(f"malformed properties: {error}") from None


def encode_properties(values: Mapping[str, str]) -> bytes:
    """A properties file without comments, in the mapping's order, in ASCII."""
    if all(key and _PLAIN_WORD.fullmatch(key + value) for key, value in values.items()):
        return "".join([f"{key}={value}\n" for key, value in values.items()]).encode("ascii")
    import javaproperties

    return javaproperties.dumps(dict(values), timestamp=False).encode("ascii")
