"""Guards of changes: the audit log, tokens of forms, declared rights, and what users may type."""

from __future__ import annotations

import asyncio
import json
import re
import stat
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest

from ottla.admin import Admin
from ottla.client.config import ClientConfig
from ottla.console.app import routes
from ottla.console.changes.plans import Change, ServiceChange
from ottla.console.changes.topics import produce
from ottla.console.logins.access import Need, Role
from ottla.console.logins.gate import Page
from ottla.console.pages.changes import CHANGES
from ottla.console.settings import ClusterSettings
from ottla.console.testing import ORIGIN, do, preview, send, serving
from ottla.console.web.fields import Unclear, settings, signed, time_ms, time_zone, whole


async def test_each_change_stands_in_the_audit_log_without_the_data_of_records(
    console: httpx.AsyncClient, admin: Admin, audit: Path
) -> None:
    await admin.topics.create("audited")
    await do(console, "produce", topic="audited", partition="0", key="secret key", value="secret value")
    await do(console, "create-topic", topic="audited", partitions="1", replicas="1")

    text, mode = await asyncio.to_thread(lambda: (audit.read_text(), audit.stat().st_mode))
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["change"], line["outcome"].split(":")[0]) for line in lines] == [
        ("produce", "begins"),
        ("produce", "The record is at offset 0 of audited-0."),
        ("create-topic", "begins"),
        ("create-topic", "failed"),
    ]
    assert "secret" not in text
    assert stat.S_IMODE(mode) == 0o600


SECRET = "s3cret"
FORMS: dict[str, dict[str, str]] = {
    "create-topic": {"topic": "t", "partitions": "0", "replicas": "1", "settings": "retention.ms=7"},
    "add-partitions": {"topic": "t", "total": "2"},
    "set-topic-setting": {"topic": "t", "key": "retention.ms", "value": "7"},
    "copy-settings": {"topic": "t", "other": "u"},
    "delete-records": {"topic": "t", "partition": "0", "before": "1"},
    "delete-topic": {"topic": "t"},
    "produce": {"topic": "t", "partition": "0", "key": SECRET, "value": SECRET, "headers": f"a={SECRET}"},
    "reset-group": {"group": "g", "topic": "t", "to": "the end"},
    "delete-group": {"group": "g"},
    "reassign": {"lines": "t:0=1"},
    "cancel-reassignment": {"partition": "t:0"},
    "elect-preferred": {"topic": "t"},
    "abort-transaction": {"topic": "t", "partition": "0", "offset": "0"},
    "set-broker-setting": {"broker": "all brokers", "key": "broker.id", "value": "7"},
    "register-schema": {"subject": "s", "kind": "AVRO", "schema": '"string"'},
    "set-compatibility": {"subject": "s", "level": "NONE"},
    "delete-subject": {"subject": "s", "version": "1"},
    "create-connector": {"connect": "connect", "name": "c", "config": f"password={SECRET}"},
    "set-connector-setting": {"connect": "connect", "name": "c", "key": "password", "value": SECRET},
    "pause-connector": {"connect": "connect", "name": "c"},
    "resume-connector": {"connect": "connect", "name": "c"},
    "stop-connector": {"connect": "connect", "name": "c"},
    "restart-connector": {"connect": "connect", "name": "c", "parts": "the connector"},
    "restart-task": {"connect": "connect", "name": "c", "task": "0"},
    "delete-connector": {"connect": "connect", "name": "c"},
}


async def test_the_audit_log_has_the_arguments_and_the_outcome_of_every_change_and_no_secrets(
    console: httpx.AsyncClient, admin: Admin, audit: Path
) -> None:
    assert FORMS.keys() == CHANGES.keys()
    for topic in ("t", "u"):
        await admin.topics.create(topic)
    shown = await preview(console, "create-topic", topic="t", partitions="1", replicas="1")
    for change, form in FORMS.items():
        await send(console, change, shown, **form)
    forged = {"topic": "t", "token": "x", "n" * 5_000: "v" * 5_000}
    await console.post("/c/local/change/delete-topic", content=urlencode(forged), headers={"origin": ORIGIN})

    text = await asyncio.to_thread(audit.read_text)
    *lines, refused = map(json.loads, text.splitlines())
    outcomes = {line["change"]: line for line in lines}
    assert [line["change"] for line in lines if line["outcome"] != "begins"] == list(FORMS)
    for change, form in FORMS.items():
        line = outcomes[change]
        assert (line["cluster"], line["client"], line["user"]) == ("local", "127.0.0.1", "")
        assert {name: line["form"][name] for name, value in form.items() if SECRET not in value} == {
            name: value for name, value in form.items() if SECRET not in value
        }, change
        assert line["outcome"] not in ("", "begins"), line
        assert "form" not in line["outcome"], line
    assert SECRET not in text
    assert refused["outcome"].startswith("refused: the form is not one of this console's")
    assert len(text.splitlines()[-1]) < 1_000


