"""TLS, SASL, digest and ACLs with Apache's server, and the settings of them."""

from __future__ import annotations

import asyncio
import datetime
import logging
import re
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from ottla.zookeeper._kazoo_client import _Handler
from ottla.zookeeper.apache_server import NoZooKeeper, RealZooKeeper, find_installation, free_port
from ottla.zookeeper.client_security import (
    ClientSecurity,
    SaslLogin,
    SecuritySettingError,
    client_security_from,
    jaas_sections,
)
from ottla.zookeeper.embedded import EmbeddedCoordinator
from ottla.zookeeper.embedded.access import access_to, read_or_make_secret, write_address
from ottla.zookeeper.errors import AuthFailed, NoAuth, NotConnected, UnsafeSecret
from ottla.zookeeper.kazoo_session import KazooSession
from ottla.zookeeper.paths import secure_acl
from ottla.zookeeper.session import SessionState
from ottla.zookeeper.testing import Background, MisbehavingProxy, States

PASSWORD = "open-sesame"
BOUND_MS = 60_000


class Authority:
    """A certificate authority, and the files of what it signs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self.certificate = self.signed(self.name, self.key, is_authority=True)
        folder.mkdir(parents=True, exist_ok=True)
        self.trusted = folder / "trusted.pem"
        self.trusted.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def signed(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool = False
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name).issuer_name(self.name).public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=9))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        )  # fmt: skip
        if not is_authority:
            local = x509.SubjectAlternativeName([x509.DNSName("localhost")])
            builder = builder.add_extension(local, critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def store(self, common_name: str) -> Path:
        """A PKCS#12 file with a key, its certificate and the authority's."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self.signed(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]), key)
        path = self.folder / f"{common_name}.p12"
        encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(
                common_name.encode(), key, certificate, [self.certificate], encryption
            )
        )
        pem = certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        )
        path.with_suffix(".pem").write_bytes(pem)
        return path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secured_server(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """Apache's server: a plain port, where users log in by SASL, and a TLS port that wants certificates."""
    try:
        find_installation()
    except NoZooKeeper as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("secured")
    (folder / "jaas.conf").write_text(
        "Server {\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n"
        f'  user_ottla="{PASSWORD}"\n  user_other="other-secret";\n}};\n'
    )
    secure_port = free_port()
    settings = {
        "secureClientPort": str(secure_port),
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(authority.store("server")),
        "ssl.keyStore.password": PASSWORD,
        "ssl.trustStore.location": str(authority.trusted),
        "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "authProvider.2": "org.apache.zookeeper.server.auth.X509AuthenticationProvider",
    }
    properties = {"java.security.auth.login.config": str(folder / "jaas.conf")}
    server = RealZooKeeper(folder / "zk", tick_ms=500, settings=settings, properties=properties)
    with Background(server) as running:
        yield running.value.connect_string, f"localhost:{secure_port}"


def tls_of(authority: Authority, **changed: str) -> dict[str, str]:
    settings = {
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
        "zookeeper.ssl.truststore.location": str(authority.trusted),
        "zookeeper.ssl.keystore.location": str(authority.store("client")),
        "zookeeper.ssl.keystore.password": PASSWORD,
    }
    return settings | {f"zookeeper.ssl.{key.replace('_', '.')}": text for key, text in changed.items()}


def session_with(
    hosts: str, security: ClientSecurity, *, connection_timeout_ms: int = BOUND_MS
) -> KazooSession:
    return KazooSession(
        hosts, security=security, acl_policy=secure_acl, connection_timeout_ms=connection_timeout_ms
    )


@pytest.mark.java
@pytest.mark.parametrize("form", [".p12", ".pem"])
async def test_a_certificate_is_an_identity_that_acls_name(
    secured_server: tuple[str, str], authority: Authority, form: str
) -> None:
    _, secure = secured_server
    store = str(authority.store("client").with_suffix(form))
    security = client_security_from(tls_of(authority, keystore_location=store))

    async with session_with(f"{secure}/tls{form}", security) as session:
        await session.create("/config/users/u", b"secret", make_parents=True)
        acl, _ = await session.get_acl("/config/users/u")
        async with asyncio.timeout(20):
            for number in range(20):
                await asyncio.gather(*(session.create(f"/n{number}-{each}", b"x") for each in range(50)))

    assert [(entry.scheme, entry.identity) for entry in acl] == [("x509", "CN=client")]
    assert security.has_credentials


def test_bytes_that_tls_has_decrypted_already_are_ready(authority: Authority) -> None:
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(authority.store("ready").with_suffix(".pem"), password=PASSWORD)
    settings = {
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.truststore.location": str(authority.trusted),
    }
    handler = _Handler(10, client_security_from(settings).tls)

    def send(listener: socket.socket) -> None:
        with served.wrap_socket(listener.accept()[0], server_side=True) as wire:
            wire.sendall(b"two answers in one record")
            wire.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        sent = threads.submit(send, listener)
        wire = handler.create_connection(address=listener.getsockname(), hostname="localhost", timeout=10)
        assert wire.recv(4) == b"two "
        assert handler.select([wire], [], [], 0)[0] == [wire]
        wire.close()
        sent.result(10)


@pytest.mark.java
async def test_a_login_by_sasl_is_an_identity_that_acls_name(
    secured_server: tuple[str, str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _ = secured_server
    repeats = logging.getLogger("ottla.zookeeper.kazoo").filters[-1]
    monkeypatch.setattr(repeats, "filter", lambda _: True)
    with caplog.at_level(logging.DEBUG):
        async with session_with(
            f"{plain}/sasl", ClientSecurity(login=SaslLogin("ottla", PASSWORD))
        ) as session:
            await session.create("/brokers/topics/t", b"x", make_parents=True)
            await session.create("/delegation_token/tokens/k", b"key", make_parents=True)
            acl, _ = await session.get_acl("/brokers/topics/t")
            async with session_with(f"{plain}/sasl", ClientSecurity()) as stranger:
                assert (await stranger.get("/brokers/topics/t"))[0] == b"x"
                with pytest.raises(NoAuth):
                    await stranger.set("/brokers/topics/t", b"y")
                with pytest.raises(NoAuth):
                    await stranger.get("/delegation_token/tokens/k")

    assert [tuple(entry) for entry in acl] == [(31, "sasl", "ottla"), (1, "world", "anyone")]
    assert PASSWORD not in caplog.text
    assert "response=" not in caplog.text


@pytest.mark.java
async def test_a_server_without_logins_by_sasl_is_named_at_once(real_server: str) -> None:
    async with asyncio.timeout(20):
        with pytest.raises((AuthFailed, NotConnected)):
            security = ClientSecurity(login=SaslLogin("ottla", PASSWORD))
            await session_with(real_server, security, connection_timeout_ms=3_000).__aenter__()


@pytest.mark.java
async def test_a_wrong_password_is_refused_at_once(secured_server: tuple[str, str]) -> None:
    plain, _ = secured_server
    with pytest.raises(AuthFailed, match="refuses the credentials"):
        await session_with(plain, ClientSecurity(login=SaslLogin("ottla", "guessed"))).__aenter__()


@pytest.mark.java
async def test_a_session_survives_a_connection_that_breaks_amid_its_login(
    secured_server: tuple[str, str],
) -> None:
    plain, _ = secured_server
    async with (
        MisbehavingProxy(plain) as proxy,
        session_with(proxy.connect_string, ClientSecurity(login=SaslLogin("ottla", PASSWORD))) as session,
    ):
        session_id, states = session.session_id, States(session)
        for _ in range(5):
            proxy.cut()
        await states.until(SessionState.SUSPENDED)
        await states.until(SessionState.CONNECTED)
        assert session.session_id == session_id
        assert SessionState.LOST not in states.seen


@pytest.mark.java
async def test_a_server_of_another_authority_is_named_in_the_error(
    secured_server: tuple[str, str], authority: Authority, tmp_path: Path
) -> None:
    _, secure = secured_server
    foreign = Authority(tmp_path)
    for changed, reason in (
        (
            {"truststore_location": str(foreign.trusted)},
            "TLS with localhost failed: [a-z ]+$",
        ),
        (
            {"keystore_location": str(foreign.store("client"))},
            "no connection to ZooKeeper|no ZooKeeper server",
        ),
    ):
        security = client_security_from(tls_of(authority, **changed))
        with pytest.raises(NotConnected, match=reason):
            await session_with(secure, security, connection_timeout_ms=3_000).__aenter__()

    by_address = secure.replace("localhost", "127.0.0.1")
    with pytest.raises(NotConnected, match="IP address mismatch"):
        security = client_security_from(tls_of(authority))
        await session_with(by_address, security, connection_timeout_ms=3_000).__aenter__()
    anyone = client_security_from(tls_of(authority, endpoint_identification_algorithm="none"))
    async with session_with(by_address, anyone) as session:
        assert session.connected


@pytest.mark.java
async def test_a_broken_certificate_does_not_take_the_place_of_the_one_in_use(
    secured_server: tuple[str, str], authority: Authority
) -> None:
    _, secure = secured_server
    security = client_security_from(tls_of(authority))
    async with session_with(secure, security) as session:
        assert security.tls is not None
        assert security.tls.keystore is not None
        security.tls.keystore.path.write_bytes(b"-----BEGIN nonsense")
        session_id, states = session.session_id, States(session)
        session._client.cut()
        await states.until(SessionState.SUSPENDED)
        await states.until(SessionState.CONNECTED)
        assert session.session_id == session_id


async def test_a_coordinator_with_a_secret_takes_logins_by_sasl(tmp_path: Path) -> None:
    secret = read_or_make_secret(tmp_path)
    async with EmbeddedCoordinator(tmp_path, secret=secret) as coordinator:
        write_address(tmp_path, coordinator.connect_string)
        jaas = {"zookeeper.sasl.jaas.file": str(tmp_path / "jaas.conf")}
        async with session_with(coordinator.connect_string, client_security_from(jaas)) as session:
            await session.create("/config/users", b"u", make_parents=True)
            acl, _ = await session.get_acl("/config/users")
        async with KazooSession(
            *access_to(tmp_path)[:1], credentials=access_to(tmp_path).credentials
        ) as digest:
            assert (await digest.get("/config/users"))[0] == b"u"
        guessed = ClientSecurity(login=SaslLogin("ottla", "guessed"))
        with pytest.raises(AuthFailed):
            await session_with(coordinator.connect_string, guessed).__aenter__()
    assert [tuple(entry) for entry in acl] == [(31, "sasl", "ottla")]


# -- settings


def test_the_sections_of_a_jaas_file_are_read_as_java_reads_them() -> None:
    text = (
        """
    /* brokers */ KafkaServer { org.x.PlainLoginModule required username="a" password="b;}"; };
    // comment Client { no }
    Client {
       org.apache.zookeeper.server.auth.DigestLoginModule required
       username="us\\\\er" # odd
       password=""".strip("'")
        + """"p\\"w{";
       com.sun.Second optional debug=true;
    };
    Broken { x"""
    )

    sections = jaas_sections(text)

    assert sections["KafkaServer"] == ("org.x.PlainLoginModule", {"username": "a", "password": "b;}"})
    assert sections["Client"][1] == {"username": "us\\er", "password": 'p"w{'}
    assert "Broken" not in sections


def write(path: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return path


NO_CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----"
DIGEST = "org.apache.zookeeper.server.auth.DigestLoginModule required"


@pytest.mark.parametrize(
    ("key", "content", "expected"),
    [
        ("zookeeper.digest.file", "no-colon", "one line user:password"),
        ("zookeeper.digest.file", "a:b\nc:d", "one line user:password"),
        ("zookeeper.digest.file", b"\xff\xfe", "no text"),
        ("zookeeper.sasl.jaas.file", "", "no section Client"),
        ("zookeeper.sasl.jaas.file", "Client {", "no section Client"),
        ("zookeeper.sasl.jaas.file", 'Client { com.sun.Krb5LoginModule required a=b; };', "DIGEST-MD5"),
        ("zookeeper.sasl.jaas.file", f'Client {{ {DIGEST} username="a"; }};', "no password"),
        ("zookeeper.ssl.keystore.location", "junk", "neither PEM nor PKCS"),
        ("zookeeper.ssl.keystore.location", b"\xfe\xed\xfe\xed", "keytool -importkeystore -srckeystore"),
        ("zookeeper.ssl.truststore.location", NO_CERTIFICATE, "no cert"),
        ("zookeeper.ssl.truststore.location", "-----BEGIN nothing", "no cert"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_used_are_refused_in_one_line(
    tmp_path: Path, key: str, content: str | bytes, expected: str
) -> None:
    path = write(tmp_path / "file", content)
    with pytest.raises(SecuritySettingError, match=re.escape(expected)) as refused:
        client_security_from({key: str(path), "zookeeper.ssl.client.enable": "true"})
    assert str(refused.value).startswith(f"{key}: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"zookeeper.ssl.client.enable": "maybe"}, "zookeeper.ssl.client.enable: it is true or false"),
        ({"zookeeper.ssl.keystore.locatoin": "x"}, "no such setting"),
        ({"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.enabled.protocols": "TLSv1"}, "names none"),
        ({"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.cipher.suites": "TLS_X"}, "no suite 'TLS_X'"),
        ({"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.crl.enable": "true"}, "revoked"),
        ({"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.keystore.location": "/no"}, "No such file"),
        ({"zookeeper.digest.file": "/no/file"}, "No such file"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(settings: dict[str, str], expected: str) -> None:
    with pytest.raises(SecuritySettingError, match=re.escape(expected)):
        client_security_from(settings)


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o660])
def test_credentials_that_everybody_may_read_or_write_are_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "digest", "broker:pass", mode)
    with pytest.raises(UnsafeSecret, match="chmod 600 it"):
        client_security_from({"zookeeper.digest.file": str(path)})


def test_credentials_are_in_no_repr_and_a_mounted_link_is_followed(tmp_path: Path) -> None:
    write(tmp_path / "real", f"broker:{PASSWORD}\n", 0o440)
    (tmp_path / "digest").symlink_to("real")
    write(tmp_path / "jaas", f'Client {{ {DIGEST} username="a" password="{PASSWORD}"; }};')
    security = client_security_from(
        {
            "zookeeper.digest.file": str(tmp_path / "digest"),
            "zookeeper.sasl.jaas.file": str(tmp_path / "jaas"),
        }
    )
    assert security.digests == (("digest", f"broker:{PASSWORD}"),)
    assert security.login == SaslLogin("a", PASSWORD)
    assert PASSWORD not in repr(security)
    assert not client_security_from(
        {"zookeeper.connect": "x", "zookeeper.ssl.client.enable": "false"}
    ).has_credentials


def test_java_names_of_versions_and_suites_are_understood(authority: Authority) -> None:
    settings = tls_of(
        authority,
        enabled_protocols="TLSv1.2",
        cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    )
    tls = client_security_from({"zookeeper.client.secure": "true"} | settings).tls
    assert tls is not None
    context = tls.context()
    assert context.maximum_version == ssl.TLSVersion.TLSv1_2
    assert {"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-CHACHA20-POLY1305"} <= {
        str(cipher["name"]) for cipher in context.get_ciphers()
    }
