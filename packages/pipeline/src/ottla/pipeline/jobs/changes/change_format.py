"""The declaration of a change log's format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from ottla.pipeline.jobs.declaration import Mistake, Names, Table
from ottla.pipeline.jobs.field_types import Types, wrong_types

Form = Literal["rows", "flat", "debezium", "maxwell"]

_NO_KEYS = {
    "FLOAT": "equal floating-point values may differ in their last digits",
    "DOUBLE": "equal floating-point values may differ in their last digits",
    "ARRAY": "use its parts as columns",
    "MAP": "use its parts as columns",
    "STRUCT": "use its parts as columns",
}
"""Types of columns that cannot identify rows."""


class Changes(Table):
    """The format of changes."""

    form: Form = "rows"
    """rows: the value is the row. flat: the value is the row with a field for the operation. debezium and
    maxwell: the envelopes of these tools."""
    key: Types = Field(examples=[{"id": "BIGINT"}], min_length=1)
    """The columns that identify a row, with their types."""
    columns: Types = Field(default_factory=dict, examples=[{"name": "STRING"}])
    """The other columns."""
    key_from: Literal["key", "value"] = "key"
    """Where the key columns are: in the record's key, or among the others in its value."""
    operation: str = "op"
    """The field with the operation, for the form flat."""
    deletes: Names = Field(default_factory=lambda: ["d", "D", "delete", "DELETE"])
    """The operations that delete a row; with any other one the row exists."""
    table: str | None = Field(default=None, examples=["shop.orders"])
    """For a topic with changes of many tables: the table to apply, as database.table or schema.table."""

    def inspect(self) -> Iterator[Mistake]:
        """Yield mistakes; paths are within this table."""
        for where, types in (("key", self.key), ("columns", self.columns)):
            for name, said in (*wrong_types(types), *_wrong_names(types)):
                yield Mistake((where, name), said)
        yield from self._inspect_key()
        yield from self._inspect_form()

    def _inspect_key(self) -> Iterator[Mistake]:
        for name, kind in self.key.items():
            why = _NO_KEYS.get(kind.upper().split("<")[0].strip())
            if why is not None:
                yield Mistake(("key", name), f"must not be {kind}: {why}")
        taken = {name.lower() for name in self.key}
        for name in self.columns:
            if name.lower() in taken:
                yield Mistake(("columns", name), "exists already (Spark does not distinguish A and a)")
            taken.add(name.lower())

    def _inspect_form(self) -> Iterator[Mistake]:
        if self.form != "flat":
            for name in ("operation", "deletes"):
                if name in self.model_fields_set:
                    yield Mistake((name,), f"is for the form flat; {self.form} has its own operations")
        if self.table is not None and self.form not in ("debezium", "maxwell"):
            yield Mistake(("table",), f"is for debezium and maxwell; {self.form} does not name the table")
        if self.table is not None and "." not in self.table:
            yield Mistake(("table",), f"must be database.table or schema.table, not {self.table!r}")

    def names(self) -> tuple[str, ...]:
        """Return the columns of the table."""
        return (*self.key, *self.columns)


def _wrong_names(types: Types) -> Iterator[tuple[str, str]]:
    for name in types:
        if name.startswith("_"):
            yield name, "must not begin with _, which is reserved for the pipeline"
        elif "`" in name or '"' in name:
            yield name, "must not contain quotes"
