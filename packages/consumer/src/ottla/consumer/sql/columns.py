"""The columns of a topic's table: the record's own, and the fields of its values, inferred from a sample.

Values of every format become JSON documents, so that DuckDB reads fields in one way, on all of its threads,
and only those that a query names. It infers their types as it does for a file with the same documents.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

import duckdb
import msgspec
import pyarrow as pa

from ottla.consumer.sql.ranges import TIMESTAMP

ValueFormat = Literal["json", "msgpack", "avro", "text", "bytes"]
FORMATS: Final[tuple[str, ...]] = get_args(ValueFormat)
Decode = Callable[[bytes], object]
"""Turns a value of a registry's schema into Python objects."""

RECORD_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
DOCUMENT: Final = "_document"
"""The column with values as JSON documents, each in an array of its own.

DuckDB gathers the rows that pass a condition, where these are few, to 2,048 before it reads fields of them,
and takes four times their documents for each field that it reads. It gathers no rows with an array.
"""
_DOCUMENT_TYPE: Final = pa.list_(pa.string(), 1)
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_WHOLE: Final = ("BIGINT", "HUGEINT", "UBIGINT")
_MAGIC: Final = 0
_MOST: Final = 0.5


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a table that is a field of values: its name, the field's own, and DuckDB's type."""

    name: str
    key: str
    type: str

    def sql(self, document: str, *, lenient: bool) -> str:
        """Return the expression that reads the field of a document."""
        pointer = quoted("/" + self.key.replace("~", "~0").replace("/", "~1"))
        text = f"json_extract_string({document}, {pointer})"
        if self.type == "VARCHAR":
            read = text
        elif self.type == "JSON":
            read = f"nullif(json_extract({document}, {pointer}), 'null'::JSON)"
        elif self.type in _WHOLE:
            # A cast would round a fraction, and nobody would see it.
            wrong = "NULL" if lenient else f"error({quoted(self.name + ' has a fraction: ')} || {text})"
            fraction = f"contains({text}, '.') OR contains({text}, 'e-') OR contains({text}, 'E-')"
            read = f"CASE WHEN {fraction} THEN {wrong} ELSE CAST({text} AS {self.type}) END"
        elif self.type.endswith("]") or self.type.startswith("STRUCT"):
            read = f"TRY_CAST(json_extract({document}, {pointer}) AS {self.type})"
        else:
            read = f"CAST({text} AS {self.type})"
        return f"TRY({read})" if lenient else read


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns of a topic's table, and how they are read."""

    topic: str
    value_format: ValueFormat
    key_is_text: bool
    fields: tuple[Field, ...] = ()

    @property
    def scanned(self) -> pa.Schema:
        """The columns of a scan. The topic's name is the same in all rows, so SQL adds it."""
        value = pa.string() if self.value_format in ("json", "text") else pa.binary()
        return pa.schema(
            [
                ("partition", pa.int32()),
                ("offset", pa.int64()),
                ("timestamp", TIMESTAMP),
                ("key", pa.string() if self.key_is_text else pa.binary()),
                ("value", value),
                ("headers", _HEADERS),
                *([(DOCUMENT, _DOCUMENT_TYPE)] if self.value_format in ("json", "msgpack", "avro") else []),
            ]
        )

    def select(self, source: str, *, lenient: bool) -> str:
        """Return the query that makes the table of a scan."""
        own = [f"{quoted(self.topic)} AS topic", *(identifier(name) for name in RECORD_COLUMNS[1:])]
        fields = [
            f"{field.sql(f'{DOCUMENT}[1]', lenient=lenient)} AS {identifier(field.name)}"
            for field in self.fields
        ]
        return f"SELECT {', '.join((*own, *fields))} FROM {identifier(source)}"


def infer_columns(
    topic: str,
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    value_format: str | None = None,
    decode: Decode | None = None,
) -> TableColumns:
    """Return the columns of a topic for a sample of its keys and values."""
    present = [value for value in values if value is not None]
    chosen: Any = value_format or detected_format(present, decode)
    key_is_text = all(map(_is_text, keys))
    if chosen in ("text", "bytes"):
        return TableColumns(topic, chosen, key_is_text)
    documents = [
        document for value in present if (document := as_document(value, chosen, decode)) is not None
    ]
    return TableColumns(topic, chosen, key_is_text, _fields(documents))


