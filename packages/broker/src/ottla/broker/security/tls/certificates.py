"""The names in a certificate, as Java writes them: principals and ACLs hold these texts.

A certificate is read from its DER encoding, because a name is compared character by character: the order of
its parts, the escapes, and the encoding of attributes that Java has no word for come from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

_EXPLICIT_VERSION: Final = 0xA0
_EXPLICIT_EXTENSIONS: Final = 0xA3
_ALTERNATIVE_NAMES: Final = "2.5.29.17"
_SUBJECT: Final = 5
"""Its place behind version, serial number, algorithm, issuer and validity."""

_WORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.9": "STREET",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
"""The attributes that RFC 2253 has words for; the others are written by their numbers."""

_ENCODINGS: Final = {
    0x0C: "utf-8",  # UTF8String
    0x13: "ascii",  # PrintableString
    0x14: "latin-1",  # T61String
    0x16: "ascii",  # IA5String
    0x1B: "ascii",  # GeneralString
    0x1C: "utf-32-be",  # UniversalString
    0x1E: "utf-16-be",  # BMPString
}
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_SPACES: Final = " \n"


class MalformedCertificate(ValueError):
    """The encoding of a certificate cannot be read."""


class CertificateNames(NamedTuple):
    """The names that a certificate is for."""

    subject: str
    """As Java's `X500Principal.getName()` writes it: `CN=alice,OU=Sales,C=DE`."""
    alternatives: frozenset[bytes]
    """The subject alternative names, as they are encoded."""


class _Element(NamedTuple):
    tag: int
    content: bytes
    encoded: bytes


def names_of(certificate: bytes) -> CertificateNames:
    """Return the names in a DER-encoded certificate. Raises `MalformedCertificate`."""
    try:
        signed = _only(_only(certificate).content)
        fields = list(_elements(signed.content))
        place = _SUBJECT if fields[0].tag == _EXPLICIT_VERSION else _SUBJECT - 1
        return CertificateNames(_name(fields[place].content), _alternatives(fields))
    except (IndexError, UnicodeDecodeError) as error:
        raise MalformedCertificate(f"the certificate cannot be read: {error}") from error


def _alternatives(fields: list[_Element]) -> frozenset[bytes]:
    for field in fields:
        if field.tag == _EXPLICIT_EXTENSIONS:
            for extension in _elements(_only(field.content).content):
                parts = list(_elements(extension.content))
                if _object_id(parts[0].content) == _ALTERNATIVE_NAMES:
                    return frozenset(name.encoded for name in _elements(_only(parts[-1].content).content))
    return frozenset()


def _name(content: bytes) -> str:
    """Write a name with its last part first, as RFC 2253 does."""
    parts = [_relative_name(part.content) for part in _elements(content)]
    return ",".join(reversed(parts))


def _relative_name(content: bytes) -> str:
    return "+".join(_attribute(*list(_elements(attribute.content))[:2]) for attribute in _elements(content))


def _attribute(kind: _Element, value: _Element) -> str:
    number = _object_id(kind.content)
    encoding = _ENCODINGS.get(value.tag)
    if number not in _WORDS or encoding is None:
        return f"{number}=#{value.encoded.hex()}"
    return f"{_WORDS[number]}={_escaped(value.content.decode(encoding))}"


def _escaped(text: str) -> str:
    """Escape a value as Java does: special characters everywhere, spaces at both ends."""
    inner = text.strip(_SPACES)
    before = len(text) - len(text.lstrip(_SPACES))
    after = len(text) - before - len(inner)
    shown = "".join(f"\\{character}" if character in _ESCAPED else character for character in inner)
    return "\\ " * before + shown + ("\\ " * after if inner else "")


# ---- DER


def _only(data: bytes) -> _Element:
    for element in _elements(data):
        return element
    raise MalformedCertificate("the certificate ends early")


def _elements(data: bytes) -> Iterator[_Element]:
    """Yield the elements of an encoding. Raises `MalformedCertificate`."""
    position = 0
    while position < len(data):
        begin, tag, length = position, data[position], data[position + 1]
        position += 2
        if length & 0x80:
            count = length & 0x7F
            length = int.from_bytes(data[position : position + count])
            position += count
        if position + length > len(data):
            raise MalformedCertificate("the certificate ends early")
        position += length
        yield _Element(tag, data[position - length : position], data[begin:position])


def _object_id(content: bytes) -> str:
    numbers, value = [], 0
    for byte in content:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
