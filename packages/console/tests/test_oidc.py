"""Logins through a provider of OpenID Connect: one that runs, and one that attacks."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey

from ottla.broker.testing import free_port
from ottla.client.config import ClientConfig
from ottla.client.environment import now_ms
from ottla.client.profiles import SecretSource
from ottla.console.logins.access import Grant, Role
from ottla.console.logins.authenticator import Authenticator, LoginRefused
from ottla.console.logins.files import ClaimedGrant, Logins, Provider
from ottla.console.logins.oidc import OpenId, ProviderFailed
from ottla.console.logins.sessions import Person, Sessions
from ottla.console.settings import ClusterSettings
from ottla.console.testing import serving
from peers.oidc_provider import oidc_provider

ISSUER = "https://id.example.com"
BACK = "https://kafka.example.com/login/oidc/callback"
PROVIDER = Provider(
    ISSUER, "console", None, "Example", "openid profile email", "preferred_username", "realm.roles",
    (ClaimedGrant("kafka-admins", Grant(Role.ADMINISTRATOR)),),
)  # fmt: skip


class FakeProvider:
    """A provider that signs whatever claims a test gives it, and checks PKCE as a real one does."""

    def __init__(self) -> None:
        self.key: Any = ECKey.generate_key("P-256", {"kid": "1"})
        self.changes: dict[str, Any] = {}
        self.token: str | None = None
        self.challenge = self.nonce = ""
        self.userinfo: dict[str, Any] = {}
        self.discovery: dict[str, Any] = {
            "issuer": ISSUER, "authorization_endpoint": f"{ISSUER}/authorize",
            "token_endpoint": f"{ISSUER}/token", "jwks_uri": f"{ISSUER}/keys",
            "userinfo_endpoint": f"{ISSUER}/userinfo",
        }  # fmt: skip
        self.asked: list[str] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        """Answer a request of the console."""
        self.asked.append(request.url.path)
        match request.url.path:
            case "/.well-known/openid-configuration":
                return httpx2.Response(200, json=self.discovery)
            case "/token":
                return self._token(parse_qs(request.content.decode()))
            case "/keys":
                return httpx2.Response(200, json={"keys": [self.key.as_dict(private=False)]})
            case "/userinfo":
                assert request.headers["authorization"] == "Bearer a"
                return httpx2.Response(200, json=self.userinfo)
        return httpx2.Response(404)

    def _token(self, form: dict[str, list[str]]) -> httpx2.Response:
        digest = hashlib.sha256(form["code_verifier"][0].encode()).digest()
        if base64.urlsafe_b64encode(digest).decode().rstrip("=") != self.challenge:
            return httpx2.Response(400, json={"error": "invalid_grant"})
        answer = {"access_token": "a", "token_type": "Bearer", "id_token": self.token or self.signed()}
        return httpx2.Response(200, json=answer)

    def claims(self) -> dict[str, Any]:
        """Return the claims of an ID token, with those of the test."""
        now_s = now_ms() // 1_000
        found = {
            "iss": ISSUER, "sub": "4711", "aud": "console", "exp": now_s + 60, "iat": now_s,
            "nonce": self.nonce, "preferred_username": "anna", "realm": {"roles": ["kafka-admins", "other"]},
        } | self.changes  # fmt: skip
        return {name: value for name, value in found.items() if value is not None}

    def signed(self, key: Any = None, algorithm: str = "ES256") -> str:
        """Return a signed ID token."""
        found: str = jwt.encode({"alg": algorithm, "kid": "1"}, self.claims(), key or self.key, [algorithm])
        return found


@pytest.fixture
def fake() -> FakeProvider:
    return FakeProvider()


@pytest.fixture
def openid(fake: FakeProvider) -> OpenId:
    return OpenId(PROVIDER, transport=httpx2.MockTransport(fake))


async def begin(openid: OpenId, fake: FakeProvider) -> tuple[dict[str, str], str]:
    """Begin a login, and return the query of the way back and the cookie."""
    url, cookie = await openid.begin(BACK, "/c/local/")
    query = {name: value[0] for name, value in parse_qs(urlsplit(url).query).items()}
    assert (query["code_challenge_method"], query["redirect_uri"]) == ("S256", BACK)
    fake.challenge, fake.nonce = query["code_challenge"], query["nonce"]
    return {"code": "c0de", "state": query["state"]}, cookie


async def test_a_person_gets_the_roles_of_their_claim(openid: OpenId, fake: FakeProvider) -> None:
    query, cookie = await begin(openid, fake)
    person, then = await openid.finish(query, cookie, BACK)

    assert (person.name, person.way, person.claimed, then) == ("anna", "oidc", ("kafka-admins",), "/c/local/")
    assert fake.asked.count("/.well-known/openid-configuration") == 1


async def test_roles_that_the_token_lacks_are_asked_for_of_the_same_person(
    openid: OpenId, fake: FakeProvider
) -> None:
    fake.changes = {"realm": None}
    fake.userinfo = {"sub": "4711", "realm": {"roles": "kafka-admins"}, "preferred_username": "mallory"}
    query, cookie = await begin(openid, fake)
    person, _ = await openid.finish(query, cookie, BACK)
    fake.userinfo["sub"] = "other"
    stranger, _ = await openid.finish(query, cookie, BACK)

    assert (person.name, person.claimed) == ("anna", ("kafka-admins",))
    assert stranger.claimed == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"nonce": "of another login"}, {"nonce": None}, {"aud": "another application"},
        {"aud": ["console", "other"], "azp": "other"}, {"iss": "https://evil.example"}, {"exp": 1_000},
        {"exp": None}, {"sub": None}, {"iat": None},
    ],
)  # fmt: skip
async def test_a_token_that_is_not_for_this_login_is_refused(
    openid: OpenId, fake: FakeProvider, changes: dict[str, Any]
) -> None:
    fake.changes = changes
    query, cookie = await begin(openid, fake)

    with pytest.raises(LoginRefused, match="cannot be trusted"):
        await openid.finish(query, cookie, BACK)


async def test_a_token_that_the_provider_did_not_sign_is_refused(openid: OpenId, fake: FakeProvider) -> None:
    query, cookie = await begin(openid, fake)
    public = json.dumps(fake.key.as_dict(private=False)).encode()
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, fake.claims())]
    unsigned = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts) + "."
    forged = [
        fake.signed(ECKey.generate_key("P-256", {"kid": "1"})),
        fake.signed(OctKey.import_key(public), "HS256"), unsigned, "no token",
    ]  # fmt: skip

    for fake.token in forged:
        with pytest.raises(LoginRefused, match="cannot be trusted"):
            await openid.finish(query, cookie, BACK)


async def test_a_way_back_that_did_not_begin_in_this_browser_is_refused(
    openid: OpenId, fake: FakeProvider
) -> None:
    query, cookie = await begin(openid, fake)
    _, other = await begin(openid, fake)
    body, _, signature = cookie.partition(".")
    tampered = base64.urlsafe_b64encode(base64.urlsafe_b64decode(body).replace(b"/c/local/", b"//evil/x/"))

    for query_, cookie_ in (
        (query, ""), (query, other), ({**query, "state": "x"}, cookie), ({"code": "c"}, cookie),
        (query, f"{tampered.decode()}.{signature}"), (query, "é.é"),
    ):  # fmt: skip
        with pytest.raises(LoginRefused, match="did not begin in this browser"):
            await openid.finish(query_, cookie_, BACK)
    assert "/token" not in fake.asked
    with pytest.raises(LoginRefused, match=r"refused the login \(access_denied\)"):
        await openid.finish({"state": query["state"], "error": "access_denied"}, cookie, BACK)


async def test_a_code_of_another_login_is_refused_by_pkce(openid: OpenId, fake: FakeProvider) -> None:
    query, cookie = await begin(openid, fake)
    await begin(openid, fake)

    with pytest.raises(LoginRefused, match=r"refused the login \(invalid_grant\)"):
        await openid.finish(query, cookie, BACK)


@pytest.mark.parametrize(
    ("discovery", "reason"),
    [
        ({"issuer": "https://evil.example"}, "is of another issuer"),
        ({"token_endpoint": "http://evil.example/"}, "names no token_endpoint"),
        ({"jwks_uri": f"{ISSUER}/none"}, "404"),
    ],
)
async def test_a_provider_that_lies_or_fails_is_named_with_the_reason(
    openid: OpenId, fake: FakeProvider, discovery: dict[str, Any], reason: str
) -> None:
    fake.discovery |= discovery

    with pytest.raises(ProviderFailed, match=reason):
        query, cookie = await begin(openid, fake)
        await openid.finish(query, cookie, BACK)


async def test_a_client_secret_that_cannot_be_read_is_named(fake: FakeProvider) -> None:
    provider = replace(PROVIDER, client_secret=SecretSource("file", "/nowhere"))
    openid = OpenId(provider, transport=httpx2.MockTransport(fake))
    query, cookie = await begin(openid, fake)

    with pytest.raises(ProviderFailed, match=r"our client_secret: .*/nowhere"):
        await openid.finish(query, cookie, BACK)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"preferred_username": 7, "email": None}, "4711"),
        ({"preferred_username": None, "email": "anna@example.com"}, "anna@example.com"),
    ],
)
async def test_a_person_without_a_name_that_is_text_has_the_name_of_their_subject(
    openid: OpenId, fake: FakeProvider, changes: dict[str, Any], name: str
) -> None:
    fake.changes = changes
    query, cookie = await begin(openid, fake)
    person, _ = await openid.finish(query, cookie, BACK)

    assert (person.name, person.identity) == (name, f"{ISSUER}#4711")


@pytest.mark.parametrize("subject", [4711, "", "x" * 256, ["4711"]])
async def test_a_token_without_a_subject_that_is_text_is_refused_in_words(
    openid: OpenId, fake: FakeProvider, subject: object
) -> None:
    fake.changes = {"sub": subject, "preferred_username": 7}
    query, cookie = await begin(openid, fake)

    with pytest.raises(LoginRefused, match=r"names nobody|cannot be trusted"):
        await openid.finish(query, cookie, BACK)


@pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/token", "/keys"])
async def test_a_redirect_of_the_provider_is_not_followed(fake: FakeProvider, path: str) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == path:
            return httpx2.Response(307, headers={"location": "http://evil.example/x"})
        return fake(request)

    openid = OpenId(PROVIDER, transport=httpx2.MockTransport(answer))
    with pytest.raises(ProviderFailed):
        query, cookie = await begin(openid, fake)
        await openid.finish(query, cookie, BACK)

    assert "/x" not in fake.asked


async def test_visitors_ask_a_provider_that_is_away_once_and_wait_for_a_bounded_time() -> None:
    asked = 0

    async def answer(request: httpx2.Request) -> httpx2.Response:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()
        raise AssertionError

    openid = OpenId(PROVIDER, transport=httpx2.MockTransport(answer), answer_s=0.2)
    async with asyncio.timeout(60):
        visits = [openid.begin(BACK, "/") for _ in range(50)]
        found = await asyncio.gather(*visits, return_exceptions=True)
        with pytest.raises(ProviderFailed, match=r"no answer within 0\.2 s"):
            await openid.begin(BACK, "/")

    assert {type(failure) for failure in found} == {ProviderFailed}
    assert asked == 1


async def test_a_session_of_another_provider_ends_when_the_file_names_a_new_one(
    tmp_path: Path, openid: OpenId, fake: FakeProvider
) -> None:
    query, cookie = await begin(openid, fake)
    person, _ = await openid.finish(query, cookie, BACK)
    before = Authenticator(tmp_path, Logins(provider=PROVIDER))
    after = Authenticator(tmp_path, Logins(provider=replace(PROVIDER, issuer="https://new.example")))

    assert before.admit(person, "127.0.0.1", None)
    with pytest.raises(LoginRefused, match="no role"):
        after.admit(person, "127.0.0.1", None)


def test_people_of_one_name_are_distinct_and_share_no_bound_of_sessions() -> None:
    people = [
        Person("anna", "password"), Person("anna", "oidc", issuer=ISSUER, subject="1"),
        Person("anna", "oidc", issuer=ISSUER, subject="2"), Person("user:anna", "oidc", subject="1"),
    ]  # fmt: skip
    sessions = Sessions(most_of_a_user=1)
    for number, person in enumerate(people):
        sessions.open(str(number), person, number)

    assert len({person.identity for person in people}) == len(people)
    assert len(sessions) == len(people)


# --- a provider that runs


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """A provider that knows two people."""
    with oidc_provider(
        {"sub": "anna", "preferred_username": "anna", "groups": ["kafka-admins", "staff"]},
        {"sub": "eve", "preferred_username": "eve", "groups": ["staff"]},
    ) as started:
        yield started


@pytest.fixture
async def console(tmp_path: Path, issuer: str) -> AsyncIterator[httpx.AsyncClient]:
    logins = tmp_path / "console.toml"
    logins.touch(mode=0o600)
    logins.write_text(
        f'[oidc]\nissuer = "{issuer}"\nclient_id = "console"\n'
        f'client_secret = {{ file = "{tmp_path}/secret" }}\n'
        'label = "Example"\n[[oidc.role]]\nvalue = "kafka-admins"\nrole = "administrator"\n'
    )
    (tmp_path / "secret").write_text("s3cret\n")
    async with serving(ClusterSettings("local", "127.0.0.1:1", ClientConfig), logins=logins) as client:
        yield client


async def log_in_as(console: httpx.AsyncClient, subject: str) -> httpx.Response:
    """Log in as a browser does: to the provider, through its form, and back."""
    shown = await console.get("/login?next=/alerts")
    assert 'name="password"' not in shown.text
    (link,) = re.findall(r'href="(/login/oidc\?[^"]*)"', shown.text)
    there = (await console.get(link)).headers["location"]
    async with httpx.AsyncClient() as browser:
        back = await browser.post(there, data={"sub": subject})
    assert back.status_code in (302, 303), back.text
    return await console.get(urlsplit(back.headers["location"])._replace(scheme="", netloc="").geturl())


async def test_people_log_in_through_a_provider_that_runs(console: httpx.AsyncClient) -> None:
    stranger = await log_in_as(console, "eve")
    assert stranger.status_code == 401
    assert "You have no role here" in stranger.text
    assert "ottla_session" not in console.cookies

    done = await log_in_as(console, "anna")
    assert (done.status_code, done.headers["location"]) == (303, "/alerts")
    alerts = await console.get("/alerts")
    assert alerts.status_code == 200
    assert "<b>anna</b>" in alerts.text
    again = await console.get("/login/oidc/callback?" + urlencode({"code": "c", "state": "s"}))
    assert again.status_code == 401
    assert "did not begin in this browser" in again.text


async def test_a_provider_that_is_away_is_said_on_the_page_and_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logins = tmp_path / "console.toml"
    logins.touch(mode=0o600)
    logins.write_text(
        f'[oidc]\nissuer = "http://127.0.0.1:{free_port()}"\nclient_id = "c"\n'
        '[[oidc.role]]\nvalue = "a"\nrole = "viewer"\n'
    )
    async with serving(ClusterSettings("local", "127.0.0.1:1", ClientConfig), logins=logins) as console:
        answer = await console.get("/login/oidc")

    assert answer.status_code == 401
    assert "The login through the provider failed" in answer.text
    assert "the provider of logins failed" in caplog.text


async def test_an_issuer_that_ends_with_a_slash_is_the_one_of_its_tokens(
    openid: OpenId, fake: FakeProvider
) -> None:
    fake.discovery["issuer"] = fake.changes["iss"] = f"{ISSUER}/"
    query, cookie = await begin(openid, fake)

    person, _ = await openid.finish(query, cookie, BACK)

    assert person.name == "anna"


class Endless(httpx2.AsyncByteStream):  # type: ignore[misc]
    """Bytes that never end; it counts them."""

    sent = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.sent += 1 << 16
            yield bytes(1 << 16)


@pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/token", "/keys", "/userinfo"])
async def test_an_answer_of_the_provider_without_an_end_is_refused(fake: FakeProvider, path: str) -> None:
    endless = Endless()

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, stream=endless) if request.url.path == path else fake(request)

    fake.changes = {"realm": None}
    openid = OpenId(PROVIDER, transport=httpx2.MockTransport(answer))
    with pytest.raises(ProviderFailed, match="more than 1 MiB"):
        query, cookie = await begin(openid, fake)
        await openid.finish(query, cookie, BACK)

    assert endless.sent <= 2 << 20


async def test_a_compressed_answer_of_the_provider_is_refused(fake: FakeProvider) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.headers["accept-encoding"] == "identity"
        body = gzip.compress(json.dumps(fake.discovery).encode())
        return httpx2.Response(200, content=body, headers={"content-encoding": "gzip"})

    openid = OpenId(PROVIDER, transport=httpx2.MockTransport(answer))
    with pytest.raises(ProviderFailed, match="compressed"):
        await openid.begin(BACK, "/")
