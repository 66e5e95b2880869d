"""Mask fields, headers, keys and values of records for viewers without the role that reads them. Pure.

A page masks a record as soon as it has read it: `masked(record, cluster.mask(topic))`. Filters, views,
exports and forms get the masked record only, so none of them can give away the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final

import msgpack

from ottla.console.logins.access import OWNER, Need, Role, Viewer
from ottla.console.records.dead_letters import CAUSES, origins_of
from ottla.console.records.reading import ShownRecord
from ottla.console.records.values import unambiguous
from ottla.registry.framing import framed

HIDDEN: Final = "•••"
"""Stands for that which is masked."""
HIDDEN_CAUSE: Final = "hidden: the topic's values are masked"
"""Stands for the words of a failure, which may repeat a value."""
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

    @property
    def hides_data(self) -> bool:
        """Whether it hides a part of keys or values."""
        return bool(self.fields or self.key or self.value)


@dataclass(frozen=True, slots=True)
class Origins:
    """The rules by which dead letters are masked: by those of the topics that they come from."""

    rules: tuple[MaskRule, ...] = ()
    viewer: Viewer = OWNER
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class Mask:
    """The parts of a topic's records that one viewer may not read. It can be sent to another process.

    With `origins`, a dead letter has the masks of the topics that it comes from, too: ask `of` for its own.
    """

    fields: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    key: bool = False
    value: bool = False
    origins: Origins | None = field(default=None, repr=False)

    @property
    def is_empty(self) -> bool:
        """Whether the viewer may read everything, apart from that which dead letters bring."""
        return not (self.hides_data or self.headers)

    @property
    def hides_data(self) -> bool:
        """Whether a part of keys or values is hidden: the words of a failure may repeat it."""
        return bool(self.fields or self.key or self.value)

    def of(self, headers: Sequence[tuple[str, bytes | None]]) -> Mask:
        """Return the mask of the record with these headers."""
        if self.origins is None or not (topics := origins_of(headers)):
            return self
        known = self.origins
        more = [_known_mask(known.rules, known.viewer, known.cluster, topic) for topic in sorted(topics)]
        return _together([replace(self, origins=None), *more])


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
    return _together([Mask(rule.fields, rule.headers, rule.key, rule.value) for rule in found])


def full_mask(rules: tuple[MaskRule, ...], viewer: Viewer, cluster: str, topic: str) -> Mask:
    """Return the mask of a topic's records for a viewer, with the rules of dead letters in it."""
    hidden = tuple(
        rule
        for rule in rules
        if any(fnmatchcase(cluster, pattern) for pattern in rule.clusters)
        and not viewer.may(Need(rule.readers, cluster, is_whole=True))
    )
    found = mask_of(hidden, viewer, cluster, topic)
    return replace(found, origins=Origins(hidden, viewer, cluster)) if hidden else found


_known_mask = lru_cache(256)(mask_of)


def _together(masks: Sequence[Mask]) -> Mask:
    return Mask(
        tuple(name for mask in masks for name in mask.fields),
        tuple(name for mask in masks for name in mask.headers),
        any(mask.key for mask in masks),
        any(mask.value for mask in masks),
    )


def masked(record: ShownRecord, mask: Mask) -> ShownRecord:
    """Return a record as its viewer may read it; `is_masked` says whether something is hidden.

    A value whose fields cannot be told apart is hidden whole where fields are masked: text, binary formats
    and broken JSON could hold them anywhere. The time that this takes grows with the value: use a thread.
    """
    mask = mask.of(record.headers)
    if mask.is_empty or record.fate.endswith("marker"):
        return record
    key = _HIDDEN_BYTES if mask.key and record.key is not None else _masked_key(record, mask.fields)
    value = _masked_value(record.value, mask)
    headers = tuple((name, _masked_header(name, data, mask)) for name, data in record.headers)
    if (key, value, headers) == (record.key, record.value, record.headers):
        return record
    return replace(record, key=key, value=value, headers=headers, is_masked=True)


def masked_fields(value: Any, fields: Sequence[str]) -> Any:
    """Return a value of dicts and lists, as a registry's schema decodes it, with the masked fields hidden."""
    return _masked_object(value, _paths(fields), ()) if fields else value


def _masked_header(name: str, data: bytes | None, mask: Mask) -> bytes | None:
    if data is None:
        return None
    if any(fnmatchcase(name.lower(), known.lower()) for known in mask.headers):
        return _HIDDEN_BYTES
    return HIDDEN_CAUSE.encode() if mask.hides_data and name in CAUSES else data


def _masked_key(record: ShownRecord, fields: Sequence[str]) -> bytes | None:
    """Mask the fields of a key; one that may have some is hidden whole. Others have a rule of their own."""
    data = record.key
    if data is None or not fields:
        return data
    if (found := _masked_document(data, fields)) is not None:
        return found
    return _HIDDEN_BYTES if _may_have_fields(data, record.headers) else data


def _may_have_fields(data: bytes, headers: Sequence[tuple[str, bytes | None]]) -> bool:
    """Whether a key that cannot be read is a document all the same: cut off, too long, or by a schema."""
    begin = data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    is_packed = begin != b"" and (0x80 <= begin[0] <= 0x9F or 0xDC <= begin[0] <= 0xDF)
    by_schema = framed(data, "key", headers)
    return begin in (b"{", b"[") or is_packed or (by_schema is not None and by_schema.schema != 0)


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
        found = msgpack.unpackb(data, strict_map_key=False, object_pairs_hook=unambiguous)
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


def _is_hidden(path: _Path, patterns: Sequence[_Path]) -> bool:
    """Whether a name is masked: by itself, or because its dots lead into a field that is."""
    if any(_matches(path, pattern) for pattern in patterns):
        return True
    if not any("." in name for name in path):
        return False
    steps = tuple(step for name in path for step in name.split("."))
    last = path[-1].count(".") + 1
    ends = range(len(steps) - last + 1, len(steps) + 1)
    return any(_matches(steps[:end], pattern) for end in ends for pattern in patterns)


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
    """Whether a text without escapes may have a field of a pattern: its last name stands there."""
    return any(letter in pattern[-1] for letter in "*?[") or pattern[-1] in text
