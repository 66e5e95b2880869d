"""Messages as classes: one class per message, version ranges on its fields, a codec per version.

A message is declared like this, and nothing else has to be written for it::

    class PartitionProduceData(Struct):
        index: int = int32()
        records: Records = record_set()


    class TopicProduceData(Struct):
        name: str = string()
        partition_data: list[PartitionProduceData] = array(PartitionProduceData)


    @message(api_key=0, versions=(0, 11), flexible_from=9)
    class ProduceRequest(Message):
        transactional_id: str | None = nullable_string(None, since=3)
        acks: int = int16()
        timeout_ms: int = int32()
        topic_data: list[TopicProduceData] = array(TopicProduceData)

The order of the fields is their order on the wire. `since` and `until` bound the versions of the *message*
that carry a field. A field with a `tag` travels among the tagged fields of flexible versions (KIP-482), in
the order of tags, and only when it differs from its default. Reading a version that lacks a field gives its
default. Writing one raises `UnsupportedField` if the field is not at its default, unless it is `ignorable`.

Constructors, encoders and decoders are Python source made from the fields and compiled when first used
(`ottla.protocol.codecs`), so importing a message costs little.
"""

from __future__ import annotations

import struct as _struct
from collections.abc import Callable, Generator, Iterator
from typing import Any, ClassVar, Final, Self, TypedDict, TypeVar, Unpack, cast, dataclass_transform
from uuid import UUID

from ottla.protocol.fields import LATEST, Field, StructType
from ottla.protocol.primitives import ZERO_UUID, Buffer, MalformedMessage, UnencodableValue, Unreadable

Records = bytes | memoryview | None
"""A record set: whole batches, opaque here. Decoding gives a view into what was decoded, no copy."""

T = TypeVar("T")
M = TypeVar("M", bound="type[Message]")


_UNENCODABLE: Final = (AttributeError, TypeError, UnicodeEncodeError, _struct.error, OverflowError)

_UNREADABLE: Final = (Unreadable, IndexError, _struct.error, UnicodeDecodeError)


class Options(TypedDict, total=False):
    """The options of every kind of field."""

    since: int
    until: int
    tag: int
    tagged_from: int
    ignorable: bool


def int8(default: int = 0, **options: Unpack[Options]) -> int:
    """Declare a signed 8-bit integer."""
    return cast(int, Field("int8", default, **options))


def int16(default: int = 0, **options: Unpack[Options]) -> int:
    """Declare a signed 16-bit integer."""
    return cast(int, Field("int16", default, **options))


def uint16(default: int = 0, **options: Unpack[Options]) -> int:
    """Declare an unsigned 16-bit integer."""
    return cast(int, Field("uint16", default, **options))


def int32(default: int = 0, **options: Unpack[Options]) -> int:
    """Declare a signed 32-bit integer."""
    return cast(int, Field("int32", default, **options))


def uint32(default: int = 0, **options: Unpack[Options]) -> int:
    """Declare an unsigned 32-bit integer."""
    return cast(int, Field("uint32", default, **options))


def int64(default: int = 0, **options: Unpack[Options]) -> int:
    """Declare a signed 64-bit integer."""
    return cast(int, Field("int64", default, **options))


def float64(default: float = 0.0, **options: Unpack[Options]) -> float:
    """Declare an IEEE 754 double."""
    return cast(float, Field("float64", default, **options))


def boolean(default: bool = False, **options: Unpack[Options]) -> bool:
    """Declare a byte that is 0 or 1."""
    return cast(bool, Field("boolean", default, **options))


def uuid(default: UUID = ZERO_UUID, **options: Unpack[Options]) -> UUID:
    """Declare 16 bytes that are a UUID; all zero means none."""
    return cast(UUID, Field("uuid", default, **options))


def string(default: str = "", **options: Unpack[Options]) -> str:
    """Declare UTF-8 text of at most 32767 bytes."""
    return cast(str, Field("string", default, **options))


def nullable_string(
    default: str | None = "", *, nullable_from: int = 0, **options: Unpack[Options]
) -> str | None:
    """Declare text that may be absent from version `nullable_from` on."""
    return cast("str | None", Field("string", default, nullable_from=nullable_from, **options))


def blob(default: bytes = b"", **options: Unpack[Options]) -> bytes:
    """Declare opaque bytes; decoding copies them."""
    return cast(bytes, Field("blob", default, **options))


