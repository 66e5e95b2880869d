"""The broker's settings of logins (SASL)."""

from __future__ import annotations

from typing import Final

from ottla.client.config_definition import at_least, between, setting
from ottla.zookeeper.frozen_classes import field_group

_PER_BROKER: Final = "per-broker"
_ITS_OWN: Final = "A class of Kafka's own; the broker does what it does."


_BY_LIBRARY: Final = (
    "Accepted for compatibility: the Kerberos library takes the next ticket after half of the life of one."
)


@field_group
class SaslSettings:
    """The part of `BrokerConfig` about logins. All may differ by listener, most by mechanism, too."""

    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        ("GSSAPI",),
        "The mechanisms of listeners with SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI "
        "(Kerberos).",
        update=_PER_BROKER,
    )
    sasl_jaas_config: str | None = setting(
        None,
        "The login module of a mechanism with its options: users, and the login of this broker at others. It "
        "has an effect as listener.name.<listener>.<mechanism>.sasl.jaas.config only, as in Kafka.",
        is_secret=True,
        update=_PER_BROKER,
    )
    sasl_mechanism_inter_broker_protocol: str = setting(
        "GSSAPI", "The mechanism by which this broker logs in at other brokers.", update=_PER_BROKER
    )
    sasl_server_max_receive_size: int = setting(
        524_288, "The largest request before a login, and the largest token.", at_least(1)
    )
    connections_max_reauth_ms: int = setting(
        0,
        "How long a login is good: after that the client has to log in again on its connection (KIP-368), or "
        "its next request closes it. 0 sets no end.",
        at_least(0),
        long=True,
    )

    # --- the login of this broker at others
    sasl_login_refresh_window_factor: float = setting(
        0.8,
        "The share of a token's life after which the next one is asked for.",
        between(0.5, 1.0),
        update=_PER_BROKER,
    )
    sasl_login_refresh_window_jitter: float = setting(
        0.05, "The most that is added to that share by chance.", between(0.0, 0.25), update=_PER_BROKER
    )
    sasl_login_refresh_min_period_seconds: int = setting(
        60,
        "The least time between two tokens, unless this and the buffer are longer than a token lives.",
        between(0, 900),
        update=_PER_BROKER,
    )
    sasl_login_refresh_buffer_seconds: int = setting(
        300,
        "How long before its end a token is replaced at the latest.",
        between(0, 3_600),
        update=_PER_BROKER,
    )
    sasl_login_connect_timeout_ms: int | None = setting(
        None, "How long a connection to the server of tokens may take; by default 10 s.", at_least(1)
    )
    sasl_login_read_timeout_ms: int | None = setting(
        None, "How long the server of tokens may take to answer; by default 10 s.", at_least(1)
    )
    sasl_login_retry_backoff_ms: int = setting(
        100,
        "The first pause before the server of tokens is asked again; it doubles each time.",
        at_least(0),
        long=True,
    )
    sasl_login_retry_backoff_max_ms: int = setting(
        10_000, "How long the server of tokens is asked again in all.", at_least(0), long=True
    )
    sasl_login_class: str | None = setting(None, _ITS_OWN)
    sasl_login_callback_handler_class: str | None = setting(None, _ITS_OWN)
    sasl_server_callback_handler_class: str | None = setting(
        None,
        f"{_ITS_OWN} With OAuthBearerUnsecuredValidatorCallbackHandler, tokens need no signature.",
    )
    sasl_client_callback_handler_class: str | None = setting(None, _ITS_OWN)

    # --- GSSAPI
    sasl_kerberos_service_name: str | None = setting(
        None,
        "The name of the brokers' service in Kerberos: `kafka` for kafka/host@REALM. The option serviceName "
        "of the JAAS line may name it, too.",
        update=_PER_BROKER,
    )
    sasl_kerberos_principal_to_local_rules: tuple[str, ...] = setting(
        ("DEFAULT",),
        "Rules like `RULE:[1:$1@$0](.*@EXAMPLE.COM)s/@.*//` by which a name of Kerberos becomes a user; the "
        "first that applies counts. DEFAULT takes the first component of a name in the default realm.",
        update=_PER_BROKER,
    )
    sasl_kerberos_kinit_cmd: str = setting("/usr/bin/kinit", _BY_LIBRARY, update=_PER_BROKER)
    sasl_kerberos_ticket_renew_window_factor: float = setting(0.8, _BY_LIBRARY, update=_PER_BROKER)
    sasl_kerberos_ticket_renew_jitter: float = setting(0.05, _BY_LIBRARY, update=_PER_BROKER)
    sasl_kerberos_min_time_before_relogin: int = setting(60_000, _BY_LIBRARY, long=True, update=_PER_BROKER)

    # --- OAUTHBEARER
    sasl_oauthbearer_jwks_endpoint_url: str | None = setting(
        None,
        "Where the public keys are that sign the tokens of clients: an https, http or file URL of a JWKS "
        "document. Without one, tokens are refused, unless the JAAS line allows them without signatures.",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        3_600_000, "How often the keys are read again.", at_least(1_000), long=True
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = setting(
        100,
        "The first pause before a server of keys is asked again; it doubles each time.",
        at_least(0),
        long=True,
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = setting(
        10_000, "How long a server of keys is asked again in all.", at_least(0), long=True
    )
    sasl_oauthbearer_token_endpoint_url: str | None = setting(
        None,
        "Where this broker gets the tokens by which it logs in at others: an https or http URL, which wants "
        "the options clientId and clientSecret of the JAAS line, or a file URL.",
    )
    sasl_oauthbearer_header_urlencode: bool = setting(
        False, "Whether clientId and clientSecret are URL-encoded in the request for a token (RFC 6749)."
    )
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        30, "How much the clocks of this broker and of the tokens' issuer may differ.", at_least(0)
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = setting(
        (), "Audiences, one of which a token has to be for; without any, the audience is not checked."
    )
    sasl_oauthbearer_expected_issuer: str | None = setting(
        None, "The issuer of tokens; without one, it is not checked."
    )
    sasl_oauthbearer_scope_claim_name: str = setting("scope", "The claim of a token that has its scope.")
    sasl_oauthbearer_sub_claim_name: str = setting("sub", "The claim of a token that names the user.")

    # --- delegation tokens
    delegation_token_secret_key: str | None = setting(
        None,
        "The key from which the secrets of delegation tokens are derived, the same on all brokers; without "
        "one there are no tokens.",
        is_secret=True,
    )
    delegation_token_master_key: str | None = setting(
        None, "The earlier name of delegation.token.secret.key.", is_secret=True
    )
    delegation_token_max_lifetime_ms: int = setting(
        604_800_000, "How long a token lasts at most, however often it is renewed.", at_least(1), long=True
    )
    delegation_token_expiry_time_ms: int = setting(
        86_400_000, "How long a token lasts until it has to be renewed.", at_least(1), long=True
    )
    delegation_token_expiry_check_interval_ms: int = setting(
        3_600_000, "How often the controller removes tokens that are over.", at_least(1), long=True
    )

    @property
    def token_key(self) -> str | None:
        """The key of delegation tokens; None where there are none."""
        return self.delegation_token_secret_key or self.delegation_token_master_key or None
