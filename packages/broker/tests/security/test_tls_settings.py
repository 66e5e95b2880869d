"""Certificates and their names: read from every form of store, mapped by rules, refused in one line."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    NoEncryption,
    pkcs12,
)
from cryptography.x509.oid import NameOID

from ottla.broker.config import BrokerConfig, ConfigError, broker_config_from
from ottla.broker.security.principal_mapping import NoRuleApplies, parse_rules, principal_name
from ottla.broker.security.tls.certificates import MalformedCertificate, names_of
from ottla.broker.security.tls.contexts import (
    ListenerTls,
    check_names,
    read_stores,
    server_context,
)
from ottla.broker.security.tls.listeners import TlsOfListeners
from ottla.broker.security.tls.stores import read_key_store, read_trust_store
from ottla.broker.security.tls.testing import Authority, common_name

AUTHORITY = Authority()
BROKER = AUTHORITY.sign("broker")


def settings(**values: str) -> BrokerConfig:
    return broker_config_from({key.replace("_", "."): text for key, text in values.items()})


# ---- names


@pytest.mark.parametrize(
    ("subject", "written"),
    [
        (common_name("alice"), "CN=alice"),
        (x509.Name.from_rfc4514_string("CN=kafka1,OU=Ops,O=Ottla,L=Ulm,ST=BW,C=DE"),) * 2,
        (common_name(' #a,b+"c"\\<d>;e= '), 'CN=\\ \\#a\\,b\\+\\"c\\"\\\\\\<d\\>\\;e\\=\\ '),
        (common_name("Zoë"), "CN=Zoë"),
        (
            x509.Name(
                [
                    x509.NameAttribute(NameOID.COMMON_NAME, "a"),
                    x509.NameAttribute(NameOID.EMAIL_ADDRESS, "a@b.c"),
                ]
            ),
            "1.2.840.113549.1.9.1=#1605614062 2e63,CN=a".replace(" ", ""),
        ),
        (
            x509.Name(
                [
                    x509.RelativeDistinguishedName(
                        [
                            x509.NameAttribute(NameOID.COMMON_NAME, "a"),
                            x509.NameAttribute(NameOID.USER_ID, "7"),
                        ]
                    )
                ]
            ),
            "CN=a+UID=7",
        ),
    ],
)
def test_a_subject_is_written_as_java_writes_it(subject: x509.Name, written: str | x509.Name) -> None:
    expected = written if isinstance(written, str) else written.rfc4514_string()

    found = names_of(AUTHORITY.sign(subject).der).subject

    assert found in (expected, "UID=7+CN=a" if expected == "CN=a+UID=7" else expected)


def test_every_cut_of_a_certificate_is_refused_or_read_without_another_error() -> None:
    for end in range(len(BROKER.der)):
        with pytest.raises(MalformedCertificate):
            names_of(BROKER.der[:end])


# ---- rules


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        ("DEFAULT", "CN=kafka1,OU=Ops", "CN=kafka1,OU=Ops"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=kafka1,OU=ServiceUsers,O=x", "kafka1"),
        ("RULE:^CN=(.*?),OU=(.*?)$/$1@$2/L, DEFAULT", "CN=Adm,OU=Ops", "adm@ops"),
        ("RULE:^CN=(.*?),OU=(.*?)$/$1@$2/U", "CN=Adm,OU=Ops", "ADM@OPS"),
        ("RULE:^CN=x$/y/,DEFAULT", "CN=Adm", "CN=Adm"),
        (r"RULE:^cn=(.*?),ou=(.*?)\/(.*)$/$1-$2-$3/L", "cn=a,ou=b/c", "a-b-c"),
        ("RULE:^CN=(.*)$/$2-$1/", "CN=a", "$2-a"),
        (r"RULE:^CN=(.*)$/\$1/", "CN=a", "$1"),
        ("RULE:^CN=(.*)$/$12/", "CN=a", "a2"),
    ],
)
def test_rules_make_principals_as_kafkas_do(rules: str, name: str, principal: str) -> None:
    assert principal_name(parse_rules(rules), name) == principal


def test_a_name_that_no_rule_applies_to_has_no_principal() -> None:
    with pytest.raises(NoRuleApplies, match="applies to CN=b"):
        principal_name(parse_rules("RULE:^CN=a$/a/"), "CN=b")


def test_a_pattern_that_takes_others_exponential_time_takes_none_here() -> None:
    rules = parse_rules("RULE:^(([a-z])+.)+[A-Z]([a-z])+$/x/,DEFAULT")
    began_s = time.process_time()

    assert principal_name(rules, "a" * 16_000) == "a" * 16_000
    assert time.process_time() - began_s < 5  # re: longer than the universe


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("RULE:^CN=(.*$/$1/", "which RE2 cannot match"),
        (r"RULE:^(a)\\1$/$1/", None),
        ("RULE:^(?=a)b$/x/", "which RE2 cannot match"),
        ("RULE:^CN=(.*)$", "must have rules like RULE:"),
        ("RULES:^CN=(.*)$/x/", "must have rules like RULE:"),
        ("x" * 70_000, "has 70000 characters"),
    ],
)
def test_rules_that_cannot_be_used_are_refused(rules: str, message: str | None) -> None:
    if message is None:
        assert len(parse_rules(rules)) == 1
        return
    with pytest.raises(ConfigError) as caught:
        parse_rules(rules)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- stores


def test_a_key_store_is_read_from_pem_from_text_and_from_pkcs12(tmp_path: Path) -> None:
    file = BROKER.write(tmp_path / "broker.pem")
    encrypted = tmp_path / "encrypted.pem"
    encrypted.write_text(BROKER.key_pem("s3cret") + BROKER.chain_pem)
    store = tmp_path / "broker.p12"
    store.write_bytes(BROKER.pkcs12("s3cret"))
    spaced = " ".join(BROKER.key_pem().split("\n"))
    trusted = {"ssl_truststore_certificates": AUTHORITY.pem, "ssl_truststore_type": "PEM"}
    for given in (
        settings(ssl_keystore_location=file, ssl_keystore_type="PEM", **trusted),
        settings(ssl_keystore_location=file, **trusted),
        settings(ssl_keystore_location=str(encrypted), ssl_key_password="s3cret", **trusted),
        settings(
            ssl_keystore_type="PEM",
            ssl_keystore_certificate_chain=BROKER.chain_pem,
            ssl_keystore_key=spaced,
            **trusted,
        ),
        settings(ssl_keystore_location=str(store), ssl_keystore_password="s3cret", **trusted),
        settings(
            ssl_keystore_location=str(store),
            ssl_keystore_password="s3cret",
            ssl_keystore_type="PKCS12",
            **trusted,
        ),
    ):
        found = read_key_store(given)
        assert found is not None
        assert found.certificate == BROKER.der
        assert "s3cret" not in repr(found)
        assert "PRIVATE" not in repr(found)
        ListenerTls("SSL", given, is_of_brokers=True)  # and brokers with it trust each other


def test_a_trust_store_is_read_from_pkcs12(tmp_path: Path) -> None:
    store = tmp_path / "trust.p12"
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(None, None, None, [AUTHORITY.certificate], NoEncryption())
    )

    found = read_trust_store(settings(ssl_truststore_location=str(store)))

    assert found is not None
    assert found.certificates == AUTHORITY.pem


def unusable(tmp_path: Path) -> Iterator[tuple[dict[str, str], str]]:
    """Yield settings of stores that cannot be used, each with what to change."""
    file, java, store = BROKER.write(tmp_path / "b.pem"), tmp_path / "b.jks", tmp_path / "b.p12"
    java.write_bytes(b"\xfe\xed\xfe\xed\x00\x00\x00\x02")
    store.write_bytes(BROKER.pkcs12("right"))
    other = AUTHORITY.sign("other")
    mixed, locked = tmp_path / "mixed.pem", tmp_path / "locked.pem"
    mixed.write_text(BROKER.chain_pem + other.key_pem())
    locked.write_text(BROKER.chain_pem + BROKER.key_pem("right"))
    pem = {"ssl_keystore_type": "PEM"}
    yield from (
        ({}, "ssl.keystore.location must be set: a listener with TLS needs a certificate"),
        ({"ssl_keystore_location": "/no/such"}, "ssl.keystore.location /no/such cannot be read: No such"),
        (
            {"ssl_keystore_location": str(java)},
            f"ssl.keystore.location {java} is a Java key store; convert it with: keytool -importkeystore "
            f"-srckeystore {java} -destkeystore {store} -deststoretype PKCS12, and set "
            f"ssl.keystore.location={store}",
        ),
        ({"ssl_keystore_location": str(store)}, "ssl.keystore.password is missing for"),
        (
            {"ssl_keystore_location": str(store), "ssl_keystore_password": "wrong"},
            "ssl.keystore.password does not open",
        ),
        ({"ssl_keystore_location": str(store), **pem}, f"ssl.keystore.type is PEM, but {store} is PKCS12"),
        (
            {"ssl_keystore_location": file, "ssl_keystore_password": "x"},
            "ssl.keystore.password must not be set for PEM",
        ),
        ({"ssl_keystore_location": str(mixed)}, "has a private key that does not belong to its certificate"),
        ({"ssl_keystore_location": str(locked)}, "ssl.key.password must be set: the key in"),
        (
            {"ssl_keystore_location": str(locked), "ssl_key_password": "wrong"},
            "ssl.key.password does not decrypt the key in",
        ),
        ({"ssl_keystore_key": BROKER.key_pem(), **pem}, "ssl.keystore.certificate.chain is missing"),
        ({"ssl_keystore_location": file, "ssl_cipher_suites": "NONSENSE"}, "ssl.cipher.suites"),
        ({"ssl_keystore_location": file, "ssl_enabled_protocols": "SSLv3"}, "ssl.enabled.protocols"),
        (
            {
                "ssl_keystore_location": file,
                "ssl_client_auth": "required",
                "ssl_truststore_type": "PEM",
                "ssl_truststore_certificates": "nothing",
            },
            "ssl.truststore.certificates has no certificate in PEM",
        ),
    )


def test_a_store_that_cannot_be_used_is_refused_with_what_to_change(tmp_path: Path) -> None:
    for given, message in unusable(tmp_path):
        config = settings(**given)
        with pytest.raises(ConfigError) as caught:
            server_context(config, read_stores(config))
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
        assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("text", ["-----BEGIN CERTIFICATE-----\n", "-----BEGIN A-----x-----END B-----"])
def test_a_store_with_many_beginnings_is_refused_in_time_linear_in_its_size(
    text: str, tmp_path: Path
) -> None:
    store = tmp_path / "broker.pem"

    def cpu_s(times: int) -> float:
        store.write_text(text * times)
        began_s = time.process_time()
        with pytest.raises(ConfigError):
            read_key_store(settings(ssl_keystore_location=str(store)))
        return time.process_time() - began_s

    cpu_s(10)
    assert cpu_s(20_000) < 2.0  # quadratic time took a minute


def test_brokers_that_would_not_trust_each_other_are_refused_at_the_start(tmp_path: Path) -> None:
    config = settings(
        ssl_keystore_location=BROKER.write(tmp_path / "broker.pem"),
        ssl_truststore_location=Authority("stranger").write(tmp_path / "trust.pem"),
    )

    with pytest.raises(ConfigError, match="does not let brokers with this certificate trust each other"):
        ListenerTls("SSL", config, is_of_brokers=True)


def test_a_new_certificate_has_the_names_of_the_present_one_unless_that_is_allowed(tmp_path: Path) -> None:
    def keys(name: str, *hosts: str) -> object:
        path = AUTHORITY.sign(name, hosts).write(tmp_path / f"{name}{len(hosts)}.pem")
        found = read_key_store(settings(ssl_keystore_location=path))
        assert found is not None
        return found

    present, more, fewer, other = (
        keys("a", "x.org", "y.org"),
        keys("a", "y.org", "x.org", "z.org"),
        keys("a", "x.org"),
        keys("b", "x.org", "y.org"),
    )
    check_names(present, more, BrokerConfig())  # type: ignore[arg-type]
    check_names(present, fewer, BrokerConfig(ssl_allow_san_changes=True))  # type: ignore[arg-type]
    check_names(present, other, BrokerConfig(ssl_allow_dn_changes=True))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="lacks alternative names of the present one"):
        check_names(present, fewer, BrokerConfig())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has a certificate of CN=b, but the present one is of CN=a"):
        check_names(present, other, BrokerConfig())  # type: ignore[arg-type]


def test_versions_and_suites_are_those_of_the_settings(tmp_path: Path) -> None:
    config = settings(
        ssl_keystore_location=BROKER.write(tmp_path / "broker.pem"),
        ssl_enabled_protocols="TLSv1.2",
        ssl_cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    )

    context = server_context(config, read_stores(config))

    assert context.maximum_version is ssl.TLSVersion.TLSv1_2
    names = [cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] == "TLSv1.2"]
    assert names == ["ECDHE-ECDSA-AES128-GCM-SHA256"]


def test_suites_without_authenticated_encryption_are_offered_only_where_they_are_named(
    tmp_path: Path,
) -> None:
    place = {"ssl_keystore_location": BROKER.write(tmp_path / "broker.pem")}
    older = "ECDHE-ECDSA-AES128-SHA256"

    names = [suites_of(settings(**place, **more)) for more in ({}, {"ssl_cipher_suites": older})]

    assert not [name for name in names[0] if "GCM" not in name and "CHACHA20" not in name]
    assert "ECDHE-ECDSA-AES256-GCM-SHA384" in names[0]
    assert names[1] == [older]


def suites_of(config: BrokerConfig) -> list[str]:
    ciphers = server_context(config, read_stores(config)).get_ciphers()
    return [cipher["name"] for cipher in ciphers if cipher["protocol"] == "TLSv1.2"]


# ---- exchanged while a broker runs


def pem_store(path: Path, name: str = "broker") -> str:
    keys = AUTHORITY.sign(name)
    path.write_text(keys.key_pem() + keys.chain_pem)
    return str(path)


class CountedRuns:
    """Runs calls at once, after what a test does meanwhile, and counts them."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.count = 0
        self._meanwhile = meanwhile

    async def run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        self.count += 1
        made = call(*arguments)
        self._meanwhile()
        return made


