"""Certificates as PEM text and in PKCS#12 files, as Java's clients have them."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from ottla.client.config import ClientConfig
from ottla.client.settings import SettingError, from_properties
from peers.certificates import Authority, missing_openssl

PASSWORD = "kaffeehaus"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if missing := missing_openssl():
        pytest.skip(missing)
    return Authority(tmp_path_factory.mktemp("authority"))


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def stores(authority: Authority) -> dict[str, Path]:
    certificate, key = authority.sign("client")
    identity, trusted = certificate.with_suffix(".p12"), authority.cafile.with_suffix(".p12")
    out = ("-passout", f"pass:{PASSWORD}")
    openssl("pkcs12", "-export", "-in", certificate, "-inkey", key, "-out", identity, *out)
    openssl("pkcs12", "-export", "-nokeys", "-in", authority.cafile, "-out", trusted, *out)
    encrypted = key.with_suffix(".encrypted")
    openssl("pkcs8", "-topk8", "-in", key, "-out", encrypted, *out)
    return {
        "certificate": certificate, "key": key, "encrypted": encrypted, "identity": identity,
        "trusted": trusted, "ca": authority.cafile,
    }  # fmt: skip


def context(settings: dict[str, str]) -> ssl.SSLContext:
    config = from_properties(ClientConfig, {"security.protocol": "SSL", **settings}).security
    assert PASSWORD not in repr(config)
    assert "PRIVATE KEY" not in repr(config)
    found = config.tls_context()
    assert found is not None
    return found


def names_seen_by_server(client: ssl.SSLContext, authority: Authority) -> object:
    """Shake hands with a server that wants a certificate; return whose it got."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*authority.sign("server"))
    server.load_verify_locations(authority.cafile)
    server.verify_mode = ssl.CERT_REQUIRED
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    there = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(5):
        for side in (here, there):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = there.getpeercert()
    assert found is not None
    return found["subject"]


def test_certificates_as_pem_text_are_shown_and_trusted(
    authority: Authority, stores: dict[str, Path]
) -> None:
    for key, password in (("key", {}), ("encrypted", {"ssl.key.password": PASSWORD})):
        client = context(
            {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": stores["certificate"].read_text(),
                "ssl.keystore.key": stores[key].read_text(),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": stores["ca"].read_text(),
                **password,
            }
        )
        assert names_seen_by_server(client, authority) == ((("commonName", "client"),),)


def test_pkcs12_files_are_shown_and_trusted(authority: Authority, stores: dict[str, Path]) -> None:
    pytest.importorskip("cryptography")
    client = context(
        {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(stores["identity"]),
            "ssl.keystore.password": PASSWORD,
            "ssl.truststore.type": "PKCS12",
            "ssl.truststore.location": str(stores["trusted"]),
            "ssl.truststore.password": PASSWORD,
        }
    )
    assert names_seen_by_server(client, authority) == ((("commonName", "client"),),)


def test_a_wrong_password_of_a_store_is_named(stores: dict[str, Path]) -> None:
    pytest.importorskip("cryptography")
    for kind, store in (("keystore", "identity"), ("truststore", "trusted")):
        with pytest.raises(SettingError, match=f"ssl_{kind}_password does not open .*p12"):
            context({f"ssl.{kind}.location": str(stores[store]), f"ssl.{kind}.password": "wrong"})
    with pytest.raises(SettingError, match="has no key with a certificate"):
        context({"ssl.keystore.location": str(stores["trusted"]), "ssl.keystore.password": PASSWORD})


def test_a_jks_file_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    store = tmp_path / "client.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")

    with pytest.raises(SettingError, match=r"is a JKS file; `keytool -importkeystore .*client\.p12"):
        context({"ssl.keystore.location": str(store)})


def test_text_and_file_contradict_each_other_and_a_chain_needs_its_key(stores: dict[str, Path]) -> None:
    text = stores["certificate"].read_text()
    with pytest.raises(SettingError, match="give ssl_cafile or ssl_truststore_certificates, not both"):
        context({"ssl.truststore.location": str(stores["ca"]), "ssl.truststore.certificates": text})
    with pytest.raises(SettingError, match="ssl_keystore_certificate_chain needs ssl_keystore_key"):
        context({"ssl.keystore.certificate.chain": text})
    with pytest.raises(SettingError, match="the key in ssl_keystore_key is encrypted: set ssl_key_password"):
        context(
            {
                "ssl.keystore.certificate.chain": text,
                "ssl.keystore.key": stores["encrypted"].read_text(),
            }
        )
