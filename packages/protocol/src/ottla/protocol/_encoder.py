"""Makes the function that writes one version of one message.

The whole message becomes one flat function. Neighbouring fields of fixed width, the counts before arrays and
the empty list of tagged fields are written by one `struct` call; arrays of numbers by one call each; the
pieces are joined at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.protocol._source import FIXED_CODES, PACKED_KINDS, STEP, Source
from ottla.protocol.fields import StructType
from ottla.protocol.primitives import (
    ONE_BYTE,
    ZERO_UUID,
    ArrayPackers,
    UnsupportedField,
    encode_string_length,
    encode_uvarint,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.protocol.fields import Field

_PACKERS: Final = {
    (kind, flexible): ArrayPackers(FIXED_CODES[kind], flexible=flexible)
    for kind in PACKED_KINDS
    for flexible in (False, True)
}


def make_encoder(
    cls: StructType, version: int, filename: str, *, in_steps: bool = False
) -> Callable[[Any], Any]:
    """Return a function from a message to the pieces of its body.

    With `in_steps` it is a generator function: it yields one list after every `STEP` elements and at the end,
    with the pieces that were added; the caller empties it.
    """
    return _EncoderSource(version, flexible=version >= cls.FLEXIBLE_FROM, in_steps=in_steps).build(
        cls, filename
    )


class _EncoderSource:
    def __init__(self, version: int, *, flexible: bool, in_steps: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.source = Source(
            {
                "BYTE": ONE_BYTE,
                "uvarint": encode_uvarint,
                "string_length": encode_string_length,
                "UnsupportedField": UnsupportedField,
            }
        )
        self.run: list[tuple[str, str, str]] = []
        """Fixed-width values not yet written: their struct codes, expressions and fields."""
        self.write = "w"
        """The name of the function that takes the next piece; another one inside a tagged field."""
        self.in_steps = in_steps

    def build(self, cls: StructType, filename: str) -> Callable[[Any], Any]:
        self.source.add(0, "def encode(m):")
        self.source.add(1, "out = []", "w = out.append")
        if self.in_steps:
            self.source.add(1, "written = 0")
        self.struct(cls, "m", 1, "")
        self.flush(1)
        self.source.add(1, "yield out" if self.in_steps else "return out")
        return self.source.compile("encode", filename)

    def put(self, code: str, value: str) -> None:
        self.run.append((code, value, self.source.path))

    def flush(self, depth: int) -> None:
        if not self.run:
            return
        path, self.source.path = self.source.path, self.source.run_path(path for _, _, path in self.run)
        if all(value == "0" for _, value, _ in self.run):
            self.source.add(depth, f"{self.write}({bytes(len(self.run))!r})")
        else:
            name, _ = self.source.layout("".join(code for code, _, _ in self.run))
            values = ", ".join(value for _, value, _ in self.run)
            self.source.add(depth, f"{self.write}({name}_pack({values}))")
        self.source.path = path
        self.run = []

    def struct(self, cls: StructType, variable: str, depth: int, path: str) -> None:
        """Write the fields of the struct in `variable`; the last run stays open for what follows."""
        tagged = []
        for field in cls.FIELDS:
            self.source.path = f"{path}{field.name}"
            value = f"{variable}.{field.name}"
            if not field.is_in(self.version):
                self.refuse_unless_default(field, value, depth)
            elif self.flexible and field.is_tagged(self.version):
                tagged.append(field)
            else:
                self.value(field, value, depth)
        if self.flexible:
            self.tagged_fields(sorted(tagged, key=lambda field: field.tag or 0), variable, depth, path)

    def refuse_unless_default(self, field: Field, value: str, depth: int) -> None:
        if not field.ignorable:
            failure = f"raise UnsupportedField({self.source.path!r}, {self.version})"
            self.source.add(depth, f"if {self.differs(field, value)}: {failure}")

    def differs(self, field: Field, value: str) -> str:
        """Return an expression that is true when `value` is not the field's default."""
        match field:
            case _ if field.default is None:
                return f"{value} is not None"
            case _ if field.kind == "array" or (field.kind == "blob" and not field.default):
                return f"{value} is None or len({value})" if field.nullable_from < 32767 else f"len({value})"
            case _ if field.kind == "struct":
                inner = [
                    f"({self.differs(nested, f'{value}.{nested.name}')})" for nested in field.element.FIELDS
                ]
                return " or ".join([f"{value} is None", *inner] if field.nullable_from < 32767 else inner)
            case _ if field.kind == "uuid" and field.default == ZERO_UUID:
                return f"{value}.int"
            case _:
                return f"{value} != {field.default!r}"

    def tagged_fields(self, fields: list[Field], variable: str, depth: int, path: str) -> None:
        if not fields:
            self.put("B", "0")
            return
        self.flush(depth)
        outer, tags = self.write, self.source.fresh("t")
        self.source.add(depth, f"{tags} = []")
        for field in fields:
            self.source.path = f"{path}{field.name}"
            value, piece = f"{variable}.{field.name}", self.source.fresh("o")
            self.write = f"{piece}_w"
            self.source.add(depth, f"if {self.differs(field, value)}:")
            self.source.add(depth + 1, f"{piece} = []", f"{self.write} = {piece}.append")
            self.value(field, value, depth + 1)
            self.flush(depth + 1)
            tag = encode_uvarint(field.tag or 0)
            self.source.add(
                depth + 1,
                f'{piece} = b"".join({piece})',
                f"{tags}.append({tag!r} + uvarint(len({piece})) + {piece})",
            )
        self.write = outer
        self.source.add(depth, f'{outer}(uvarint(len({tags})) + b"".join({tags}) if {tags} else b"\\x00")')

    def value(self, field: Field, value: str, depth: int) -> None:
        """Write one value that is present in this version."""
        if field.kind == "uuid":
            self.put("16s", f"{value}.bytes")
        elif field.kind in FIXED_CODES:
            self.put(FIXED_CODES[field.kind], value)
        elif field.kind == "struct":
            self.inner_struct(field, value, depth)
        else:
            local = self.source.fresh("x")
            self.source.add(depth, f"{local} = {value}")
            if field.is_nullable(self.version):
                self.flush(depth)
                self.source.add(depth, f"if {local} is None: {self.write}({self.null(field)!r})", "else:")
                self.sized(field, local, depth + 1)
                self.flush(depth + 1)
            else:
                self.sized(field, local, depth)

    def null(self, field: Field) -> bytes:
        if self.flexible:
            return b"\x00"
        return b"\xff\xff" if field.kind == "string" else b"\xff\xff\xff\xff"

    def inner_struct(self, field: Field, value: str, depth: int) -> None:
        path = f"{self.source.path}."
        if not field.is_nullable(self.version):
            self.struct(field.element, value, depth, path)
            return
        self.flush(depth)
        local = self.source.fresh("x")
        # Kafka marks a null with -1, but with 0 where the struct is a tagged field.
        null = b"\x00" if self.flexible and field.is_tagged(self.version) else b"\xff"
        self.source.add(depth, f"{local} = {value}", f"if {local} is None: {self.write}({null!r})", "else:")
        self.put("B", "1")
        self.struct(field.element, local, depth + 1, path)
        self.flush(depth + 1)

    def sized(self, field: Field, local: str, depth: int) -> None:
        """Write a value that starts with its length or count, known not to be None."""
        if field.kind == "array":
            self.array(field, local, depth)
            return
        if field.kind == "string":
            self.source.add(depth, f"{local} = {local}.encode()")
        if not self.flexible:
            self.put("h" if field.kind == "string" else "i", f"len({local})")
            self.flush(depth)
            self.source.add(depth, f"{self.write}({local})")
            return
        self.flush(depth)
        self.source.add(depth, f"n = len({local}) + 1")
        if field.kind == "string":
            length = "BYTE[n] if n < 128 else string_length(n - 1)"
            self.source.add(depth, f"{self.write}(({length}) + {local})")
        else:
            self.source.add(depth, f"{self.write}(uvarint(n))", f"{self.write}({local})")

    def array(self, field: Field, local: str, depth: int) -> None:
        element = field.element
        kind = getattr(element, "kind", "struct")
        if kind in PACKED_KINDS:
            self.flush(depth)
            packers = self.source.constant("A", (kind, "packers"), _PACKERS[kind, self.flexible])
            self.source.add(depth, f"{self.write}({packers}[len({local})]({local}))")
            return
        if self.flexible:
            self.flush(depth)
            self.source.add(
                depth, f"n = len({local}) + 1", f"{self.write}(BYTE[n] if n < 128 else uvarint(n))"
            )
        else:
            self.put("i", f"len({local})")
            self.flush(depth)
        one = self.source.fresh("v")
        path = self.source.path
        self.source.add(depth, f"for {one} in {local}:")
        if isinstance(element, StructType):
            self.struct(element, one, depth + 1, f"{path}[].")
        else:
            self.value(element, one, depth + 1)
        self.flush(depth + 1)
        if self.in_steps:
            self.source.add(depth + 1, "written += 1", f"if written == {STEP}: written = 0; yield out")
        self.source.path = path
