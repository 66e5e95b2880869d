"""Values that name their schema in a registry: columns, rows, and what becomes of malformed ones."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ottla.client.serialization import PreparationNeeded, SentHeader, SerializationContext
from ottla.pipeline.errors import OptionError
from ottla.pipeline.jobs.declaration_files import read_job
from ottla.pipeline.jobs.drafts import Registry, Sample, drafted
from ottla.pipeline.jobs.logs import Logs
from ottla.pipeline.jobs.value_parsing import Parse
from ottla.pipeline.registry_values import (
    RegistryFailed,
    RegistrySettings,
    columns_of_subject,
    columns_of_value,
    decode_registered,
)
from ottla.pipeline.schema_columns import SchemaUnfit
from ottla.pipeline.source.spark_rows import columns_of
from ottla.registry import AvroSerializer, JsonSchemaSerializer, ProtobufSerializer, Schema, SchemaRegistry
from ottla.registry.testing import RegistryThread
from peers.proto_classes import message_class

TIMES = pa.timestamp("us", "UTC")
AT = datetime(2026, 2, 3, 4, 5, 6, 7_000, UTC)

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
LATER = {
    "type": "record", "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "code", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}}},
    ],
}  # fmt: skip
VISIT = {
    "type": "object", "$defs": {"page": {"type": "object", "properties": {"url": {"type": "string"}}}},
    "properties": {
        "id": {"type": "integer"}, "at": {"type": "string", "format": "date-time"},
        "day": {"type": ["null", "string"], "format": "date"}, "page": {"$ref": "#/$defs/page"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "counts": {"type": "object", "additionalProperties": {"type": "number"}},
        "note": {"oneOf": [{"type": "null"}, {"type": "boolean"}]},
    },
}  # fmt: skip
PAYMENT = """syntax = "proto3"; package shop;
import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";
message Other { bool odd = 1; }
message Payment {
  int64 cents = 1; uint64 big = 2; bytes raw = 3; optional string note = 4; Kind kind = 5; Card card = 6;
  repeated Card cards = 7; map<string, int32> counts = 8; google.protobuf.Timestamp at = 9;
  google.protobuf.DoubleValue rate = 10; repeated double weights = 11; float part = 12;
  message Card { string number = 1; }
  enum Kind { UNKNOWN = 0; CASH = 1; }
}
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with RegistryThread() as registry:
        yield registry.url


@pytest.fixture(scope="module")
def settings(url: str) -> RegistrySettings:
    return RegistrySettings.of(url)


def written(url: str, kind: Any, schema: Any, value: Any, topic: str, **options: Any) -> Sample:
    """Return a value as a serializer writes it, with its headers."""

    async def write() -> Sample:
        headers: list[SentHeader] = []
        async with SchemaRegistry(url) as registry:
            serializer = kind(registry, schema, **options)
            while True:
                try:
                    data = serializer.serialize(value, SerializationContext(topic, "value", headers))
                except PreparationNeeded as needed:
                    await needed.prepare()
                else:
                    return Sample(data, tuple((name, bytes(of, "ascii") if isinstance(of, str) else of)
                                              for name, of in headers))  # fmt: skip

    return asyncio.run(write())


def registered(url: str, subject: str, text: str, kind: str) -> None:
    async def register() -> None:
        async with SchemaRegistry(url) as registry:
            await registry.register(subject, Schema(text, kind))

    asyncio.run(register())


def rows(
    settings: RegistrySettings, samples: Sequence[Sample | None], *columns: tuple[str, pa.DataType]
) -> Any:
    """Return the rows of values, and the reasons for those that are none."""
    values = pa.array([None if each is None else each.value for each in samples], pa.binary())
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array(
        [[{"key": name, "value": of} for name, of in each.headers] if each else None for each in samples],
        kind,
    )
    found = decode_registered(settings, values, headers, pa.struct(list(columns)))
    return found.values.to_pylist(), found.errors


