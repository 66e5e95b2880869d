"""The format of a change log, and its records as keys, new rows and deletions. Spark expressions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ottla.pipeline.jobs.declaration import Mistake, Names, Table
from ottla.pipeline.jobs.value_parsing import REASON, Types, wrong_types
from ottla.pipeline.lazy import functions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


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


SAID = "_said"
"""The changes of a record: a list of structs of ROW and DELETED, mostly with one item."""
ROW = "_row"
"""The row, as a struct: the key columns, then the others."""
DELETED = "_deleted"
IGNORED = "_ignored"
"""Whether a record changes no row of this table."""

_WRONG = "_wrong"
_READ, _KEY = "_read", "_key"
_UPSERTS = {
    "debezium": ("c", "r", "u"),
    "maxwell": ("insert", "update", "bootstrap-insert"),
}
_DELETES = {"debezium": ("d",), "maxwell": ("delete",)}
_SILENT = {
    "debezium": ("m",),
    "maxwell": (
        "bootstrap-start", "bootstrap-complete", "table-create", "table-alter", "table-drop",
        "database-create", "database-alter", "database-drop",
    ),
}  # fmt: skip
"""Operations that do not change rows."""
_SOURCE = "`source` STRUCT<`db`: STRING, `schema`: STRING, `table`: STRING>"


class ChangeReader:
    """Reads the records of one format."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._form = changes.form
        self._key_names = tuple(changes.key)

    def add_to(self, records: DataFrame) -> DataFrame:
        """Add SAID, IGNORED, and REASON for malformed records."""
        read = records.withColumn(_READ, self._read_value()).withColumn(_KEY, self._read_key())
        is_deleted = self._is_deleted()
        key = self._key_of(is_deleted)
        row = [key[name].alias(name) for name in self._key_names]
        row += [self._after()[name].alias(name) for name in self._changes.columns]
        said = [_said(functions.struct(*row), is_deleted), *self._left_behind(key)]
        return (
            read.withColumn(IGNORED, self._is_silent())
            .withColumn(SAID, functions.array_compact(functions.array(*said)))
            .withColumn(REASON, self._reason(key, is_deleted))
            .drop(_READ, _KEY)
        )

    # --- the value

    def _read_value(self) -> Column:
        text = functions.col("value").cast("string")
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _WRONG}
        return functions.from_json(text, f"{self._value_ddl()}, {_WRONG} STRING", options)

    def _value_ddl(self) -> str:
        changes = self._changes
        key = {} if changes.key_from == "key" else changes.key
        row = _struct({**key, **changes.columns})
        if self._form == "debezium":
            envelope = f"`before` {row}, `after` {row}, `op` STRING, {_SOURCE}"
            return f"{envelope}, `payload` STRUCT<{envelope}>"
        if self._form == "maxwell":
            old = _struct(changes.key)
            return f"`type` STRING, `database` STRING, `table` STRING, `data` {row}, `old` {old}"
        inner = row.removeprefix("STRUCT<").removesuffix(">")
        has_operation = changes.operation in {**key, **changes.columns}
        return inner if self._form == "rows" or has_operation else f"{inner}, `{changes.operation}` STRING"

    def _of_debezium(self, field: str) -> Column:
        """Return a field of an envelope, which may be nested in `payload`, beside its schema."""
        read = functions.col(_READ)
        return functions.coalesce(read["payload"][field], read[field])

    def _operation(self) -> Column:
        match self._form:
            case "debezium":
                return self._of_debezium("op")
            case "maxwell":
                return functions.col(_READ)["type"]
            case "flat":
                return functions.col(_READ)[self._changes.operation].cast("string")
        return functions.lit(None).cast("string")

    def _after(self) -> Column:
        if self._form == "debezium":
            return self._of_debezium("after")
        read = functions.col(_READ)
        return read["data"] if self._form == "maxwell" else read

    def _is_deleted(self) -> Column:
        deletes = _DELETES.get(self._form, tuple(self._changes.deletes))
        return _is_tombstone() | _is_among(self._operation(), deletes)

    # --- the key

    def _read_key(self) -> Column:
        """Read the key of a record: an object, maybe with Debezium's schema, or a single value as text."""
        if self._changes.key_from == "value":
            return functions.lit(None).cast("string")
        text = functions.col("key").cast("string")
        read = functions.from_json(text, self._key_ddl())
        parts = {name: self._part_of_key(read, name) for name in self._key_names}
        if len(parts) == 1:
            ((name, kind),) = self._changes.key.items()
            parts[name] = functions.when(text.startswith("{"), parts[name]).otherwise(_plain(text, kind))
        named = [part.alias(name) for name, part in parts.items()]
        if self._form == "maxwell":
            named.append(_full_name(read["database"], read["table"]).alias("_table"))
        return functions.struct(*named)

    def _key_ddl(self) -> str:
        own = self._changes.key
        if self._form == "maxwell":
            return (
                f"{_ddl({f'pk.{name}': kind for name, kind in own.items()})}, database STRING, table STRING"
            )
        return f"`payload` STRUCT<{_ddl(own)}>, {_ddl(own)}" if self._form == "debezium" else _ddl(own)

    def _part_of_key(self, read: Column, name: str) -> Column:
        if self._form == "debezium":
            return functions.coalesce(read["payload"][name], read[name])
        return read[f"pk.{name}"] if self._form == "maxwell" else read[name]

    def _key_of(self, is_deleted: Column) -> Column:
        if self._changes.key_from == "key":
            return functions.col(_KEY)
        if self._form != "debezium":
            return self._after()
        before = functions.coalesce(self._of_debezium("before"), self._after())
        return functions.when(is_deleted, before).otherwise(self._after())

    def _left_behind(self, key: Column) -> list[Column]:
        """Return the old row of a changed key: Debezium deletes it itself, Maxwell has it in `old`."""
        if self._form != "maxwell":
            return []
        old = functions.col(_READ)["old"]
        row = [functions.coalesce(old[name], key[name]).alias(name) for name in self._key_names]
        row += [functions.lit(None).cast(kind).alias(name) for name, kind in self._changes.columns.items()]
        is_another = functions.lit(False)
        for name in self._key_names:
            is_another = is_another | functions.coalesce(old[name] != key[name], functions.lit(False))
        is_update = _is_among(self._operation(), ("update",))
        return [functions.when(is_update & is_another, _said(functions.struct(*row), functions.lit(True)))]

    # --- malformed records

    def _is_silent(self) -> Column:
        """Whether a record changes no row. A tombstone without the table's key only repeats a deletion."""
        silent = _is_among(self._operation(), _SILENT.get(self._form, ()))
        if self._changes.key_from == "value":
            silent = silent | _is_tombstone()
        return silent | self._is_of_another_table()

    def _is_of_another_table(self) -> Column:
        wanted = self._changes.table
        if wanted is None:
            return functions.lit(False)
        if self._form == "debezium":
            source = self._of_debezium("source")
            names = [_full_name(source[of], source["table"]) for of in ("db", "schema")]
        else:
            read = functions.col(_READ)
            names = [_full_name(read["database"], read["table"])]
            names += [functions.col(_KEY)["_table"]] if self._changes.key_from == "key" else []
        is_named = functions.coalesce(*names).isNotNull()
        is_it = functions.lit(False)
        for name in names:
            is_it = is_it | functions.coalesce(name == wanted, functions.lit(False))
        return is_named & ~is_it

    def _reason(self, key: Column, is_deleted: Column) -> Column:
        read, has_value = functions.col(_READ), ~_is_tombstone()
        is_wrong = read.isNull() | read[_WRONG].isNotNull()
        reason = functions.when(functions.col(IGNORED), None)
        reason = reason.when(has_value & is_wrong, "the value is no JSON of these columns")
        if self._form in _UPSERTS:
            known = (*_UPSERTS[self._form], *_DELETES[self._form])
            said = functions.coalesce(self._operation(), functions.lit("none"))
            unknown = functions.concat(functions.lit("the operation is not known: "), said)
            reason = reason.when(has_value & ~said.isin(*known), unknown)
        reason = reason.when(~is_deleted & self._after().isNull(), "the value does not have the row")
        lacks = functions.concat_ws(
            ", ", *(functions.when(key[name].isNull(), name) for name in self._key_names)
        )
        where = f"the {self._changes.key_from} has no "
        return reason.when(lacks != "", functions.concat(functions.lit(where), lacks))


def _said(row: Column, is_deleted: Column) -> Column:
    return functions.struct(row.alias(ROW), is_deleted.alias(DELETED))


def _is_tombstone() -> Column:
    return functions.col("value").isNull()


def _is_among(operation: Column, these: Iterable[str]) -> Column:
    names = tuple(these)
    return functions.coalesce(operation.isin(*names), functions.lit(False)) if names else functions.lit(False)


def _full_name(of: Column, table: Column) -> Column:
    return functions.concat(of, functions.lit("."), table)


def _plain(text: Column, kind: str) -> Column:
    """Return a key that is a single value: plain text or a JSON string."""
    wrapped = functions.concat(functions.lit('{"is":'), text, functions.lit("}"))
    unquoted = functions.when(text.startswith('"'), functions.from_json(wrapped, "`is` STRING")["is"])
    plain = functions.coalesce(unquoted, text)
    return plain if kind == "STRING" else plain.try_cast(kind)


def _ddl(types: dict[str, str]) -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind in types.items())


def _struct(types: dict[str, str]) -> str:
    return f"STRUCT<{_ddl(types) or '_none STRING'}>"
