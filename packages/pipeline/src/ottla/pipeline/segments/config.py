"""Parsed options of `ottla-log`. Those that `ottla` has too have the same meaning."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ottla.pipeline.errors import OptionError
from ottla.pipeline.options import Options
from ottla.pipeline.segments.options import DEFAULT_BYTES_PER_TASK, OPTIONS
from ottla.pipeline.source.config import TopicSelection
from ottla.pipeline.source.offset_bounds import Bound, Edge, ending, starting
from ottla.pipeline.source.offset_json import parse_partitions
from ottla.pipeline.values import ValueFormat, value_format

_ISOLATIONS = ("read_uncommitted", "read_committed")
_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_SIZE = re.compile(r"\s*(\d+)\s*([kmg]?)(?:i?b)?\s*", re.IGNORECASE)
_EVERY_TOPIC = ".*"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsConfig:
    """The files to read, the bounds, and the size of tasks."""

    paths: tuple[str, ...]
    wanted: TopicSelection
    starting: Bound
    ending: Bound
    when_no_offset: Literal["error", "latest"] = "error"
    """The handling of a partition without a record at or after its starting timestamp."""
    fail_on_data_loss: bool = True
    include_headers: bool = False
    include_active: bool = False
    reads_committed: bool = False
    most_bytes: int
    """The maximum bytes of a file that a task reads."""
    min_partitions: int | None = None
    value: ValueFormat

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SegmentsConfig:
        """Parse the options of a source. Raises OptionError for the first invalid one."""
        options = Options(given)
        options.refuse_unknown(OPTIONS)
        _refuse_clients(options)
        return cls(
            paths=_paths(options),
            wanted=_wanted(options),
            starting=starting(options, Edge.EARLIEST, streaming=False),
            ending=ending(options),
            when_no_offset=_strategy(options),
            fail_on_data_loss=options.flag("failOnDataLoss", default=True),
            include_headers=options.flag("includeHeaders", default=False),
            include_active=options.flag("includeActive", default=False),
            reads_committed=_isolation(options) == "read_committed",
            most_bytes=_size(options, "maxBytesPerTask", DEFAULT_BYTES_PER_TASK),
            min_partitions=options.count("minPartitions"),
            value=value_format(options),
        )


def _refuse_clients(options: Options) -> None:
    """Raise OptionError for client settings, since there is no client; the isolation level is allowed."""
    for name in options.passed_on():
        if name != "isolation.level":
            raise OptionError(
                f"option 'kafka.{name}' cannot be set here: this source reads files and asks no broker"
            )


def _paths(options: Options) -> tuple[str, ...]:
    """Return the paths; Spark passes several, `load([one, other])`, as JSON."""
    several = options.text("paths")
    found = json.loads(several) if several else [options.required("path", "/var/lib/ottla")]
    return tuple(_plain(path) for path in found)


def _plain(path: str) -> str:
    scheme, found, rest = path.partition(":/")
    if not found or len(scheme) == 1:  # a drive letter of Windows is no scheme
        return path
    if scheme != "file":
        raise OptionError(f"option 'path': {path!r} is not a local file; mount it, or copy it")
    return "/" + rest.lstrip("/")


def _wanted(options: Options) -> TopicSelection:
    names = [name for name in ("topics", "subscribe", "subscribePattern", "assign") if name in options]
    if len(names) > 1:
        raise OptionError(f"only one of the options {' and '.join(names)} can choose what to read")
    if not names:
        return TopicSelection(pattern=_EVERY_TOPIC)
    text = options.required(names[0], "orders")
    if names[0] == "assign":
        return TopicSelection(partitions=parse_partitions("assign", text))
    if names[0] == "subscribePattern":
        return TopicSelection(pattern=_pattern(text))
    topics = frozenset(name.strip() for name in text.split(",") if name.strip())
    if not topics:
        raise OptionError(f"option {names[0]!r} names no topic")
    return TopicSelection(topics=topics)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(
            f"option 'subscribePattern' is not a regular expression: {text!r}: {error}"
        ) from None
    return text


def _strategy(options: Options) -> Literal["error", "latest"]:
    chosen = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    return "latest" if chosen == "latest" else "error"


def _isolation(options: Options) -> str:
    name = "isolation.level" if "isolation.level" in options else "kafka.isolation.level"
    return options.choice(name, _ISOLATIONS, "read_uncommitted")


def _size(options: Options, name: str, default: str) -> int:
    found = options.text(name, default) or default
    match = _SIZE.fullmatch(found)
    size = int(match[1]) * _UNITS[match[2].lower()] if match else 0
    if size < 1:
        raise OptionError(f"option {name!r} must be a size such as 128m, 1g or 500000 (bytes), not {found!r}")
    return size
