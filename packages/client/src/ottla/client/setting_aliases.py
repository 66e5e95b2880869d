"""Other names that clients accept for settings: of older Kafkas, Java, librdkafka, Python's clients."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ottla.client.settings import Alias

log = logging.getLogger(__name__)

_BROKER_ID = re.compile(r"^\d+:")
_NEVER_MS: Final = 10 * 365 * 24 * 3_600_000
_OFTEN_MS: Final = 100
_OWN_CLASSES: Final = (
    "DefaultLogin", "SaslClientCallbackHandler", "OAuthBearerLoginCallbackHandler",
    "OAuthBearerRefreshingLogin", "OAuthBearerSaslClientCallbackHandler",
)  # fmt: skip


def without_effect(source: str, advice: str) -> Alias:
    """Make the alias of a setting that has no effect here."""
    return Alias(None, source, advice=advice)


def renamed(source: str, names: Mapping[str, str]) -> dict[str, Alias]:
    """Make aliases of settings that only have another name."""
    return {name: Alias(field, source) for name, field in names.items()}


def _login(jaas: Any) -> dict[str, Any]:
    """Parse user and password of Java's `sasl.jaas.config`."""
    from ottla.client.jaas import parse_one_module  # few programs have such a line

    module = parse_one_module(str(jaas))
    found = module.options
    if "clientId" in found and "clientSecret" in found:
        prefix = "extension_"
        extensions = {key.removeprefix(prefix): found[key] for key in found if key.startswith(prefix)}
        return {
            "sasl_oauthbearer_client_credentials_client_id": found["clientId"],
            "sasl_oauthbearer_client_credentials_client_secret": found["clientSecret"],
            **({"sasl_oauthbearer_scope": found["scope"]} if "scope" in found else {}),
            **({"sasl_oauth_extensions": extensions} if extensions else {}),
        }
    if module.name.endswith("Krb5LoginModule"):
        names = {
            "serviceName": "service_name",
            "principal": "principal",
            **({"keyTab": "keytab"} if found.get("useKeyTab", "true").lower() == "true" else {}),
        }
        return {f"sasl_kerberos_{field}": found[key] for key, field in names.items() if key in found}
    if module.name.endswith("OAuthBearerLoginModule"):
        return {}  # tokens come from a file, or the secret stands by itself
    if "username" not in found or "password" not in found:
        raise ValueError("a login module with username and password, or clientId and clientSecret, is wanted")
    by_token = {"sasl_token_auth": True} if found.get("tokenauth", "").lower() == "true" else {}
    return {"sasl_username": found["username"], "sasl_password": found["password"], **by_token}


def _extensions(given: Any) -> Any:
    """Parse librdkafka's `key=value,key=value`."""
    if not isinstance(given, str):
        return given
    return {key: value for key, _, value in (pair.strip().partition("=") for pair in given.split(","))}


def _store_type(kind: Any) -> dict[str, Any]:
    """Accept the types of files that can be read; their content shows which of them it is."""
    if str(kind).upper() not in ("PEM", "PKCS12"):
        raise ValueError("give PEM or PKCS12; `keytool -importkeystore -deststoretype PKCS12` converts")
    return {}


def _own_class(name: Any) -> dict[str, Any]:
    """Accept Kafka's own classes of logins, for which there are settings; those of others are Java."""
    if str(name).rpartition(".")[2] not in _OWN_CLASSES or not str(name).startswith("org.apache.kafka."):
        raise ValueError("no class of Java runs here; sasl_oauth_token_provider takes a function of Python")
    return {}


def _method(name: Any) -> dict[str, Any]:
    if str(name).lower() not in ("default", "oidc"):
        raise ValueError("give oidc, and sasl_oauthbearer_token_endpoint_url")
    return {}


def _check_hostname(algorithm: Any) -> bool:
    return str(algorithm).lower() not in ("", "none")


