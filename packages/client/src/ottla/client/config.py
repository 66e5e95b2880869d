"""ClientConfig, the settings that all clients have: bootstrap servers, connections, timeouts, retries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypedDict

from ottla.client.security import SecurityConfig, SecurityProtocol, TokenProvider
from ottla.client.setting_aliases import CLIENT_ALIASES
from ottla.client.settings import Alias, SettingError, setting, validate

if TYPE_CHECKING:
    import ssl

DEFAULT_PORT = 9092


class Address(NamedTuple):
    """A broker's host and port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings of connections and requests. Names are Kafka's, in snake case."""

    bootstrap_servers: str | Iterable[str] = "127.0.0.1:9092"
    """Brokers to request the cluster's metadata from: `host:port,host:port`, or a list."""
    client_id: str = setting("ottla", synonyms={None: "ottla"})
    """The name of this client in the broker's logs and quotas."""
    request_timeout_ms: int = setting(30_000, at_least=1)
    """How long to wait for a response; the connection is closed after it."""
    socket_connection_setup_timeout_ms: int = setting(10_000, at_least=1)
    """How long connecting, TLS and authentication may take together."""
    max_in_flight_requests_per_connection: int = setting(5, at_least=1)
    """Requests in flight per connection; further requests wait."""
    send_buffer_bytes: int = setting(-1, at_least=-1)
    """The size of a connection's send buffer in the system (SO_SNDBUF); -1: the system chooses it."""
    receive_buffer_bytes: int = setting(-1, at_least=-1)
    """The size of a connection's receive buffer in the system (SO_RCVBUF); -1: the system chooses it, and
    enlarges it where the network is fast and far."""
    max_response_bytes: int = setting(128 * 1024 * 1024, at_least=1)
    """A larger response closes the connection before memory is allocated for it."""
    retry_backoff_ms: int = setting(100, at_least=0)
    """The first wait before a retry; it doubles each time, with jitter."""
    retry_backoff_max_ms: int = setting(1_000, at_least=0)
    """The longest wait before a retry."""
    bootstrap_timeout_ms: int = setting(15_000, at_least=1)
    """How long to try to reach any broker at the start."""
    default_api_timeout_ms: int = setting(60_000, at_least=1)
    """How long a call may take, retries included."""
    metadata_max_age_ms: int = setting(300_000, at_least=1)
    """The age at which metadata is refreshed without an error."""
    security: SecurityConfig = field(default_factory=SecurityConfig)
    """Encryption and authentication."""

    aliases: ClassVar[Mapping[str, Alias]] = CLIENT_ALIASES

    def __post_init__(self) -> None:
        validate(self)
        if not isinstance(self.bootstrap_servers, Iterable):
            raise SettingError(
                f"bootstrap_servers must be host:port or a list of such, not {self.bootstrap_servers!r}"
            )


class ClientSettings(TypedDict, total=False):
    """The fields of ClientConfig and SecurityConfig as keywords; `ClientConfig` documents them."""

    client: ClientConfig
    client_id: str | None
    request_timeout_ms: int
    socket_connection_setup_timeout_ms: int
    max_in_flight_requests_per_connection: int
    send_buffer_bytes: int
    receive_buffer_bytes: int
    max_response_bytes: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    bootstrap_timeout_ms: int
    default_api_timeout_ms: int
    metadata_max_age_ms: int
    security: SecurityConfig
    security_protocol: SecurityProtocol
    ssl_context: ssl.SSLContext | None
    ssl_cafile: str | None
    ssl_certfile: str | None
    ssl_keyfile: str | None
    ssl_key_password: str | None
    ssl_keystore_password: str | None
    ssl_truststore_password: str | None
    ssl_truststore_certificates: str | None
    ssl_keystore_certificate_chain: str | None
    ssl_keystore_key: str | None
    ssl_enabled_protocols: Sequence[str] | None
    ssl_cipher_suites: Sequence[str] | None
    ssl_check_hostname: bool
    sasl_mechanism: str
    sasl_username: str | None
    sasl_password: str | None
    sasl_token_auth: bool
    sasl_oauth_token_provider: TokenProvider | None
    sasl_oauth_extensions: Mapping[str, str]
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_oauthbearer_client_credentials_client_id: str | None
    sasl_oauthbearer_client_credentials_client_secret: str | None
    sasl_oauthbearer_scope: str | None
    sasl_oauthbearer_header_urlencode: bool
    sasl_login_connect_timeout_ms: int | None
    sasl_login_read_timeout_ms: int | None
    sasl_login_retry_backoff_ms: int
    sasl_login_retry_backoff_max_ms: int
    sasl_login_refresh_window_factor: float
    sasl_login_refresh_window_jitter: float
    sasl_login_refresh_min_period_seconds: int
    sasl_login_refresh_buffer_seconds: int
    sasl_kerberos_service_name: str | None
    sasl_kerberos_principal: str | None
    sasl_kerberos_keytab: str | None
    sasl_kerberos_domain_name: str | None


def parse_bootstrap_servers(servers: str | Iterable[str]) -> list[Address]:
    """Parse `host:port,host:port`, or a list; the port is optional, IPv6 hosts stand in brackets.

    Raises ValueError naming the part that is not an address.
    """
    parts = servers.split(",") if isinstance(servers, str) else list(servers)
    addresses = [_parse_address(part.strip()) for part in parts if part.strip()]
    if not addresses:
        raise ValueError("bootstrap_servers names no broker; give host:port")
    return addresses


def _parse_address(text: str) -> Address:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if not host or not (port == "" or (port.isascii() and port.isdigit() and 0 < int(port) < 65_536)):
        raise ValueError(f"{text!r} is not an address; give host:port")
    return Address(host, int(port) if port else DEFAULT_PORT)
