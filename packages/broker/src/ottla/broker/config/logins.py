"""The logins that a configuration allows: rules between its keys, and the JAAS lines of listeners."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from ottla.client.config_definition import ConfigError

if TYPE_CHECKING:
    from ottla.broker.config.broker import BrokerConfig
    from ottla.broker.config.listeners import Listener
    from ottla.broker.security.sasl.jaas import LoginModule

_KAFKA: Final = "org.apache.kafka.common.security."
LOGIN_MODULES: Final = {
    "PLAIN": f"{_KAFKA}plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_KAFKA}scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_KAFKA}scram.ScramLoginModule",
    "OAUTHBEARER": f"{_KAFKA}oauthbearer.OAuthBearerLoginModule",
}
"""The mechanisms that a listener may have, with the login module that its JAAS line names."""
_WITHOUT_LINE: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""Mechanisms whose users are in ZooKeeper, or known to another server."""
UNSECURED: Final = "unsecuredValidator"
"""The beginning of the options by which tokens without signatures are accepted."""


def has_logins(listener: Listener) -> bool:
    """Return whether the clients of a listener log in."""
    return listener.security_protocol.startswith("SASL_")


def check_logins(config: BrokerConfig) -> None:
    """Check the logins of all listeners; raise `ConfigError` for the first key that is wrong."""
    for listener in filter(has_logins, config.parsed_listeners):
        for mechanism in enabled_mechanisms(config, listener):
            module = login_module(config, listener, mechanism)
            if mechanism == "OAUTHBEARER":
                _check_tokens(config, listener, module)
        if listener.name == config.interbroker_listener:
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
    from ottla.broker.security.sasl.jaas import JaasError, LoginModule, parse_one_module

    key, wanted = _jaas_key(listener, mechanism), LOGIN_MODULES[mechanism]
    text = config.of_listener(listener.name, mechanism).sasl_jaas_config
    if text is None and mechanism in _WITHOUT_LINE:
        return LoginModule(wanted, "required", {})
    if text is None:
        raise ConfigError(key, f"must be set: {mechanism} takes its users from it")
    try:
        module = parse_one_module(text)
    except JaasError as error:
        raise ConfigError(key, f"cannot be read: {error}") from None
    if module.name != wanted:
        raise ConfigError(key, f"must name {wanted}: other Java classes cannot run here")
    return module


def accepts_unsecured_tokens(module: LoginModule) -> bool:
    """Return whether a JAAS line says that tokens need no signature."""
    return any(name.startswith(UNSECURED) for name in module.options)


def _check_tokens(config: BrokerConfig, listener: Listener, module: LoginModule) -> None:
    has_keys = config.of_listener(listener.name, "OAUTHBEARER").sasl_oauthbearer_jwks_endpoint_url
    if not has_keys and not accepts_unsecured_tokens(module):
        raise ConfigError(
            "sasl.oauthbearer.jwks.endpoint.url",
            "must be set for OAUTHBEARER, to check the signatures of tokens; a JAAS line with the option "
            f"{UNSECURED}PrincipalClaimName accepts tokens that anybody can make",
        )
    if has_keys and accepts_unsecured_tokens(module):
        raise ConfigError(
            _jaas_key(listener, "OAUTHBEARER"),
            f"must have no option {UNSECURED}…: sasl.oauthbearer.jwks.endpoint.url is set",
        )
    if has_keys and find_spec("jwt") is None:
        raise ConfigError(
            "sasl.enabled.mechanisms", "OAUTHBEARER needs: pip install 'ottla-broker[oauthbearer]'"
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
    if not module.options.keys() >= {"username", "password"}:
        raise ConfigError(
            _jaas_key(listener, mechanism),
            "must have a username and a password, by which this broker logs in at others",
        )
    return module


def _jaas_key(listener: Listener, mechanism: str) -> str:
    return f"listener.name.{listener.name.lower()}.{mechanism.lower()}.sasl.jaas.config"
