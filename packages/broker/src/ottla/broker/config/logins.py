"""The logins that a configuration allows: rules between its keys, and the JAAS lines of listeners."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from ottla.client.config_definition import ConfigError
from ottla.zookeeper.frozen_classes import frozen

if TYPE_CHECKING:
    from ottla.broker.config.broker import BrokerConfig
    from ottla.broker.config.listeners import Listener
    from ottla.client.jaas import LoginModule
    from ottla.client.oauth_tokens import TokenSource

_KAFKA: Final = "org.apache.kafka.common.security."
LOGIN_MODULES: Final = {
    "PLAIN": f"{_KAFKA}plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_KAFKA}scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_KAFKA}scram.ScramLoginModule",
    "OAUTHBEARER": f"{_KAFKA}oauthbearer.OAuthBearerLoginModule",
    "GSSAPI": "com.sun.security.auth.module.Krb5LoginModule",
}
"""The mechanisms that a listener may have, with the login module that its JAAS line names."""
_WITHOUT_LINE: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""Mechanisms whose users are in ZooKeeper, or known to another server."""
_BEARER: Final = f"{_KAFKA}oauthbearer."
_UNSECURED: Final = f"{_BEARER}internals.unsecured.OAuthBearerUnsecured"
_LOGINS: Final = (
    f"{_KAFKA}authenticator.DefaultLogin",
    f"{_KAFKA}kerberos.KerberosLogin",
    f"{_BEARER}internals.OAuthBearerRefreshingLogin",
)
_LOGIN_HANDLERS: Final = (
    f"{_BEARER}OAuthBearerLoginCallbackHandler",
    f"{_BEARER}secured.OAuthBearerLoginCallbackHandler",
    f"{_UNSECURED}LoginCallbackHandler",
    f"{_KAFKA}authenticator.AbstractLogin$DefaultLoginCallbackHandler",
)
UNSECURED_VALIDATOR: Final = f"{_UNSECURED}ValidatorCallbackHandler"
_SERVER_HANDLERS: Final = (
    f"{_BEARER}OAuthBearerValidatorCallbackHandler",
    f"{_BEARER}secured.OAuthBearerValidatorCallbackHandler",
    UNSECURED_VALIDATOR,
    f"{_KAFKA}plain.internals.PlainServerCallbackHandler",
    f"{_KAFKA}scram.internals.ScramServerCallbackHandler",
    f"{_KAFKA}authenticator.SaslServerCallbackHandler",
)
_CLIENT_HANDLERS: Final = (
    f"{_KAFKA}authenticator.SaslClientCallbackHandler",
    f"{_BEARER}internals.OAuthBearerSaslClientCallbackHandler",
)
_TAKEN: Final = {"GSSAPI": "keytab"}
UNSECURED: Final = "unsecuredValidator"
"""The beginning of the options by which tokens without signatures are accepted."""


def has_logins(listener: Listener) -> bool:
    """Return whether the clients of a listener log in."""
    return listener.security_protocol.startswith("SASL_")


def check_logins(config: BrokerConfig) -> None:
    """Check the logins of all listeners; raise `ConfigError` for the first key that is wrong."""
    for listener in filter(has_logins, config.parsed_listeners):
        for mechanism in enabled_mechanisms(config, listener):
            _check_classes(config, listener, mechanism)
            module = login_module(config, listener, mechanism)
            if mechanism == "OAUTHBEARER":
                _check_tokens(config, listener, module)
            elif mechanism == "GSSAPI":
                _check_kerberos(config, listener)
        if listener.name in (config.interbroker_listener, config.controller_listener):
            broker_login(config, listener)


def enabled_mechanisms(config: BrokerConfig, listener: Listener) -> tuple[str, ...]:
    """Return the mechanisms of a listener. Raises `ConfigError`."""
    names = config.of_listener(listener.name).sasl_enabled_mechanisms
    if not names or not LOGIN_MODULES.keys() >= set(names):
        wanted = f"must be a list of {', '.join(LOGIN_MODULES)}"
        raise ConfigError("sasl.enabled.mechanisms", f"{wanted}, not {', '.join(names)!r}, for {listener}")
    return names