async def test_a_form_of_another_site_or_another_browser_changes_nothing(
    console: httpx.AsyncClient, admin: Admin
) -> None:
    await admin.topics.create("kept")
    text = await preview(console, "delete-topic", topic="kept")
    token = re.search(r'name="token" value="(\w+)"', text)
    assert token is not None
    form = urlencode({"topic": "kept", "typed": "kept", "token": token[1]})

    foreign = await console.post(
        "/c/local/change/delete-topic", content=form, headers={"origin": "http://evil"}
    )
    no_token = await console.post("/c/local/change/delete-topic", content=form.replace(token[1], "0" * 64))
    console.cookies.clear()
    other = await console.post("/c/local/change/delete-topic", content=form)
    large = await console.post("/c/local/change/delete-topic", content=b"x" * (5 << 20))

    assert [answer.status_code for answer in (foreign, no_token, other, large)] == [403, 403, 403, 413]
    await admin.topics.describe("kept")


async def test_a_console_that_only_reads_has_no_changes(address: str) -> None:
    async with serving(ClusterSettings("local", address, ClientConfig)) as console:
        shown = await console.get("/c/local/change/create-topic")
        posted = await console.post("/c/local/change/create-topic", content="topic=x")
        topics = await console.get("/c/local/topics")

    assert (shown.status_code, posted.status_code) == (403, 403)
    assert "--allow-changes" in shown.text
    assert "Create a topic" not in topics.text


def test_what_users_type_is_read_or_refused_with_the_way_out() -> None:
    assert (whole(" 7 ", "n"), signed("-3", "n"), time_ms("1970-01-01T01:00+01:00")) == (7, -3, 0)
    assert time_ms("1970-01-01T01:00", time_zone("Europe/Berlin")) == 0
    assert time_ms("1970-01-01T01:00+01:00", time_zone("Asia/Tokyo")) == 0
    assert settings("a=1\n\n b = c=d \n") == {"a": "1", "b": "c=d"}
    for text in ("-1", "9" * 30, "1.0", ""):
        with pytest.raises(Unclear, match="n must be a whole number"):
            whole(text, "n")
    with pytest.raises(Unclear, match="n must be a whole number"):
        signed("--1", "n")
    with pytest.raises(Unclear, match="KEY=VALUE"):
        settings("novalue")


async def test_data_of_records_are_previewed_without_standing_in_an_address(
    console: httpx.AsyncClient, admin: Admin, audit: Path
) -> None:
    await admin.topics.create("private")
    opened = await preview(console, "produce", topic="private")
    form = {"preview": "1", "topic": "private", "partition": "0", "value": "secret<1>"}
    forged = await console.post("/c/local/change/produce", content=urlencode(form))
    shown = await send(console, "produce", opened, **form)
    sent = await send(console, "produce", shown.text, topic="private", partition="0", value="secret<1>")

    assert '<form class="search change" method="post" action="/c/local/change/produce">' in opened
    assert (forged.status_code, "secret" in forged.text) == (403, False)
    assert "Topic private gets a record with 9 bytes." in shown.text
    assert "secret&lt;1&gt;" in shown.text
    assert "The record is at offset 0 of private-0." in sent.text


def test_every_change_declares_the_right_that_it_needs() -> None:
    assert all(isinstance(change, Change | ServiceChange) for change in CHANGES.values())
    assert CHANGES["delete-topic"].need("prod", {"topic": "a "}) == Need(Role.ADMINISTRATOR, "prod", "a")
    assert CHANGES["reset-group"].need("prod", {"group": "g", "": "x"}) == Need(
        Role.OPERATOR, "prod", group="g"
    )
    assert Change(produce, Role.OPERATOR).need("prod", {"": "x"}).is_whole
    assert CHANGES["register-schema"].need("prod", {"subject": "x"}).is_whole


def test_every_route_declares_the_right_that_it_needs() -> None:
    found = routes()

    assert [route.path for route in found if not isinstance(route, Page)] == ["/static"]
    pages = {route.path: route for route in found if isinstance(route, Page)}
    open_to_all = [
        path
        for path, page in pages.items()
        if page.needs({"cluster": "c", "topic": "t", "change": "x"}, {}) is None
    ]
    assert open_to_all == ["/health", "/login", "/login/oidc", "/login/oidc/callback", "/logout"]
    for path, page in pages.items():
        need = page.needs({"cluster": "c", "topic": "t", "change": "x"}, {"name": "g"})
        if need is not None:
            assert need.cluster == ("c" if "{cluster}" in path else None), path
            assert need.topic == ("t" if "{topic}" in path else None), path


@pytest.mark.parametrize("at", ["2026-10-25T02:30", "2026-03-29T02:30"])
def test_a_time_that_the_clocks_make_twice_or_leave_out_wants_its_offset(at: str) -> None:
    berlin = time_zone("Europe/Berlin")

    with pytest.raises(Unclear, match=r"\+02:00.*write one of these|\+01:00.*write one of these"):
        time_ms(at, berlin)
    assert time_ms(f"{at}+01:00", berlin) == time_ms(f"{at}+01:00")
    with pytest.raises(Unclear, match="is no time zone"):
        time_zone("Middle/Earth")
