"""Verdicts of our registry beside those of Apicurio's, over many pairs of schemas.

They agree for Avro and JSON Schema but for two changes. For files of Protobuf Apicurio has rules of its own;
ours are Confluent's, which look at the bytes of messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import httpx
import pytest

from ottla.registry.testing import RegistryThread
from peers.apicurio import apicurio_registry
from peers.schema_pairs import avro_pairs, json_pairs, protobuf_pairs

JSON_TYPE: Final = {"content-type": "application/json"}
_SAME_BYTES: Final = "the bytes are the same, or are passed over; Apicurio refuses the change"
_LOST: Final = "readers would lose values; Apicurio does not look at it"
OTHERWISE: Final[dict[tuple[str, str], tuple[bool, str]]] = {
    ("JSON", "any property added, open"): (True, "the new property takes anything, as before"),
    ("JSON", "required property with default added, closed"): (True, "readers fill in the default"),
    ("PROTOBUF", "field removed"): (True, _SAME_BYTES),
    ("PROTOBUF", "field removed, number reserved"): (True, _SAME_BYTES),
    ("PROTOBUF", "field renamed"): (True, _SAME_BYTES),
    ("PROTOBUF", "number changed"): (True, _SAME_BYTES),
    ("PROTOBUF", "int32 to int64"): (True, _SAME_BYTES),
    ("PROTOBUF", "int32 to uint32"): (True, _SAME_BYTES),
    ("PROTOBUF", "int32 to bool"): (True, _SAME_BYTES),
    ("PROTOBUF", "fixed32 to sfixed32"): (True, _SAME_BYTES),
    ("PROTOBUF", "string to bytes"): (True, _SAME_BYTES),
    ("PROTOBUF", "enum to int32"): (True, _SAME_BYTES),
    ("PROTOBUF", "string repeated"): (True, _SAME_BYTES),
    ("PROTOBUF", "enum value removed"): (True, _SAME_BYTES),
    ("PROTOBUF", "message removed"): (False, _LOST),
    ("PROTOBUF", "nested message removed"): (False, _LOST),
    ("PROTOBUF", "fields into new oneof"): (False, _LOST),
    ("PROTOBUF", "field into old oneof"): (False, _LOST),
    ("PROTOBUF", "package changed"): (False, _LOST),
}
"""Changes with another verdict of Apicurio's: ours, and why."""


@pytest.fixture(scope="module")
def registries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with apicurio_registry(tmp_path_factory.mktemp("apicurio")) as theirs, RegistryThread() as ours:
        yield ours.url, theirs


def pairs() -> Iterator[tuple[str, str, str, str]]:
    for kind, found in (
        ("AVRO", avro_pairs(2_026, 4)), ("JSON", json_pairs()), ("PROTOBUF", protobuf_pairs()),
    ):  # fmt: skip
        for name, older, newer in found:
            yield kind, name, older, newer


def verdict(http: httpx.Client, url: str, subject: str, kind: str, older: str, newer: str) -> bool:
    def ask(method: str, path: str, body: dict[str, str]) -> httpx.Response:
        answer = http.request(method, f"{url}/{path}", json=body, headers=JSON_TYPE)
        assert answer.status_code == 200, f"{subject}: {answer.text}"
        return answer

    more = {} if kind == "AVRO" else {"schemaType": kind}
    ask("POST", f"subjects/{subject}/versions", {"schema": older, **more})
    ask("PUT", f"config/{subject}", {"compatibility": "BACKWARD"})
    path = f"compatibility/subjects/{subject}/versions/latest"
    return bool(ask("POST", path, {"schema": newer, **more}).json()["is_compatible"])


@pytest.mark.java
@pytest.mark.timeout(600)
def test_verdicts_are_those_of_apicurio_but_for_changes_that_are_named(registries: tuple[str, str]) -> None:
    ours, theirs = registries
    otherwise, compared = {}, 0
    with httpx.Client(timeout=60) as http:
        for number, (kind, name, older, newer) in enumerate(pairs()):
            own = verdict(http, ours, f"subject-{number}", kind, older, newer)
            if own != verdict(http, theirs, f"subject-{number}", kind, older, newer):
                otherwise[kind, name] = own
            compared += 1

    assert compared > 200
    assert otherwise == {change: own for change, (own, _) in OTHERWISE.items()}
