"""Services of profiles: addresses, logins by file and environment, TLS; and the client that asks them."""

from __future__ import annotations

import base64
import ssl
from importlib import import_module
from pathlib import Path

import pytest

from ottla.client.config_definition import SettingError
from ottla.client.profiles import Profile, SecretSource, profile_settings, read_profile
from ottla.console.cli import clusters
from ottla.console.clusters.services import (
    Service,
    ServiceLogin,
    connects_of,
    metrics_of,
    named_urls,
    registry_of,
    urls_of,
)
from ottla.console.settings import ConsoleRefused, clusters_of_profiles
from ottla.registry.client import RegistryClient
from ottla.registry.rest import RestClient, ServiceFailed, ServiceRefused
from peers.certificates import Authority, missing_openssl
from peers.json_service import Answer, Asked, json_service

PROFILES = """
[shop]
bootstrap_servers = "127.0.0.1:9092"
schema_registry_url = ["https://one:8081/", "https://two:8081/base/"]
schema_registry_username = "josef"
schema_registry_password = { env = "REGISTRY_PASSWORD" }
schema_registry_ssl_cafile = "ca.pem"
connect_urls = ["etl=http://a:8083", "etl=http://b:8083", "http://c:8083"]
connect_token = { file = "token" }
connect_etl_username = "etl"
connect_etl_password = { env = "ETL_PASSWORD" }
metrics_urls = ["https://k1:9308/metrics", "https://k2:9308", "https://k1:9308"]
metrics_token = { file = "token" }
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "profiles.toml"
    path.write_text(PROFILES)
    (tmp_path / "token").write_text("t0ken\n")
    monkeypatch.setenv("OTTLA_PROFILES", str(path))
    monkeypatch.setenv("REGISTRY_PASSWORD", "hunter2")
    monkeypatch.setenv("ETL_PASSWORD", "hunter3")
    return path


def test_a_profile_names_services_and_where_their_secrets_are(file: Path) -> None:
    (shop,) = clusters_of_profiles(["shop"])

    assert shop.registry is not None
    assert shop.registry.urls == ("https://one:8081", "https://two:8081/base")
    login = shop.registry.login()
    assert (login.basic, login.cafile) == (("josef", "hunter2"), str(file.parent / "ca.pem"))
    assert "hunter2" not in repr(login)
    assert {service.name: service.urls for service in shop.connects} == {
        "etl": ("http://a:8083", "http://b:8083"), "connect": ("http://c:8083",),
    }  # fmt: skip
    etl, other = (service.login() for service in shop.connects)
    assert etl.basic == ("etl", "hunter3")
    assert (other.basic, other.headers) == (None, {"authorization": "Bearer t0ken"})
    assert shop.metrics is not None
    assert shop.metrics.urls == ("https://k1:9308", "https://k2:9308")
    assert shop.metrics.login().headers == {"authorization": "Bearer t0ken"}
    assert "t0ken" not in repr(shop) + repr(shop.metrics.login())


def test_clients_pass_over_the_settings_of_services(file: Path) -> None:
    assert profile_settings("shop") == {"bootstrap_servers": "127.0.0.1:9092"}
    read_profile("shop").check()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('schema_registry_password = "clear"', "in clear"),
        ('connect_token = "clear"', "in clear"),
        ('schema_registry_username = "x"', "no schema_registry_url"),
        ('schema_registry_url = "ftp://x"', "is no address of a service"),
        ('schema_registry_url = "http://user:pass@x:1"', "http://x:1 has a login in it"),
        ('connect_urls = "etl=http://"', "is no address of a service"),
        ('metrics_token = "clear"', "in clear"),
        ('metrics_ssl_cafile = "ca.pem"', "no metrics_url"),
        ('metrics_urls = ["k1:9308"]', "is no address of a service"),
        ('schema_registry_urll = "http://x"', "schema_registry_urll"),
    ],
)
def test_a_wrong_service_is_refused_in_one_line(file: Path, line: str, words: str) -> None:
    file.write_text(f'[shop]\nbootstrap_servers = "127.0.0.1:9092"\n{line}\n')

    with pytest.raises(SettingError, match=words) as caught:
        clusters_of_profiles(["shop"])

    assert "pass@" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_name_the_services_of_the_direct_cluster_alone(file: Path) -> None:
    (direct,) = clusters(
        (), "127.0.0.1:9092", "http://127.0.0.1:8081", ("http://c:8083", "etl=http://d:8083"),
        ("http://k1:9308/metrics", "http://k2:9308"),
    )  # fmt: skip

    assert direct.registry is not None
    assert [service.name for service in direct.connects] == ["connect", "etl"]
    assert direct.metrics is not None
    assert direct.metrics.urls == ("http://k1:9308", "http://k2:9308")
    with pytest.raises(ConsoleRefused, match="go with --bootstrap-server"):
        clusters(("shop",), None, "http://127.0.0.1:8081")
    with pytest.raises(ConsoleRefused, match="--metrics go with --bootstrap-server"):
        clusters(("shop",), None, pages=("http://k1:9308",))


def test_odd_addresses_are_refused() -> None:
    for text in ("", "http://", "localhost:8081", "http://x:99999", "http://x?a=1", "http://[::1"):
        with pytest.raises(SettingError):
            urls_of(text)
    assert named_urls("http://x:1,http://y:1") == {"connect": ("http://x:1", "http://y:1")}


def client(*urls: str, login: ServiceLogin | None = None, **more: float) -> RestClient:
    return RestClient(Service("service", urls, lambda: login or ServiceLogin()), **more)  # type: ignore[arg-type]


async def test_another_instance_is_asked_where_one_is_away_and_a_change_is_sent_once() -> None:
    def failing(asked: Asked) -> Answer:
        return Answer({"error_code": 500, "message": "no"}, 500)

    async with json_service(failing) as first, json_service(lambda _: Answer([1])) as second:
        rest = client("http://127.0.0.1:1", first.url, second.url)
        assert await rest.get("numbers", list[int]) == [1]
        with pytest.raises(ServiceRefused, match=r"\(500\): no"):
            await rest.send("POST", "change", list[int], {"a": 1})
        await rest.close()

    assert [asked.method for asked in first.asked] == ["GET", "POST"]
    assert [asked.method for asked in second.asked] == ["GET"]


@pytest.mark.parametrize("name", [".", ".."])
async def test_a_name_that_would_lead_to_another_path_is_refused(name: str) -> None:
    async with json_service(lambda _: Answer([])) as service:
        rest = client(service.url)
        with pytest.raises(ServiceFailed, match="cannot be a name"):
            await RegistryClient(rest).delete(name)
        await rest.close()

    assert service.asked == []


async def test_logins_are_sent_and_a_redirect_gets_none_of_them() -> None:
    async with json_service(lambda _: Answer([])) as elsewhere:
        redirect = Answer(status=307, headers={"location": elsewhere.url})
        async with json_service(lambda _: redirect) as service:
            rest = client(service.url, login=ServiceLogin("anna", "pass word"))
            with pytest.raises(ServiceFailed, match="leads to http://127"):
                await rest.get("x", list[int])
            await rest.close()
        assert elsewhere.asked == []
        by_token = client(elsewhere.url, login=ServiceLogin(token="t"))
        await by_token.get("x", list[int])
        await by_token.close()

    assert (
        service.asked[0].headers["authorization"] == "Basic " + base64.b64encode(b"anna:pass word").decode()
    )
    assert elsewhere.asked[0].headers["authorization"] == "Bearer t"


async def test_a_long_answer_ends_early_and_a_deep_one_is_refused() -> None:
    deep = b"[" * 100_000
    body = b"HTTP/1.1 200 -\r\ncontent-length: %d\r\n\r\n%s" % (len(deep), deep)
    async with (
        json_service(lambda _: Answer("x" * 5_000)) as long,
        json_service(lambda _: Answer(raw=body)) as nested,
    ):
        rest, other = client(long.url, most_bytes=2_000), client(nested.url)
        with pytest.raises(ServiceFailed, match="answers with more than"):
            await rest.get("x", str)
        with pytest.raises(ServiceFailed, match="something else"):
            await other.get("x", object)
        await rest.close()
        await other.close()


async def test_a_secret_that_cannot_be_read_is_named() -> None:
    def login() -> ServiceLogin:
        raise SettingError("the environment variable X is not set")

    rest = RestClient(Service("schema registry", ("http://127.0.0.1:1",), login))
    with pytest.raises(ServiceFailed, match="registry cannot be asked: the environment variable X"):
        await rest.get("x", list[int])
    await rest.close()


@pytest.mark.skipif(missing_openssl() is not None, reason="needs openssl")
async def test_a_service_with_tls_is_trusted_by_its_authority_alone(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("service")
    own, own_key = authority.sign("console")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.cafile)
    context.load_cert_chain(certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED
    files = ServiceLogin(cafile=str(authority.cafile), certfile=str(own), keyfile=str(own_key))
    untrusting = ServiceLogin(certfile=str(own), keyfile=str(own_key))
    nameless = ServiceLogin(cafile=str(authority.cafile))

    async with json_service(lambda _: Answer([7]), context) as service:
        rest = client(service.url, login=files)
        assert await rest.get("x", list[int]) == [7]
        await rest.close()
        for login in (untrusting, nameless):
            refused = client(service.url, login=login)
            with pytest.raises(ServiceFailed, match="the service at https"):
                await refused.get("x", list[int])
            await refused.close()


def test_files_and_tokens_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")

    with pytest.raises(SettingError, match="cannot be read"):
        ServiceLogin(cafile=str(tmp_path / "ca.pem")).tls_context()
    with pytest.raises(SettingError, match="a header cannot carry") as caught:
        _ = ServiceLogin(token="a\nb").headers
    assert "a\nb" not in str(caught.value)
    assert ServiceLogin().tls_context().verify_mode is ssl.CERT_REQUIRED


def test_a_profile_without_services_has_none(tmp_path: Path) -> None:
    bare = Profile("bare", tmp_path / "p.toml", {"sasl_password": SecretSource("env", "NOT_SET")})

    assert (registry_of(bare), connects_of(bare), metrics_of(bare)) == (None, (), None)


def test_modules_that_moved_to_the_registry_package_are_found_by_their_old_names() -> None:
    with pytest.warns(DeprecationWarning, match=r"is now ottla\.registry\.rest"):
        old = import_module("ottla.console.clusters.rest")

    assert old.RestClient is RestClient
