"""Values by their schemas: where a schema stands, each kind of it, and schemas and values made to harm."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import subprocess
import sys
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from ottla.console.clusters.services import Service
from ottla.console.records.filters import CompiledFilter, Filter
from ottla.console.records.masking import HIDDEN, NO_MASK, Mask
from ottla.console.records.reading import ShownRecord
from ottla.console.records.scanning import Span, Window, batches, look_through
from ottla.console.records.search_process import LENGTH, packed_answer, read_answer
from ottla.console.registry.decoding import Decoded, Undecodable, decode, decoder, json_text
from ottla.console.registry.processes import DecodingProcess, Encoded
from ottla.console.registry.records import shown_records
from ottla.console.registry.searching import MOST_SCHEMAS, BySchema, SentSchema
from ottla.console.registry.values import Registry
from ottla.protocol.records import BatchBuilder
from ottla.registry.framing import Framed, NotFramed, framed, message_place
from ottla.registry.protobuf_files import file_set
from ottla.registry.rest import RestClient
from ottla.registry.schemas import SchemaText
from peers.json_service import Answer, JsonService, SmallRegistry, json_service

GUID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
ORDER = {
    "type": "record", "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "paid", "type": ["null", {"type": "record", "name": "Card", "fields": []},
                                  {"type": "record", "name": "Cash",
                                   "fields": [{"name": "coins", "type": "bytes"}]}]},
    ],
}  # fmt: skip
PROTO = """syntax = "proto3"; package shop; import "money.proto"; import "confluent/type/decimal.proto";
message Order { int64 id = 1; Money price = 2; message Line { string text = 1; } }"""
MONEY = 'syntax = "proto3"; package shop; message Money { int32 cents = 1; }'


def avro(schema: Any, value: object) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), value)
    return target.getvalue()


def decoded(
    kind: str, schema: object, data: bytes, *place: int, imports: tuple[tuple[str, str], ...] = ()
) -> Decoded:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return decode(decoder(kind, text, imports), data, place or (0,))


def test_the_schema_of_a_value_stands_before_it_or_in_a_header() -> None:
    value = b"\0\0\0\1\0abc"
    by_guid = b"\1" + GUID.bytes + b"\0"

    assert framed(value, "value") == Framed(256, b"abc")
    assert framed(value, "value", [("__value_schema_id", by_guid)]) == Framed(str(GUID), value, b"\0")
    assert framed(b"abc", "key", [("__key_schema_id", b"\0\0\0\0\7")]) == Framed(7, b"abc", b"")
    assert framed(b"abc", "value", [("__key_schema_id", b"\0\0\0\0\7")]) is None
    assert framed(None, "value") is framed(b"\0\0\0\1", "value") is None
    assert framed(b"abc", "value", [("__value_schema_id", b"\2zz"), ("__value_schema_id", None)]) is None


def test_the_place_of_a_protobuf_message_is_read_in_its_short_and_its_long_form() -> None:
    assert message_place(b"\0rest") == ((0,), b"rest")
    assert message_place(b"\4\0\2rest") == ((0, 1), b"rest")
    assert Framed(1, b"\4\0\2rest").message() == ((0, 1), b"rest")
    assert Framed("guid", b"rest", b"\2\6").message() == ((3,), b"rest")
    assert Framed(1, b"rest", b"").message() == ((0,), b"rest")
    for bad in (b"", b"\x80", b"\2", b"\1", b"\2\1", b"\xff\xff\xff\xff\xff\xff\x01"):
        with pytest.raises(NotFramed):
            message_place(bad)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_place_or_are_refused(data: bytes) -> None:
    try:
        indexes, rest = message_place(data)
    except NotFramed:
        return
    assert indexes
    assert data.endswith(rest)


def test_avro_is_shown_with_all_digits_dates_decimals_and_names_of_a_union() -> None:
    value = {"id": 2**62 + 1, "at": datetime(2026, 1, 1, tzinfo=UTC), "price": Decimal("12.50"),
             "paid": ("shop.Cash", {"coins": b"\1"})}  # fmt: skip

    shown = decoded("AVRO", ORDER, avro(ORDER, value))

    assert '"id": 4611686018427387905' in shown.text
    assert '"at": "2026-01-01T00:00:00+00:00"' in shown.text
    assert '"price": 12.50' in shown.text
    assert json.loads(shown.text)["paid"] == {"shop.Cash": {"coins": "0x01"}}


def test_avro_out_of_the_range_of_dates_is_shown_as_stored() -> None:
    plain = json.loads(json.dumps(ORDER).replace('"logicalType": "timestamp-millis"', '"doc": "-"'))
    data = avro(plain, {"id": 1, "at": 2**62, "price": Decimal(1), "paid": None})

    shown = decoded("AVRO", ORDER, data)

    assert json.loads(shown.text)["at"] == 2**62
    assert "out of range" in shown.note


@pytest.mark.parametrize("schema", ['"string"', "string", '{"type": "string"}'])
def test_avro_of_a_primitive_type_is_read_however_it_was_registered(schema: str) -> None:
    assert decoded("AVRO", schema, avro("string", "é")).text == '"é"'


def test_avro_of_bytes_is_as_serializers_write_it_without_a_length() -> None:
    assert decoded("AVRO", '"bytes"', b"\1\2").text == '"0x0102"'


def test_avro_with_imports_reads_a_union_of_imported_types() -> None:
    address = (
        "r.Address",
        '{"type": "record", "name": "r.Address", "fields": [{"name": "zip", "type": "int"}]}',
    )

    assert json.loads(decoded("AVRO", '["null", "r.Address"]', b"\2\4", imports=(address,)).text) == {
        "zip": 2
    }


def test_protobuf_is_shown_with_imports_nested_messages_and_unknown_fields() -> None:
    imports = (("money.proto", MONEY),)
    order = decoded(
        "PROTOBUF", PROTO, b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x12\x02\x08\x05", imports=imports
    )
    line = decoded("PROTOBUF", PROTO, b"\x0a\x02hi\x30\x01", 0, 0, imports=imports)

    assert json.loads(order.text) == {"id": "9223372036854775807", "price": {"cents": 5}}
    assert (json.loads(line.text), line.note) == ({"text": "hi"}, "1 fields are not in its schema")


def test_protobuf_that_was_registered_as_a_descriptor_is_read_with_imports_of_both_kinds() -> None:
    def described(source: str, *imports: tuple[str, str]) -> str:
        files = descriptor_pb2.FileDescriptorSet.FromString(file_set(source, imports)).file
        return base64.b64encode(files[-1].SerializeToString()).decode()

    order, money = described(PROTO, ("money.proto", MONEY)), described(MONEY)

    for schema, import_ in ((order, MONEY), (order, money), (PROTO, money)):
        shown = decoded("PROTOBUF", schema, b"\x12\x02\x08\x05", imports=(("money.proto", import_),))
        assert json.loads(shown.text)["price"] == {"cents": 5}


def test_json_is_checked_against_its_schema_with_imports() -> None:
    schema = {"properties": {"n": {"type": "integer"}, "s": {"$ref": "other.json"}}}
    imports = (("other.json", '{"type": "string"}'),)

    assert decoded("JSON", schema, b'{"n": 9007199254740993}', imports=imports).note == ""
    assert (
        "at $.n: 'x' is not of type 'integer'" in decoded("JSON", schema, b'{"n": "x"}', imports=imports).note
    )
    assert "at $.s: 1 is not" in decoded("JSON", schema, b'{"s": 1}', imports=imports).note
    assert "not checked" in decoded("JSON", {"$ref": "http://127.0.0.1:1/x"}, b"{}").note


@pytest.mark.parametrize(
    ("kind", "schema", "data", "words"),
    [
        ("AVRO", ORDER, b"\2", "ends too early"),
        ("AVRO", '"int"', b"\2\2", "1 bytes are left over"),
        ("AVRO", '"nothing"', b"", "the schema cannot be read"),
        ("AVRO", "[" * 5_000, b"", "the schema"),
        ("PROTOBUF", "message {", b"", "cannot be read: schema.proto:1"),
        ("PROTOBUF", 'syntax = "proto3"; import "away.proto";', b"", "away.proto: File not found"),
        ("PROTOBUF", 'syntax = "proto3"; message A {}', b"\xff", "does not fit its schema"),
        ("JSON", "{", b"{}", "the schema cannot be read"),
        ("JSON", "{}", b"{", "does not fit its schema"),
        ("XML", "", b"", "not known here"),
    ],
)
def test_that_which_cannot_be_read_says_why(kind: str, schema: object, data: bytes, words: str) -> None:
    with pytest.raises(Undecodable, match=words):
        decoded(kind, schema, data)


def test_an_import_cannot_name_a_file_elsewhere() -> None:
    for name in ("../x.proto", "/etc/x.proto", "a/../../x.proto", ""):
        with pytest.raises(Undecodable, match="no name of a file"):
            decoded("PROTOBUF", 'syntax = "proto3";', b"", imports=((name, "x"),))


def test_a_deep_value_is_refused_and_odd_numbers_are_text() -> None:
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]

    with pytest.raises(Undecodable, match="more than 100 levels"):
        json_text(deep)
    assert json_text([float("nan"), Decimal("1E+999999"), -0.0]) == '[\n  "nan",\n  "1E+999999",\n  -0.0\n]'


async def test_schemas_and_values_made_to_harm_end_alone() -> None:
    good = Encoded(SchemaText("1", "AVRO", '"string"'), avro("string", "good"))
    endless = SchemaText("2", "AVRO", '{"type": "array", "items": "null"}')
    itself = SchemaText(
        "3", "AVRO", '{"type": "record", "name": "N", "fields": [{"name": "n", "type": "N"}]}'
    )
    values = [good, Encoded(endless, avro("long", 2**61)), good, Encoded(itself, b""), good]

    async with DecodingProcess() as process:
        shown = await process.decode(values)

    assert [shown[index] for index in (0, 2, 4)] == [Decoded('"good"')] * 3
    # Memory or time ends first: memory within the process, or with it.
    ends = ("too large once decoded", "too much memory", "takes more than")
    assert any(end in str(shown[1]) for end in ends), shown[1]
    assert "memory or depth" in str(shown[3]) or "too deep" in str(shown[3])


async def test_a_process_that_ends_again_and_again_is_not_started_for_ever() -> None:
    itself = SchemaText(
        "3", "AVRO", '{"type": "record", "name": "N", "fields": [{"name": "n", "type": "N"}]}'
    )

    async with DecodingProcess() as process:
        shown = await process.decode([Encoded(itself, b"")] * 5)

    assert "open it alone" in str(shown[4])


LARGE = """
import asyncio
from ottla.console.registry.processes import DecodingProcess, Encoded
from ottla.registry.schemas import SchemaText

