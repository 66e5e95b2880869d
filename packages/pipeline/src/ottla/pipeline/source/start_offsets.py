"""Where the batches of a stream start."""

from __future__ import annotations

from ottla.pipeline.source.batch_reader import first_offsets
from ottla.pipeline.source.config import SourceConfig
from ottla.pipeline.source.offset_bounds import Edge
from ottla.pipeline.source.offset_json import INITIAL, Nested, Offsets, flat, starts_in
from ottla.pipeline.source.offset_lookup import OffsetLookup


class StartOffsets:
    """Where batches start: the first where options say, others where the last ended.

    A partition that was not there before starts at its first record.
    """

    def __init__(self, lookup: OffsetLookup, config: SourceConfig) -> None:
        self._lookup = lookup
        self._config = config
        self._of_query: Offsets | None = None

    def of_query(self) -> Offsets:
        """Return where options say that a new query starts. Asked once: `latest` moves."""
        if self._of_query is None:
            self._of_query = first_offsets(self._lookup, self._config, self._lookup.partitions())
        return self._of_query

    def of_batch(self, start: Nested, end: Nested) -> Offsets:
        """Return where a batch starts that is in the checkpoint, without partitions that are new in it."""
        if start != INITIAL:
            return flat(start)
        if (found := starts_in(end)) or not end:
            return found
        # A checkpoint of a release that did not keep the starts: options may mean the same as then.
        until = flat(end)
        return {each: offset for each, offset in self.of_query().items() if each in until}

    def of_new(self, known: Offsets, end: Offsets) -> Offsets:
        """Return where partitions start that are not known yet: all of theirs is new."""
        return self._lookup.offsets(Edge.EARLIEST, end.keys() - known.keys())