def login_module(config: BrokerConfig, listener: Listener, mechanism: str) -> LoginModule:
    """Return the JAAS line of a mechanism of a listener. Raises `ConfigError`."""
    from ottla.client.jaas import JaasError, LoginModule, parse_one_module

    key, wanted = _jaas_key(listener, mechanism), LOGIN_MODULES[mechanism]
    text = config.of_listener(listener.name, mechanism).sasl_jaas_config
    if text is None and mechanism in _WITHOUT_LINE:
        return LoginModule(wanted, "required", {})
    if text is None:
        taken = f"{mechanism} takes its {_TAKEN.get(mechanism, 'users')} from it"
        raise ConfigError(key, f"must be set: {taken}, not from a JAAS file with a section KafkaServer")
    try:
        module = parse_one_module(text)
    except JaasError as error:
        raise ConfigError(key, f"cannot be read: {error}") from None
    if module.name != wanted:
        raise ConfigError(key, f"must name {wanted}: other Java classes cannot run here")
    return module


def _check_classes(config: BrokerConfig, listener: Listener, mechanism: str) -> None:
    """Refuse a Java class that is not one of Kafka's own, whose work the broker does itself."""
    own = config.of_listener(listener.name, mechanism)
    for key, given, known in (
        ("sasl.login.class", own.sasl_login_class, _LOGINS),
        ("sasl.login.callback.handler.class", own.sasl_login_callback_handler_class, _LOGIN_HANDLERS),
        ("sasl.server.callback.handler.class", own.sasl_server_callback_handler_class, _SERVER_HANDLERS),
        ("sasl.client.callback.handler.class", own.sasl_client_callback_handler_class, _CLIENT_HANDLERS),
    ):
        if given and given not in known:
            raise ConfigError(
                key,
                f"must be empty or one of {', '.join(known)} for {mechanism} on {listener}, not {given!r}: "
                "other Java classes cannot run here",
            )


def accepts_unsecured_tokens(config: BrokerConfig, listener: Listener, module: LoginModule) -> bool:
    """Return whether an option or a class of Kafka says that tokens need no signature."""
    own = config.of_listener(listener.name, "OAUTHBEARER")
    if own.sasl_server_callback_handler_class == UNSECURED_VALIDATOR:
        return True
    return any(name.startswith(UNSECURED) for name in module.options)


def _check_tokens(config: BrokerConfig, listener: Listener, module: LoginModule) -> None:
    has_keys = config.of_listener(listener.name, "OAUTHBEARER").sasl_oauthbearer_jwks_endpoint_url
    accepts_unsecured = accepts_unsecured_tokens(config, listener, module)
    if not has_keys and not accepts_unsecured:
        raise ConfigError(
            "sasl.oauthbearer.jwks.endpoint.url",
            "must be set for OAUTHBEARER, to check the signatures of tokens; a JAAS line with the option "
            f"{UNSECURED}PrincipalClaimName accepts tokens that anybody can make",
        )
    if has_keys and accepts_unsecured:
        raise ConfigError(
            _jaas_key(listener, "OAUTHBEARER"),
            f"must have no option {UNSECURED}…: sasl.oauthbearer.jwks.endpoint.url is set",
        )
    if has_keys and find_spec("jwt") is None:
        raise ConfigError(
            "sasl.enabled.mechanisms", "OAUTHBEARER needs: pip install 'ottla-broker[oauthbearer]'"
        )


@frozen
class KerberosLogin:
    """The name of the brokers' service, and this broker's principal with the file of its key."""

    service_name: str
    principal: str
    keytab: str


def kerberos_login(config: BrokerConfig, listener: Listener) -> KerberosLogin:
    """Return the options of Krb5LoginModule, by which clients and other brokers know this one.

    Raises `ConfigError`.
    """
    options = login_module(config, listener, "GSSAPI").options
    key, wanted = _jaas_key(listener, "GSSAPI"), ("keyTab", "principal")
    if options.get("useKeyTab", "").lower() != "true" or not all(options.get(name) for name in wanted):
        raise ConfigError(
            key, "must have useKeyTab=true, keyTab and principal: a broker's ticket comes from its keytab"
        )
    configured = config.of_listener(listener.name, "GSSAPI").sasl_kerberos_service_name
    service_name = options.get("serviceName") or configured
    if not service_name:
        raise ConfigError("sasl.kerberos.service.name", "must be set for GSSAPI: kafka for kafka/host@REALM")
    if configured and configured != service_name:
        raise ConfigError(
            "sasl.kerberos.service.name", f"must be {service_name!r} as in {key}, not {configured!r}"
        )
    return KerberosLogin(service_name, options["principal"], options["keyTab"])


