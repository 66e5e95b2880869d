"""The options of `ottla-log`. Those that `ottla` has too have the same meaning."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ottla.pipeline.errors import OptionError
from ottla.pipeline.options import given_options, option, passed_on, required
from ottla.pipeline.source.config import ReadOptions, TopicSelection, selecting, selection
from ottla.pipeline.source.offset_bounds import STARTING_OFFSETS, Bound, Edge, ending, starting
from ottla.pipeline.values import ValueFormat, value_format

_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_SIZE = re.compile(r"\s*(\d+)\s*([kmg]?)(?:i?b)?\s*", re.IGNORECASE)
_ISOLATION = "isolation.level"


def _bytes(text: str) -> int:
    found = _SIZE.fullmatch(text)
    return int(found[1]) * _UNITS[found[2].lower()] if found else 0


def _size(text: str) -> str | None:
    return None if _bytes(text) else "must be a size such as 128m, 1g or 500000 (bytes)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsConfig(ReadOptions):
    """The files to read, the bounds, and the size of tasks. There is no client, so it has no settings."""

    path: str | None = option(
        "path", None,
        "the path to read, usually the argument of `load(...)`: a log directory, a partition "
        "directory, a segment, or a glob pattern",
    )  # fmt: skip
    several_paths: str | None = option("paths", None, "several paths, as passed by `load([one, other])`")
    topics: str | None = option(
        "topics", None,
        "the topics to read, separated by commas; all except internal ones if neither this nor `subscribe`, "
        "`subscribePattern` or `assign` is given",
    )  # fmt: skip
    starting_offsets: str | None = option("startingOffsets", "earliest", STARTING_OFFSETS)
    include_active: bool = option(
        "includeActive", False,
        "whether to read the active segment of each partition too, whose last records may not be on "
        "disk yet",
    )  # fmt: skip
    isolation_level: Literal["read_uncommitted", "read_committed"] = option(
        _ISOLATION, "read_uncommitted",
        "`read_committed` skips the records of aborted and open transactions; "
        "`kafka.isolation.level` means the same",
    )  # fmt: skip
    max_bytes_per_task: str = option(
        "maxBytesPerTask", "128m",
        "the approximate maximum size of a task, such as `64m` or `1g`; longer files are split "
        "between batches",
        _size,
    )  # fmt: skip

    paths: tuple[str, ...] = field(init=False)
    wanted: TopicSelection = field(init=False)
    starting: Bound = field(init=False)
    ending: Bound = field(init=False)
    value: ValueFormat = field(init=False)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SegmentsConfig:
        """Parse the options of a source. Raises OptionError for the first invalid one."""
        settings = passed_on(given)
        for name in settings.keys() - {_ISOLATION}:
            raise OptionError(
                f"option 'kafka.{name}' cannot be set here: this source reads files and asks no broker"
            )
        return cls(**given_options(cls, settings | dict(given)))

    def __post_init__(self) -> None:
        object.__setattr__(self, "paths", self._paths())
        object.__setattr__(self, "wanted", self._selection())
        object.__setattr__(self, "starting", starting(self, Edge.EARLIEST, streaming=False))
        object.__setattr__(self, "ending", ending(self))
        object.__setattr__(self, "value", value_format(self))

    @property
    def reads_committed(self) -> bool:
        """Whether records of open and aborted transactions are skipped."""
        return self.isolation_level == "read_committed"

    @property
    def most_bytes(self) -> int:
        """The maximum bytes of a file that a task reads."""
        return _bytes(self.max_bytes_per_task)

    def _paths(self) -> tuple[str, ...]:
        """Return the paths; Spark passes several, `load([one, other])`, as JSON."""
        if self.several_paths:
            return tuple(_plain(path) for path in json.loads(self.several_paths))
        return (_plain(required("path", self.path, "/var/lib/ottla")),)

    def _selection(self) -> TopicSelection:
        given = selecting(self)
        if len(given) > 1:
            raise OptionError(f"only one of the options {' and '.join(given)} can choose what to read")
        return selection(*next(iter(given.items()))) if given else TopicSelection(pattern=".*")


def _plain(path: str) -> str:
    scheme, found, rest = path.partition(":/")
    if not found or len(scheme) == 1:  # a drive letter of Windows is no scheme
        return path
    if scheme != "file":
        raise OptionError(f"option 'path': {path!r} is not a local file; mount it, or copy it")
    return "/" + rest.lstrip("/")