def _as_list(servers: Any) -> str:
    return servers if isinstance(servers, str) or not isinstance(servers, Iterable) else ",".join(servers)


def _numbered_brokers(servers: Any) -> str:
    """Return the addresses of Kafka 0.7's `0:host:port,1:host:port`; its brokers' ids are found out now."""
    parts = [part.strip() for part in _as_list(servers).split(",")]
    return ",".join(_BROKER_ID.sub("", part) if part.count(":") == 2 else part for part in parts)


def refresh_interval(given: Any) -> dict[str, Any]:
    """Return the age of metadata for Kafka 0.8's interval: -1 meant only after errors, 0 at each send."""
    interval_ms = int(given)
    if interval_ms < -1:
        raise ValueError("give milliseconds; -1 refreshes only after errors, 0 as often as possible")
    if interval_ms == 0:
        log.warning("a refresh interval of 0 is too short", extra={"interval_ms": _OFTEN_MS})
    return {"metadata_max_age_ms": {-1: _NEVER_MS, 0: _OFTEN_MS}.get(interval_ms, interval_ms)}


def buffer_bytes(given: Any) -> int:
    """Return the size of a socket's buffer; librdkafka's 0 leaves it to the system, as -1 does here."""
    return int(given) or -1


CLIENT_ALIASES: Mapping[str, Alias] = {
    "metadata_broker_list": Alias("bootstrap_servers", "Kafka 0.8, librdkafka", _as_list),
    "broker_list": Alias("bootstrap_servers", "Kafka 0.7", _numbered_brokers),
    "topic_metadata_refresh_interval_ms": Alias(None, "Kafka 0.8, librdkafka", expand=refresh_interval),
    **renamed(
        "librdkafka",
        {
            "socket_timeout_ms": "request_timeout_ms",
            "socket_connection_timeout_ms": "socket_connection_setup_timeout_ms",
            "max_in_flight": "max_in_flight_requests_per_connection",
            "max_in_flight_requests": "max_in_flight_requests_per_connection",
            "receive_message_max_bytes": "max_response_bytes",
        },
    ),
    "socket_send_buffer_bytes": Alias("send_buffer_bytes", "librdkafka", buffer_bytes),
    "socket_receive_buffer_bytes": Alias("receive_buffer_bytes", "Kafka 0.8, librdkafka", buffer_bytes),
    "connections_max_idle_ms": without_effect(
        "Kafka", "brokers close idle connections; clients connect again when needed"
    ),
    "reconnect_backoff_ms": without_effect("Kafka", "retry_backoff_ms also applies to reconnecting"),
    "reconnect_backoff_max_ms": without_effect("Kafka", "retry_backoff_max_ms also applies to reconnecting"),
    "client_dns_lookup": without_effect("Kafka", "all addresses of a host name are tried"),
    "socket_connection_setup_timeout_max_ms": without_effect(
        "Kafka", "socket_connection_setup_timeout_ms bounds each attempt, and does not grow"
    ),
    "metadata_recovery_strategy": without_effect("Kafka", "bootstrap servers are asked beside known brokers"),
    "metadata_recovery_rebootstrap_trigger_ms": without_effect(
        "Kafka", "bootstrap servers are asked beside known brokers"
    ),
    "auto_include_jmx_reporter": without_effect("Kafka", "there is no JMX; see `metrics`"),
    "enable_metrics_push": without_effect("Kafka", "metrics are not sent to brokers"),
    "metric_reporters": without_effect(
        "Kafka", "see `metrics` and ottla.client.metrics.prometheus or .opentelemetry"
    ),
    "metrics_num_samples": without_effect("Kafka", "metrics are counters; a monitoring system derives rates"),
    "metrics_sample_window_ms": without_effect(
        "Kafka", "metrics are counters; a monitoring system derives rates"
    ),
    "metrics_recording_level": without_effect("Kafka", "all metrics are always recorded"),
    "api_version": without_effect("aiokafka, kafka-python", "versions are negotiated with each broker"),
    "api_version_auto_timeout_ms": without_effect(
        "kafka-python", "socket_connection_setup_timeout_ms bounds connecting"
    ),
    "api_version_request": without_effect("librdkafka", "versions are negotiated with each broker"),
    "broker_version_fallback": without_effect("librdkafka", "versions are negotiated with each broker"),
    "loop": without_effect("aiokafka", "the running event loop is used"),
    "selector": without_effect("kafka-python", "asyncio's event loop is used"),
    "statistics_interval_ms": without_effect("librdkafka", "see `metrics`"),
    "log_level": without_effect("librdkafka", "set the level of the logger `ottla`"),
    "debug": without_effect("librdkafka", "set the level of the logger `ottla` to DEBUG"),
}