def _check_kerberos(config: BrokerConfig, listener: Listener) -> None:
    from ottla.broker.security.principal_mapping import parse_kerberos_rules

    kerberos_login(config, listener)
    if find_spec("gssapi") is None:
        raise ConfigError(
            "sasl.enabled.mechanisms",
            "GSSAPI needs: pip install 'ottla-broker[gssapi]', and the Kerberos library to compile it "
            "(Debian: libkrb5-dev gcc)",
        )
    parse_kerberos_rules(config.of_listener(listener.name, "GSSAPI").sasl_kerberos_principal_to_local_rules)


def token_source(config: BrokerConfig, listener: Listener) -> TokenSource | None:
    """Return where this broker gets tokens for other brokers; None where its JAAS line has the claims of one.

    Raises `ConfigError`.
    """
    from ottla.broker.security.sasl.broker_tokens import UNSECURED_LOGIN, unsecured_token
    from ottla.client.key_stores import Authorities
    from ottla.client.oauth_tokens import LOGIN_TIMEOUT_MS, TokenSource

    own, key = config.of_listener(listener.name, "OAUTHBEARER"), _jaas_key(listener, "OAUTHBEARER")
    options = login_module(config, listener, "OAUTHBEARER").options
    url = own.sasl_oauthbearer_token_endpoint_url
    if url is None and not any(name.startswith(UNSECURED_LOGIN) for name in options):
        raise ConfigError(
            "sasl.oauthbearer.token.endpoint.url",
            f"must be set, with clientId and clientSecret in {key}: brokers log in with tokens",
        )
    if url is None:
        try:
            unsecured_token(options, 0.0)
        except ValueError as error:
            raise ConfigError(key, f"cannot be used: {error}") from None
        return None
    if not url.startswith(("file:", "http:", "https:")):
        raise ConfigError(
            "sasl.oauthbearer.token.endpoint.url", f"must be an https, http or file URL, not {url!r}"
        )
    if not url.startswith("file:") and not (options.get("clientId") and options.get("clientSecret")):
        raise ConfigError(key, "must have clientId and clientSecret for sasl.oauthbearer.token.endpoint.url")
    return TokenSource(
        url,
        options.get("clientId"),
        options.get("clientSecret"),
        options.get("scope"),
        Authorities(options.get("ssl.truststore.location")),
        (own.sasl_login_connect_timeout_ms or LOGIN_TIMEOUT_MS) / 1000,
        (own.sasl_login_read_timeout_ms or LOGIN_TIMEOUT_MS) / 1000,
        own.sasl_oauthbearer_header_urlencode,
    )


def broker_login(config: BrokerConfig, listener: Listener) -> LoginModule:
    """Return the JAAS line by which this broker logs in at other brokers. Raises `ConfigError`."""
    mechanism = config.sasl_mechanism_inter_broker_protocol
    enabled = enabled_mechanisms(config, listener)
    if mechanism not in enabled:
        raise ConfigError(
            "sasl.mechanism.inter.broker.protocol",
            f"must be one of sasl.enabled.mechanisms ({', '.join(enabled)}), not {mechanism!r}",
        )
    module = login_module(config, listener, mechanism)
    if mechanism == "GSSAPI":
        kerberos_login(config, listener)
    elif mechanism == "OAUTHBEARER":
        token_source(config, listener)
    elif not module.options.keys() >= {"username", "password"}:
        raise ConfigError(
            _jaas_key(listener, mechanism),
            "must have a username and a password, by which this broker logs in at others",
        )
    return module


def _jaas_key(listener: Listener, mechanism: str) -> str:
    return f"listener.name.{listener.name.lower()}.{mechanism.lower()}.sasl.jaas.config"
