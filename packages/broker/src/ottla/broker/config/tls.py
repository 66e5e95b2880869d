"""The broker's settings of TLS: certificates, trusted authorities, versions and principals."""

from __future__ import annotations

from typing import Final

from ottla.client.config_definition import one_of, setting
from ottla.zookeeper.frozen_classes import field_group

STORE_TYPES: Final = ("JKS", "PKCS12", "PEM")
_OPENSSL: Final = "Accepted for compatibility: TLS is OpenSSL's here, which has no such choice."
_JAVA: Final = "Must stay empty: Java classes cannot run here."
_PER_BROKER: Final = "per-broker"


def _store_type(value: str) -> str | None:
    return None if value.upper() in STORE_TYPES else f"must be one of {', '.join(STORE_TYPES)}"


@field_group
class TlsSettings:
    """The part of `BrokerConfig` that concerns TLS. Each key may differ by listener."""

    ssl_enabled_protocols: tuple[str, ...] = setting(
        ("TLSv1.2", "TLSv1.3"),
        "The versions of TLS; older ones are obsolete and never used.",
        update=_PER_BROKER,
    )
    ssl_cipher_suites: tuple[str, ...] | None = setting(
        None,
        "Cipher suites under the names of IANA, as in Java, or of OpenSSL. If one of TLS 1.3 is named, all "
        "of TLS 1.3 are offered. Without this key: all of TLS 1.3, and of TLS 1.2 those with ECDHE and GCM "
        "or ChaCha20.",
        update=_PER_BROKER,
    )
    ssl_client_auth: str = setting(
        "none",
        "Whether clients have to show a certificate: `required`, `requested` (one without is "
        "`User:ANONYMOUS`) or `none`.",
        one_of("required", "requested", "none"),
        update=_PER_BROKER,
    )
    ssl_principal_mapping_rules: str = setting(
        "DEFAULT",
        "How the name of a client's certificate becomes its principal: `RULE:pattern/replacement/[LU]` "
        "separated by commas, and `DEFAULT`, which takes the whole name. Rules need the package google-re2, "
        "whose patterns take a time linear in the length of the name.",
    )
    ssl_endpoint_identification_algorithm: str | None = setting(
        "https",
        "With `https` the certificate of another broker has to name its host; empty checks no names.",
        update=_PER_BROKER,
    )
    ssl_keystore_type: str = setting(
        "JKS",
        "The format of the key store: `PEM` or `PKCS12`. By default it is recognized from the file; Java's "
        "own JKS is refused with the command that converts it.",
        _store_type,
        update=_PER_BROKER,
    )
    ssl_keystore_location: str | None = setting(
        None,
        "The file with the broker's certificate, its chain and its private key. A file that changes is read "
        "again within a second; connections that are open go on.",
        update=_PER_BROKER,
    )
    ssl_keystore_password: str | None = setting(
        None, "The password of a PKCS12 key store.", is_secret=True, update=_PER_BROKER
    )
    ssl_keystore_key: str | None = setting(
        None,
        "The private key as PEM text, in place of a file; ssl.keystore.certificate.chain belongs to it.",
        is_secret=True,
        update=_PER_BROKER,
    )
    ssl_keystore_certificate_chain: str | None = setting(
        None, "The certificate and its chain as PEM text.", is_secret=True, update=_PER_BROKER
    )
    ssl_key_password: str | None = setting(
        None, "The password of an encrypted private key.", is_secret=True, update=_PER_BROKER
    )
    ssl_truststore_type: str = setting(
        "JKS", "The format of the trust store, as for the key store.", _store_type, update=_PER_BROKER
    )
    ssl_truststore_location: str | None = setting(
        None,
        "The file with the authorities that sign certificates of clients and other brokers; without it and "
        "without ssl.truststore.certificates the system's are trusted.",
        update=_PER_BROKER,
    )
    ssl_truststore_password: str | None = setting(
        None, "The password of a PKCS12 trust store.", is_secret=True, update=_PER_BROKER
    )
    ssl_truststore_certificates: str | None = setting(
        None, "The trusted certificates as PEM text, in place of a file.", is_secret=True, update=_PER_BROKER
    )
    ssl_allow_dn_changes: bool = setting(
        False, "Whether a new key store may have another name in its certificate while the broker runs."
    )
    ssl_allow_san_changes: bool = setting(
        False, "Whether a new key store may lack alternative names of the present certificate."
    )
    ssl_engine_factory_class: str | None = setting(None, _JAVA, update=_PER_BROKER)
    ssl_protocol: str = setting(
        "TLSv1.3", "Accepted for compatibility: ssl.enabled.protocols decides.", update=_PER_BROKER
    )
    ssl_provider: str | None = setting(None, _OPENSSL, update=_PER_BROKER)
    ssl_keymanager_algorithm: str = setting("SunX509", _OPENSSL, update=_PER_BROKER)
    ssl_trustmanager_algorithm: str = setting("PKIX", _OPENSSL, update=_PER_BROKER)
    ssl_secure_random_implementation: str | None = setting(None, _OPENSSL, update=_PER_BROKER)
