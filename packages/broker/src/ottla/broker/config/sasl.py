"""The broker's settings of logins (SASL)."""

from __future__ import annotations

from ottla.broker.runtime.frozen_classes import field_group
from ottla.client.config_definition import at_least, setting


@field_group
class SaslSettings:
    """The part of `BrokerConfig` about logins. All may differ by listener, most by mechanism, too."""

    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        ("GSSAPI",),
        "The mechanisms of listeners with SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER.",
    )
    sasl_jaas_config: str | None = setting(
        None,
        """The part of `BrokerConfig` about logins. All may differ by listener, most by mechanism."""
        "an effect as listener.name.<listener>.<mechanism>.sasl.jaas.config only, as in Kafka.",
        is_secret=True,
    )
    sasl_mechanism_inter_broker_protocol: str = setting(
        "GSSAPI", "The mechanism by which this broker logs in at other brokers."
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
        "Accepted for compatibility: a failed reading is repeated after 10 s.",
        long=True,
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = setting(
        10_000,
        "Accepted for compatibility: a failed reading is repeated after 10 s.",
        long=True,
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
