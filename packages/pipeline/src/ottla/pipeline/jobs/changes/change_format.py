"""How the changes of a change log are declared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from ottla.pipeline.jobs.declaration import Mistake, Names, Table
from ottla.pipeline.jobs.field_types import Types, wrong_types

Form = Literal["rows", "flat", "debezium", "maxwell"]

_NO_KEYS = {
    "FLOAT": "two fractions that look alike need not be equal",
    "DOUBLE": "two fractions that look alike need not be equal",
    "ARRAY": "name the parts of it as columns of their own",
    "MAP": "name the parts of it as columns of their own",
    "STRUCT": "name the parts of it as columns of their own",
}
"""Types of columns that rows are not told apart by."""


class Changes(Table):
    """How changes are written."""

    form: Form = "rows"
    """rows: the value is the row. flat: so it is, with a field that says what was done. debezium and maxwell:
    as these write."""
    key: Types = Field(examples=[{"id": "BIGINT"}], min_length=1)
    """The columns that tell rows apart, with their types."""
    columns: Types = Field(default_factory=dict, examples=[{"name": "STRING"}])
    """The other columns."""
    key_from: Literal["key", "value"] = "key"
    """Where the columns of the key are: in the key of a record, or among the others in its value."""
    operation: str = "op"
    """The field that says what was done, where the form is flat."""
    deletes: Names = Field(default_factory=lambda: ["d", "D", "delete", "DELETE"])
    """What it says of a row that is gone; whatever else it says, the row is there."""
    table: str | None = Field(default=None, examples=["shop.orders"])
    """Where a topic has changes of many tables: the one that is meant, as database.table or schema.table."""

    def inspect(self) -> Iterator[Mistake]:
        """Yield what cannot be; paths are within this table."""
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
                yield Mistake(("columns", name), "is there already (Spark takes A and a for the same name)")
            taken.add(name.lower())

    def _inspect_form(self) -> Iterator[Mistake]:
        if self.form != "flat":
            for name in ("operation", "deletes"):
                if name in self.model_fields_set:
                    yield Mistake((name,), f"is for the form flat; {self.form} has its own way to say it")
        if self.table is not None and self.form not in ("debezium", "maxwell"):
            yield Mistake(("table",), f"is for debezium and maxwell; {self.form} does not say of which table")
        if self.table is not None and "." not in self.table:
            yield Mistake(("table",), f"must be database.table or schema.table, not {self.table!r}")

    def names(self) -> tuple[str, ...]:
        """Return the columns of the table."""
        return (*self.key, *self.columns)


def _wrong_names(types: Types) -> Iterator[tuple[str, str]]:
    for name in types:
        if name.startswith("_"):
            yield name, "must not begin with _: such columns are ours"
        elif "`" in name or '"' in name:
            yield name, "must not have quotes in its name"
