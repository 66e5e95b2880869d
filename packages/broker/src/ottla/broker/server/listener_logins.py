"""The logins that the configuration of a listener allows: its mechanisms, each with its JAAS line."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ottla.broker.cluster.client_entities import USERS
from ottla.broker.cluster.registration import StartupRefused
from ottla.broker.cluster.scram_credentials import ScramCredentials, shared_unknown_users
from ottla.broker.config.logins import enabled_mechanisms, has_logins, login_module
from ottla.broker.runtime.frozen_classes import frozen
from ottla.broker.runtime.log_lines import LimitedWarnings
from ottla.broker.security.sasl.login import ListenerLogins, Login, LoginCounts
from ottla.broker.security.sasl.mechanisms import PlainServer, PlainUsers
from ottla.broker.security.sasl.scram import SCRAM_HASHES, ScramServer

if TYPE_CHECKING:
    from ottla.broker.api.services import Services
    from ottla.broker.config import BrokerConfig
    from ottla.broker.config.listeners import Listener
    from ottla.broker.metrics import Metrics
    from ottla.broker.runtime.background_tasks import BackgroundTasks
    from ottla.broker.runtime.environment import Environment
    from ottla.broker.security.sasl.jaas import LoginModule
    from ottla.broker.security.sasl.jwks import JwksKeys
    from ottla.broker.security.sasl.mechanisms import MakeMechanism
    from ottla.broker.security.sasl.scram import FindUser, ScramHash, ScramUser, UnknownUsers

_log = logging.getLogger("request")


@frozen
class Sources:
    """The parts of the broker that know users, and the keys of each listener that takes signed tokens."""

    find_user: FindUser
    unknown_users: UnknownUsers
    environment: Environment
    keys: Mapping[str, JwksKeys]


class BrokerLogins:
    """The logins on all listeners of one broker, and the users that it knows."""

    def __init__(self, config: BrokerConfig, metrics: Metrics, sources: Sources) -> None:
        self._config = config
        self._metrics = metrics
        self._sources = sources

    @classmethod
    async def open(
        cls, config: BrokerConfig, services: Services, tasks: BackgroundTasks, metrics: Metrics
    ) -> BrokerLogins:
        """Follow the users in ZooKeeper: they are read when the dynamic settings are loaded.

        Raises `StartupRefused` for keys of tokens that cannot be read.
        """
        credentials, tokens = ScramCredentials(), services.delegation_tokens
        services.configs.client_entities.subscribe(USERS, credentials.entity_changed)

        def find_user(kind: ScramHash, name: str, by_token: bool) -> ScramUser | None:
            if by_token:
                return None if tokens is None else tokens.find(kind, name)
            return credentials.find(kind, name)

        environment = services.environment
        unknown_users = await shared_unknown_users(services.zookeeper, environment.random)
        keys = await _load_keys(config)
        for name, document in keys.items():
            tasks.lasting(document.refresh(), f"jwks-{name}")
        return cls(config, metrics, Sources(find_user, unknown_users, environment, keys))

    def begin_on(self, listener: Listener) -> Callable[[], Login] | None:
        """Return the function that begins a login on a listener; None where clients do not log in."""
        if not has_logins(listener):
            return None
        return logins_of(self._config, listener, self._sources, self._metrics)


async def _load_keys(config: BrokerConfig) -> dict[str, JwksKeys]:
    found: dict[str, JwksKeys] = {}
    for listener in filter(has_logins, config.parsed_listeners):
        own = config.of_listener(listener.name, "OAUTHBEARER")
        url = own.sasl_oauthbearer_jwks_endpoint_url
        if url is None or "OAUTHBEARER" not in enabled_mechanisms(config, listener):
            continue
        from ottla.broker.security.sasl.jwks import BadJwks, JwksKeys

        keys = JwksKeys(url, own.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000)
        try:
            await keys.load()
        except BadJwks as error:
            raise StartupRefused(f"sasl.oauthbearer.jwks.endpoint.url {url}: {error}") from None
        found[listener.name] = keys
    return found


def logins_of(
    config: BrokerConfig, listener: Listener, sources: Sources, metrics: Metrics
) -> Callable[[], Login]:
    """Return the function that begins a login on a listener. Raises `ConfigError`."""
    names, clock = enabled_mechanisms(config, listener), sources.environment.clock
    own = config.of_listener(listener.name)
    rules = ListenerLogins(
        mechanisms={name: _maker(config, listener, name, sources) for name in names},
        max_reauth_ms={
            name: config.of_listener(listener.name, name).connections_max_reauth_ms for name in names
        },
        max_token_bytes=own.sasl_server_max_receive_size,
        failed_delay_ms=config.connection_failed_authentication_delay_ms,
        counts=_measured(LoginCounts(), metrics, listener.name),
        warnings=LimitedWarnings(_log, clock.monotonic_ms),
    )
    return lambda: Login(rules, clock.now_ms, clock.monotonic_ms)


def _maker(config: BrokerConfig, listener: Listener, mechanism: str, sources: Sources) -> MakeMechanism:
    module = login_module(config, listener, mechanism)
    if mechanism == "PLAIN":
        users = PlainUsers(module)
        return lambda: PlainServer(users)
    if mechanism == "OAUTHBEARER":
        return _bearer_maker(config, listener, module, sources)
    kind, random = SCRAM_HASHES[mechanism], sources.environment.random

    def nonce() -> str:
        return base64.b64encode(random.randbytes(18)).decode()

    return lambda: ScramServer(kind, sources.find_user, sources.unknown_users, nonce)


def _bearer_maker(
    config: BrokerConfig, listener: Listener, module: LoginModule, sources: Sources
) -> MakeMechanism:
    from ottla.broker.security.sasl.oauthbearer import (
        ClaimRules,
        OAuthBearerServer,
        SignedTokens,
        UnsecuredTokens,
        Validator,
    )

    now_ms, options = sources.environment.clock.now_ms, module.options
    keys, own = sources.keys.get(listener.name), config.of_listener(listener.name, "OAUTHBEARER")
    validator: Validator
    if keys is None:
        skew_ms = options.get("unsecuredValidatorAllowableClockSkewMs", "0")
        rules = ClaimRules(
            scope_claim_name=options.get("unsecuredValidatorScopeClaimName", "scope"),
            subject_claim_name=options.get("unsecuredValidatorPrincipalClaimName", "sub"),
            clock_skew_ms=int(skew_ms) if skew_ms.isdecimal() else 0,
            required_scope=frozenset(options.get("unsecuredValidatorRequiredScope", "").split()),
            requires_issued_at=False,
        )
        validator = UnsecuredTokens(rules, now_ms)
    else:
        rules = ClaimRules(
            scope_claim_name=own.sasl_oauthbearer_scope_claim_name,
            subject_claim_name=own.sasl_oauthbearer_sub_claim_name,
            clock_skew_ms=own.sasl_oauthbearer_clock_skew_seconds * 1000,
            issuer=own.sasl_oauthbearer_expected_issuer,
            audiences=own.sasl_oauthbearer_expected_audience,
        )
        validator = SignedTokens(keys, rules, now_ms)
    return lambda: OAuthBearerServer(validator)


def _measured(counts: LoginCounts, metrics: Metrics, listener: str) -> LoginCounts:
    """Show the counts under Kafka's names."""

    def show(name: str, read: Callable[[], float]) -> None:
        metrics.gauge("kafka.server", "socket-server-metrics", name, read, listener=listener)

    show("successful-authentication-total", lambda: counts.successful)
    show("failed-authentication-total", lambda: counts.failed)
    show("successful-reauthentication-total", lambda: counts.successful_again)
    show("failed-reauthentication-total", lambda: counts.failed_again)
    show("successful-authentication-no-reauth-total", lambda: counts.successful_without_reauth)
    show("expired-connections-killed-count", lambda: counts.killed)
    return counts
