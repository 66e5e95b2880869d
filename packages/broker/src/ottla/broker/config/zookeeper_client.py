"""The broker's settings of its connections to ZooKeeper: identity, TLS, and the ACLs of what it creates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.client.config_definition import ConfigError, setting
from ottla.zookeeper.embedded.access import is_directory
from ottla.zookeeper.frozen_classes import field_group

if TYPE_CHECKING:
    from ottla.zookeeper.client_security import ClientSecurity

_STORE: Final = "PEM or PKCS#12 file"


@field_group
class ZooKeeperClientSettings:
    """The part of `BrokerConfig` for connections to ZooKeeper; files are read when the broker starts."""

    zookeeper_set_acl: bool = setting(
        False,
        "Whether only brokers may change the znodes that brokers create; it needs credentials. `ottla "
        "zookeeper secure` closes those that there are already.",
    )
    zookeeper_digest_file: str | None = setting(
        None, "File with `user:password`, the credentials of ZooKeeper's scheme digest.", ottla_only=True
    )
    zookeeper_sasl_jaas_file: str | None = setting(
        None,
        "JAAS file with the login by SASL (DigestLoginModule), as Java's brokers have it.",
        ottla_only=True,
    )
    zookeeper_sasl_clientconfig: str = setting("Client", "The section of that file.", ottla_only=True)
    zookeeper_ssl_client_enable: bool = setting(False, "Whether connections to ZooKeeper use TLS.")
    zookeeper_ssl_keystore_location: str | None = setting(
        None, f"{_STORE} with the broker's certificate and key for ZooKeeper."
    )
    zookeeper_ssl_keystore_password: str | None = setting(None, "The password of its key.", is_secret=True)
    zookeeper_ssl_keystore_type: str | None = setting(None, "PEM or PKCS12; the file shows which.")
    zookeeper_ssl_truststore_location: str | None = setting(
        None, f"{_STORE} with the certificates that are trusted; without it those of the system."
    )
    zookeeper_ssl_truststore_password: str | None = setting(
        None, "The password of that file.", is_secret=True
    )
    zookeeper_ssl_truststore_type: str | None = setting(None, "PEM or PKCS12; the file shows which.")
    zookeeper_ssl_protocol: str = setting(
        "TLSv1.2", "Accepted for compatibility: zookeeper.ssl.enabled.protocols alone decides."
    )
    zookeeper_ssl_enabled_protocols: str | None = setting(
        None, "The versions of TLS, of TLSv1.2 and TLSv1.3; by default both."
    )
    zookeeper_ssl_cipher_suites: str | None = setting(
        None, "The cipher suites of TLS 1.2; by default OpenSSL's."
    )
    zookeeper_ssl_endpoint_identification_algorithm: str = setting(
        "HTTPS", "Whether a server's certificate must have the host's name: HTTPS, or empty for no."
    )
    zookeeper_ssl_crl_enable: bool = setting(False, "Not supported: lists of revoked certificates.")
    zookeeper_ssl_ocsp_enable: bool = setting(
        False, "Not supported: asking whether certificates are revoked."
    )


def check_zookeeper_client(config: ZooKeeperClientSettings, connect: str | None) -> None:
    """Raise `ConfigError` for ACLs without credentials, and for what an embedded coordinator cannot do."""
    is_embedded = connect is None or is_directory(connect)
    if is_embedded and config.zookeeper_ssl_client_enable:
        raise ConfigError("zookeeper.ssl.client.enable", "must be false: the embedded coordinator has no TLS")
    has_certificate = config.zookeeper_ssl_client_enable and config.zookeeper_ssl_keystore_location
    has_login = config.zookeeper_digest_file or config.zookeeper_sasl_jaas_file
    if config.zookeeper_set_acl and not (is_embedded or has_login or has_certificate):
        raise ConfigError(
            "zookeeper.set.acl",
            "needs credentials that ZooKeeper knows this broker by: set zookeeper.sasl.jaas.file, "
            "zookeeper.digest.file, or zookeeper.ssl.client.enable with zookeeper.ssl.keystore.location",
        )


def zookeeper_security_of(config: ZooKeeperClientSettings) -> ClientSecurity:
    """Read the files that the settings name. Raises ZooKeeperError for one that cannot be used."""
    from ottla.zookeeper.client_security import client_security_from

    texts = {
        "zookeeper.digest.file": config.zookeeper_digest_file,
        "zookeeper.sasl.jaas.file": config.zookeeper_sasl_jaas_file,
        "zookeeper.sasl.clientconfig": config.zookeeper_sasl_clientconfig,
        "zookeeper.ssl.client.enable": _flag(config.zookeeper_ssl_client_enable),
        "zookeeper.ssl.keystore.location": config.zookeeper_ssl_keystore_location,
        "zookeeper.ssl.keystore.password": config.zookeeper_ssl_keystore_password,
        "zookeeper.ssl.keystore.type": config.zookeeper_ssl_keystore_type,
        "zookeeper.ssl.truststore.location": config.zookeeper_ssl_truststore_location,
        "zookeeper.ssl.truststore.password": config.zookeeper_ssl_truststore_password,
        "zookeeper.ssl.truststore.type": config.zookeeper_ssl_truststore_type,
        "zookeeper.ssl.enabled.protocols": config.zookeeper_ssl_enabled_protocols,
        "zookeeper.ssl.cipher.suites": config.zookeeper_ssl_cipher_suites,
        "zookeeper.ssl.endpoint.identification.algorithm": (
            config.zookeeper_ssl_endpoint_identification_algorithm or "none"
        ),
        "zookeeper.ssl.crl.enable": _flag(config.zookeeper_ssl_crl_enable),
        "zookeeper.ssl.ocsp.enable": _flag(config.zookeeper_ssl_ocsp_enable),
    }
    return client_security_from({key: text for key, text in texts.items() if text is not None})


def _flag(value: bool) -> str:
    return str(value).lower()
