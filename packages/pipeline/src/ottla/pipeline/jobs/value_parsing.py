"""Parsing of record values into rows, with a reason for each malformed one. Spark computes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator
from pydantic import Field as Setting

from ottla.client.settings import SettingError
from ottla.pipeline.errors import OptionError
from ottla.pipeline.jobs.declaration import Mistake, Names, Table
from ottla.pipeline.jobs.log_formats import Field, LineFormat, apache_format, nginx_format, regex_format
from ottla.pipeline.lazy import functions, pa
from ottla.pipeline.registry_values import RegistrySettings, decode_registered, registry_of_profile
from ottla.pipeline.source.spark_rows import arrow_schema
from ottla.pipeline.spark_workers import errors_first

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SIMPLE = (
    "STRING", "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "BINARY", "DATE",
    "TIMESTAMP", "TIMESTAMP_NTZ",
)  # fmt: skip
_OTHER_NAMES = {"INTEGER": "INT", "LONG": "BIGINT", "SHORT": "SMALLINT", "BYTE": "TINYINT", "REAL": "FLOAT"}
_NESTED = re.compile(
    r"(ARRAY|MAP|STRUCT)\s*<.+>|DECIMAL\s*\(\s*\d+\s*(,\s*\d+\s*)?\)", re.IGNORECASE | re.DOTALL
)


def _upper(given: Any) -> Any:
    return {name: _named(kind) for name, kind in given.items()} if isinstance(given, Mapping) else given


def _named(kind: Any) -> Any:
    if not isinstance(kind, str) or _NESTED.fullmatch(kind.strip()):
        return kind
    name = kind.strip().upper()
    return _OTHER_NAMES.get(name, name)


Types = Annotated[dict[str, str], BeforeValidator(_upper)]
"""Columns and their types, in Spark's DDL."""