def test_values_of_avro_are_read_by_the_version_that_each_names(url: str, settings: RegistrySettings) -> None:
    code = uuid.uuid4()
    later = {"id": 2, "price": Decimal("1.50"), "at": AT, "code": str(code), "lines": [{"sku": "x"}]}
    samples = [
        written(url, AvroSerializer, ORDER, {"id": 1}, "orders"), None,
        written(url, AvroSerializer, LATER, later, "evolved"),
        written(url, AvroSerializer, LATER, later, "evolved", schema_id_in="header"),
    ]  # fmt: skip

    schema = columns_of_subject(settings, "evolved-value")
    found, errors = rows(
        settings, samples, ("id", pa.int64()), ("price", pa.decimal128(9, 2)), ("at", TIMES),
        ("code", pa.string()), ("lines", pa.list_(pa.struct([("sku", pa.string())]))),
    )  # fmt: skip

    assert (schema.schema, schema.kind) == ("version 1 of evolved-value", "AVRO")
    assert schema.ddl == (
        "`id` BIGINT, `price` DECIMAL(9, 2), `at` TIMESTAMP, `code` STRING, "
        "`lines` ARRAY<STRUCT<`sku` STRING>>"
    )
    assert errors is None
    assert found == [{"id": 1, "price": None, "at": None, "code": None, "lines": None}, None, later, later]
    assert samples[3] is not None
    assert samples[3].value[:1] != b"\0", "its header names the schema"


def test_messages_of_protobuf_become_rows_with_all_types(url: str, settings: RegistrySettings) -> None:
    payment = message_class(PAYMENT, "shop.Payment")
    message = payment(
        cents=5, big=2**64 - 1, raw=b"r", kind=1, card={"number": "1"}, cards=[{"number": "2"}],
        counts={"a": 1}, weights=[0.5], part=0.25,
    )  # fmt: skip
    message.at.FromDatetime(AT)
    message.rate.value = 2.5
    samples = [written(url, ProtobufSerializer, payment, each, "payments") for each in (message, payment())]

    schema = columns_of_value(settings, *samples[0])
    card = pa.struct([("number", pa.string())])
    found, errors = rows(
        settings, samples, ("cents", pa.int64()), ("big", pa.decimal128(20, 0)), ("raw", pa.binary()),
        ("note", pa.string()), ("kind", pa.string()), ("card", card), ("cards", pa.list_(card)),
        ("counts", pa.map_(pa.string(), pa.int32())), ("at", TIMES), ("rate", pa.float64()),
        ("weights", pa.list_(pa.float64())), ("part", pa.float32()),
    )  # fmt: skip

    assert schema is not None
    assert schema.ddl == (
        "`cents` BIGINT, `big` DECIMAL(20, 0), `raw` BINARY, `note` STRING, `kind` STRING, "
        "`card` STRUCT<`number` STRING>, `cards` ARRAY<STRUCT<`number` STRING>>, `counts` MAP<STRING, INT>, "
        "`at` TIMESTAMP, `rate` DOUBLE, `weights` ARRAY<DOUBLE>, `part` FLOAT"
    )
    assert columns_of_subject(settings, "payments-value").ddl == "`odd` BOOLEAN", (
        "the first message of the file"
    )
    assert errors is None
    assert found[0] == {
        "cents": 5, "big": Decimal(2**64 - 1), "raw": b"r", "note": None, "kind": "CASH",
        "card": {"number": "1"}, "cards": [{"number": "2"}], "counts": [("a", 1)], "at": AT, "rate": 2.5,
        "weights": [0.5], "part": 0.25,
    }  # fmt: skip
    assert found[1] == {
        "cents": 0, "big": Decimal(0), "raw": b"", "note": None, "kind": "UNKNOWN", "card": None, "cards": [],
        "counts": [], "at": None, "rate": None, "weights": [], "part": 0.0,
    }  # fmt: skip


