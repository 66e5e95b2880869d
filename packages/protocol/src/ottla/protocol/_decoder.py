"""Makes the function that reads one version of one message.

As with the encoder, the whole message is one flat function and neighbours of fixed width are read by one
`struct` call, together with the length that follows them. `p` is always the place of the next read; after a
failure it says where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.protocol._source import (
    FIXED_CODES,
    PACKED_KINDS,
    STEP,
    Source,
    minimum_size,
    minimum_size_of,
)
from ottla.protocol.fields import StructType
from ottla.protocol.primitives import (
    ArrayUnpackers,
    Unreadable,
    check_tag_count,
    decode_string_length,
    decode_uvarint,
    skip_tagged_fields,
    uuid_from,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.protocol.fields import Field

_UNPACKERS: Final = {kind: ArrayUnpackers(FIXED_CODES[kind]) for kind in PACKED_KINDS}


def make_decoder(
    cls: StructType, version: int, filename: str, *, in_steps: bool = False
) -> Callable[[Any, int, bool], Any]:
    """Return a function from (buffer, its length, whether it must end there) to a message.

    With `in_steps` it is a generator function that returns the message. It yields before a large array, after
    every `STEP` elements and at the end of a message with more, each time the number of elements announced so
    far and the message as far as it is read.
    """
    flexible = version >= cls.FLEXIBLE_FROM
    source = _DecoderSource(version, flexible=flexible, in_place=_has_records(cls), in_steps=in_steps)
    return source.build(cls, filename)


def _truncated(needed: int, left: int) -> Unreadable:
    return Unreadable(f"{needed} bytes are announced, {left} are left")


def _too_many(count: int, left: int) -> Unreadable:
    return Unreadable(f"an array of {count} elements cannot be in the {left} bytes left")


def _absent() -> Unreadable:
    return Unreadable("null, where null is not allowed")


def _negative(length: int) -> Unreadable:
    return Unreadable(f"the length {length} is negative")


def _overrun(size: int, read: int) -> Unreadable:
    return Unreadable(f"a tagged field of {size} bytes has {read} bytes of content")


def _trailing(count: int) -> Unreadable:
    return Unreadable(f"{count} bytes follow the end of the message")


class _DecoderSource:
    def __init__(self, version: int, *, flexible: bool, in_place: bool, in_steps: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.source = Source(
            {
                "new": object.__new__,
                "uvarint": decode_uvarint,
                "string_length": decode_string_length,
                "skip_tagged": skip_tagged_fields,
                "check_tag_count": check_tag_count,
                "uuid_from": uuid_from,
                "truncated": _truncated,
                "too_many": _too_many,
                "absent": _absent,
                "negative": _negative,
                "overrun": _overrun,
                "trailing": _trailing,
            }
        )
        self.run: list[tuple[str, str, str]] = []
        """Fixed-width values not yet read: their struct codes, targets and fields."""
        self.after: list[str] = []
        """Lines to follow the reading of the run."""
        self.in_place = in_place
        """Whether the buffer is read where it is; without record sets a copy is small, and bytes faster."""
        self.in_steps = in_steps
        """Whether to count elements: in `announced` all, in `read` those read since the last step."""

    def build(self, cls: StructType, filename: str) -> Callable[[Any, int, bool], Any]:
        add = self.source.add
        add(0, "def decode(b, end, exact):")
        if self.in_place:
            add(1, "v = b if type(b) is memoryview else memoryview(b)")
        else:
            add(1, "if type(b) is not bytes: b = bytes(b)")
        add(1, "p = 0")
        if self.in_steps:
            add(1, "announced = read = 0")
        self.struct(cls, "m", 1, "")
        self.flush(1)
        self.source.path = ""
        add(1, "if exact and p != end: raise trailing(end - p)")
        if self.in_steps:
            add(1, f"if announced > {STEP}: yield announced, m")
        add(1, "return m")
        return self.source.compile("decode", filename)

    def put(self, code: str, target: str) -> None:
        self.run.append((code, target, self.source.path))

    def flush(self, depth: int) -> None:
        if not self.run:
            return
        path, self.source.path = self.source.path, self.source.run_path(path for _, _, path in self.run)
        if len(self.run) == 1 and self.run[0][0] == "B":
            self.source.add(depth, f"{self.run[0][1]} = b[p]", "p += 1")
        else:
            name, layout = self.source.layout("".join(code for code, _, _ in self.run))
            targets = ", ".join(target for _, target, _ in self.run)
            comma = "," if len(self.run) == 1 else ""
            self.source.add(depth, f"{targets}{comma} = {name}_unpack(b, p)", f"p += {layout.size}")
        self.source.path = path
        self.source.add(depth, *self.after)
        self.run, self.after = [], []

    def struct(self, cls: StructType, variable: str, depth: int, path: str) -> None:
        """Read a struct into `variable`; the last run stays open for what follows."""
        made = self.source.constant("C", cls, cls)
        self.source.add(depth, f"{variable} = new({made})")
        tagged = []
        for field in cls.FIELDS:
            self.source.path = f"{path}{field.name}"
            target = f"{variable}.{field.name}"
            if field.is_in(self.version) and not (self.flexible and field.is_tagged(self.version)):
                self.value(field, target, depth)
                continue
            self.source.add(depth, f"{target} = {self.default(field)}")
            if field.is_in(self.version):
                tagged.append(field)
        if self.flexible:
            self.source.path = f"{path}tagged fields"
            self.tagged_fields(tagged, variable, depth, path)

    def default(self, field: Field) -> str:
        if field.default is None:
            return "None"
        if field.kind == "array":
            return "[]"
        if field.kind == "struct":
            return self.source.constant("C", field.element, field.element) + "()"
        if field.kind == "uuid":
            return self.source.constant("D", field.default, field.default)
        return repr(field.default)

    def tagged_fields(self, fields: list[Field], variable: str, depth: int, path: str) -> None:
        count = self.source.fresh("t")
        self.put("B", count)
        if not fields:
            self.after.append(f"if {count}: p = skip_tagged(b, p - 1, end)")
            return
        self.flush(depth)
        tag, size, start = (self.source.fresh(prefix) for prefix in ("g", "z", "a"))
        self.source.add(depth, f"if {count}:")
        self.source.add(depth + 1, f"{count}, p = uvarint(b, p - 1)", f"check_tag_count({count})")
        self.source.add(depth + 1, f"for _ in range({count}):")
        self.source.add(
            depth + 2,
            f"{tag}, p = uvarint(b, p)",
            f"{size}, p = uvarint(b, p)",
            f"if {size} > end - p: raise truncated({size}, end - p)",
            f"{start} = p",
        )
        for number, field in enumerate(fields):
            self.source.path = f"{path}{field.name}"
            self.source.add(depth + 2, f"{'elif' if number else 'if'} {tag} == {field.tag}:")
            self.value(field, f"{variable}.{field.name}", depth + 3)
            self.flush(depth + 3)
        self.source.add(
            depth + 2,
            f"else: p += {size}",
            f"if p != {start} + {size}: raise overrun({size}, p - {start})",
        )

    def value(self, field: Field, target: str, depth: int) -> None:
        """Read one value that is present in this version."""
        if field.kind == "uuid":
            raw = self.source.fresh("u")
            self.put("16s", raw)
            self.after.append(f"{target} = uuid_from({raw})")
        elif field.kind in FIXED_CODES:
            self.put(FIXED_CODES[field.kind], target)
        elif field.kind == "struct":
            self.inner_struct(field, target, depth)
        else:
            self.sized(field, target, depth)

    def inner_struct(self, field: Field, target: str, depth: int) -> None:
        local, path = self.source.fresh("m"), f"{self.source.path}."
        if not field.is_nullable(self.version):
            self.struct(field.element, local, depth, path)
            self.source.add(depth, f"{target} = {local}")
            return
        self.flush(depth)
        is_null = "not n" if self.flexible and field.is_tagged(self.version) else "n > 127"
        self.source.add(depth, "n = b[p]", "p += 1", f"if {is_null}: {target} = None", "else:")
        self.struct(field.element, local, depth + 1, path)
        self.flush(depth + 1)
        self.source.add(depth + 1, f"{target} = {local}")

    def sized(self, field: Field, target: str, depth: int) -> None:
        """Read a value that starts with its length or count: -1 is null, and in flexible versions it is one
        more, so that 0 is null.
        """
        if self.flexible:
            self.put("B", "n")
            read = "string_length" if field.kind == "string" else "uvarint"
            self.after.append(f"if n > 127: n, p = {read}(b, p - 1)")
            missing, failure = "not n", "absent()"
        else:
            self.put("h" if field.kind == "string" else "i", "n")
            missing, failure = "n < 0", "absent() if n == -1 else negative(n)"
        self.flush(depth)
        if not field.is_nullable(self.version):
            self.source.add(depth, f"if {missing}: raise {failure}")
            self.content(field, target, depth)
            return
        self.source.add(depth, f"if {missing}:")
        if not self.flexible:
            self.source.add(depth + 1, "if n != -1: raise negative(n)")
        self.source.add(depth + 1, f"{target} = None")
        self.source.add(depth, "else:")
        self.content(field, target, depth + 1)

    def content(self, field: Field, target: str, depth: int) -> None:
        if field.kind == "array":
            self.array(field, target, depth)
            return
        read = {
            "string": 'str(b[p:n], "utf-8")' if self.in_place else "b[p:n].decode()",
            "blob": "bytes(b[p:n])" if self.in_place else "b[p:n]",
            "records": "v[p:n]",
        }
        self.source.add(
            depth,
            "n += p - 1" if self.flexible else "n += p",
            "if n > end: raise truncated(n - p, end - p)",
            f"{target} = {read[field.kind]}",
            "p = n",
        )

    def array(self, field: Field, target: str, depth: int) -> None:
        element, path = field.element, self.source.path
        is_struct = isinstance(element, StructType)
        least = self.least(element)
        if self.flexible:
            self.source.add(depth, "n -= 1")
        self.source.add(depth, f"if n * {least} > end - p: raise too_many(n, end - p)")
        if self.in_steps:
            self.source.add(depth, "announced += n", f"if n > {STEP}: yield announced, m")
        if not is_struct and element.kind in PACKED_KINDS:
            unpackers = self.source.constant("A", (element.kind, "unpackers"), _UNPACKERS[element.kind])
            self.source.add(depth, f"{target} = [*{unpackers}[n](b, p)]", f"p += {least} * n")
            return
        items, item = self.source.fresh("l"), self.source.fresh("m")
        self.source.add(
            depth, f"{target} = {items} = []", f"{items}_add = {items}.append", "for _ in range(n):"
        )
        if is_struct:
            self.struct(element, item, depth + 1, f"{path}[].")
        else:
            self.value(element, item, depth + 1)
        self.flush(depth + 1)
        self.source.add(depth + 1, f"{items}_add({item})")
        if self.in_steps:
            self.source.add(depth + 1, "read += 1", f"if read == {STEP}: read = 0; yield announced, m")
        self.source.path = path

    def least(self, element: Any) -> int:
        if isinstance(element, StructType):
            fields: tuple[Field, ...] = element.FIELDS
            return minimum_size(fields, self.version, flexible=self.flexible)
        return minimum_size_of(element, self.version, flexible=self.flexible)


def _has_records(cls: StructType) -> bool:
    inner = (field.element for field in cls.FIELDS if isinstance(field.element, StructType))
    return any(field.kind == "records" for field in cls.FIELDS) or any(
        _has_records(nested) for nested in inner
    )