def nullable_blob(
    default: bytes | None = b"", *, nullable_from: int = 0, **options: Unpack[Options]
) -> bytes | None:
    """Declare opaque bytes that may be absent from version `nullable_from` on."""
    return cast("bytes | None", Field("blob", default, nullable_from=nullable_from, **options))


def record_set(
    default: bytes | None = None, *, nullable_from: int = 0, **options: Unpack[Options]
) -> Records:
    """Declare a record set; decoding gives a view, no copy."""
    return cast(Records, Field("records", default, nullable_from=nullable_from, **options))


def array(element: Callable[..., T], **options: Unpack[Options]) -> list[T]:
    """Declare a list of structs, or of a plain kind: `array(int32)`."""
    return cast("list[T]", Field("array", (), element=_element(element), **options))


def nullable_array(
    element: Callable[..., T],
    default: tuple[()] | None = (),
    *,
    nullable_from: int = 0,
    **options: Unpack[Options],
) -> list[T] | None:
    """Declare a list that may be absent, which is not empty, from version `nullable_from` on."""
    return cast(
        "list[T] | None",
        Field("array", default, element=_element(element), nullable_from=nullable_from, **options),
    )


def struct(element: Callable[..., T], **options: Unpack[Options]) -> T:
    """Declare a struct in place."""
    return cast(T, Field("struct", (), element=element, **options))


def nullable_struct(
    element: Callable[..., T],
    default: tuple[()] | None = None,
    *,
    nullable_from: int = 0,
    **options: Unpack[Options],
) -> T | None:
    """Declare a struct that may be absent, preceded by a byte that says so."""
    return cast("T | None", Field("struct", default, element=element, nullable_from=nullable_from, **options))


def _element(element: Any) -> Any:
    return element if isinstance(element, StructType) else element()


@dataclass_transform(kw_only_default=True)
class Struct(metaclass=StructType):
    """A group of fields inside a message. Mutable, slotted, built from keywords only, equal by value."""

    FIELDS: ClassVar[tuple[Field, ...]] = ()

    def __init__(self, **values: Any) -> None:
        from ottla.protocol.codecs import compile_constructor

        cls = type(self)
        cls.__init__ = compile_constructor(cls)  # type: ignore[method-assign]
        self.__init__(**values)  # type: ignore[misc]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in self.FIELDS)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        """Show the fields that are not at their default, and of bytes only how many, for logs."""
        shown = ", ".join(
            f"{field.name}={_shown(getattr(self, field.name, '?'))}"
            for field in self.FIELDS
            if getattr(self, field.name, "?") != field.new_default()
        )
        return f"{type(self).__name__}({shown})"


def _shown(value: Any) -> str:
    return f"<{len(value)} bytes>" if isinstance(value, bytes | bytearray | memoryview) else repr(value)


