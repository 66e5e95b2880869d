"""A declaration drafted from a topic, by its schema in a registry or by a sample of its values."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.client.cluster import NoSuchTopic
from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.log_formats import apache_format, nginx_format
from ottla.pipeline.registry_values import RegistrySettings, columns_of_subject, columns_of_value
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.client.config import ClientConfig
    from ottla.consumer import Record

_MOST = 0.9
"""The share of a sample that must have a format."""
_READ_S = 30.0
_TAKEN = frozenset({"_topic", "_partition", "_offset", "_broken"})
_ODD = re.compile(r"[\s,;{}()=`<>:]")
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST_TOPIC = 249


class Sample(NamedTuple):
    """A value of a topic, with the headers of its record, which may name the value's schema."""

    value: bytes
    headers: Sequence[tuple[str, bytes | None]] = ()


@dataclass(frozen=True, slots=True)
class Registry:
    """The schema registry of a draft, and the profile that has the login there."""

    url: str
    profile: str | None = None

    @property
    def settings(self) -> RegistrySettings:
        """The settings of its client. Raises OptionError."""
        return RegistrySettings.of(self.url, self.profile)


def sampled(topic: str, bootstrap: str, client: ClientConfig, count: int) -> list[Sample]:
    """Return values from the end of each partition of a topic, of `count` records at most, by their times.

    Raises NoSuchTopic, and errors of clients and brokers.
    """
    from ottla.consumer import SyncConsumer

    found: list[Record[Any, Any]] = []
    with SyncConsumer(bootstrap_servers=bootstrap, client=client, auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        if not partitions:
            raise NoSuchTopic(topic)
        consumer.assign(partitions)
        ends, firsts = consumer.end_offsets(partitions), consumer.beginning_offsets(partitions)
        for partition in partitions:
            consumer.seek(partition, max(firsts[partition], ends[partition] - -(-count // len(partitions))))
        until = time.monotonic() + _READ_S
        while time.monotonic() < until and any(
            consumer.position(partition) < ends[partition] for partition in partitions
        ):
            for records in consumer.getmany(timeout_ms=1_000).values():
                found += [record for record in records if record.value is not None]
    found.sort(key=lambda record: record.timestamp_ms)
    return [Sample(record.value, record.headers) for record in found[-count:]]


def drafted(
    topic: str,
    samples: Sequence[Sample],
    bootstrap: str | None,
    profile: str | None = None,
    registry: Registry | None = None,
) -> str:
    """Return a declaration as text: the topic with such values becomes a lake.

    Values that name a schema of the registry have its columns; without any value it is that of the subject
    `TOPIC-value`. Raises PipelineError.
    """
    found = None if registry is None else _registered(topic, samples, registry)
    parse, columns, note = found or _parse(topic, [sample.value for sample in samples])
    connection = {"bootstrap_servers": bootstrap, "profile": profile}
    lines = [
        f"# Drafted from {len(samples)} records of topic {topic}: {note}.",
        'kind = "logs"',
        f"name = {_text(topic)}",
        f"checkpoint = {_text(f'state/{topic}')}",
        'trigger = "10s"',
        "",
        "[source]",
        *(f"{name} = {_text(value)}" for name, value in connection.items() if value is not None),
        f"topics = [{_text(topic)}]",
        "",
        *parse,
        "",
        "[lake]",
        f"path = {_text(f'lake/{topic}')}",
        *([] if "day" in columns else ["# The day of a record's time, or of a line's if it has one.",
                                       'partition_by = ["day"]']),
        "",
        "[dead_letters]",
        f"topic = {_text(topic[: _LONGEST_TOPIC - len('-dead')] + '-dead')}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _registered(
    topic: str, samples: Sequence[Sample], registry: Registry
) -> tuple[list[str], set[str], str] | None:
    """Return the lines about the format, the columns, and a note; None if the last value names no schema."""
    if samples:
        schema = columns_of_value(registry.settings, *samples[-1])
    else:
        schema = columns_of_subject(registry.settings, f"{topic}-value")
    if schema is None:
        return None
    usable, left_out = _usable(schema.fields)
    if not usable:
        raise PipelineError(f"{schema.schema} of the registry has no usable field")
    login = [] if registry.profile is None else [f"profile = {_text(registry.profile)}"]
    lines = ["[parse]", 'format = "registry"', f"registry = {_text(registry.url)}", *login, *left_out, ""]
    lines += ["[parse.fields]", *(f"{_key(name)} = {_text(schema.fields[name])}" for name in usable)]
    return lines, {name.lower() for name in usable}, f"{schema.schema} of the registry ({schema.kind})"


def _usable(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the names that columns can have, and comments about the others."""
    usable, left_out, seen = [], [], set(_TAKEN)
    for name in names:
        if name.lower() in seen or not name or _ODD.search(name):
            left_out.append(f"# Left out, because its name is taken or odd: {_text(name)}")
        else:
            seen.add(name.lower())
            usable.append(name)
    return usable, left_out


def _parse(topic: str, values: Sequence[bytes]) -> tuple[list[str], set[str], str]:
    """Return the lines about the format, the columns, and a note about the sample."""
    if not values:
        raise PipelineError(f"topic {topic!r} has no record with a value: a draft needs some to look at")
    documents = [found for value in values if (found := _document(value)) is not None]
    if len(documents) > _MOST * len(values):
        fields, left_out = _fields(documents)
        if not fields:
            raise PipelineError(f"the values of topic {topic!r} are JSON objects without a usable field")
        lines = ["[parse]", 'format = "json"', *left_out, "", "[parse.fields]"]
        lines += [f"{_key(name)} = {_text(kind)}" for name, kind in fields.items()]
        return lines, {name.lower() for name in fields}, f"{len(documents)} are JSON objects"
    if all(value[:1] == b"\0" for value in values):
        raise PipelineError(
            f"the values of topic {topic!r} begin with the id of a schema: give the address of their schema "
            "registry with --registry"
        )
    return _of_lines(topic, values)


def _of_lines(topic: str, values: Sequence[bytes]) -> tuple[list[str], set[str], str]:
    try:
        texts = [value.decode().rstrip("\r\n") for value in values]
    except UnicodeDecodeError:
        raise PipelineError(f"the values of topic {topic!r} are neither JSON objects nor text") from None
    for name, line in (("nginx", nginx_format("combined")), ("apache", apache_format("common"))):
        matching = sum(re.fullmatch(line.pattern, text) is not None for text in texts)
        if matching > _MOST * len(texts):
            lines = ["[parse]", f'format = "{name}"']
            lines += [] if name == "nginx" else ['pattern = "common"']
            return lines, {field.name for field in line.fields}, f"{matching} are lines of a web server"
    lines = [
        "[parse]",
        'format = "regex"',
        "# Each named group becomes a column: (?P<level>[A-Z]+) (?P<message>.*)",
        "pattern = '(?P<line>.*)'",
    ]
    return lines, {"line"}, "they are lines of text"


def _document(value: bytes) -> Mapping[str, Any] | None:
    try:
        found = json.loads(value)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _fields(documents: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], list[str]]:
    """Return the columns with their types, and comments about fields that can be none."""
    usable, left_out = _usable(dict.fromkeys(name for document in documents for name in document))
    return {name: spark_type([document.get(name) for document in documents]) for name in usable}, left_out


def spark_type(values: Sequence[object]) -> str:
    """Return the type in DDL of a column with such values of JSON; STRING where nothing else fits."""
    present = [value for value in values if value is not None]
    kinds = set(map(_kind, present))
    if kinds == {"BIGINT", "DOUBLE"}:
        return "DOUBLE"
    if kinds == {"DATE", "TIMESTAMP"} or len(kinds) != 1:
        return "STRING"
    (kind,) = kinds
    if kind == "ARRAY":
        return f"ARRAY<{spark_type([item for items in present for item in _items(items)])}>"
    if kind == "STRUCT":
        inner = ", ".join(_members([value for value in present if isinstance(value, dict)]))
        return f"STRUCT<{inner}>" if inner else "STRING"
    return kind


def _members(documents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    fields, _ = _fields(documents)
    for name, kind in fields.items():
        yield f"`{name}`: {kind}"


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _kind(value: object) -> str:
    match value:
        case bool():
            return "BOOLEAN"
        case int():
            return "BIGINT" if -(1 << 63) <= value < 1 << 63 else "STRING"
        case float():
            return "DOUBLE"
        case str():
            return _kind_of_text(value)
        case list():
            return "ARRAY"
        case _:
            return "STRUCT"


def _kind_of_text(text: str) -> str:
    if _TIMESTAMP.fullmatch(text):
        return "TIMESTAMP"
    return "DATE" if _DATE.fullmatch(text) else "STRING"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(value: str) -> str:
    """Return text as a string of TOML, whose escapes are those of JSON but for surrogates."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