def detected_format(values: Sequence[bytes], decode: Decode | None) -> ValueFormat:
    """Return the format that most values of a sample have: objects in JSON, Avro or msgpack, or text."""

    def share(matches: Callable[[bytes], bool]) -> float:
        return sum(map(matches, values)) / len(values)

    if not values:
        return "text"
    if share(lambda value: _object(value, msgspec.json.decode) is not None) > _MOST:
        return "json"
    if decode is not None and share(lambda value: value[:1] == b"\0") > _MOST:
        return "avro"
    if share(lambda value: _object(value, msgspec.msgpack.decode) is not None) > _MOST:
        return "msgpack"
    return "text" if all(map(_is_text, values)) else "bytes"


def as_document(value: bytes, value_format: ValueFormat, decode: Decode | None) -> bytes | None:
    """Return a value as a JSON document; None for one that is not in the format."""
    try:
        if value_format == "json":
            return value if _object(value, msgspec.json.decode) is not None else None
        read = msgspec.msgpack.decode if value_format == "msgpack" or decode is None else decode
        return msgspec.json.encode(read(value), enc_hook=_foreign)
    except (ValueError, msgspec.MsgspecError, TypeError):
        return None


def _foreign(value: object) -> object:
    if isinstance(value, msgspec.msgpack.Ext):
        return value.data
    raise TypeError(type(value).__name__)


def _object(value: bytes, read: Callable[[bytes], Any]) -> dict[Any, Any] | None:
    try:
        found = read(value)
    except (ValueError, msgspec.MsgspecError):
        return None
    return found if isinstance(found, dict) and all(isinstance(key, str) for key in found) else None


def _is_text(value: bytes | None) -> bool:
    try:
        return value is None or "\0" not in value.decode()
    except UnicodeDecodeError:
        return False


def _fields(documents: Sequence[bytes]) -> tuple[Field, ...]:
    """Return the fields of documents with the types that DuckDB infers for a file of them."""
    found = [
        fields for document in documents if (fields := _object(document, msgspec.json.decode)) is not None
    ]
    keys = list(dict.fromkeys(key for fields in found for key in fields))
    if not keys:
        return ()
    # Under numbers no name is taken for another one, as `a` is for `A` in SQL.
    numbered = [{f"f{keys.index(key)}": value for key, value in fields.items()} for fields in found]
    with tempfile.TemporaryDirectory() as folder:
        sample = Path(folder) / "sample.jsonl"
        lines = [msgspec.json.encode(fields) for fields in numbered]
        sample.write_bytes(b"\n".join(lines))
        with duckdb.connect(config={"threads": 1}) as inference:
            described = inference.execute(
                "DESCRIBE SELECT * FROM read_json(?, format = 'newline_delimited', records = true, "
                "sample_size = -1, map_inference_threshold = -1, maximum_object_size = ?)",
                [str(sample), 64 + max(map(len, lines))],
            ).fetchall()
    types = {
        name: _usual_type(kind, [fields.get(name) for fields in numbered]) for name, kind, *_ in described
    }
    names = _unique_names(keys)
    return tuple(
        Field(name, key, types.get(f"f{number}", "JSON"))
        for number, (key, name) in enumerate(zip(keys, names, strict=True))
    )


def _usual_type(kind: str, values: Sequence[object]) -> str:
    """Return the type of a column: BIGINT where DuckDB takes a wider one for numbers below and above 0."""
    fits = all(-(2**63) <= value < 2**63 for value in values if isinstance(value, int))
    return {'"NULL"': "JSON", "HUGEINT": "BIGINT" if fits else "HUGEINT"}.get(kind, kind)


def _unique_names(keys: Sequence[str]) -> list[str]:
    """Return a name for each field that no other column has: `a` and `A` are one name in SQL."""
    taken = {*RECORD_COLUMNS, DOCUMENT}
    names = []
    for key in keys:
        name = key if key and key.lower() not in taken else f"value_{key}"
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        names.append(name)
    return names


def identifier(name: str) -> str:
    """Quote a name for SQL."""
    return '"' + name.replace('"', '""') + '"'


def quoted(text: str) -> str:
    """Quote a text for SQL."""
    return "'" + text.replace("'", "''") + "'"