def wrong_types(types: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the columns with invalid types, and the error of each."""
    for name, kind in types.items():
        if kind not in _SIMPLE and not _NESTED.fullmatch(kind.strip()):
            yield (
                name,
                (
                    f"{kind!r} is not a type; the types are {', '.join(_SIMPLE)}, ARRAY<>, MAP<>, "
                    "STRUCT<>, DECIMAL()"
                ),
            )
        elif not _is_balanced(kind):
            yield name, f"{kind!r} has unbalanced brackets"


def _is_balanced(kind: str) -> bool:
    return kind.count("<") == kind.count(">") and kind.count("(") == kind.count(")")


def time_typed(kind: str) -> bool:
    """Whether values of a type have a date and a time."""
    return kind in ("TIMESTAMP", "TIMESTAMP_NTZ")


ROW, REASON = "_row", "_reason"
"""Columns that parsing adds: the fields, and the reason if there are none."""

_BROKEN = "_broken"
_MARK = "\x01"
"""The separator between groups during splitting; a line that contains it becomes malformed."""


class Parse(Table):
    """The declaration of how values become columns."""

    format: Literal["json", "regex", "apache", "nginx", "registry"] = Setting(examples=["nginx"])
    """With registry, values are Avro, Protobuf or JSON, and name their schema in a schema registry."""
    registry: str | None = Setting(default=None, min_length=1, examples=["http://127.0.0.1:8081"])
    """The address of the schema registry."""
    profile: str | None = Setting(default=None, min_length=1)
    """The profile with the login of the registry."""
    pattern: str | None = None
    """A regular expression with named groups, or the web server's log format; default: combined."""
    fields: Types = Setting(default_factory=dict, examples=[{"time": "TIMESTAMP", "level": "STRING"}])
    """Columns and their types, in Spark's DDL; web server formats imply them."""
    time_format: str | None = None
    """The format of timestamps, as a Spark pattern: `yyyy-MM-dd HH:mm:ss`; default: ISO 8601."""
    required: Names = Setting(default_factory=list)
    """Columns that must have a value, otherwise the row is malformed."""

    def inspect(self) -> Iterator[Mistake]:
        """Yield mistakes; paths are within this table."""
        yield from (Mistake(("fields", name), said) for name, said in wrong_types(self.fields))
        try:
            known = self.names()
        except OptionError as error:
            yield Mistake(("pattern",), str(error))
            return
        yield from self._inspect_registry()
        if self._declares_fields:
            yield from self._inspect_fields()
        else:
            unknown = [name for name in self.fields if name not in known]
            yield from (Mistake(("fields", name), f"the pattern has no group {name!r}") for name in unknown)
        for name in self.required:
            if name not in known:
                yield Mistake(
                    ("required",), (f"there is no column {name!r}; the columns are {', '.join(known)}")
                )

    @property
    def _declares_fields(self) -> bool:
        """Whether `fields` alone are the columns; lines have those of their pattern."""
        return self.format in ("json", "registry")

    def _inspect_registry(self) -> Iterator[Mistake]:
        if self.format == "registry" and self.registry is None:
            yield Mistake(("registry",), 'is missing: registry = "http://127.0.0.1:8081"')
        if self.format == "registry" and self.time_format is not None:
            yield Mistake(("time_format",), "is not for registry: its schemas have types for times")
        for name, given in (("registry", self.registry), ("profile", self.profile)):
            if self.format != "registry" and given is not None:
                yield Mistake((name,), 'is only for format = "registry"')
        if self.format == "registry" and self.registry is not None and self.profile is not None:
            yield from self._inspect_login(self.registry, self.profile)

    def _inspect_login(self, registry: str, profile: str) -> Iterator[Mistake]:
        try:
            address = registry_of_profile(profile)
        except SettingError as error:
            yield Mistake(("profile",), str(error))
            return
        if address != registry:
            own = (
                "it has no schema_registry_url"
                if address is None
                else f"its schema_registry_url is {address}"
            )
            yield Mistake(("profile",), f"{profile!r} has no login for {registry}: {own}")

    def _inspect_fields(self) -> Iterator[Mistake]:
        if self.pattern is not None:
            yield Mistake(("pattern",), f"is not for {self.format}: [parse.fields] declares the columns")
        for name in self.fields:
            if name.lower() == _BROKEN:
                yield Mistake(("fields", name), f"{name!r} is reserved: parsing uses it for malformed values")
        if not self.fields:
            example = '[parse.fields] with time = "TIMESTAMP", level = "STRING"'
            yield Mistake(("fields",), f"{self.format} needs them: {example}")

    def names(self) -> tuple[str, ...]:
        """Return the columns. Raises OptionError for an invalid pattern."""
        return (
            tuple(self.fields)
            if self._declares_fields
            else tuple(field.name for field in self._line().fields)
        )

    def types(self) -> dict[str, str]:
        """Return the columns and their types. Raises OptionError for an invalid pattern."""
        if self._declares_fields:
            return dict(self.fields)
        return {field.name: field.type for field in self._line().fields}

    def is_time(self, name: str) -> bool:
        """Whether a column is a timestamp."""
        if self._declares_fields:
            return time_typed(self.fields.get(name, ""))
        return any(field.name == name and time_typed(field.type) for field in self._line().fields)

    def add_to(self, frame: DataFrame) -> DataFrame:
        """Return the records with the columns ROW and REASON; the reason is null if there is a row."""
        if self.format == "registry":
            return self._registered(frame).withColumn(REASON, self._reason())
        text = functions.rtrim(functions.col("value").cast("string"), functions.lit("\r\n"))
        parsed = self._json(frame, text) if self.format == "json" else self._lines(frame, text)
        return parsed.withColumn(REASON, self._reason())

    def _json(self, frame: DataFrame, text: Column) -> DataFrame:
        ddl = ", ".join(f"`{name}` {kind}" for name, kind in self.fields.items())
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BROKEN}
        options |= {} if self.time_format is None else {"timestampFormat": self.time_format}
        parsed = functions.from_json(text, f"{ddl}, `{_BROKEN}` STRING", options)
        # Spark marks invalid JSON and JSON of another shape alike; these expressions tell them apart.
        is_json = functions.try_parse_json(text).isNotNull()
        broken = functions.when(is_json, "does not fit the fields").otherwise("is no JSON")
        broken = functions.when(parsed[_BROKEN].isNotNull() | parsed.isNull(), broken)
        row = functions.struct(*(parsed[name].alias(name) for name in self.fields))
        return frame.withColumn(_BROKEN, broken).withColumn(ROW, row)

    def _registered(self, frame: DataFrame) -> DataFrame:
        """Add the rows that the registry's schemas make of values, in a Python worker."""
        fields = ", ".join(f"`{name}` {kind}" for name, kind in self.fields.items())
        kind = frame.sparkSession.createDataFrame([], fields).schema
        settings = RegistrySettings.of(self.registry or "", self.profile)
        read = registered_values(settings, arrow_schema(kind))
        found = functions.arrow_udf(
            read, f"`{ROW}` STRUCT<{fields}>, `{_BROKEN}` STRING", functions.ArrowUDFType.SCALAR
        )(functions.col("value"), functions.col("headers"))
        frame = frame.withColumn("_found", found)
        return (
            frame.withColumn(_BROKEN, frame["_found"][_BROKEN])
            .withColumn(ROW, frame["_found"][ROW])
            .drop("_found")
        )

    def _lines(self, frame: DataFrame, text: Column) -> DataFrame:
        line = self._line()
        replaced = functions.regexp_replace(
            text, functions.lit(rf"\A(?:{line.pattern})\z"), functions.lit(_replacement(len(line.fields)))
        )
        # One pass over the text: it becomes its groups, or stays unchanged if it does not match.
        parts = functions.split(replaced, _MARK)
        frame = frame.withColumn("_parts", parts)
        matches = functions.size("_parts") == len(line.fields) + 1
        broken = functions.when(~matches, "does not match the pattern")
        texts = [functions.get("_parts", functions.lit(at + 1)) for at in range(len(line.fields))]
        values = [_typed(field, _some(text)) for field, text in zip(line.fields, texts, strict=True)]
        wrong = [
            functions.when(_some(text).isNotNull() & value.isNull(), _no_value(field, text))
            for field, text, value in zip(line.fields, texts, values, strict=True)
            if field.type != "STRING"
        ]
        row = functions.struct(
            *(value.alias(field.name) for field, value in zip(line.fields, values, strict=True))
        )
        return (
            frame.withColumn(_BROKEN, functions.coalesce(broken, *wrong)).withColumn(ROW, row).drop("_parts")
        )

    def _reason(self) -> Column:
        absent = [
            functions.when(functions.col(ROW)[name].isNull(), f"has no {name}") for name in self.required
        ]
        none = functions.when(functions.col("value").isNull(), "has no value")
        return functions.coalesce(none, functions.col(_BROKEN), *absent)

    def _line(self) -> LineFormat:
        if self.format == "regex":
            if self.pattern is None:
                raise OptionError("is missing: pattern = '(?P<level>[A-Z]+) (?P<message>.*)'")
            return regex_format(self.pattern, self.fields, self.time_format)
        known = apache_format if self.format == "apache" else nginx_format
        line = known(self.pattern or "combined")
        own = tuple(
            Field(field.name, self.fields.get(field.name, field.type), field.time_format)
            for field in line.fields
        )
        return LineFormat(line.pattern, own)