def test_objects_of_a_json_schema_become_rows(url: str, settings: RegistrySettings) -> None:
    visit = {"id": 1, "at": "2026-02-03T04:05:06.007Z", "day": "2026-02-03", "page": {"url": "/"},
             "tags": ["x"], "counts": {"a": 1.5}, "note": True}  # fmt: skip
    sample = written(url, JsonSchemaSerializer, VISIT, visit, "visits")

    schema = columns_of_subject(settings, "visits-value")
    found, errors = rows(
        settings, [sample], ("id", pa.int64()), ("at", TIMES), ("day", pa.date32()),
        ("counts", pa.map_(pa.string(), pa.float64())),
    )  # fmt: skip

    assert schema.ddl == (
        "`id` BIGINT, `at` TIMESTAMP, `day` DATE, `page` STRUCT<`url` STRING>, `tags` ARRAY<STRING>, "
        "`counts` MAP<STRING, DOUBLE>, `note` BOOLEAN"
    )
    assert (found, errors) == ([{"id": 1, "at": AT, "day": date(2026, 2, 3), "counts": [("a", 1.5)]}], None)


def test_a_malformed_value_is_none_and_says_why(url: str, settings: RegistrySettings) -> None:
    good = written(url, AvroSerializer, ORDER, {"id": 7}, "orders")
    text = written(url, AvroSerializer, {"type": "string"}, "only", "texts")
    samples = [good, Sample(b"plain"), Sample(b"\0\0\0\x7f\xffabc"), Sample(good.value[:5]), text]

    found, errors = rows(settings, samples, ("id", pa.int64()))

    assert found == [{"id": 7}, None, None, None, None]
    assert errors[0] is None
    for error, words in zip(
        errors[1:],
        (
            "it names no schema: no registry's serializer wrote it",
            "it names schema 32767: ",
            "EOFError",
            "str where fields were expected",
        ),
        strict=True,
    ):
        assert words in error


def test_a_registry_that_is_away_fails_a_task_in_one_line(settings: RegistrySettings) -> None:
    away = RegistrySettings.of("http://127.0.0.1:1", None)
    quick = RegistrySettings(away.url, (("timeout_s", 0.5),))  # type: ignore[arg-type]

    with pytest.raises(RegistryFailed, match=r"^schema registry http://127\.0\.0\.1:1: ") as failed:
        rows(quick, [Sample(b"\0\0\0\0\1x")], ("id", pa.int64()))
    assert "\n" not in str(failed.value)
    with pytest.raises(OptionError, match="the schema registry: 'registry' is no address of a service"):
        columns_of_subject(RegistrySettings.of("registry"), "orders-value")
    with pytest.raises(RegistryFailed, match="missing-value"):
        columns_of_subject(settings, "missing-value")


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ('{"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}', "AVRO",
         "Spark has no type"),
        ('{"type":"record","name":"U","fields":[{"name":"u","type":["int","string"]}]}', "AVRO",
         r"Spark has no type for Avro's \['int', 'string'\]"),
        ('syntax = "proto3"; message Node { Node next = 1; }', "PROTOBUF", "contains itself"),
        ('{"type": "object"}', "JSON", "has no properties"),
        ('{"type": "object", "properties": {"a": {}}}', "JSON", "Spark has no type for {}"),
        ('{"properties": {"a": {"$ref": "#"}}}', "JSON", "contains itself"),
    ],
)  # fmt: skip
def test_a_schema_without_columns_is_refused_with_its_name(
    url: str, settings: RegistrySettings, text: str, kind: str, words: str
) -> None:
    subject = f"unfit-{uuid.uuid4().hex}"
    registered(url, subject, text, kind)

    with pytest.raises(SchemaUnfit, match=rf"^version 1 of {subject}: .*{words}"):
        columns_of_subject(settings, subject)


