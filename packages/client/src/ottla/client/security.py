"""The settings of encryption and authentication: TLS, and SASL by PLAIN, SCRAM and OAUTHBEARER."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from ottla.client.setting_aliases import NO_KERBEROS, SECURITY_ALIASES
from ottla.client.settings import Alias, SettingError, setting, validate

if TYPE_CHECKING:
    import ssl

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
TokenProvider = Callable[[], Awaitable[str] | str]

_OF_TLS = (
    "ssl_context", "ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_key_password", "ssl_keystore_password",
    "ssl_enabled_protocols", "ssl_cipher_suites",
)  # fmt: skip

SCRAM_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """How a connection is secured. Names are Kafka's, in snake case."""

    security_protocol: SecurityProtocol = "PLAINTEXT"
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    ssl_context: ssl.SSLContext | None = None
    """An SSLContext to use as it is; without one the system's authorities are trusted, or `ssl_cafile`."""
    ssl_cafile: str | None = None
    """A PEM file with the certificate authorities to trust."""
    ssl_certfile: str | None = None
    """A PEM file with this client's certificate."""
    ssl_keyfile: str | None = None
    """A PEM file with the private key of that certificate; None: it is in the same file."""
    ssl_key_password: str | None = setting(None, is_secret=True)
    """The password of the private key, if it is encrypted."""
    ssl_keystore_password: str | None = setting(None, is_secret=True)
    """Used for the private key without `ssl_key_password`: a PEM file has no password of its own."""
    ssl_enabled_protocols: Sequence[str] | None = None
    """The versions of TLS to offer: TLSv1.2, TLSv1.3. None: both."""
    ssl_cipher_suites: Sequence[str] | None = None
    """The cipher suites to offer, under the names of IANA or OpenSSL. None: OpenSSL's defaults."""
    ssl_check_hostname: bool = True
    """Whether the broker's certificate must match its host name."""
    sasl_mechanism: str = "PLAIN"
    """PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER."""
    sasl_username: str | None = None
    """The user name, for PLAIN and SCRAM."""
    sasl_password: str | None = setting(None, is_secret=True)
    """The password, for PLAIN and SCRAM."""
    sasl_oauth_token_provider: TokenProvider | None = None
    """Returns a token for OAUTHBEARER at each login: a callable, or an object with a method `token`."""
    sasl_oauth_extensions: Mapping[str, str] = field(default_factory=dict)
    """Further keys and values for OAUTHBEARER (KIP-342)."""

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
            from ottla.client.tls import allowed_versions  # imports ssl, which plain clients do without

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
        """Return the context of TLS connections, or None for plain ones. Raises OSError for bad files."""
        if not self.uses_tls or self.ssl_context is not None:
            return self.ssl_context if self.uses_tls else None
        import ssl

        from ottla.client.tls import Certificate, restrict

        context = ssl.create_default_context(cafile=self.ssl_cafile)
        context.check_hostname = self.ssl_check_hostname
        if self.ssl_enabled_protocols is not None or self.ssl_cipher_suites is not None:
            restrict(context, self.ssl_enabled_protocols, self.ssl_cipher_suites)
        if self.ssl_certfile is not None:
            password = self.ssl_key_password or self.ssl_keystore_password
            Certificate(self.ssl_certfile, self.ssl_keyfile, password).load(context)
        return context


def _listed(given: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return a list of settings; an empty one means the default, as in Kafka."""
    names = given.split(",") if isinstance(given, str) else given or ()
    return tuple(name.strip() for name in names if name.strip()) or None


def _check_files(config: SecurityConfig) -> None:
    for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
        path = getattr(config, name)
        if path is not None and not Path(path).is_file():
            raise SettingError(f"{name}: there is no file {path!r}")


def _check_protocol(config: SecurityConfig) -> None:
    """Reject security settings without effect: their author believes that connections are secured."""
    for name in _OF_TLS:
        if getattr(config, name) is not None and not config.uses_tls:
            raise SettingError(_without_effect(name, config, "SSL"))
    for name in ("sasl_username", "sasl_password", "sasl_oauth_token_provider"):
        if getattr(config, name) is not None and not config.uses_sasl:
            raise SettingError(_without_effect(name, config, "SASL_PLAINTEXT"))
    if config.sasl_mechanism != "PLAIN" and not config.uses_sasl:
        raise SettingError(_without_effect("sasl_mechanism", config, "SASL_PLAINTEXT"))


def _without_effect(name: str, config: SecurityConfig, wanted: str) -> str:
    return (
        f"{name} has no effect with security_protocol={config.security_protocol!r}: "
        f"set security_protocol={wanted!r} or 'SASL_SSL'"
    )


def _check_credentials(config: SecurityConfig) -> None:
    if config.sasl_mechanism == "OAUTHBEARER":
        if config.sasl_oauth_token_provider is None:
            raise SettingError("OAUTHBEARER needs sasl_oauth_token_provider")
        return
    if config.sasl_mechanism == "GSSAPI":
        raise SettingError(NO_KERBEROS)
    if config.sasl_mechanism not in ("PLAIN", *SCRAM_MECHANISMS):
        raise SettingError(
            f"sasl_mechanism must be PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER, "
            f"not {config.sasl_mechanism!r}"
        )
    if config.sasl_username is None or config.sasl_password is None:
        raise SettingError(f"{config.sasl_mechanism} needs sasl_username and sasl_password")
