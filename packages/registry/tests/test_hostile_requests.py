"""Requests made to harm: bodies without an end, deep schemas, forms of other pages, names of other hosts."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ottla.client.config_definition import SettingError
from ottla.registry.server.access import users_of
from ottla.registry.server.app import MOST_BODY_BYTES
from ottla.registry.server.serving import RegistrySettings
from ottla.registry.testing import RegistryThread

JSON_TYPE = {"content-type": "application/json"}


@pytest.fixture
def http(registry_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=registry_url, timeout=30) as client:
        yield client


def posted(http: httpx.Client, content: bytes, **headers: str) -> tuple[int, str]:
    answer = http.post("/subjects/x/versions", content=content, headers={**JSON_TYPE, **headers})
    return answer.status_code, answer.json()["message"]


def test_a_body_is_bounded_with_and_without_a_length(http: httpx.Client) -> None:
    large = b"x" * (MOST_BODY_BYTES + 1)

    assert posted(http, large) == (413, "the body has more than 4 MiB")
    chunked = http.post("/subjects/x/versions", content=iter([large]), headers=JSON_TYPE)
    assert chunked.status_code == 413


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("AVRO", '{"type":"array","items":' * 20_000 + '"int"' + "}" * 20_000),
        ("JSON", '{"not":' * 20_000 + "{}" + "}" * 20_000),
        ("PROTOBUF", 'syntax = "proto3";' + "message A {" * 20_000 + "}" * 20_000),
        ("PROTOBUF", 'syntax = "proto3"; import "schema.proto";'),
        ("PROTOBUF", 'syntax = "proto3"; import "../../etc/passwd";'),
        ("AVRO", '"' + "a" * (1 << 20) + '"'),
        ("AVRO", r'{"type": "record", "name": "R", "doc": "\ud800", "fields": []}'),
        ("JSON", r'{"title": "\udfff"}'),
        ("JSON", json.dumps({"$ref": "#/definitions/a", "definitions": {"a": {"$ref": "#/definitions/a"}}})),
    ],
    ids=["deep avro", "deep json", "deep protobuf", "own import", "file", "long", "half", "half", "circle"],
)
def test_a_schema_made_to_harm_is_refused_and_the_registry_goes_on(
    http: httpx.Client, kind: str, text: str
) -> None:
    status, message = posted(http, json.dumps({"schema": text, "schemaType": kind}).encode())

    assert status == 422, message
    assert len(message) < 1_000
    assert http.get("/subjects").status_code == 200


def test_deep_bodies_and_bodies_that_are_no_json_are_refused(http: httpx.Client) -> None:
    assert posted(http, b"[" * 100_000)[0] == 422
    assert posted(http, b"\xff")[0] == 422
    assert posted(http, b'{"schema": 7}')[0] == 422
    assert posted(http, b'{"schema": "\\"string\\"", "id": 2147483648}')[0] == 422
    assert posted(http, b'{"schema": "\\"string\\"", "metadata": ' + b"[" * 5_000)[0] == 422


def test_a_form_of_another_page_changes_nothing(http: httpx.Client) -> None:
    body = json.dumps({"schema": '"string"'}).encode()

    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        assert posted(http, body, **{"content-type": kind})[0] == 415
    assert http.get("/subjects").json() == []


def test_a_registry_of_this_machine_answers_to_its_names_only(http: httpx.Client) -> None:
    assert http.get("/subjects", headers={"host": "evil.example"}).status_code == 421
    assert http.get("/subjects", headers={"host": "localhost:8081"}).status_code == 200
    assert http.get("/subjects", headers={"host": "[::1]:8081"}).status_code == 200


@pytest.mark.parametrize("name", ["", "\n", "a" * 600, "__GLOBAL", "\ue000"])
def test_text_that_is_no_name_is_no_subject(http: httpx.Client, name: str) -> None:
    encoded = "".join(f"%{byte:02x}" for byte in name.encode())
    path = httpx.URL("/").copy_with(raw_path=f"/subjects/{encoded}/versions".encode())

    answer = http.post(path, json={"schema": '"string"'})

    assert answer.status_code in (404, 405, 422)
    assert http.get("/subjects").json() == []


def test_logins_are_asked_for_and_passwords_are_in_no_answer(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("# people\nanna:se:cret\n\n")
    users.chmod(0o600)

    with RegistryThread(users=users) as registry, httpx.Client(base_url=registry.url) as http:
        answers = [
            http.get("/subjects", auth=auth)
            for auth in (None, ("anna", "wrong"), ("bert", ""), ("anna", "se:cret"))
        ]
        broken = http.get("/subjects", headers={b"authorization": b"Basic \xe4"})

    assert [answer.status_code for answer in answers] == [401, 401, 401, 200]
    assert broken.status_code == 401
    assert answers[0].headers["www-authenticate"].startswith("Basic")
    assert all("cret" not in answer.text for answer in answers)


def test_files_of_passwords_that_others_may_read_are_refused(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("anna:secret\n")
    users.chmod(0o644)

    with pytest.raises(SettingError, match="chmod 600") as refused:
        users_of(users)
    assert "secret" not in str(refused.value)
    users.chmod(0o600)
    assert users_of(users) == {"anna": "secret"}
    users.write_text("anna\n")
    with pytest.raises(SettingError, match="line 1"):
        users_of(users)


def test_other_machines_need_tls_and_logins_or_a_clear_word(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="--users and --tls-certificate, or --insecure"):
        RegistrySettings(host="0.0.0.0").check()
    with pytest.raises(SettingError, match="give --tls-certificate, or"):
        RegistrySettings(host="0.0.0.0", users=tmp_path).check()
    RegistrySettings(host="0.0.0.0", users=tmp_path, certificate=tmp_path).check()
    RegistrySettings(host="0.0.0.0", is_insecure=True).check()
    RegistrySettings(host="::1").check()


def test_a_connection_that_asks_for_nothing_is_ended() -> None:
    with RegistryThread(idle_s=0.05) as registry:
        host, _, port = registry.url.removeprefix("http://").partition(":")
        for sent in (b"", b"GET / HTTP/1.1\r\nx: "):
            with socket.create_connection((host, int(port)), timeout=30) as connection:
                connection.sendall(sent)
                assert _rest(connection) == b""


def _rest(connection: socket.socket) -> bytes:
    try:
        return connection.recv(100)
    except ConnectionResetError:
        return b""
