"""Records as a page shows them: keys and values by their schemas, masked, as text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

from ottla.console.records.masking import Mask, masked
from ottla.console.records.reading import ShownRecord
from ottla.console.records.values import ALL_BYTES, Form, ShownValue, shown_value
from ottla.console.registry.values import Registry, RegistryValue
from ottla.console.web.formats import printable
from ottla.registry.framing import Framed, framed

ShownRow = tuple[ShownRecord, ShownValue, ShownValue]
"""A record as its viewer may read it, its key and its value."""
BY_REGISTRY: Final = frozenset({"auto", "registry"})


async def shown_records(
    registry: Registry | None, mask: Mask, records: Sequence[ShownRecord], form: Form, most: int
) -> list[ShownRow]:
    """Return records with keys and values as text, of at most `most` letters each.

    Fields are masked in that which a schema makes of a value: before, no field could be told from another.
    """
    wanted = [found for record in records for found in (_framed(record, "key"), _framed(record, "value"))]
    decoded: Sequence[RegistryValue | None] = [None] * len(wanted)
    if registry is not None and form in BY_REGISTRY and any(found is not None for found in wanted):
        # A part of JSON has no fields that could be masked.
        is_open = mask.is_empty and mask.origins is None
        decoded = await registry.decode(wanted, most if is_open else ALL_BYTES)
    why = "" if form != "registry" else "it names no schema"
    if form == "registry" and registry is None:
        why = "the cluster has no schema registry"
    pairs = list(zip(records, decoded[::2], decoded[1::2], strict=True))
    return await asyncio.to_thread(
        lambda: [_row(record, key, value, mask, form, most, why) for record, key, value in pairs]
    )


def _framed(record: ShownRecord, of: Literal["key", "value"]) -> Framed | None:
    if record.fate.endswith("marker"):
        return None
    return framed(record.key if of == "key" else record.value, of, record.headers)


def _row(
    record: ShownRecord, key: RegistryValue | None, value: RegistryValue | None, mask: Mask, form: Form,
    most: int, why: str,
) -> ShownRow:  # fmt: skip
    mask = mask.of(record.headers)
    readable = replace(record, key=_bytes(key, record.key), value=_bytes(value, record.value))
    readable = masked(readable, mask)
    shown_key = _shown(key, record.key, readable.key, form, most, why, mask)
    return readable, shown_key, _shown(value, record.value, readable.value, form, most, why, mask)


def _bytes(found: RegistryValue | None, data: bytes | None) -> bytes | None:
    return data if found is None or found.text is None else found.text.encode("utf-8", "surrogatepass")


def _shown(
    found: RegistryValue | None, data: bytes | None, readable: bytes | None, form: Form, most: int, why: str,
    mask: Mask,
) -> ShownValue:  # fmt: skip
    if found is None or readable is None:
        shown = shown_value(readable, form, most)
        return replace(shown, note=why) if readable is not None else shown
    # The words of a decoder may have a part of the value in them.
    note = found.note if mask.is_empty else ""
    if found.text is None:
        return replace(shown_value(readable, form, most), note=note, schema=str(found.schema))
    text = printable(readable.decode("utf-8", "replace"))
    return ShownValue(
        text[:most], found.form, len(data or b""), max(0, len(text) - most), None, note, str(found.schema)
    )
