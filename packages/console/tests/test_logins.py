"""Logins: the file of users, sessions and their bounds, brute force, and that which each person may see."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from argon2 import PasswordHasher
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from ottla.admin import Admin
from ottla.client.config import ClientConfig
from ottla.console.logins.access import Grant, Role
from ottla.console.logins.authenticator import Authenticator
from ottla.console.logins.files import (
    Token,
    with_token,
    without,
)
from ottla.console.pages.changes import read_form
from ottla.console.settings import ClusterSettings
from ottla.console.testing import ORIGIN, serving
from ottla.console.watch.rule_files import Rule
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition

PASSWORD = "correct horse"
CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(PASSWORD)
"""The cost stands in the hash: tests need none."""
PATH = Path("console.toml")
HTML = {"accept": "text/html"}
RULES = (Rule("payments away", "unreachable"),)


def file_of(folder: Path) -> Path:
    """Write a file with an administrator, an operator of orders, and a viewer; and a mask of card numbers."""
    path = folder / "console.toml"
    path.touch(mode=0o600)
    path.write_text(
        "".join(
            f'[[user]]\nname = "{name}"\npassword = "{CHEAP}"\n{grant}\n'
            for name, grant in (
                ("root", 'role = "administrator"'),
                ("oskar", 'role = "operator"\ntopics = ["orders*"]\ngroups = ["billing"]'),
                ("vera", 'role = "viewer"'),
                ("xaver", 'role = "administrator"\nclusters = ["other"]'),
            )
        )
        + '[[mask]]\ntopics = ["orders*"]\nfields = ["card"]\nheaders = ["auth*"]\n'
    )
    return path


@pytest.fixture
def logins(tmp_path: Path) -> Path:
    return file_of(tmp_path)


@pytest.fixture
async def console(
    address: str, admin: Admin, logins: Path, tmp_path: Path
) -> AsyncIterator[httpx.AsyncClient]:
    await prepared(admin, address)
    clusters = [ClusterSettings(name, address, ClientConfig) for name in ("local", "other")]
    audit = tmp_path / "audit.jsonl"
    async with serving(*clusters, allows_changes=True, logins=logins, audit=audit, rules=RULES) as client:
        yield client


async def log_in(
    console: httpx.AsyncClient, user: str, password: str = PASSWORD, then: str = ""
) -> httpx.Response:
    """Open the form of the login as a browser does, and send it."""
    console.cookies.clear()
    return await send_login(console, user, password, then)


async def send_login(
    console: httpx.AsyncClient, user: str, password: str = PASSWORD, then: str = ""
) -> httpx.Response:
    shown = await console.get("/login", params={"next": then})
    form = {"user": user, "password": password, "next": then, "token": token_in(shown)}
    return await console.post("/login", content=urlencode(form), headers={"origin": ORIGIN})


def token_in(page: httpx.Response) -> str:
    found = re.search(r'name="token" value="(\w+)"', page.text)
    assert found is not None, page.text
    return found[1]


# --- the pages


async def test_a_stranger_is_sent_to_the_login_and_comes_back_to_the_page(console: httpx.AsyncClient) -> None:
    page = await console.get("/c/local/topics?q=a", headers=HTML)
    shown_by_browser = {"hx-request": "true", "hx-current-url": f"{ORIGIN}/c/local/topics?q=a"}
    live = await console.get("/c/local/topics", headers=shown_by_browser)
    program = await console.get("/metrics")
    done = await log_in(console, "vera", then="/c/local/topics?q=a")

    assert (page.status_code, page.headers["location"]) == (303, "/login?next=%2Fc%2Flocal%2Ftopics%3Fq%3Da")
    assert (live.status_code, live.headers["hx-redirect"]) == (401, page.headers["location"])
    assert (program.status_code, program.headers["www-authenticate"]) == (401, "Bearer")
    assert (done.status_code, done.headers["location"]) == (303, "/c/local/topics?q=a")
    shown = await console.get("/c/local/topics", headers=HTML)
    assert shown.status_code == 200
    assert "<b>vera</b>" in shown.text
    assert 'action="/logout"' in shown.text


@pytest.mark.parametrize(
    "then",
    ["//evil.example/", "https://evil.example", "/\\evil.example", "\\/evil", "/a\nb", "javascript:x", ""],
)
async def test_the_way_back_from_the_login_leads_to_no_other_host(
    console: httpx.AsyncClient, then: str
) -> None:
    assert (await log_in(console, "vera", then=then)).headers["location"] == "/"


async def test_a_session_is_another_one_after_the_login_and_ends_with_the_logout(
    console: httpx.AsyncClient,
) -> None:
    console.cookies.set("ottla_session", "chosen-by-an-attacker", domain="127.0.0.1")
    assert (await console.get("/c/local/topics", headers=HTML)).status_code == 303
    await send_login(console, "vera")
    first = [cookie.value for cookie in console.cookies.jar if cookie.name == "ottla_session"]
    page = await console.get("/c/local/topics")
    again = await send_login(console, "vera")
    second = [cookie.value for cookie in console.cookies.jar if cookie.name == "ottla_session"]

    assert "chosen-by-an-attacker" not in first
    assert again.status_code == 303
    assert first != second
    assert "HttpOnly; Path=/; SameSite=lax" in again.headers["set-cookie"]
    stale = await console.post("/logout", content=f"token={token_in(page)}", headers={"origin": ORIGIN})
    assert stale.status_code == 403
    old = await console.get("/c/local/topics", headers={"cookie": f"ottla_session={first[0]}"})
    assert old.status_code in (303, 401)

    token = token_in(await console.get("/c/local/topics"))
    left = await console.post("/logout", content=f"token={token}", headers={"origin": ORIGIN})
    assert (left.status_code, left.headers["location"]) == (303, "/login?left=1")
    gone = await console.get("/c/local/topics", headers={"cookie": f"ottla_session={second[-1]}"})
    assert gone.status_code == 401


async def test_a_login_without_its_form_or_from_another_site_is_refused(console: httpx.AsyncClient) -> None:
    form = urlencode({"user": "vera", "password": PASSWORD})
    forged = await console.post("/login", content=form, headers={"origin": ORIGIN})
    foreign = await console.post("/login", content=form, headers={"origin": "http://evil.example"})

    assert (forged.status_code, foreign.status_code) == (403, 403)
    assert "ottla_session" not in console.cookies


async def test_headers_that_no_browser_sends_are_refused_and_raise_nothing(
    console: httpx.AsyncClient,
) -> None:
    shown = {"hx-request": "true", "hx-current-url": "http://["}
    live = await console.get("/c/local/topics", headers=shown)
    posted = await console.post("/login", content="", headers={"origin": "http://["})

    assert (live.status_code, live.headers["hx-redirect"]) == (401, "/login?next=")
    assert posted.status_code == 403


async def test_a_stranger_may_send_little_and_must_not_wait(console: httpx.AsyncClient) -> None:
    long = await console.post("/login", content="user=" + "a" * 20_000, headers={"origin": ORIGIN})

    async def never() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(HTTPException, match="408"):
        await read_form(Request({"type": "http"}, never), most_s=0.01)
    assert long.status_code == 413


async def test_brute_force_is_refused_and_logged(
    console: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [await log_in(console, "vera", f"guess {number}") for number in range(12)]

    assert [answer.status_code for answer in answers] == [401] * 10 + [429] * 2
    assert int(answers[-1].headers["retry-after"]) in range(1, 31)
    assert "The name or the password is wrong." in answers[0].text
    assert (await log_in(console, "vera")).status_code == 429
    lines = [line for line in caplog.records if line.message == "a login is refused"]
    assert len(lines) == 13
    assert {getattr(line, "user", "") for line in lines} == {"vera"}
    assert all("guess" not in str(vars(line)) for line in lines)


async def prepared(admin: Admin, address: str) -> None:
    """Create topics, a group and a record, once."""
    if "payments" not in {topic.name for topic in await admin.topics.list()}:
        await admin.topics.create("orders")
        await admin.topics.create("payments")
        for group, topic in (("billing", "orders"), ("audit", "payments")):
            await admin.groups.commit(group, {TopicPartition(topic, 0): 0})
        await admin.groups.commit("billing", {TopicPartition("payments", 0): 0})
        async with Producer(bootstrap_servers=address) as producer:
            await producer.send_and_wait(
                "orders", b'{"card": "4111", "sum": 7}', partition=0, headers=[("Authorization", b"hunter2")]
            )


async def test_names_that_a_person_may_not_see_appear_nowhere(
    console: httpx.AsyncClient,
) -> None:
    await log_in(console, "oskar")
    paths = (
        "/", "/c/local/", "/c/local/topics", "/c/local/topics?internal=1&q=pay", "/c/local/topics/orders",
        "/c/local/groups", "/c/local/group?name=billing", "/alerts", "/metrics",
        "/c/local/change/reset-group?group=billing", "/c/local/topics/orders/records", "/c/local/streams",
    )  # fmt: skip
    texts = {path: (await console.get(path, headers=HTML)).text for path in paths}

    assert [path for path, text in texts.items() if "payments" in text or "audit" in text] == []
    assert "orders" in texts["/c/local/topics"]
    assert "billing" in texts["/c/local/groups"]
    assert "orders-0" in texts["/c/local/group?name=billing"]
    links = set(re.findall(r'href="(/c/local/[a-z]+)"', texts["/c/local/"]))
    statuses = {link: (await console.get(link, headers=HTML)).status_code for link in links}
    assert set(statuses.values()) == {200}, statuses


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/c/local/topics/payments", 404), ("/c/local/topics/payments/records", 404),
        ("/c/local/topics/payments/record?partition=0&offset=0", 404), ("/c/local/group?name=audit", 404),
        ("/c/local/points?kind=lag&name=audit", 404), ("/c/local/points?kind=ends&name=payments", 404),
        ("/c/local/settings", 403), ("/c/local/access", 403), ("/c/local/transactions", 403),
        ("/c/local/change/delete-topic?topic=orders", 403),
        ("/c/local/change/delete-topic?topic=payments", 404),
        ("/c/local/change/produce?topic=payments", 404), ("/c/local/change/produce?topic=orders", 200),
        ("/c/local/change/reset-group?group=billing", 403), ("/c/nowhere/", 404),
    ],
)  # fmt: skip
async def test_what_a_person_may_not_see_is_not_there_and_what_they_may_not_do_is_refused(
    console: httpx.AsyncClient, path: str, status: int
) -> None:
    await log_in(console, "oskar")

    answer = await console.get(path, headers=HTML)

    assert answer.status_code == status
    if status == 404 and "topics/" in path:
        missing = await console.get(path.replace("payments", "p-none"), headers=HTML)
        assert missing.text.replace("p-none", "payments") == answer.text


async def test_a_copy_of_settings_does_not_say_which_hidden_topics_there_are(
    console: httpx.AsyncClient,
) -> None:
    await log_in(console, "oskar")
    path = "/c/local/change/copy-settings?other=orders&topic="

    hidden = await console.get(f"{path}payments", headers=HTML)
    missing = await console.get(f"{path}p-none", headers=HTML)

    assert (hidden.status_code, missing.status_code) == (404, 404)
    assert missing.text.replace("p-none", "payments") == hidden.text
    assert (await console.get(f"{path}orders", headers=HTML)).status_code == 200


async def test_clusters_of_other_people_are_not_there(console: httpx.AsyncClient) -> None:
    await log_in(console, "xaver")
    home = await console.get("/", headers=HTML)
    hidden, unknown = [await console.get(f"/c/{name}/", headers=HTML) for name in ("local", "none")]

    assert home.headers["location"] == "/c/other/"
    assert hidden.status_code == unknown.status_code == 404
    assert hidden.text.replace("local", "none") == unknown.text


async def test_a_viewer_changes_nothing_and_the_audit_log_names_the_people(
    console: httpx.AsyncClient, tmp_path: Path
) -> None:
    form = {"topic": "orders", "partition": "0", "value": "v"}
    for user in ("vera", "oskar"):
        await log_in(console, user)
        topic = await console.get("/c/local/topics/orders")
        assert ("Produce a record" in topic.text) == (user == "oskar")
        assert "Delete the topic" not in topic.text
        token = re.findall(r'name="token" value="(\w+)"', topic.text)[-1]
        answer = await console.post(
            "/c/local/change/produce", content=urlencode({**form, "token": token}), headers={"origin": ORIGIN}
        )
        assert answer.status_code == (200 if user == "oskar" else 403)

    lines = (await asyncio.to_thread((tmp_path / "audit.jsonl").read_text)).splitlines()
    assert len(lines) == 3
    who = '"user": "vera", "identity": "user:vera", "client": "127.0.0.1"'
    assert f'{who}, "cluster": "local", "change": "produce"' in lines[0]
    assert '"outcome": "refused: ' in lines[0]
    assert '"user": "oskar"' in lines[1]


async def test_masked_parts_of_records_reach_only_those_who_may_read_them(
    console: httpx.AsyncClient,
) -> None:
    paths = (
        "records", "records?form=hex", "record?partition=0&offset=0", "record?partition=0&offset=0&form=hex",
        "record?partition=0&offset=0&download=value",
    )  # fmt: skip
    for user in ("vera", "oskar", "root"):
        await log_in(console, user)
        pages = [(await console.get(f"/c/local/topics/orders/{path}")).text for path in paths]
        sees = user == "root"
        assert [("4111" in page or "34 31 31 31" in page) for page in pages] == [sees] * 5, user
        assert ["sum" in page or "73 75 6d" in page for page in pages] == [True] * 5
        assert ("hunter2" in pages[2]) == sees
        assert ("Edit it and send it again" in pages[2]) == sees


async def test_a_masked_header_hides_the_cause_of_a_dead_letter_too(
    console: httpx.AsyncClient, logins: Path, address: str
) -> None:
    authenticator: Authenticator = state_of(console).authenticator
    text = await asyncio.to_thread(logins.read_text)
    mask = '[[mask]]\ntopics = ["dead-cause"]\nheaders = ["dead-reason"]\n'
    await write_and_read(authenticator, logins, text + mask)
    async with Admin(address) as admin:
        await admin.topics.create("dead-cause")
    async with Producer(bootstrap_servers=address) as producer:
        headers = [("dead-topic", b"orders"), ("dead-reason", b"cannot read 4111")]
        await producer.send_and_wait("dead-cause", b"{}", partition=0, headers=headers)

    pages = {}
    for user in ("vera", "root"):
        await log_in(console, user)
        pages[user] = (await console.get("/c/local/topics/dead-cause/dead-letters")).text

    assert {user: "cannot read 4111" in page for user, page in pages.items()} == {"vera": False, "root": True}
    assert "orders" in pages["vera"]


async def test_no_view_of_a_dead_letter_shows_what_is_masked_where_it_comes_from(
    console: httpx.AsyncClient, address: str
) -> None:
    headers = [("dead-topic", b"orders"), ("dead-partition", b"0"), ("dead-offset", b"0"),
               ("dead-reason", b"cannot read 4111"), ("authorization", b"hunter2")]  # fmt: skip
    async with Admin(address) as admin:
        await admin.topics.create("failed")
    async with Producer(bootstrap_servers=address) as producer:
        for _ in range(2):
            value = b'{"card": "4111", "sum": 7}'
            await producer.send_and_wait("failed", value, partition=0, headers=headers)
    paths = (
        "records", "records?form=hex", "records?where=offset%20>=%200&plain=1", "record?partition=0&offset=0",
        "record?partition=0&offset=0&form=hex", "record?partition=0&offset=0&download=value",
        "record?partition=0&offset=0&show=value", "dead-letters", "compare?a=0-0&b=0-1",
        "records/export?format=csv", "records/export?format=jsonl", "records/events?find=sum",
    )  # fmt: skip

    for user in ("vera", "root"):
        await log_in(console, user)
        pages = [(await console.get(f"/c/local/topics/failed/{path}")).text for path in paths]
        sees = user == "root"
        leaks = [re.search("4111|34 31 31 31|hunter2", page) is not None for page in pages]
        assert leaks == [sees] * len(paths), (user, leaks)
        assert all(re.search("sum|73 75 6d", page) for page in pages), user
        assert ("hidden: the topic&#39;s values are masked" in pages[7]) != sees
        assert ("Edit it and send it to orders again" in pages[7]) == sees
        found = await console.get("/c/local/topics/failed/records/export?format=jsonl&find=4111")
        assert found.text.count("\n") == (2 if sees else 0)


async def test_a_token_reads_and_changes_nothing(
    console: httpx.AsyncClient, logins: Path, admin: Admin
) -> None:

    token = Token("prometheus", hashlib.sha256(b"t0ken").hexdigest(), (Grant(Role.OPERATOR),))
    authenticator: Authenticator = state_of(console).authenticator
    text = await asyncio.to_thread(logins.read_text)
    await write_and_read(authenticator, logins, with_token(text, token))

    found = await console.get("/metrics", headers={"authorization": "Bearer t0ken"})
    wrong = await console.get("/metrics", headers={"authorization": "Bearer token"})
    changed = await console.post(
        "/c/local/change/produce", content="topic=orders", headers={"authorization": "Bearer t0ken"}
    )
    assert (found.status_code, wrong.status_code, changed.status_code) == (200, 401, 401)


async def test_people_lose_their_session_with_their_password_their_role_or_their_entry(
    console: httpx.AsyncClient, logins: Path
) -> None:
    authenticator: Authenticator = state_of(console).authenticator
    other = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("another one")
    text = await asyncio.to_thread(logins.read_text)
    for changed in (text.replace(CHEAP, other), without(text, "user", "vera", logins)):
        await write_and_read(authenticator, logins, text)
        await log_in(console, "vera")
        assert (await console.get("/c/local/topics")).status_code == 200
        await write_and_read(authenticator, logins, changed)
        assert (await console.get("/c/local/topics")).status_code == 401
    await write_and_read(authenticator, logins, text)
    await log_in(console, "root")
    await write_and_read(authenticator, logins, text.replace('"administrator"\n', '"viewer"\n', 1))
    assert (await console.get("/c/local/change/delete-topic?topic=orders")).status_code == 403
    await write_and_read(authenticator, logins, "[[user")
    assert (await console.get("/c/local/topics")).status_code == 200


async def write_and_read(authenticator: Authenticator, path: Path, text: str) -> None:
    await asyncio.to_thread(path.write_text, text)
    await authenticator.read_again()


def state_of(console: httpx.AsyncClient) -> Any:
    """Return the state of the application behind a client of `serving`."""
    return console.app.state  # type: ignore[attr-defined]
