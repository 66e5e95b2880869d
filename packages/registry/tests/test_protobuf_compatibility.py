"""Compatibility of files of Protobuf, and sources made of descriptors."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from ottla.registry.compatibility import protobuf
from ottla.registry.compatibility.bounds import BadSchema
from ottla.registry.protobuf_files import MAIN, descriptors
from ottla.registry.server.protobuf_process import answer


def schema(body: str) -> protobuf.ProtobufSchema:
    files = descriptors(f'syntax = "proto3"; package shop; {body}', ())
    return protobuf.schema_of(next(file for file in files if file.name == MAIN))


def found(reader: str, writer: str) -> list[str]:
    return protobuf.incompatibilities(schema(reader), schema(writer))


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        ("message A { int64 x = 1; }", "message A { int32 y = 1; }"),
        ("message A { E x = 1; } enum E { U = 0; }", "message A { int32 x = 1; }"),
        ("message A { bytes x = 1; }", "message A { string x = 1; }"),
        ("message A { repeated string x = 1; }", "message A { string x = 1; }"),
        ("message A { }", "message A { int32 x = 1; }"), ("message A { int32 x = 1; } message B { }",
         "message A { }"),
        ("message A { map<string, int64> m = 1; }", "message A { map<string, int32> m = 1; }"),
        ("message A { oneof o { int32 x = 1; } }", "message A { int32 x = 1; }"),
        ("message A { sint64 x = 1; }", "message A { sint32 x = 1; }"),
    ],
)  # fmt: skip
def test_a_reader_reads_messages_with_the_same_bytes(reader: str, writer: str) -> None:
    assert found(reader, writer) == []


@pytest.mark.parametrize(
    ("reader", "writer", "words"),
    [
        ("message A { string x = 1; }", "message A { int32 x = 1; }",
         "A.x (1): the type changed from int32 to string"),
        ("message A { sint32 x = 1; }", "message A { int32 x = 1; }", "from int32 to sint32"),
        ("message A { repeated int32 x = 1; }", "message A { int32 x = 1; }", "became repeated"),
        ("message B { }", "message A { }", "A: the reader has no such message"),
        ("message A { }", "message A { message I { } }", "A.I: the reader has no such message"),
        ("message A { B x = 1; } message B {} message C {}",
         "message A { C x = 1; } message B {} message C {}", ".shop.C to .shop.B"),
        ("message A { oneof o { int32 x = 1; } }", "message A { oneof o { int32 x = 1; int32 y = 2; } }",
         "lost the fields 2"),
        ("message A { oneof o { int32 x = 1; int32 y = 2; } }", "message A { int32 x = 1; int32 y = 2; }",
         "1, 2 moved into one oneof"),
        ("message A { oneof o { int32 x = 1; int32 y = 2; } }",
         "message A { int32 x = 1; oneof o { int32 y = 2; } }", "1 moved into a oneof that was there"),
        ("message A { map<string, string> m = 1; }", "message A { map<string, int32> m = 1; }",
         "map<string, int32> to map<string, string>"),
    ],
)  # fmt: skip
def test_a_reader_that_cannot_read_says_where(reader: str, writer: str, words: str) -> None:
    messages = found(reader, writer)

    assert any(words in message for message in messages), messages


SOURCE = """syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto";
import "confluent/meta.proto";
option java_package = "a\\"b";
message A { option deprecated = true; int64 x = 1 [(confluent.field_meta) = {doc: "d", tags: ["PII"]},
 json_name = "other"];
  map<string, B> m = 2; oneof o { string q = 3; int32 z = 4; } optional int32 p = 5;
  message B { google.protobuf.Timestamp t = 1; repeated int32 r = 2 [packed = false]; reserved 5 to 9,
   12 to max; reserved "foo"; }
  enum E { option allow_alias = true; U = 0; V = 0; reserved 4, 6 to max; } }
service S { rpc X(A) returns (stream A) { option deprecated = true; } }
"""
OLD = """syntax = "proto2"; message A { required int32 x = 1 [default = 5];
  optional group G = 2 { optional string s = 1 [default = "a\\"b\\n\\303\\244"]; } extensions 100 to max;
  optional bytes b = 4 [default = "\\001\\377"]; optional float f = 5 [default = inf];
  repeated int32 n = 6 [packed = true]; }
extend A { optional int32 ext = 100; }
"""


@pytest.mark.parametrize("source", [SOURCE, OLD], ids=["proto3", "proto2"])
def test_the_source_of_a_descriptor_compiles_into_the_same_descriptor(source: str) -> None:
    first: dict[str, Any] = answer((source, []))
    again = answer((first["text"], []))
    encoded = answer((base64.b64encode(first["descriptor"]).decode(), []))

    assert again == first
    assert encoded["text"] == first["text"]


def test_files_are_imported_as_sources_and_as_descriptors() -> None:
    item = 'syntax = "proto3"; package shop; message Item { int32 id = 1; }'
    order = 'syntax = "proto3"; import "item.proto"; message Order { shop.Item item = 1; }'
    described = answer((item, []))["descriptor"]
    file = descriptor_pb2.FileDescriptorProto.FromString(described)
    file.name = "item.proto"
    encoded = base64.b64encode(file.SerializeToString()).decode()

    assert answer((order, [("item.proto", item)])) == answer((order, [("item.proto", encoded)]))
    assert 'import "item.proto"' in answer((order, [("item.proto", item)]))["text"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("message", "cannot be read"), ('syntax = "proto3"; message A { B b = 1; }', '"B" is not defined'),
        ("message A {" * 200 + "}" * 200, "recursion limit"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_file_is_refused_with_the_reason(source: str, words: str) -> None:
    assert words in answer((source, [])).get("error", "")


def test_messages_too_deep_are_refused() -> None:
    deepest = file = descriptor_pb2.FileDescriptorProto()
    message = file.message_type.add(name="A")
    for _ in range(40):
        message = message.nested_type.add(name="A")

    assert deepest is file
    with pytest.raises(BadSchema, match="more than 32 levels"):
        protobuf.schema_of(file)
