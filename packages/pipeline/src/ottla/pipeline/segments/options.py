"""The options of the source that reads files, for whoever reads them and for the reference."""

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
        "what to read, mostly given to `load(...)`: a log directory, the directory of a partition, "
        "a segment, or "
        "a pattern of such names",
    ),
    Option("paths", None, "several of them, as `load([one, other])` gives them"),
    Option(
        "topics", None, "the topics to read, with commas between them; all but internal ones if "
        "neither this nor "
        "one of the next three is given",
    ),
    *WHICH,
    Option("startingOffsets", "earliest", STARTING_OFFSETS),
    *WHERE,
    Option(
        "includeActive", "false",
        "whether the newest segment of each partition is read too, whose end may not be on the disk yet",
    ),
    Option(
        "isolation.level", "read_uncommitted",
        "`read_committed` leaves out what transactions have aborted, or not ended; "
        "`kafka.isolation.level` is "
        "the same",
    ),
    Option(
        "maxBytesPerTask", DEFAULT_BYTES_PER_TASK,
        "at most about so much of a file in a task, such as `64m` or `1g`; longer files are cut "
        "between batches",
    ),
    MIN_PARTITIONS,
    FAIL_ON_DATA_LOSS,
    INCLUDE_HEADERS,
    *VALUES,
)  # fmt: skip
"""All options. There is no client, so there are none of its settings."""
