"""The registry's interface, asked by Confluent's client and by plain requests, with its codes."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from httpx import ASGITransport, AsyncClient

from ottla.registry.server.app import application
from ottla.registry.server.parsing import SchemaParser
from ottla.registry.server.service import PAGE_NAMES, RegistryService
from ottla.registry.server.serving import MemoryStore
from ottla.registry.server.state import RegistryState, SchemaValue, schema_record

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of libraries that the client uses
    from confluent_kafka.schema_registry import (
        Schema,
        SchemaReference,
        SchemaRegistryClient,
        SchemaRegistryError,
    )

JSON_TYPE = {"content-type": "application/json"}
MANY = 20_000


@pytest.fixture
def client(registry_url: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry_url}) as client:
        yield client


@pytest.fixture
def http(registry_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=registry_url, timeout=30) as client:
        yield client


def avro(*fields: str, kind: str = "string", name: str = "Order", default: bool = True) -> Schema:
    more = {"default": ""} if default else {}
    listed = [{"name": field, "type": kind, **more} for field in fields]
    return Schema(json.dumps({"type": "record", "name": name, "fields": listed}), "AVRO")


def code_of(call: Callable[[], Any]) -> tuple[int, int]:
    with pytest.raises(SchemaRegistryError) as refused:
        call()
    return refused.value.http_status_code, refused.value.error_code


def test_schemas_are_registered_found_and_deleted(client: SchemaRegistryClient) -> None:
    first = client.register_schema("orders-value", avro("id"))
    same = client.register_schema("other-value", avro("id"))
    second = client.register_schema("orders-value", avro("id", "note"))

    assert first == same
    assert second > first
    assert client.get_versions("orders-value") == [1, 2]
    assert client.get_latest_version("orders-value").schema_id == second
    assert client.lookup_schema("orders-value", avro("id")).version == 1
    assert sorted(client.get_subjects_by_schema_id(first)) == ["orders-value", "other-value"]
    assert [entry.version for entry in client.get_schema_versions(second)] == [2]
    assert client.get_schema_types() == ["JSON", "PROTOBUF", "AVRO"]
    assert client.get_contexts() == ["."]

    assert client.delete_version("orders-value", 1) == 1
    assert client.get_versions("orders-value") == [2]
    assert code_of(lambda: client.delete_version("orders-value", 1)) == (404, 40406)
    assert code_of(lambda: client.delete_version("orders-value", 2, permanent=True)) == (404, 40407)
    assert client.delete_subject("orders-value") == [2]
    assert code_of(lambda: client.delete_subject("orders-value")) == (404, 40404)
    assert client.get_schema(second).schema_str is not None  # records were written by it
    assert client.delete_subject("orders-value", permanent=True) == [1, 2]
    client.clear_caches()
    assert code_of(lambda: client.get_schema(second)) == (404, 40403)
    assert code_of(lambda: client.get_versions("orders-value")) == (404, 40401)
    assert client.register_schema("orders-value", avro("again")) > second


def test_a_guid_finds_the_schema_everywhere(client: SchemaRegistryClient, http: httpx.Client) -> None:
    client.register_schema("guided", avro("guid"))
    guid = client.get_latest_version("guided").guid
    client.clear_caches()

    assert guid is not None
    assert "guid" in (client.get_schema_by_guid(guid).schema_str or "")
    ids = http.get(f"/schemas/guids/{guid}/ids").json()
    assert ids == [{"context": ".", "id": client.get_latest_version("guided").schema_id}]
    assert http.get("/schemas/guids/00000000-0000-0000-0000-000000000000").json()["error_code"] == 40403


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("AVRO", '{"type": "nope"}'), ("AVRO", "{"), ("JSON", '{"type": "nope"}'), ("PROTOBUF", "message"),
        ("AVRO", "[" * 5_000), ("XML", "<a/>"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_schema_is_refused(client: SchemaRegistryClient, kind: str, text: str) -> None:
    assert code_of(lambda: client.register_schema("bad", Schema(text, kind))) == (422, 42201)
    assert "bad" not in client.get_subjects()


def test_levels_hold_for_a_subject_and_else_for_all(client: SchemaRegistryClient, http: httpx.Client) -> None:
    incompatible = avro("id", "more", default=False)
    client.register_schema("levels", avro("id", default=False))

    assert client.get_compatibility() == "BACKWARD"
    assert code_of(lambda: client.get_compatibility("levels")) == (404, 40408)
    assert code_of(lambda: client.register_schema("levels", incompatible)) == (409, 409)
    assert not client.test_compatibility("levels", incompatible)
    verdict = http.post(
        "/compatibility/subjects/levels/versions/latest?verbose=true",
        json={"schema": incompatible.schema_str}, headers=JSON_TYPE,
    ).json()  # fmt: skip
    assert not verdict["is_compatible"]
    assert "'more' has no default" in verdict["messages"][0]

    client.set_compatibility("levels", "FORWARD")
    assert client.get_compatibility("levels") == "FORWARD"
    assert client.test_compatibility("levels", incompatible)
    client.register_schema("levels", incompatible)
    assert http.delete("/config/levels").json() == {"compatibilityLevel": "FORWARD"}
    assert code_of(lambda: client.set_compatibility("levels", "SIDEWAYS")) == (422, 42203)


def test_a_transitive_level_is_about_all_versions(client: SchemaRegistryClient) -> None:
    client.register_schema("transitive", avro("a", default=False))
    client.register_schema("transitive", avro("a", "b", default=True))
    client.register_schema("transitive", avro("b", default=True))
    again = avro("a", "b", kind="int", default=False)

    client.set_compatibility("transitive", "FULL_TRANSITIVE")

    assert code_of(lambda: client.register_schema("transitive", again)) == (409, 409)
    assert not client.test_compatibility_all_versions("transitive", again)


def test_modes_keep_subjects_from_changes_and_take_ids_of_others(
    client: SchemaRegistryClient, http: httpx.Client
) -> None:
    client.register_schema("moded", avro("a"))
    client.update_mode("moded", "READONLY")
    assert client.get_mode("moded") == "READONLY"
    assert code_of(lambda: client.register_schema("moded", avro("a", "b"))) == (422, 42205)
    assert code_of(lambda: client.delete_subject("moded")) == (422, 42205)
    assert client.delete_mode("moded") == "READONLY"
    assert code_of(lambda: client.get_mode("moded")) == (404, 40409)
    assert code_of(lambda: client.update_mode("moded", "IMPORT")) == (422, 42205)
    assert code_of(lambda: client.update_mode("moded", "ANY")) == (422, 42204)

    client.update_mode("imported", "IMPORT")
    body = {"schema": avro("imported").schema_str, "id": 70_000, "version": 7}
    found = http.post("/subjects/imported/versions", json=body, headers=JSON_TYPE).json()
    assert (found["id"], found["version"]) == (70_000, 7)
    other = http.post(
        "/subjects/imported/versions", json={"schema": '"string"', "id": 70_000}, headers=JSON_TYPE
    ).json()
    assert other["error_code"] == 42205
    assert client.register_schema("after-import", avro("after")) == 70_001


def test_imported_schemas_cannot_be_deleted(client: SchemaRegistryClient, http: httpx.Client) -> None:
    client.register_schema("item", avro("id", name="Item"))
    record = {"type": "record", "name": "Basket", "fields": [{"name": "item", "type": "Item"}]}
    schema = Schema(json.dumps(record), "AVRO", [SchemaReference("Item", "item", 1)])

    basket = client.register_schema("basket", schema)

    assert client.get_referenced_by("item", 1) == [basket]
    assert code_of(lambda: client.delete_subject("item")) == (422, 42206)
    assert code_of(lambda: client.delete_version("item", 1)) == (422, 42206)
    missing = Schema(json.dumps(record), "AVRO", [SchemaReference("Item", "item", 9)])
    assert code_of(lambda: client.register_schema("basket", missing)) == (422, 42201)
    client.delete_subject("basket")
    assert client.delete_subject("item") == [1]


def test_contexts_have_ids_of_their_own(client: SchemaRegistryClient, http: httpx.Client) -> None:
    schema_id = client.register_schema(":.lab:orders", avro("lab"))

    assert schema_id == 1
    assert client.get_contexts() == [".", ".lab"]
    assert ":.lab:orders" in client.get_subjects()
    assert http.get("/contexts/.lab/subjects").json() == [":.lab:orders"]
    assert http.get("/contexts/.lab/subjects/orders/versions").json() == [1]
    assert "lab" in http.get("/schemas/ids/1", params={"subject": ":.lab:"}).json()["schema"]
    assert http.get("/subjects", params={"subjectPrefix": ":.lab:"}).json() == [":.lab:orders"]


def test_equal_schemas_are_one_by_their_canonical_text_or_normalized(client: SchemaRegistryClient) -> None:
    first = client.register_schema("equal", Schema('{ "type" : "string" }', "AVRO"))
    assert client.register_schema("equal", Schema('"string"', "AVRO")) == first
    one = client.register_schema("sorted", Schema('{"b": 1, "type": "string", "a": 2}', "JSON"), True)
    assert client.register_schema("sorted", Schema('{"a": 2, "b": 1, "type": "string"}', "JSON"), True) == one


def test_the_latest_version_with_properties_is_found(
    client: SchemaRegistryClient, http: httpx.Client
) -> None:
    for number, major in enumerate(("1", "1", "2")):
        body = {"schema": avro(*"abc"[: number + 1]).schema_str, "metadata": {"properties": {"major": major}}}
        assert http.post("/subjects/meta/versions", json=body, headers=JSON_TYPE).status_code == 200

    assert client.get_latest_with_metadata("meta", {"major": "1"}).version == 2
    assert http.get("/subjects/meta/metadata?key=major&value=3").json()["error_code"] == 40403


def test_settings_of_a_group_compare_within_it(http: httpx.Client) -> None:
    config = {"compatibility": "BACKWARD", "compatibilityGroup": "major"}
    assert http.put("/config/grouped", json=config).json() == config
    assert http.put("/config/grouped", json={"defaultRuleSet": {}}).json()["error_code"] == 42203
    for major, schema in (("1", avro("a", default=False)), ("2", avro("b", default=False))):
        body = {"schema": schema.schema_str, "metadata": {"properties": {"major": major}}}
        assert http.post("/subjects/grouped/versions", json=body, headers=JSON_TYPE).status_code == 200

    assert http.get("/config/grouped").json()["compatibilityGroup"] == "major"
    http.put("/config/grouped", json={"compatibilityGroup": None})
    assert "compatibilityGroup" not in http.get("/config/grouped").json()


def test_an_alias_stands_for_a_subject_in_paths_about_schemas(
    client: SchemaRegistryClient, http: httpx.Client
) -> None:
    schema_id = client.register_schema("real-value", avro("a"))
    client.register_schema(":.lab:real", avro("lab"))
    assert http.put("/config/alias-value", json={"alias": "real-value"}).json() == {"alias": "real-value"}
    http.put("/config/alias-lab", json={"alias": ":.lab:real"})

    found = client.get_latest_version("alias-value")
    assert (found.subject, found.schema_id) == ("real-value", schema_id)
    assert client.lookup_schema("alias-value", avro("a")).version == 1
    assert client.test_compatibility("alias-value", avro("a", "b"))
    client.register_schema("alias-value", avro("a", "b"))
    assert client.get_versions("real-value") == [1, 2]
    assert "lab" in http.get("/schemas/ids/1", params={"subject": "alias-lab"}).json()["schema"]
    assert "alias-value" not in client.get_subjects()
    assert http.get("/config/alias-value").json()["alias"] == "real-value"
    assert http.get("/config/real-value").json()["error_code"] == 40408
    assert http.put("/config/alias-value", json={"alias": "a\nb"}).json()["error_code"] == 42208

    http.put("/config/alias-value", json={"alias": None})
    client.clear_caches()
    assert code_of(lambda: client.get_versions("alias-value")) == (404, 40401)


def test_there_are_no_associations_and_serializers_name_subjects_themselves(
    client: SchemaRegistryClient, http: httpx.Client
) -> None:
    assert client.get_associations_by_resource_name("orders", "-", "topic", ["value"]) == []
    assert http.get("/associations/subjects/orders-value").json() == []
    assert http.get("/associations/resources/id-1").json() == []


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("GET", "/exporters", "mode IMPORT"), ("PUT", "/exporters/e/pause", "mode IMPORT"),
        ("POST", "/associations", "subject_name_strategy"),
        ("PUT", "/associations/resources/r", "subject_name_strategy"),
        ("DELETE", "/associations/resources/r", "subject_name_strategy"),
        ("POST", "/subjects/s/versions/1/tags", "metadata.tags"),
        ("GET", "/catalog/v1/types/tagdefs", "tags"), ("GET", "/dek-registry/v1/keks", "encryption"),
    ],
)  # fmt: skip
def test_parts_that_are_not_served_are_refused_in_one_line(
    http: httpx.Client, method: str, path: str, words: str
) -> None:
    answer = http.request(method, path, json={})

    assert (answer.status_code, answer.json()["error_code"]) == (501, 501)
    assert words in answer.json()["message"]


async def test_others_are_answered_while_a_list_of_many_subjects_is_made() -> None:
    state = RegistryState()
    for number in range(MANY):
        state.apply(*schema_record(SchemaValue(f"subject-{number}", 1, 1, '"string"')))
    state.apply(*schema_record(SchemaValue(":.lab:subject", 1, 1, '"string"')))
    service = RegistryService(state, MemoryStore("memory", state.apply), SchemaParser())
    turns = [0]

    async def turn() -> None:
        while True:
            turns[-1] += 1
            await asyncio.sleep(0)

    asked = ASGITransport(application(service))
    async with AsyncClient(transport=asked, base_url="http://registry") as http:
        turning = asyncio.ensure_future(turn())
        for path, count in (
            ("/subjects", MANY + 1), ("/subjects?subjectPrefix=:.:subject-1", 11_111),
            ("/subjects?subjectPrefix=:*:subject-19", 1_111), ("/subjects?deletedOnly=true", 0),
            ("/contexts/.lab/subjects", 1), ("/schemas?limit=2000", 2_000), ("/contexts", 2),
        ):  # fmt: skip
            turns.append(0)
            names = (await http.get(path)).json()
            assert len(names) == count, path
        turning.cancel()

    pages = MANY // PAGE_NAMES
    assert [at >= least for at, least in zip(turns[1:], (pages, 2, pages, pages, 0, 20, 0), strict=True)] == [
        True
    ] * 7


def test_names_with_slashes_and_versions_without_sense(
    client: SchemaRegistryClient, http: httpx.Client
) -> None:
    client.register_schema("a/b c%d", avro("x"))

    assert client.get_versions("a/b c%d") == [1]
    assert http.get("/subjects/a%2Fb%20c%25d/versions/1/schema").json()["name"] == "Order"
    for version in ("0", "x", "99999999999", "-2"):
        assert http.get(f"/subjects/a%2Fb%20c%25d/versions/{version}").json()["error_code"] == 42202
    assert http.get("/subjects/a%2Fb%20c%25d/versions/-1").json()["version"] == 1


def test_lists_can_be_read_in_parts(client: SchemaRegistryClient, http: httpx.Client) -> None:
    for number in range(3):
        client.register_schema(f"listed-{number}", avro(f"listed{number}"))

    names = http.get("/subjects", params={"subjectPrefix": "listed", "offset": 1, "limit": 1}).json()
    found = http.get("/schemas", params={"subjectPrefix": "listed", "latestOnly": "true"}).json()

    assert names == ["listed-1"]
    assert [entry["subject"] for entry in found] == ["listed-0", "listed-1", "listed-2"]
    assert {"id", "version", "schema", "guid"} <= found[0].keys()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200), ("GET", "/nowhere", 404), ("PATCH", "/subjects", 405), ("GET", "/subjects/", 200),
        ("GET", "/schemas/ids/x", 404), ("GET", "/v1/metadata/version", 200), ("GET", "/v1/metadata/id", 200),
        ("HEAD", "/subjects", 200), ("GET", "/mode/none?defaultToGlobal=true", 200), ("GET", "/mode", 200),
    ],
)  # fmt: skip
def test_paths_have_the_status_of_confluents(http: httpx.Client, method: str, path: str, status: int) -> None:
    assert http.request(method, path).status_code == status
