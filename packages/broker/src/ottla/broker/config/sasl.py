"""The broker's settings of logins (SASL)."""

from __future__ import annotations

from ottla.broker.runtime.frozen_classes import field_group
from ottla.client.config_definition import at_least, setting


@field_group
class SaslSettings:
    """The part of `BrokerConfig` about logins. All may differ by listener, most by mechanism, too."""

    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        ("GSSAPI",),
        "The mechanisms of listeners with SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512.",
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