SECURITY_ALIASES: Mapping[str, Alias] = {
    **renamed(
        "aiokafka, kafka-python",
        {"sasl_plain_username": "sasl_username", "sasl_plain_password": "sasl_password"},
    ),
    **renamed(
        "librdkafka",
        {
            "sasl_mechanisms": "sasl_mechanism",
            "ssl_ca_location": "ssl_cafile",
            "ssl_certificate_location": "ssl_certfile",
            "ssl_key_location": "ssl_keyfile",
            "ssl_key_pem": "ssl_keystore_key",
            "ssl_certificate_pem": "ssl_keystore_certificate_chain",
            "ssl_ca_pem": "ssl_truststore_certificates",
            "sasl_oauthbearer_client_id": "sasl_oauthbearer_client_credentials_client_id",
            "sasl_oauthbearer_client_secret": "sasl_oauthbearer_client_credentials_client_secret",
        },
    ),
    "ssl_password": Alias("ssl_key_password", "kafka-python", is_secret=True),
    **renamed("Kafka", {"ssl_truststore_location": "ssl_cafile", "ssl_keystore_location": "ssl_certfile"}),
    "sasl_oauthbearer_extensions": Alias("sasl_oauth_extensions", "librdkafka", _extensions),
    "sasl_oauthbearer_method": Alias(None, "librdkafka", expand=_method),
    **{
        f"sasl_{name}": Alias(None, "Kafka", expand=_own_class)
        for name in ("login_class", "login_callback_handler_class", "client_callback_handler_class")
    },
    "ssl_protocol": without_effect("Kafka", "ssl_enabled_protocols names the versions to offer"),
    **{
        name: without_effect("Kafka", "OpenSSL encrypts connections, not a library of Java")
        for name in (
            "ssl_provider",
            "ssl_keymanager_algorithm",
            "ssl_trustmanager_algorithm",
            "ssl_secure_random_implementation",
            "security_providers",
        )
    },
    **{
        f"sasl_oauthbearer_{name}": without_effect("Kafka", "brokers check tokens, clients only send them")
        for name in (
            "clock_skew_seconds",
            "expected_audience",
            "expected_issuer",
            "jwks_endpoint_url",
            "jwks_endpoint_refresh_ms",
            "jwks_endpoint_retry_backoff_ms",
            "jwks_endpoint_retry_backoff_max_ms",
            "scope_claim_name",
            "sub_claim_name",
        )
    },
    "ssl_truststore_type": Alias(None, "Kafka", expand=_store_type),
    "ssl_keystore_type": Alias(None, "Kafka", expand=_store_type),
    "ssl_endpoint_identification_algorithm": Alias("ssl_check_hostname", "Kafka", _check_hostname),
    **{
        f"sasl_kerberos_{name}": without_effect(
            "Kafka, librdkafka", "tickets come from the keytab or the cache"
        )
        for name in (
            "kinit_cmd",
            "min_time_before_relogin",
            "ticket_renew_window_factor",
            "ticket_renew_jitter",
        )
    },
    "sasl_jaas_config": Alias(None, "Kafka", expand=_login, is_secret=True),
}