def test_columns_of_a_read_are_those_of_the_topics_subject(url: str) -> None:
    written(url, AvroSerializer, ORDER, {"id": 1}, "read")
    given = {"value.format": "registry", "value.registry": url, "value.mode": "failfast"}
    rest = "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"

    for chosen in ({"subscribe": "read"}, {"assign": '{"read": [0]}'}, {"value.subject": "read-value"},
                   {"subscribe": "a,b", "value.schema": "`id` BIGINT"}):  # fmt: skip
        assert columns_of({**given, **chosen}) == f"key BINARY, value STRUCT<`id` BIGINT>, {rest}"
    with pytest.raises(OptionError, match=r"option 'value\.subject' is missing"):
        columns_of({**given, "subscribe": "a,b"})
    with pytest.raises(OptionError, match=r"option 'value\.registry' is missing"):
        columns_of({"value.format": "registry"})
    with pytest.raises(OptionError, match=r"'value\.registry' needs value\.format: registry"):
        columns_of({"value.registry": url})


def test_a_login_is_sent_to_the_address_of_its_profile_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    profiles = tmp_path / "profiles.toml"
    profiles.write_text(f"""
[shop]
bootstrap_servers = "127.0.0.1:9092"
schema_registry_url = "http://registry:8081"
schema_registry_username = "josef"
schema_registry_password = {{ file = "{secret}" }}
""")
    monkeypatch.setenv("OTTLA_PROFILES", str(profiles))

    own = RegistrySettings.of("http://registry:8081", "shop")

    assert own.login == (("password", "s3cret"), ("username", "josef"))
    assert "s3cret" not in repr(own)
    assert RegistrySettings.of("http://other:8081", "shop").login == ()
    login: dict[str, Any] = {"format": "registry", "fields": {"id": "BIGINT"}, "profile": "shop"}
    assert not [*Parse(**login, registry="http://registry:8081").inspect()]
    (mistake,) = Parse(**login, registry="http://other:8081").inspect()
    assert mistake.message == (
        "'shop' has no login for http://other:8081: its schema_registry_url is http://registry:8081"
    )
    with pytest.raises(OptionError, match="no profile 'missing'"):
        RegistrySettings.of("http://registry:8081", "missing")


def test_a_draft_has_the_columns_of_the_schema(url: str, tmp_path: Path) -> None:
    later = {"id": 2, "price": Decimal("1.50"), "at": AT, "code": "c", "lines": []}
    sample = written(url, AvroSerializer, LATER, later, "drafted")
    file = tmp_path / "draft.toml"

    drafts = [
        drafted("drafted", some, "127.0.0.1:9092", None, Registry(url)) for some in ([sample, sample], [])
    ]
    file.write_text(drafts[0], encoding="utf-8")
    job = read_job(file)

    assert isinstance(job, Logs)
    assert (job.parse.format, job.parse.registry) == ("registry", url)
    assert job.parse.fields == {
        "id": "BIGINT", "price": "DECIMAL(9, 2)", "at": "TIMESTAMP", "code": "STRING",
        "lines": "ARRAY<STRUCT<`sku` STRING>>",
    }  # fmt: skip
    assert drafts[0].startswith("# Drafted from 2 records of topic drafted: schema ")
    assert drafts[1].startswith("# Drafted from 0 records of topic drafted: version 1 of drafted-value of ")
    assert drafts[0].partition("\n")[2] == drafts[1].partition("\n")[2]
    plain = drafted("plain", [Sample(b'{"id": 1}')], "127.0.0.1:9092", None, Registry(url))
    assert 'format = "json"' in plain, "values that name no schema are looked at"


@pytest.mark.parametrize(
    ("given", "path", "words"),
    [
        ({"format": "registry"}, "registry", "is missing: registry = "),
        ({"format": "registry", "registry": "http://r", "pattern": "x"}, "pattern", "is not for registry"),
        (
            {"format": "registry", "registry": "http://r", "time_format": "yyyy"},
            "time_format",
            "is not for regi",
        ),
        ({"format": "registry", "registry": "http://r", "fields": {}}, "fields", "registry needs them"),
        ({"format": "json", "registry": "http://r"}, "registry", 'is only for format = "registry"'),
    ],
)
def test_mistakes_in_a_declaration_are_found_without_a_registry(
    given: dict[str, Any], path: str, words: str
) -> None:
    (mistake,) = Parse(**{"fields": {"id": "BIGINT"}, **given}).inspect()

    assert mistake.path == (path,)
    assert mistake.message.startswith(words)
