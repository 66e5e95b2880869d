"""Passwords of keys, protocol versions and cipher suites of TLS, as Kafka's settings give them."""

from __future__ import annotations

import asyncio
import logging
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ottla.client.config import Address, ClientConfig
from ottla.client.connection import Connection
from ottla.client.errors import ConnectionClosed
from ottla.client.security import SecurityConfig
from ottla.client.settings import SettingError, from_properties
from peers.certificates import Authority, missing_openssl

PASSWORD = "kaffeehaus"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if missing := missing_openssl():
        pytest.skip(missing)
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def encrypted(authority: Authority) -> dict[str, str]:
    """A key store as Kafka reads it: one PEM file with a certificate and its encrypted key."""
    certificate, key = authority.sign("client")
    store = certificate.with_suffix(".pem")
    done = subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", key, "-passout", f"pass:{PASSWORD}"],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    store.write_text(done.stdout + certificate.read_text())
    return {"security.protocol": "SSL", "ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}


def security(settings: dict[str, str]) -> SecurityConfig:
    return from_properties(ClientConfig, settings).security


def negotiated(client: ssl.SSLContext, authority: Authority, folder: Path) -> tuple[str, str]:
    """Return the version and the suite that a client and a server of Python's defaults agree on."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*authority.sign(f"server-{folder.name}"))
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(5):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = sides[0].cipher()
    assert found is not None
    return sides[0].version() or "", found[0]


@pytest.mark.parametrize(
    "passwords",
    [
        {"ssl.key.password": PASSWORD},
        {"ssl.keystore.password": PASSWORD},
        {"ssl.keystore.password": "of another store", "ssl.key.password": PASSWORD},
        {"ssl.password": PASSWORD},
    ],
)
def test_an_encrypted_key_is_read_with_its_password(
    encrypted: dict[str, str], passwords: dict[str, str]
) -> None:
    config = security(encrypted | passwords)
    assert config.tls_context() is not None
    assert PASSWORD not in repr(config)


@pytest.mark.parametrize(
    ("passwords", "words"),
    [
        ({}, "the key in .* is encrypted: set ssl_key_password"),
        ({"ssl.key.password": "wrong"}, "ssl_key_password does not decrypt the key in .*client.pem"),
    ],
)
def test_a_key_that_cannot_be_decrypted_is_named_and_nothing_is_asked_at_the_terminal(
    encrypted: dict[str, str], passwords: dict[str, str], words: str
) -> None:
    with pytest.raises(SettingError, match=words):
        security(encrypted | passwords).tls_context()


def test_the_password_of_a_trust_store_of_pem_is_accepted(authority: Authority) -> None:
    store = {"ssl.truststore.location": str(authority.cafile), "ssl.truststore.password": PASSWORD}
    config = security({"security.protocol": "SSL"} | store)
    assert config.ssl_cafile == str(authority.cafile)
    assert config.tls_context() is not None
    assert PASSWORD not in repr(config)


@pytest.mark.parametrize(
    ("settings", "agreed"),
    [
        ({}, ("TLSv1.3", "TLS_AES_256_GCM_SHA384")),
        ({"ssl.enabled.protocols": "TLSv1.2"}, ("TLSv1.2", "ECDHE-RSA-AES256-GCM-SHA384")),
        ({"ssl.enabled.protocols": "TLSv1.3"}, ("TLSv1.3", "TLS_AES_256_GCM_SHA384")),
        # The defaults of Kafka up to 2.5: the obsolete ones are left out.
        ({"ssl.enabled.protocols": "TLSv1.2,TLSv1.1,TLSv1"}, ("TLSv1.2", "ECDHE-RSA-AES256-GCM-SHA384")),
        (
            {"ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"},
            ("TLSv1.2", "ECDHE-RSA-AES128-GCM-SHA256"),
        ),
        (
            {"ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"},
            ("TLSv1.2", "ECDHE-RSA-CHACHA20-POLY1305"),
        ),
        (
            {"ssl.cipher.suites": "ECDHE-RSA-AES128-GCM-SHA256, ECDHE-ECDSA-AES128-GCM-SHA256"},
            ("TLSv1.2", "ECDHE-RSA-AES128-GCM-SHA256"),
        ),
        ({"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"}, ("TLSv1.3", "TLS_AES_256_GCM_SHA384")),
        (
            {
                "ssl.cipher.suites": "TLS_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
                "ssl.enabled.protocols": "TLSv1.2",
            },
            ("TLSv1.2", "ECDHE-RSA-AES128-GCM-SHA256"),
        ),
    ],
)
def test_only_the_given_versions_and_suites_are_offered(
    authority: Authority, tmp_path: Path, settings: dict[str, str], agreed: tuple[str, str]
) -> None:
    store = {"security.protocol": "SSL", "ssl.cafile": str(authority.cafile)}
    context = security(store | settings).tls_context()
    assert context is not None
    assert negotiated(context, authority, tmp_path) == agreed


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ssl.enabled.protocols": "TLSv1.1"}, "ssl_enabled_protocols names neither TLSv1.2 nor TLSv1.3"),
        ({"ssl.enabled.protocols": "TLS1.2"}, "ssl_enabled_protocols: there is no version 'TLS1.2'"),
        (
            {"ssl.cipher.suites": "TLS_COFFEE_WITH_MILK"},
            "ssl_cipher_suites: .*no suite 'TLS_COFFEE_WITH_MILK'",
        ),
        (
            {"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384", "ssl.enabled.protocols": "TLSv1.2"},
            "ssl_cipher_suites has no suite for the versions of ssl_enabled_protocols",
        ),
    ],
)
def test_versions_and_suites_that_do_not_exist_are_refused_at_once(
    settings: dict[str, str], words: str
) -> None:
    with pytest.raises(SettingError, match=words):
        security({"security.protocol": "SSL"} | settings)


@pytest.mark.parametrize(
    "setting",
    [{"ssl_key_password": PASSWORD}, {"ssl_enabled_protocols": ["TLSv1.3"]}, {"ssl_cipher_suites": ["a"]}],
)
def test_settings_of_tls_are_refused_without_tls(setting: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="has no effect with security_protocol='PLAINTEXT'"):
        SecurityConfig(**setting)
    with pytest.raises(SettingError):
        SecurityConfig(**setting, security_protocol="SASL_PLAINTEXT")


@pytest.mark.parametrize(
    "name",
    ["ssl.protocol", "ssl.provider", "ssl.keymanager.algorithm", "ssl.trustmanager.algorithm",
     "ssl.secure.random.implementation", "security.providers", "socket.connection.setup.timeout.max.ms",
     "metadata.recovery.strategy", "metadata.recovery.rebootstrap.trigger.ms", "auto.include.jmx.reporter",
     "enable.metrics.push"],
)  # fmt: skip
def test_settings_of_the_java_library_are_accepted_with_a_note(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        security({"security.protocol": "SSL", name: "any"})
    assert f"{name}: " in caplog.text


@pytest.mark.parametrize("alert", [b"", b"\x15\x03\x03\x00\x02\x02\x50"])
async def test_a_port_for_tls_that_hangs_up_or_answers_with_an_alert_is_named(alert: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        writer.write(alert)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(
            ConnectionClosed, match=r"speaks TLS, connect with security\.protocol=SSL or SASL"
        ):
            await Connection(Address("127.0.0.1", port)).connect()