def tls_of(**values: str) -> BrokerConfig:
    return settings(
        listeners="SSL://127.0.0.1:9093", security_inter_broker_protocol="SSL", ssl_keystore_type="PEM",
        ssl_truststore_type="PEM", ssl_truststore_certificates=AUTHORITY.pem, **values,
    )  # fmt: skip


def fingerprint_of(listeners: TlsOfListeners) -> str:
    tls = listeners.of("SSL")
    assert tls is not None
    assert tls.stores.keys is not None
    return tls.stores.keys.fingerprint


async def test_changed_files_are_read_on_a_thread_and_unchanged_ones_not_at_all(tmp_path: Path) -> None:
    store = tmp_path / "broker.pem"
    listeners, runs = TlsOfListeners(), CountedRuns()
    listeners.start(tls_of(ssl_keystore_location=pem_store(store)))
    before = fingerprint_of(listeners)

    await listeners.read_changed_files(runs.run)
    assert runs.count == 0
    pem_store(store)
    await listeners.read_changed_files(runs.run)

    assert runs.count == 1
    assert fingerprint_of(listeners) != before


async def test_files_that_are_read_while_other_settings_are_used_do_not_replace_them(tmp_path: Path) -> None:
    store, other = tmp_path / "broker.pem", tmp_path / "other.pem"
    listeners = TlsOfListeners()
    listeners.start(tls_of(ssl_keystore_location=pem_store(store)))
    changed = tls_of(ssl_keystore_location=pem_store(other))
    runs = CountedRuns(lambda: listeners.configure(changed))
    pem_store(store)

    await listeners.read_changed_files(runs.run)

    expected = read_key_store(changed)
    assert expected is not None
    assert fingerprint_of(listeners) == expected.fingerprint


async def test_a_setting_of_another_kind_does_not_lose_files_that_are_read_meanwhile(tmp_path: Path) -> None:
    store = tmp_path / "broker.pem"
    config = tls_of(ssl_keystore_location=pem_store(store))
    listeners = TlsOfListeners()
    listeners.start(config)
    before = fingerprint_of(listeners)
    other = tls_of(ssl_keystore_location=str(store), num_partitions="7")
    pem_store(store)

    await listeners.read_changed_files(CountedRuns(lambda: listeners.configure(other)).run)

    assert fingerprint_of(listeners) != before


def test_what_was_checked_is_what_is_used(tmp_path: Path) -> None:
    listeners, other = TlsOfListeners(), tmp_path / "other.pem"
    listeners.start(tls_of(ssl_keystore_location=pem_store(tmp_path / "broker.pem")))
    changed = tls_of(ssl_keystore_location=pem_store(other))
    expected = read_key_store(changed)
    assert expected is not None

    listeners.check(changed)
    status = other.stat()
    other.write_bytes(b"x" * status.st_size)  # which would be seen if it was read a second time
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    listeners.configure(changed)

    assert fingerprint_of(listeners) == expected.fingerprint
