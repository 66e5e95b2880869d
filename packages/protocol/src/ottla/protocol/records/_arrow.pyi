from collections.abc import Iterable, Sequence
from typing import final

from ottla.protocol.records.compression import Buffer

@final
class ColumnBuilder:
    """Gathers records of any partitions as columns: `add` fetched bytes, then `finish`."""

    names: frozenset[str]
    def __new__(
        cls, names: Iterable[str], *, check_crcs: bool = True, max_decompressed_bytes: int = ...
    ) -> ColumnBuilder: ...
    def __len__(self) -> int: ...
    def add(
        self,
        topic: str,
        partition: int,
        data: Buffer,
        since_offset: int,
        aborted: Sequence[tuple[int, int]] | None = None,
        *,
        limit: int | None = None,
    ) -> int:
        """Add the records at or above `since_offset`; return the offset to go on from.

        `aborted` are pairs of first offset and producer id (KIP-98): their records are left out, as control
        records always are. An entry that is cut off at the end is left for later; so is what `limit` records
        in this builder, or 2 GiB in a column, leave no room for, and all from a batch that cannot be read if
        there are records before it. Raises CorruptRecords, DecompressedTooLarge, UnsupportedCompressionType
        for such a batch if there are none.
        """
    def finish(self) -> ArrowColumns:
        """The columns; the builder begins anew."""

@final
class ArrowColumns:
    """Records as Arrow columns, for any library that imports objects with `__arrow_c_array__`.

    `pyarrow.record_batch(columns)` and `polars.DataFrame(columns)` take them without a copy.
    """

    names: frozenset[str]
    def __len__(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and headers."""
    def __arrow_c_schema__(self) -> object:
        """The schema as a PyCapsule (Arrow's PyCapsule interface)."""
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Schema and columns as PyCapsules; a requested schema is ignored: the importer casts."""
