"""Compiles constructors, encoders and decoders of messages, and explains their failures.

Only `ottla.protocol.schema` uses this module, and imports it with the first message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.protocol._decoder import make_decoder
from ottla.protocol._encoder import make_encoder
from ottla.protocol._source import FIELD_OF_LINE, Source
from ottla.protocol.primitives import MalformedMessage, UnencodableValue, UnknownVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from types import FrameType

    from ottla.protocol.fields import Field, StructType

_MISSING = object()


def compile_constructor(cls: StructType) -> Callable[..., None]:
    """Return `__init__` of a struct: keywords only, every one with its default."""
    source = Source({"MISSING": _MISSING})
    parameters = ", ".join(f"{field.name}={_default(source, field)}" for field in cls.FIELDS)
    source.add(0, f"def __init__(self{', *, ' if parameters else ''}{parameters}):")
    for field in cls.FIELDS:
        source.add(1, f"self.{field.name} = {_initial(source, field)}")
    source.add(1, "return None")
    return source.compile("__init__", f"<constructor of {cls.__qualname__}>")


def _is_mutable(field: Field) -> bool:
    return field.kind in ("array", "struct") and field.default is not None


def _default(source: Source, field: Field) -> str:
    if _is_mutable(field):
        return "MISSING"
    return source.constant("D", (field.name, "default"), field.default)


def _initial(source: Source, field: Field) -> str:
    if not _is_mutable(field):
        return field.name
    fresh = "[]" if field.kind == "array" else source.constant("C", field.element, field.element) + "()"
    return f"{fresh} if {field.name} is MISSING else {field.name}"


def compile_encoder(cls: StructType, version: int) -> Callable[[Any], list[Any]]:
    """Return the function that writes a version of a message. Raises UnknownVersion."""
    _check_version(cls, version)
    return make_encoder(cls, version, _filename("encoder", cls, version))


def compile_decoder(cls: StructType, version: int) -> Callable[[Any, int, bool], Any]:
    """Return the function that reads a version of a message. Raises UnknownVersion."""
    _check_version(cls, version)
    return make_decoder(cls, version, _filename("decoder", cls, version))


def compile_stepwise_encoder(cls: StructType, version: int) -> Callable[[Any], Iterator[list[Any]]]:
    """Return the generator function that writes a version of a message in steps. Raises UnknownVersion."""
    _check_version(cls, version)
    return make_encoder(cls, version, _filename("encoder in steps", cls, version), in_steps=True)


def compile_stepwise_decoder(
    cls: StructType, version: int
) -> Callable[[Any, int, bool], Generator[tuple[int, Any], None, Any]]:
    """Return the generator function that reads a version of a message in steps. Raises UnknownVersion."""
    _check_version(cls, version)
    return make_decoder(cls, version, _filename("decoder in steps", cls, version), in_steps=True)


def _check_version(cls: StructType, version: int) -> None:
    if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
        raise UnknownVersion(cls.__name__, version, cls.MIN_VERSION, cls.MAX_VERSION)


def _filename(what: str, cls: StructType, version: int) -> str:
    return f"<{what} of {cls.__module__}.{cls.__qualname__} version {version}>"


def explain_encoding(cls: StructType, version: int, error: Exception) -> UnencodableValue:
    """Turn the failure of an encoder into one that names the field."""
    field, _ = _place(error, cls, version, "encoder")
    return UnencodableValue(cls.__name__, version, field, str(error))


def explain_decoding(cls: StructType, version: int, error: Exception) -> MalformedMessage:
    """Turn the failure of a decoder into one that names the field and its place."""
    field, variables = _place(error, cls, version, "decoder")
    reason = str(error)
    if isinstance(error, UnicodeDecodeError):
        reason = "text that is not UTF-8"
    elif type(error).__module__ == "struct" or isinstance(error, IndexError):
        reason = "the message ends too early"
    return MalformedMessage(cls.__name__, version, field, variables.get("p", 0), reason)


def _place(error: Exception, cls: StructType, version: int, what: str) -> tuple[str, dict[str, Any]]:
    """Return the field at which a generated function failed, and its variables.

    The function's frame is still reachable from the traceback, so decoding pays nothing for this.
    """
    trace = error.__traceback__
    filenames = [_filename(kind, cls, version) for kind in (what, f"{what} in steps")]
    while trace is not None:
        frame: FrameType = trace.tb_frame
        if (filename := frame.f_code.co_filename) in filenames:
            return FIELD_OF_LINE[filename][trace.tb_lineno - 1], frame.f_locals
        trace = trace.tb_next
    return "", {}