def registered_values(settings: RegistrySettings, row: pa.Schema) -> Callable[..., Any]:
    """Return a function for Spark, from values and headers to rows and the reasons where there is none."""

    def read(values, headers):  # type: ignore[no-untyped-def]  # Spark would look up the types in this module
        with errors_first():
            found = decode_registered(settings, values, headers, pa.struct(list(row)))
        reasons = pa.array(found.errors or [None] * len(values), pa.string())
        return pa.StructArray.from_arrays([found.values, reasons], names=[ROW, _BROKEN])

    return read


def _replacement(groups: int) -> str:
    return "".join(f"{_MARK}${{{at}}}" if at > 9 else f"{_MARK}${at}" for at in range(1, groups + 1))


def _some(text: Column) -> Column:
    """Return null for empty text and for the placeholder that web servers write."""
    return functions.when(~text.isin("", "-"), text)


def _typed(field: Field, text: Column) -> Column:
    if field.type == "TIMESTAMP":
        given = () if field.time_format is None else (functions.lit(field.time_format),)
        return functions.try_to_timestamp(text, *given)
    return text if field.type == "STRING" else text.try_cast(field.type)


def _no_value(field: Field, text: Column) -> Column:
    return functions.concat(
        functions.lit(f"{field.name} is no {field.type}: "), functions.substring(text, 1, 80)
    )
