"""Mask fields, headers, keys and values of records for viewers without the role that reads them. Pure.

A page masks a record as soon as it has read it: `masked(record, cluster.mask(topic))`. Filters, views,
exports and forms get the masked record only, so none of them can give away the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final

import msgpack

from ottla.console.logins.access import Need, Role, Viewer
from ottla.console.records.reading import ShownRecord

HIDDEN: Final = "•••"
"""Stands for that which is masked."""
_HIDDEN_BYTES: Final = HIDDEN.encode()
_HIDDEN_JSON: Final = json.dumps(HIDDEN, ensure_ascii=False)
_DEEPEST: Final = 64
_MOST_BYTES: Final = 4 << 20
"""Deeper and longer values are hidden whole: each of their fields would be looked at."""
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\],:]|[^\s{}\[\],:"]+|\s+', re.DOTALL)


@dataclass(frozen=True, slots=True)
class MaskRule:
    """A rule of one or more topics, for viewers below the role that may read them.

    `fields` are paths of names with dots, `*` for any name and `**` for any path; a name alone is masked
    wherever it stands. Lists are looked through. `headers` are patterns of their names.
    """

    fields: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    key: bool = False
    value: bool = False
    topics: tuple[str, ...] = ("*",)
    clusters: tuple[str, ...] = ("*",)
    readers: Role = Role.ADMINISTRATOR


@dataclass(frozen=True, slots=True)
class Mask:
    """The parts of a topic's records that one viewer may not read. It can be sent to another process."""

    fields: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    key: bool = False
    value: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the viewer may read everything."""
        return not (self.fields or self.headers or self.key or self.value)


NO_MASK: Final = Mask()


def mask_of(rules: Iterable[MaskRule], viewer: Viewer, cluster: str, topic: str) -> Mask:
    """Return the mask of a topic's records for a viewer: all rules together, without those they may read."""
    found = [
        rule
        for rule in rules
        if any(fnmatchcase(cluster, pattern) for pattern in rule.clusters)
        and any(fnmatchcase(topic, pattern) for pattern in rule.topics)
        and not viewer.may(Need(rule.readers, cluster, topic))
    ]
    return Mask(
        tuple(field for rule in found for field in rule.fields),
        tuple(header for rule in found for header in rule.headers),
        any(rule.key for rule in found),
        any(rule.value for rule in found),
    )


def masked(record: ShownRecord, mask: Mask) -> ShownRecord:
    """Return a record as its viewer may read it; `is_masked` says whether something is hidden.

    A value whose fields cannot be told apart is hidden whole where fields are masked: text, binary formats
    and broken JSON could hold them anywhere. The time that this takes grows with the value: use a thread.
    """
    if mask.is_empty or record.fate.endswith("marker"):
        return record
    key = _HIDDEN_BYTES if mask.key and record.key is not None else _masked_key(record.key, mask.fields)
    value = _masked_value(record.value, mask)
    headers = tuple((name, _masked_header(name, data, mask.headers)) for name, data in record.headers)
    if (key, value, headers) == (record.key, record.value, record.headers):
        return record
    return replace(record, key=key, value=value, headers=headers, is_masked=True)


def masked_fields(value: Any, fields: Sequence[str]) -> Any:
    """Return a value of dicts and lists, as a registry's schema decodes it, with the masked fields hidden."""
    return _masked_object(value, _paths(fields), ()) if fields else value


def _masked_header(name: str, data: bytes | None, patterns: Iterable[str]) -> bytes | None:
    is_hidden = data is not None and any(fnmatchcase(name.lower(), known.lower()) for known in patterns)
    return _HIDDEN_BYTES if is_hidden else data


def _masked_key(data: bytes | None, fields: Sequence[str]) -> bytes | None:
    """Mask the fields of a key that has any; other keys have a rule of their own."""
    found = None if data is None or not fields else _masked_document(data, fields)
    return data if found is None else found


def _masked_value(data: bytes | None, mask: Mask) -> bytes | None:
    if data is None:
        return None
    if mask.value:
        return _HIDDEN_BYTES
    if not mask.fields:
        return data
    found = _masked_document(data, mask.fields)
    return _HIDDEN_BYTES if found is None else found


def _masked_document(data: bytes, fields: Sequence[str]) -> bytes | None:
    """Return JSON or msgpack with its fields masked; None for that which is neither a map nor a list."""
    if len(data) > _MOST_BYTES:
        return None
    try:
        text = data.decode()
        if text.lstrip(" \t\r\n")[:1] in ("{", "["):
            json.loads(text)
            return _masked_json(text, _paths(fields)).encode()
    except (ValueError, RecursionError):
        pass
    try:
        found = msgpack.unpackb(data, strict_map_key=False)
        if isinstance(found, dict | list):
            hidden = _masked_object(found, _paths(fields), ())
            return data if hidden == found else msgpack.packb(hidden)
    except (ValueError, TypeError, RecursionError, OverflowError, msgpack.UnpackException):
        pass
    return None


# --- paths

_Path = tuple[str, ...]


def _paths(fields: Iterable[str]) -> tuple[_Path, ...]:
    return tuple(("**", field) if "." not in field else tuple(field.split(".")) for field in fields)


def _is_hidden(path: _Path, patterns: Iterable[_Path]) -> bool:
    return any(_matches(path, pattern) for pattern in patterns)


def _matches(path: _Path, pattern: _Path) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(_matches(path[at:], pattern[1:]) for at in range(len(path) + 1))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and _matches(path[1:], pattern[1:])


def _masked_object(value: Any, patterns: Sequence[_Path], path: _Path) -> Any:
    if len(path) > _DEEPEST:
        raise ValueError("too deep")
    if isinstance(value, dict):
        return {
            name: HIDDEN
            if _is_hidden(inner := (*path, _name(name)), patterns)
            else _masked_object(item, patterns, inner)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_masked_object(item, patterns, path) for item in value]
    return value


def _name(key: object) -> str:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)


def _masked_json(text: str, patterns: Sequence[_Path]) -> str:
    """Return valid JSON with fields masked; all other tokens stay as they were, numbers to the last digit."""
    if "\\" not in text and not any(_may_hold(text, pattern) for pattern in patterns):
        return text
    parts = list[str]()
    open_ = list[tuple[str, _Path]]()  # the brackets around a token, each with its path
    hidden: dict[_Path, bool] = {}
    path: _Path = ()  # of the next value
    is_name_next, hiding = False, -1  # the depth of a value that is hidden
    for found in _TOKEN.finditer(text):
        token = found[0]
        first = token[0]
        if first == '"' and is_name_next:
            path, is_name_next = (*open_[-1][1], json.loads(token)), False
            if path not in hidden:
                hidden[path] = _is_hidden(path, patterns)
        elif hiding < 0 and first not in ":,]} \t\r\n" and open_ and open_[-1][0] == "{" and hidden[path]:
            parts.append(_HIDDEN_JSON)
            hiding = len(open_)
        if hiding < 0:
            parts.append(token)
        if first in "{[":
            if len(open_) == _DEEPEST:
                raise ValueError("too deep")
            open_.append((first, path))
            is_name_next = first == "{"
        elif first in "}]":
            path, is_name_next = open_.pop()[1], False
        elif first == "," and open_[-1][0] == "{":
            is_name_next = True
        if hiding == len(open_) and first not in "{[: \t\r\n":
            hiding = -1
    return "".join(parts)


def _may_hold(text: str, pattern: _Path) -> bool:
    """Whether a text without escapes may have a field of a pattern: its last name stands there in quotes."""
    return any(letter in pattern[-1] for letter in "*?[") or f'"{pattern[-1]}"' in text
