"""JSON Schema: the keywords of a part by themselves: why values of a writer may not fit. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ottla.registry.compatibility.bounds import compact, ordered

TYPES: Final = ("null", "boolean", "object", "array", "number", "string", "integer")


def types_of(part: dict[str, Any]) -> set[str]:
    """Return the types that values of a part may be of."""
    found = part.get("type")
    if found is None:
        values = part.get("enum") or ([part["const"]] if "const" in part else None)
        return set(TYPES) if values is None else {_type_of(value) for value in values}
    return {found} if isinstance(found, str) else set(found)


def _type_of(value: Any) -> str:
    for kind, name in (
        (bool, "boolean"),
        (int, "integer"),
        (float, "number"),
        (str, "string"),
        (list, "array"),
    ):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"


def may_be(reader: dict[str, Any], writer: dict[str, Any], kind: str) -> bool:
    """Return whether values of a type fit both sides."""
    return kind in types_of(reader) and kind in types_of(writer)


def _type_rule(reader: dict[str, Any], writer: dict[str, Any]) -> list[str]:
    if "type" not in reader:
        return []
    given, takes = types_of(writer), types_of(reader)
    takes |= {"integer"} if "number" in takes else set()
    missing = sorted(given - takes)
    return (
        [f"the writer has {', '.join(missing)}, and the reader takes {', '.join(sorted(takes))}"]
        if missing
        else []
    )


def _enum_rule(reader: dict[str, Any], writer: dict[str, Any]) -> list[str]:
    values = _values(reader)
    if values is None:
        return []
    given = _values(writer)
    if given is None:
        return ["the reader takes some values only, the writer may have written any"]
    missing = sorted(given - values)
    return [f"the reader does not take {', '.join(missing[:5])}"] if missing else []


def _values(part: dict[str, Any]) -> set[str] | None:
    values = part["enum"] if "enum" in part else [part["const"]] if "const" in part else None
    return None if values is None else {compact(ordered(value)) for value in values}


def _pattern_rule(reader: dict[str, Any], writer: dict[str, Any]) -> list[str]:
    if (
        "pattern" not in reader
        or reader["pattern"] == writer.get("pattern")
        or "string" not in types_of(writer)
    ):
        return []
    return ["the pattern of texts is another one in the reader"]


def _unique_rule(reader: dict[str, Any], writer: dict[str, Any]) -> list[str]:
    if not reader.get("uniqueItems") or writer.get("uniqueItems") or "array" not in types_of(writer):
        return []
    return ["items must be unique for the reader"]


def _multiple_rule(reader: dict[str, Any], writer: dict[str, Any]) -> list[str]:
    wanted, given = reader.get("multipleOf"), writer.get("multipleOf")
    if not wanted or not {"number", "integer"} & types_of(writer):
        return []
    if given is None or given % wanted != 0:
        return [f"numbers must be multiples of {wanted} for the reader"]
    return []


def _bound_rule(kind: str, lower: str, upper: str) -> Callable[[dict[str, Any], dict[str, Any]], list[str]]:
    kinds = {"number", "integer"} if kind == "number" else {kind}

    def rule(reader: dict[str, Any], writer: dict[str, Any]) -> list[str]:
        if not kinds & types_of(writer):
            return []
        messages = []
        for key, sign in ((lower, 1), (upper, -1)):
            wanted, given = _bound(reader, key), _bound(writer, key)
            if wanted is not None and (
                given is None or (wanted[0] * sign, wanted[1]) > (given[0] * sign, given[1])
            ):
                messages.append(f"the reader's {key} is {wanted[0]}, the writer's {given and given[0]}")
        return messages

    return rule


def _bound(part: dict[str, Any], key: str) -> tuple[float, bool] | None:
    """Return a bound, and whether it is itself excluded."""
    exclusive = "exclusive" + key[0].upper() + key[1:]
    found, apart = part.get(key), part.get(exclusive)
    if isinstance(apart, bool) or apart is None:
        return (
            None
            if found is None or (key.startswith("min") and key != "minimum" and found == 0)
            else (found, bool(apart))
        )
    if found is None:
        return apart, True
    beyond = apart >= found if key == "minimum" else apart <= found
    return (apart, True) if beyond else (found, False)


RULES: Final = (
    _type_rule, _enum_rule, _pattern_rule, _unique_rule, _multiple_rule,
    _bound_rule("string", "minLength", "maxLength"), _bound_rule("number", "minimum", "maximum"),
    _bound_rule("array", "minItems", "maxItems"), _bound_rule("object", "minProperties", "maxProperties"),
)  # fmt: skip