class Message(Struct):
    """A whole message: a request, a response, or a versioned value such as a record of an internal topic."""

    API_KEY: ClassVar[int] = -1
    """The API a request or response belongs to; -1 for other messages."""
    MIN_VERSION: ClassVar[int] = 0
    MAX_VERSION: ClassVar[int] = -1
    FLEXIBLE_FROM: ClassVar[int] = LATEST
    """The first version with compact lengths and tagged fields (KIP-482)."""
    _encoders: ClassVar[dict[int, Callable[[Any], list[Any]]]]
    _decoders: ClassVar[dict[int, Callable[[Any, int, bool], Any]]]
    _stepwise_encoders: ClassVar[dict[int, Callable[[Any], Iterator[list[Any]]]]]
    _stepwise_decoders: ClassVar[dict[int, Callable[[Any, int, bool], Generator[tuple[int, Any], None, Any]]]]

    def encode(self, version: int) -> bytes:
        """Return the body in the given version.

        Raises UnknownVersion, UnsupportedField for a value the version has no place for, and
        UnencodableValue for one its wire type cannot express.
        """
        encoder = self._encoders.get(version) or _compile_encoder(type(self), version)
        try:
            return b"".join(encoder(self))
        except _UNENCODABLE as error:
            raise _explain_encoding(type(self), version, error) from error

    def encode_parts(self, version: int) -> list[bytes | memoryview]:
        """Return the body as pieces to be sent one after the other; record sets are among them uncopied."""
        encoder = self._encoders.get(version) or _compile_encoder(type(self), version)
        try:
            return encoder(self)
        except _UNENCODABLE as error:
            raise _explain_encoding(type(self), version, error) from error

    def encode_in_steps(self, version: int) -> Iterator[bytes]:
        """Yield the body in order, after every `STEP` elements of arrays what they added.

        For messages that would hold up an event loop; small ones are written faster by `encode`. Raises what
        `encode` raises.
        """
        encoder = self._stepwise_encoders.get(version) or _compile_stepwise_encoder(type(self), version)
        try:
            for pieces in encoder(self):
                yield b"".join(pieces)
                pieces.clear()
        except _UNENCODABLE as error:
            raise _explain_encoding(type(self), version, error) from error

    @classmethod
    def decode(cls, buffer: Buffer, version: int, *, exact: bool = True) -> Self:
        """Read the body of a message that fills `buffer`; record sets are views into it.

        Lengths and counts are compared with the rest of the buffer before memory is allocated for them.
        `exact=False` ignores bytes after the message. Raises MalformedMessage and UnknownVersion.
        """
        decoder = cls._decoders.get(version) or _compile_decoder(cls, version)
        try:
            decoded: Self = decoder(buffer, len(buffer), exact)
        except _UNREADABLE as error:
            raise _explain_decoding(cls, version, error) from None
        return decoded

    @classmethod
    def decode_in_steps(
        cls, buffer: Buffer, version: int, *, exact: bool = True
    ) -> Generator[tuple[int, Self], None, Self]:
        """Read the body as `decode` does, in steps of at most `STEP` elements of arrays.

        Yields before the elements of an array with more than that are made, after every `STEP` elements, and
        at the end of a message that has more: how many elements the arrays have announced so far, and the
        message with the fields that were read. Returns the message. A caller that stops has spent the time of
        one step.
        """
        decoder = cls._stepwise_decoders.get(version) or _compile_stepwise_decoder(cls, version)
        try:
            decoded: Self = yield from decoder(buffer, len(buffer), exact)
        except _UNREADABLE as error:
            raise _explain_decoding(cls, version, error) from None
        return decoded


def message(*, api_key: int = -1, versions: tuple[int, int], flexible_from: int = LATEST) -> Callable[[M], M]:
    """Declare the versions of a message: first and last, and the first flexible one."""

    def declare(cls: M) -> M:
        cls.API_KEY = api_key
        cls.MIN_VERSION, cls.MAX_VERSION = versions
        cls.FLEXIBLE_FROM = flexible_from
        cls._encoders = {}
        cls._decoders = {}
        cls._stepwise_encoders = {}
        cls._stepwise_decoders = {}
        return cls

    return declare


def _explain_encoding(cls: type[Message], version: int, error: Exception) -> UnencodableValue:
    from ottla.protocol.codecs import explain_encoding

    return explain_encoding(cls, version, error)


def _explain_decoding(cls: type[Message], version: int, error: Exception) -> MalformedMessage:
    from ottla.protocol.codecs import explain_decoding

    return explain_decoding(cls, version, error)


def _compile_stepwise_encoder(cls: type[Message], version: int) -> Callable[[Any], Iterator[list[Any]]]:
    from ottla.protocol.codecs import compile_stepwise_encoder

    cls._stepwise_encoders[version] = encoder = compile_stepwise_encoder(cls, version)
    return encoder


def _compile_stepwise_decoder(
    cls: type[Message], version: int
) -> Callable[[Any, int, bool], Generator[tuple[int, Any], None, Any]]:
    from ottla.protocol.codecs import compile_stepwise_decoder

    cls._stepwise_decoders[version] = decoder = compile_stepwise_decoder(cls, version)
    return decoder


def _compile_encoder(cls: type[Message], version: int) -> Callable[[Any], list[Any]]:
    from ottla.protocol.codecs import compile_encoder

    cls._encoders[version] = encoder = compile_encoder(cls, version)
    return encoder


def _compile_decoder(cls: type[Message], version: int) -> Callable[[Any, int, bool], Any]:
    from ottla.protocol.codecs import compile_decoder

    cls._decoders[version] = decoder = compile_decoder(cls, version)
    return decoder


__all__ = [
    "LATEST",
    "Field",
    "Message",
    "Records",
    "Struct",
    "array",
    "blob",
    "boolean",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "message",
    "nullable_array",
    "nullable_blob",
    "nullable_string",
    "nullable_struct",
    "record_set",
    "string",
    "struct",
    "uint16",
    "uint32",
    "uuid",
]
