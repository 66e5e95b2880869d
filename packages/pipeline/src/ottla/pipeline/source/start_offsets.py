"""The starting offsets of a stream's batches."""

from __future__ import annotations

from ottla.pipeline.source.batch_reader import first_offsets
from ottla.pipeline.source.config import SourceConfig
from ottla.pipeline.source.offset_bounds import Edge
from ottla.pipeline.source.offset_json import (
    INITIAL,
    Nested,
    Offsets,
    Position,
    flat,
    position_in,
    starts_in,
)
from ottla.pipeline.source.topic_offsets import TopicOffsets


class StartOffsets:
    """Looks up starting offsets: of a query from the options, of a batch from the end of the previous one.

    A new partition starts at its first record.
    """

    def __init__(self, lookup: TopicOffsets, config: SourceConfig) -> None:
        self._lookup = lookup
        self._config = config
        self._of_query: Position | None = None

    def of_query(self) -> Position:
        """Return the starting offsets of a new query. Resolved once, because `latest` moves."""
        if self._of_query is None:
            selected = self._lookup.selected()
            offsets = first_offsets(self._lookup, self._config, selected.partitions)
            self._of_query = Position(offsets, selected.ids)
        return self._of_query

    def of_batch(self, start: Nested, end: Nested) -> Position:
        """Return the starting offsets of a batch in the checkpoint, without partitions that are new in it."""
        if start != INITIAL:
            return position_in(start)
        if (found := starts_in(end)) or not end:
            return Position(found, position_in(end).ids)
        # An old release wrote checkpoints without starting offsets: resolve the options again.
        until, (offsets, ids) = flat(end), self.of_query()
        return Position({each: offset for each, offset in offsets.items() if each in until}, ids)

    def of_new(self, known: Offsets, end: Offsets) -> Offsets:
        """Return the starting offsets of partitions that are not known yet: their first records."""
        return self._lookup.offsets(Edge.EARLIEST, end.keys() - known.keys())
