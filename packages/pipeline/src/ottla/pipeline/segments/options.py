"""The options of the source that reads files, for the parser and the reference."""

from __future__ import annotations

from ottla.pipeline.options import Option
from ottla.pipeline.source.options import (
    FAIL_ON_DATA_LOSS,
    INCLUDE_HEADERS,
    MIN_PARTITIONS,
    STARTING_OFFSETS,
    VALUES,
    WHERE,
    WHICH,
)

DEFAULT_BYTES_PER_TASK = "128m"

OPTIONS = (
    Option(
        "path", None,
        "the path to read, usually the argument of `load(...)`: a log directory, a partition "
        "directory, a segment, or a glob pattern",
    ),
    Option("paths", None, "several paths, as passed by `load([one, other])`"),
    Option(
        "topics", None,
        "the topics to read, separated by commas; all except internal ones if neither this nor one of the "
        "next three is given",
    ),
    *WHICH,
    Option("startingOffsets", "earliest", STARTING_OFFSETS),
    *WHERE,
    Option(
        "includeActive", "false",
        "whether to read the active segment of each partition too, whose last records may not be on "
        "disk yet",
    ),
    Option(
        "isolation.level", "read_uncommitted",
        "`read_committed` skips the records of aborted and open transactions; "
        "`kafka.isolation.level` means the same",
    ),
    Option(
        "maxBytesPerTask", DEFAULT_BYTES_PER_TASK,
        "the approximate maximum size of a task, such as `64m` or `1g`; longer files are split "
        "between batches",
    ),
    MIN_PARTITIONS,
    FAIL_ON_DATA_LOSS,
    INCLUDE_HEADERS,
    *VALUES,
)  # fmt: skip
"""All options. There is no client, so there are no client settings."""
