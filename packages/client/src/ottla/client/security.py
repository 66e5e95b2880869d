"""Encryption and authentication: their settings, and the TLS context. SASL has PLAIN, SCRAM, OAUTHBEARER.

Cipher suites may have the names of IANA, which Java uses, or those of OpenSSL. Python cannot choose among the
suites of TLS 1.3: if one of them is named, all are offered; if none is, TLS 1.3 is not.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from ottla.client.setting_aliases import SECURITY_ALIASES
from ottla.client.settings import Alias, SettingError, setting, validate

if TYPE_CHECKING:
    from ottla.client.key_stores import Authorities
    from ottla.client.oauth_tokens import TokenSource

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
TokenProvider = Callable[[], Awaitable[str] | str]

_OF_TLS = (
    "ssl_context", "ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_key_password", "ssl_keystore_password",
    "ssl_truststore_password", "ssl_truststore_certificates", "ssl_keystore_certificate_chain",
    "ssl_keystore_key", "ssl_enabled_protocols", "ssl_cipher_suites",
)  # fmt: skip
_IN_CONTEXT = ("ssl_certfile", "ssl_keystore_certificate_chain", "ssl_enabled_protocols", "ssl_cipher_suites")
"""Settings that `ssl_context` has in itself."""
_AUTHORITIES = ("ssl_cafile", "ssl_truststore_certificates")
_OF_SASL = (
    "sasl_username", "sasl_password", "sasl_oauth_token_provider", "sasl_oauthbearer_token_endpoint_url",
    "sasl_oauthbearer_client_credentials_client_id", "sasl_oauthbearer_client_credentials_client_secret",
    "sasl_oauthbearer_scope", "sasl_kerberos_service_name", "sasl_kerberos_keytab",
)  # fmt: skip

SCRAM_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")

Names = Sequence[str] | None

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_OBSOLETE = ("TLSv1", "TLSv1.1")
"""Accepted beside newer ones, as old Kafkas list them by default, but never used (RFC 8996)."""

_TLS_1_3 = re.compile(r"TLS_(AES_(128|256)_(GCM|CCM|CCM_8)|CHACHA20_POLY1305)_SHA(256|384)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """How a connection is secured. Names are Kafka's, in snake case."""

    security_protocol: SecurityProtocol = "PLAINTEXT"
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    ssl_context: ssl.SSLContext | None = None
    """An SSLContext to use as it is; without one the system's authorities are trusted, or `ssl_cafile`."""
    ssl_cafile: str | None = None
    """A PEM or PKCS#12 file with the certificate authorities to trust."""
    ssl_certfile: str | None = None
    """A PEM file with this client's certificate, or a PKCS#12 file with both."""
    ssl_keyfile: str | None = None
    """A PEM file with the private key of that certificate; None: it is in the same file."""
    ssl_key_password: str | None = setting(None, is_secret=True)
    """The password of the private key, if it is encrypted."""
    ssl_keystore_password: str | None = setting(None, is_secret=True)
    """The password of a PKCS#12 file; of the key in a PEM file, without `ssl_key_password`."""
    ssl_truststore_password: str | None = setting(None, is_secret=True)
    """The password of the PKCS#12 file with authorities."""
    ssl_truststore_certificates: str | None = None
    """The certificate authorities to trust, as PEM text."""
    ssl_keystore_certificate_chain: str | None = None
    """This client's certificate, and those of authorities between, as PEM text."""
    ssl_keystore_key: str | None = setting(None, is_secret=True)
    """The private key of `ssl_keystore_certificate_chain`, as PEM text."""
    ssl_enabled_protocols: Sequence[str] | None = None
    """The versions of TLS to offer: TLSv1.2, TLSv1.3. None: both."""
    ssl_cipher_suites: Sequence[str] | None = None
    """The cipher suites to offer, under the names of IANA or OpenSSL. None: OpenSSL's defaults."""
    ssl_check_hostname: bool = True
    """Whether the broker's certificate must match its host name."""
    sasl_mechanism: str = "PLAIN"
    """PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI (Kerberos)."""
    sasl_username: str | None = None
    """The user name, for PLAIN and SCRAM; the id of a delegation token."""
    sasl_password: str | None = setting(None, is_secret=True)
    """The password, for PLAIN and SCRAM; the HMAC of a delegation token."""
    sasl_token_auth: bool = False
    """Whether the user name and the password are those of a delegation token, for SCRAM (KIP-48)."""
    sasl_oauth_token_provider: TokenProvider | None = None
    """Returns a token for OAUTHBEARER at each login: a callable, or an object with a method `token`."""
    sasl_oauth_extensions: Mapping[str, str] = field(default_factory=dict)
    """Further keys and values for OAUTHBEARER (KIP-342)."""
    sasl_oauthbearer_token_endpoint_url: str | None = None
    """Where to get tokens: the URL of an authorization server's token endpoint, or of a file (`file:///...`)
    (KIP-768)."""
    sasl_oauthbearer_client_credentials_client_id: str | None = None
    """The client id for the token endpoint (KIP-1139)."""
    sasl_oauthbearer_client_credentials_client_secret: str | None = setting(None, is_secret=True)
    """The client secret for the token endpoint."""
    sasl_oauthbearer_scope: str | None = None
    """The scope to ask the token endpoint for."""
    sasl_oauthbearer_header_urlencode: bool = False
    """Whether client id and secret are URL-encoded for the token endpoint, as RFC 6749 has it."""
    sasl_login_connect_timeout_ms: int | None = setting(None, at_least=1)
    """How long a connection to the token endpoint may take; None: 10 s."""
    sasl_login_read_timeout_ms: int | None = setting(None, at_least=1)
    """How long the token endpoint may take to answer; None: 10 s."""
    sasl_login_retry_backoff_ms: int = setting(100, at_least=0)
    """How long a token endpoint that failed is not asked again; it doubles each time."""
    sasl_login_retry_backoff_max_ms: int = setting(10_000, at_least=0)
    """The longest such pause."""
    sasl_login_refresh_window_factor: float = setting(0.8, at_least=0.5, at_most=1.0)
    """The share of a token's life behind which the next login asks the token endpoint for a new one."""
    sasl_login_refresh_window_jitter: float = setting(0.05, at_least=0.0, at_most=0.25)
    """The most that is added to that share by chance."""
    sasl_login_refresh_min_period_seconds: int = setting(60, at_least=0, at_most=900)
    """The least time between two tokens, unless this and the buffer are longer than a token lives."""
    sasl_login_refresh_buffer_seconds: int = setting(300, at_least=0, at_most=3_600)
    """How long before its end a token is replaced at the latest."""
    sasl_kerberos_service_name: str | None = None
    """The name of the brokers' Kerberos service, for GSSAPI: `kafka` for `kafka/host@REALM`."""
    sasl_kerberos_principal: str | None = None
    """The principal of this client, for GSSAPI; None: the one of the ticket cache, or of the keytab."""
    sasl_kerberos_keytab: str | None = None
    """A keytab with the key of the principal; None: a ticket cache that `kinit` filled."""
    sasl_kerberos_domain_name: str | None = None
    """The host in the name of the brokers' service, where it is not the one that is connected to."""

    aliases: ClassVar[Mapping[str, Alias]] = SECURITY_ALIASES

    def __post_init__(self) -> None:
        validate(self)
        method = getattr(self.sasl_oauth_token_provider, "token", None)
        if method is not None:
            object.__setattr__(self, "sasl_oauth_token_provider", method)
        for name in ("ssl_enabled_protocols", "ssl_cipher_suites"):
            object.__setattr__(self, name, _listed(getattr(self, name)))
        _check_files(self)
        _check_protocol(self)
        if self.ssl_enabled_protocols is not None or self.ssl_cipher_suites is not None:
            allowed_versions(self.ssl_enabled_protocols, self.ssl_cipher_suites)
        if self.uses_sasl:
            _check_credentials(self)

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether connections are authenticated with SASL."""
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the context of TLS connections, or None for plain ones. Raises OSError for bad files.

        It blocks: to read the system's authorities takes 40 ms.
        """
        if not self.uses_tls or self.ssl_context is not None:
            return self.ssl_context if self.uses_tls else None
        import ssl

        context = ssl.create_default_context(**self._authorities.places())
        context.check_hostname = self.ssl_check_hostname
        if self.ssl_enabled_protocols is not None or self.ssl_cipher_suites is not None:
            restrict(context, self.ssl_enabled_protocols, self.ssl_cipher_suites)
        self._load_certificate(context)
        return context

    @property
    def token_source(self) -> TokenSource | None:
        """Where tokens come from without `sasl_oauth_token_provider`, or None."""
        if self.sasl_oauthbearer_token_endpoint_url is None:
            return None
        from ottla.client.oauth_tokens import LOGIN_TIMEOUT_MS, RefreshRules, TokenSource
        from ottla.client.retry import Backoff

        return TokenSource(
            self.sasl_oauthbearer_token_endpoint_url,
            self.sasl_oauthbearer_client_credentials_client_id,
            self.sasl_oauthbearer_client_credentials_client_secret,
            self.sasl_oauthbearer_scope,
            self._authorities,
            (self.sasl_login_connect_timeout_ms or LOGIN_TIMEOUT_MS) / 1_000,
            (self.sasl_login_read_timeout_ms or LOGIN_TIMEOUT_MS) / 1_000,
            self.sasl_oauthbearer_header_urlencode,
            RefreshRules(
                window_factor=self.sasl_login_refresh_window_factor,
                window_jitter=self.sasl_login_refresh_window_jitter,
                min_period_s=self.sasl_login_refresh_min_period_seconds,
                buffer_s=self.sasl_login_refresh_buffer_seconds,
            ),
            Backoff(self.sasl_login_retry_backoff_ms, self.sasl_login_retry_backoff_max_ms, jitter=0),
        )

    @property
    def _authorities(self) -> Authorities:
        from ottla.client.key_stores import Authorities

        return Authorities(self.ssl_cafile, self.ssl_truststore_password, self.ssl_truststore_certificates)

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        from ottla.client.key_stores import Certificate, is_pkcs12, load_pkcs12, load_text

        password = self.ssl_key_password or self.ssl_keystore_password
        if self.ssl_keystore_certificate_chain is not None:
            chain, key = self.ssl_keystore_certificate_chain, self.ssl_keystore_key or ""
            load_text(context, chain, key, password, "ssl_keystore_key")
        elif self.ssl_certfile is not None and is_pkcs12("ssl_certfile", self.ssl_certfile):
            load_pkcs12(context, self.ssl_certfile, self.ssl_keystore_password)
        elif self.ssl_certfile is not None:
            Certificate(self.ssl_certfile, self.ssl_keyfile, password).load(context)


