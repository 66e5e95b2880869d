"""The broker's settings of the page with its metrics."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from ottla.client.config_definition import ConfigError, at_least, between, is_loopback, setting
from ottla.zookeeper.frozen_classes import field_group

if TYPE_CHECKING:
    from ottla.client.page_server import PageAccess


OTLP_PACKAGES: Final = ("httpx2", "opentelemetry.proto")
OTLP: Final = "telemetry.otlp.endpoint"


def headers_in(text: str) -> dict[str, str]:
    """Read `name=value,…` as OpenTelemetry's exporters do. Raises ValueError."""
    found: dict[str, str] = {}
    for part in filter(None, (entry.strip() for entry in text.split(","))):
        name, equals, value = part.partition("=")
        name, value = name.strip().lower(), unquote(value.strip())
        if not equals or not _HEADER.fullmatch(name):
            raise ValueError("must be name=value,name=value, with names of HTTP headers")
        if not (value.isascii() and value.isprintable()):
            raise ValueError(f"the value of {name} has letters that a header cannot carry")
        found[name] = value
    return found


_HEADER: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")


def _headers(text: str) -> str | None:
    try:
        headers_in(text)
    except ValueError as error:
        return str(error)
    return None


@field_group
class MetricsSettings:
    """The part of `BrokerConfig` for the Prometheus endpoint."""

    telemetry_max_bytes: int = setting(
        1_048_576,
        "Bytes of metrics that a client may push at once, compressed and unfolded alike.",
        at_least(1),
    )
    telemetry_otlp_endpoint: str | None = setting(
        None,
        "URL of a collector of OpenTelemetry that is handed the metrics which clients push, by OTLP over "
        "HTTP: `https://collector:4318/v1/metrics`.",
        ottla_only=True,
    )
    telemetry_otlp_headers: str = setting(
        "",
        "Headers of requests to that collector, as `name=value,…`: a token, for example. Values may be "
        "percent-encoded.",
        _headers,
        ottla_only=True,
        is_secret=True,
    )
    telemetry_otlp_ssl_truststore_location: str | None = setting(
        None,
        "PEM file with authorities to trust at that collector, beside those of the system.",
        ottla_only=True,
    )
    telemetry_otlp_queue_bytes: int = setting(
        8 << 20,
        "Bytes of pushed metrics that wait for that collector; beyond them the oldest are dropped.",
        at_least(1 << 20),
        ottla_only=True,
    )
    metrics_port: int = setting(
        -1, "Port of the Prometheus endpoint; -1 disables it.", between(-1, 65_535), ottla_only=True
    )
    metrics_host: str = setting(
        "127.0.0.1",
        "Address of the Prometheus endpoint. One that other machines reach needs TLS and a token: "
        "metrics.ssl.keystore.location and metrics.token.file.",
        ottla_only=True,
    )
    metrics_ssl_keystore_location: str | None = setting(
        None,
        "PEM file with the certificate of that page and its key; a new one is taken by the next connection.",
        ottla_only=True,
    )
    metrics_ssl_key_password: str | None = setting(
        None, "The password of that key.", ottla_only=True, is_secret=True
    )
    metrics_token_file: str | None = setting(
        None,
        "File with the token that a reader of that page has to show, as a bearer token or as the password of "
        "Basic authentication.",
        ottla_only=True,
    )
    metrics_allow_anonymous: bool = setting(
        False,
        "Whether that page may be read from other machines without TLS and token, by all that reach it.",
        ottla_only=True,
    )
    metrics_group_partitions_max: int = setting(
        5_000,
        "Partitions of groups with samples on that page; groups beyond them are left out whole, and counted.",
        at_least(0),
        ottla_only=True,
    )


def metrics_access_of(config: MetricsSettings) -> PageAccess | None:
    """Return the access to the page, of its files; None without a page. Raises ConfigError."""
    if config.metrics_port < 0:
        return None
    from ottla.client.page_server import PagesRefused, page_access

    try:
        return page_access(
            config.metrics_host,
            certificate=config.metrics_ssl_keystore_location,
            key_password=config.metrics_ssl_key_password,
            token_file=config.metrics_token_file,
            is_open=config.metrics_allow_anonymous,
        )
    except PagesRefused as error:
        raise ConfigError(_key_of(config, str(error)), f"cannot be used: {error}") from error


def check_metrics(config: MetricsSettings) -> None:
    """Raise ConfigError for a page that other machines could read in clear, or without a login.

    Likewise for a collector of which the URL is none, or that would be sent a secret in clear.
    """
    if config.telemetry_otlp_endpoint is not None:
        _check_collector(config, config.telemetry_otlp_endpoint)
    has_both = config.metrics_ssl_keystore_location and config.metrics_token_file
    if config.metrics_port < 0 or config.metrics_allow_anonymous or has_both:
        return
    if not is_loopback(config.metrics_host):
        raise ConfigError(
            "metrics.host",
            f"must be a loopback address, not {config.metrics_host!r}: others could read the page. Set "
            "metrics.ssl.keystore.location and metrics.token.file, or metrics.allow.anonymous=true",
        )


def _check_collector(config: MetricsSettings, url: str) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(OTLP, f"cannot be read: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(OTLP, "must be a URL, as https://collector:4318/v1/metrics")
    if "@" in parts.netloc:
        raise ConfigError(OTLP, "must not have a user or a password: set telemetry.otlp.headers")
    if config.telemetry_otlp_headers and parts.scheme == "http" and not is_loopback(host):
        raise ConfigError(OTLP, "must begin with https, or others could read telemetry.otlp.headers")
    if missing := [name for name in OTLP_PACKAGES if not _is_installed(name)]:
        raise ConfigError(OTLP, f"needs {', '.join(missing)}: pip install 'ottla-broker[telemetry]'")
    if (file := config.telemetry_otlp_ssl_truststore_location) is not None:
        _check_authorities(file)


def _check_authorities(file: str) -> None:
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except OSError as error:
        reason = f"{file} has no certificates that can be read: {error.strerror or error}"
        raise ConfigError("telemetry.otlp.ssl.truststore.location", reason) from None


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of the package above it
        return False


def _key_of(config: MetricsSettings, text: str) -> str:
    """Return the key that an error is about: that of the file it begins with."""
    file = config.metrics_token_file
    return "metrics.token.file" if file and text.startswith(file) else "metrics.ssl.keystore.location"