async def main():
    ballast = b"x" * (260 << 20)
    async with DecodingProcess() as process:
        first = await process.decode([Encoded(SchemaText("1", "AVRO", '"string"'), b"\\x02a")])
        running = process._process._process
        print(*first, *await process.decode([Encoded(SchemaText("1", "AVRO", '"string"'), b"\\x02b")]))
        print(running is not None and process._process._process is running, len(ballast) > 0)

asyncio.run(main())
"""


def test_a_console_that_is_large_itself_decodes_in_one_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LARGE], capture_output=True, text=True, timeout=120, check=False
    )

    assert done.stdout.splitlines() == [
        "Decoded(text='\"a\"', note='') Decoded(text='\"b\"', note='')", "True True"
    ], done.stderr  # fmt: skip


async def test_text_and_size_are_bounded_and_the_process_has_no_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTTLA_TEST_SECRET", "hunter2")
    schema = SchemaText("1", "AVRO", '"string"')

    async with DecodingProcess() as process:
        cut, large = await process.decode(
            [Encoded(schema, avro("string", "x" * 100), most=11), Encoded(schema, bytes(9 << 20))]
        )
        assert process._process._process is not None
        environment = await asyncio.to_thread(
            Path(f"/proc/{process._process._process.pid}/environ").read_bytes
        )

    assert cut == Decoded('"xxxxxxxxxx', "91 letters are not shown")
    assert "more than 8 MiB" in str(large)
    assert b"hunter2" not in environment


# --- with a registry


def record(value: bytes, **more: Any) -> ShownRecord:
    return ShownRecord(0, 0, 0, None, value, **more)


async def rows(
    service: JsonService, records: list[ShownRecord], mask: Mask = NO_MASK, form: Any = "auto"
) -> list[Any]:
    rest = RestClient(Service("schema registry", (service.url,)), answer_s=1)
    async with DecodingProcess() as process:
        registry = Registry(rest, process, lambda: 0.0)
        try:
            return [value for _, _, value in await shown_records(registry, mask, records, form, 4_096)]
        finally:
            await registry.close()


# --- searches


STATED = {
    "type": "record", "name": "S",
    "fields": [{"name": "n", "type": "long"}, {"name": "card", "type": "string"},
               {"name": "state", "type": {"type": "enum", "name": "E", "symbols": ["NEW", "PAID"]}}],
}  # fmt: skip


def schemas_of(asked: list[int | str], *kinds: tuple[str, str]) -> BySchema:
    """Return a reader by the schemas 1, 2, …, and keep in `asked` which it asks for."""

    def ask(schema: int | str) -> SentSchema | None:
        asked.append(schema)
        at = int(schema) - 1
        return (*kinds[at], ()) if at < len(kinds) else None

    return BySchema(ask)


def framed_by(schema: int, data: bytes) -> bytes:
    return bytes([0, 0, 0, 0, schema]) + data


def test_expressions_and_paths_see_the_fields_of_values_by_their_schemas() -> None:
    asked: list[int | str] = []
    line = 'syntax = "proto3"; message Line { string text = 1; int32 n = 2; }'
    reader = schemas_of(asked, ("AVRO", json.dumps(STATED)), ("PROTOBUF", line), ("JSON", "{}"))
    values = [
        framed_by(1, avro(STATED, {"n": 7, "card": "4111", "state": "PAID"})),
        framed_by(2, b"\0\x0a\x02hi\x10\x07"), framed_by(3, b'{"n": 7}'), b'{"n": 7}',
        framed_by(3, b'{"n": 8}'), framed_by(9, b"?"), framed_by(1, b"broken"),
    ]  # fmt: skip

    def found(**wanted: Any) -> tuple[list[int], int]:
        passes = CompiledFilter(Filter(**wanted), reader.text)
        return [at for at, value in enumerate(values) if passes(record(value))], passes.undecided

    assert found(expression="value.n == 7") == ([0, 1, 2, 3], 2)
    assert found(expression='value.state == "PAID"')[0] == [0]
    assert found(place="path", name="$.text", how="is", text="hi")[0] == [1]
    assert found(place="value", text="PAID")[0] == []  # a text is searched in the bytes as they were written
    assert asked == [1, 2, 3, 9]


def test_a_key_by_a_schema_is_read_too() -> None:
    reader = schemas_of([], ("AVRO", '"string"'))
    passes = CompiledFilter(Filter(expression='key == "k1"'), reader.text)

    assert passes(ShownRecord(0, 0, 0, framed_by(1, avro("string", "k1")), None))
    assert passes(ShownRecord(0, 0, 0, b"k1", None))


def test_a_search_of_masked_values_sees_all_but_the_masked_fields_of_a_schema() -> None:
    reader, builder = schemas_of([], ("AVRO", json.dumps(STATED))), BatchBuilder(1 << 20)
    for n in range(3):
        builder.append(None, framed_by(1, avro(STATED, {"n": n, "card": "4111", "state": "NEW"})), 1)
    part = batches(builder.build(base_offset=0))
    assert part is not None

    def found(expression: str) -> list[ShownRecord]:
        passes = CompiledFilter(Filter(expression=expression), reader.text)
        return look_through(Window(Span(0, 0, 3), [part]), passes, Mask(("card",)), reader.readable).found

    (shown,) = found("value.n == 1")
    assert json.loads(shown.value or b"") == {"n": 1, "card": HIDDEN, "state": "NEW"}
    assert found('value.card == "4111"') == []


def test_a_search_asks_for_a_bounded_number_of_schemas() -> None:
    asked: list[int | str] = []
    reader = schemas_of(asked)

    for schema in range(1, 2 * MOST_SCHEMAS):
        assert reader.text(b"\0" + schema.to_bytes(4) + b"x", "value", ()) is None
    assert reader.text(bytes(9), "value", ()) is None

    assert asked == list(range(1, MOST_SCHEMAS + 1))


def test_an_answer_of_the_console_is_read_as_it_was_packed() -> None:
    sent = ("AVRO", "{}", (("a", "{}"), ("b", "{}")))

    assert read_answer(packed_answer(7, sent)[LENGTH.size :]) == (7, sent)
    assert read_answer(packed_answer("guid", None)[LENGTH.size :]) == ("guid", None)


async def test_records_are_shown_by_their_schemas_each_asked_for_once() -> None:
    small = SmallRegistry()
    fields = [{"name": "n", "type": "long"}, {"name": "card", "type": "string"}]
    schema = {"type": "record", "name": "O", "fields": fields}
    order = small.register("orders-value", {"schema": json.dumps(schema)})
    money = small.register("money", {"schema": MONEY, "schemaType": "PROTOBUF"})
    proto = small.register("lines-value", {
        "schema": PROTO, "schemaType": "PROTOBUF", "guid": str(GUID),
        "references": [{"name": "money.proto", "subject": "money", "version": 1}],
    })  # fmt: skip
    data = bytes([0, 0, 0, 0, order]) + b"\x02\x06abc"
    by_header = record(b"\x0a\x02hi", headers=(("__value_schema_id", b"\1" + GUID.bytes + b"\4\0\0"),))

    async with json_service(small) as service:
        shown = await rows(service, [record(data)] * 50 + [by_header, record(b"text"), record(bytes(5))])
        hidden = await rows(service, [record(data)], Mask(fields=("card",)))
        named = await rows(service, [record(b"text"), record(data)], form="registry")

    assert (money, proto) == (2, 3)
    assert (shown[0].form, json.loads(shown[0].text), shown[0].schema) == (
        "avro",
        {"n": 1, "card": "abc"},
        "1",
    )
    assert (shown[50].form, json.loads(shown[50].text)) == ("protobuf", {"text": "hi"})
    assert (shown[51].form, shown[51].note) == ("text", "")
    assert shown[52].form == "hex"
    assert "schema 0: " in shown[52].note
    assert "404" in shown[52].note
    assert "abc" not in hidden[0].text
    assert '"n": 1' in hidden[0].text
    assert (named[0].note, named[1].form) == ("it names no schema", "avro")
    asked = [asked.path for asked in service.asked]
    assert len([path for path in asked if path == "/schemas/ids/1"]) == 3


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(hangs=True), "gave no answer within 1 s"),
        (Answer(raw=b"HTTP/1.1 200 -\r\ncontent-length: 99\r\n\r\n{"), "gave no answer"),
        (Answer(raw=b"no HTTP at all\r\n\r\n"), "gave no answer"),
        (Answer(["something", "else"]), "answers something else"),
        (Answer({"schema": {"no": "text"}}), "answers something else"),
        (Answer({"error_code": 50001, "message": "store\nfailed"}, 500), r"\(500, 50001\): store failed"),
        (Answer(status=302, headers={"location": "http://evil.example/"}), "leads to http://evil.example/"),
        (Answer({"schema": "x"}, headers={"content-encoding": "gzip"}), "compresses its answer"),
        (Answer({"schema": '"int"', "references": [{"name": "a", "subject": "s", "version": 1}]}), "schema"),
    ],
)  # fmt: skip
async def test_a_registry_that_hangs_lies_or_ends_is_named_and_the_value_is_shown(
    answer: Answer, words: str
) -> None:
    async with json_service(lambda _: answer) as service:
        (shown,) = await rows(service, [record(b"\0\0\0\0\1\2")])

    assert shown.form == "hex" or words == "schema"
    if words != "schema":
        assert shown.text.startswith("00000000  00 00 00 00 01 02")
        with pytest.raises(AssertionError, match=words):
            raise AssertionError(shown.note)


async def test_imports_that_go_round_or_never_end_are_bounded() -> None:
    def round_(asked: Any) -> Answer:
        reference = {"name": "same", "subject": "s", "version": 1}
        return Answer({"schema": '"int"', "references": [reference]})

    numbers = iter(range(10_000))

    def endless(asked: Any) -> Answer:
        number = next(numbers)
        return Answer(
            {"schema": '"int"', "references": [{"name": f"n{number}", "subject": "s", "version": 1}]}
        )

    async with json_service(round_) as service:
        (shown,) = await rows(service, [record(b"\0\0\0\0\1\2")])
    async with json_service(endless) as service:
        (refused,) = await rows(service, [record(b"\0\0\0\0\1\2")])

    assert shown.text == "1"
    assert "imports more than 200 others" in refused.note


async def test_values_behind_those_that_took_the_time_of_a_page_are_not_decoded() -> None:
    good = Encoded(SchemaText("1", "AVRO", '"string"'), avro("string", "good"))

    async with DecodingProcess(call_s=0) as process:
        shown = await process.decode([good] * 3)
        alone = await process.decode([good])

    assert [shown[0], *alone] == [Decoded('"good"')] * 2
    assert all("open it alone" in str(late) for late in shown[1:])