def _listed(given: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return a list of settings; an empty one means the default, as in Kafka."""
    names = given.split(",") if isinstance(given, str) else given or ()
    return tuple(name.strip() for name in names if name.strip()) or None


def _check_files(config: SecurityConfig) -> None:
    for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
        if (path := getattr(config, name)) is not None:
            from ottla.client.key_stores import is_pkcs12  # most programs name no file

            is_pkcs12(name, path)
    for file, text in (
        ("ssl_cafile", "ssl_truststore_certificates"),
        ("ssl_certfile", "ssl_keystore_certificate_chain"),
    ):
        if getattr(config, file) is not None and getattr(config, text) is not None:
            raise SettingError(f"give {file} or {text}, not both")
    if (config.ssl_keystore_certificate_chain is None) != (config.ssl_keystore_key is None):
        raise SettingError("ssl_keystore_certificate_chain needs ssl_keystore_key, and the reverse")


def _check_protocol(config: SecurityConfig) -> None:
    """Reject security settings without effect: their author believes that connections are secured."""
    for name in _OF_TLS:
        if getattr(config, name) is not None and not config.uses_tls:
            raise SettingError(_without_effect(name, config, "SSL"))
    for name in _OF_SASL:
        if getattr(config, name) is not None and not config.uses_sasl:
            raise SettingError(_without_effect(name, config, "SASL_PLAINTEXT"))
    if config.sasl_mechanism != "PLAIN" and not config.uses_sasl:
        raise SettingError(_without_effect("sasl_mechanism", config, "SASL_PLAINTEXT"))
    if config.ssl_context is not None:
        # A token endpoint is asked with a context of its own, with these authorities.
        ignored = _IN_CONTEXT if config.sasl_oauthbearer_token_endpoint_url else (*_AUTHORITIES, *_IN_CONTEXT)
        given = [name for name in ignored if getattr(config, name) is not None]
        if given or not config.ssl_check_hostname:
            name = given[0] if given else "ssl_check_hostname"
            raise SettingError(f"{name} has no effect with ssl_context: set it in the context")


def _without_effect(name: str, config: SecurityConfig, wanted: str) -> str:
    return (
        f"{name} has no effect with security_protocol={config.security_protocol!r}: "
        f"set security_protocol={wanted!r} or 'SASL_SSL'"
    )


def _check_credentials(config: SecurityConfig) -> None:
    if config.sasl_mechanism == "OAUTHBEARER":
        if config.token_source is not None:
            config.token_source.check()
        elif config.sasl_oauth_token_provider is None:
            raise SettingError(
                "OAUTHBEARER needs sasl_oauthbearer_token_endpoint_url or sasl_oauth_token_provider"
            )
        return
    if config.sasl_mechanism == "GSSAPI":
        from ottla.client.kerberos import check_kerberos

        check_kerberos(config.sasl_kerberos_service_name, config.sasl_kerberos_keytab)
        return
    if config.sasl_mechanism not in ("PLAIN", *SCRAM_MECHANISMS):
        raise SettingError(
            f"sasl_mechanism must be PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI, "
            f"not {config.sasl_mechanism!r}"
        )
    if config.sasl_token_auth and config.sasl_mechanism not in SCRAM_MECHANISMS:
        raise SettingError(f"sasl_token_auth needs a SCRAM mechanism, not {config.sasl_mechanism}")
    if config.sasl_username is None or config.sasl_password is None:
        raise SettingError(f"{config.sasl_mechanism} needs sasl_username and sasl_password")


def restrict(context: ssl.SSLContext, protocols: Names, suites: Names) -> None:
    """Offer only some versions of TLS and some cipher suites; None: all."""
    versions = allowed_versions(protocols, suites)
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if older := _older_suites(suites or ()):
        context.set_ciphers(":".join(older))


def allowed_versions(protocols: Names, suites: Names) -> set[ssl.TLSVersion]:
    """Return the versions of TLS that the settings allow. Raises SettingError if there are none."""
    allowed = set(_VERSIONS.values()) if protocols is None else _enabled(protocols)
    if suites is None:
        return allowed
    older = _older_suites(suites)
    if not older:
        allowed.discard(ssl.TLSVersion.TLSv1_2)
    if len(older) == len(suites):
        allowed.discard(ssl.TLSVersion.TLSv1_3)
    if not allowed:
        raise SettingError("ssl_cipher_suites has no suite for the versions of ssl_enabled_protocols")
    return allowed


def _enabled(names: Sequence[str]) -> set[ssl.TLSVersion]:
    for name in names:
        if name not in _VERSIONS and name not in _OBSOLETE:
            raise SettingError(f"ssl_enabled_protocols: there is no version {name!r}; give TLSv1.2, TLSv1.3")
    found = {_VERSIONS[name] for name in names if name in _VERSIONS}
    if not found:
        raise SettingError("ssl_enabled_protocols names neither TLSv1.2 nor TLSv1.3; others are obsolete")
    return found


def _older_suites(names: Sequence[str]) -> list[str]:
    """Return the suites of TLS 1.2 under OpenSSL's names. Raises SettingError for one that it lacks."""
    older = [(name, _openssl_name(name)) for name in names if not _TLS_1_3.fullmatch(name)]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for name, openssl_name in older:
        try:
            context.set_ciphers(openssl_name)  # a list would pass with a single known name
        except ssl.SSLError:
            raise SettingError(f"ssl_cipher_suites: OpenSSL has no suite {name!r}") from None
    return [openssl_name for _, openssl_name in older]


def _openssl_name(name: str) -> str:
    """Return OpenSSL's name of a suite: ECDHE-RSA-AES128-GCM-SHA256 for TLS_ECDHE_RSA_WITH_AES_128_GCM_…."""
    if not name.startswith(("TLS_", "SSL_")):
        return name
    exchange, _, cipher = name[4:].partition("_WITH_")
    cipher = re.sub(r"(AES|CAMELLIA|ARIA)_(\d+)(_CBC)?", r"\1\2", cipher).replace(
        "POLY1305_SHA256", "POLY1305"
    )
    return "-".join([*([] if exchange == "RSA" else [exchange]), cipher]).replace("_", "-")
