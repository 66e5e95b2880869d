"""The logins that the configuration of a listener allows: its mechanisms, each with its JAAS line."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.cluster.client_entities import USERS
from ottla.broker.cluster.registration import StartupRefused
from ottla.broker.cluster.scram_credentials import ScramCredentials, shared_unknown_users
from ottla.broker.config.logins import (
    enabled_mechanisms,
    has_logins,
    kerberos_login,
    login_module,
    token_source,
)
from ottla.broker.runtime.frozen_classes import frozen
from ottla.broker.runtime.log_lines import LimitedWarnings
from ottla.broker.runtime.threads import LoginThreads
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
    from ottla.broker.security.principal_mapping import LocalNames
    from ottla.broker.security.sasl.broker_tokens import BrokerToken
    from ottla.broker.security.sasl.jaas import LoginModule
    from ottla.broker.security.sasl.jwks import JwksKeys
    from ottla.broker.security.sasl.kerberos import ServiceKey
    from ottla.broker.security.sasl.mechanisms import MakeMechanism
    from ottla.broker.security.sasl.scram import FindUser, ScramHash, ScramUser, UnknownUsers

_log = logging.getLogger("request")


@frozen
class Sources:
    """The parts of the broker that know users, and what was read at the start, by listener."""

    find_user: FindUser
    unknown_users: UnknownUsers
    environment: Environment
    threads: LoginThreads
    keys: Mapping[str, JwksKeys]
    service_keys: Mapping[str, ServiceKey]
    tokens: Mapping[str, BrokerToken]


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

        Raises `StartupRefused` for keys of tokens, and for keytabs, that cannot be read.
        """
        credentials, tokens = ScramCredentials(), services.delegation_tokens
        services.configs.client_entities.subscribe(USERS, credentials.entity_changed)

        def find_user(kind: ScramHash, name: str, by_token: bool) -> ScramUser | None:
            if by_token:
                return None if tokens is None else tokens.find(kind, name)
            return credentials.find(kind, name)

        environment = services.environment
        unknown_users = await shared_unknown_users(services.zookeeper, environment.random)
        keys, threads = await _load_keys(config), LoginThreads()
        for name, document in keys.items():
            tasks.lasting(document.refresh(), f"jwks-{name}")
        service_keys = await _open_service_keys(config, threads)
        own_tokens = await _load_own_tokens(config, environment, threads)
        for name, token in own_tokens.items():
            tasks.lasting(token.refresh(), f"token-{name}")
        sources = Sources(find_user, unknown_users, environment, threads, keys, service_keys, own_tokens)
        return cls(config, metrics, sources)

    @property
    def tokens(self) -> Mapping[str, BrokerToken]:
        """The tokens by which this broker logs in at others, by listener."""
        return self._sources.tokens

    def close(self) -> None:
        """End the threads of logins with their present work."""
        self._sources.threads.close()

    def own_name(self) -> str | None:
        """Return the name that this broker proves by Kerberos or a token. Raises `NoRuleApplies`."""
        config = self._config
        if (token := self.tokens.get(config.interbroker_listener)) is not None:
            return token.claims.subject
        service_key = self._sources.service_keys.get(config.interbroker_listener)
        if service_key is None or config.sasl_mechanism_inter_broker_protocol != "GSSAPI":
            return None
        return _local_names(config, config.interbroker_listener, service_key).name_of(service_key.principal)

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
        from ottla.broker.security.sasl.broker_tokens import Backoff
        from ottla.broker.security.sasl.jwks import BadJwks, JwksKeys, fetch_jwks

        options = login_module(config, listener, "OAUTHBEARER").options
        keys = JwksKeys(
            url,
            own.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000,
            partial(fetch_jwks, cafile=options.get("ssl.truststore.location")),
            Backoff(
                own.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms,
                own.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms,
            ),
        )
        try:
            await keys.load()
        except BadJwks as error:
            raise StartupRefused(f"sasl.oauthbearer.jwks.endpoint.url {url}: {error}") from None
        found[listener.name] = keys
    return found


async def _open_service_keys(config: BrokerConfig, threads: LoginThreads) -> dict[str, ServiceKey]:
    found: dict[str, ServiceKey] = {}
    for listener in filter(has_logins, config.parsed_listeners):
        if "GSSAPI" not in enabled_mechanisms(config, listener):
            continue
        from ottla.broker.security.sasl.kerberos import KerberosUnavailable, open_service_key

        login = kerberos_login(config, listener)
        try:
            found[listener.name] = await threads.run(partial(open_service_key, login.principal, login.keytab))
        except KerberosUnavailable as error:
            raise StartupRefused(f"sasl.jaas.config of GSSAPI for {listener}: {error}") from None
    return found


async def _load_own_tokens(
    config: BrokerConfig, environment: Environment, threads: LoginThreads
) -> dict[str, BrokerToken]:
    if config.sasl_mechanism_inter_broker_protocol != "OAUTHBEARER":
        return {}
    of_brokers = (config.interbroker_listener, config.controller_listener)
    found: dict[str, BrokerToken] = {}
    for listener in filter(has_logins, config.parsed_listeners):
        if listener.name in of_brokers:
            from ottla.broker.security.sasl.broker_tokens import NoToken

            found[listener.name] = token = _own_token(config, listener, environment, threads)
            try:
                await token.load()
            except NoToken as error:
                raise StartupRefused(f"sasl.mechanism.inter.broker.protocol: OAUTHBEARER: {error}") from None
    return found


def _own_token(
    config: BrokerConfig, listener: Listener, environment: Environment, threads: LoginThreads
) -> BrokerToken:
    from ottla.broker.security.sasl.broker_tokens import Backoff, BrokerToken, RefreshRules, unsecured_token
    from ottla.broker.security.sasl.oauthbearer import ClaimRules
    from ottla.client.oauth_tokens import fetch_token

    own, source = config.of_listener(listener.name, "OAUTHBEARER"), token_source(config, listener)
    options = login_module(config, listener, "OAUTHBEARER").options

    def fetch() -> str:
        if source is None:
            return unsecured_token(options, environment.clock.now_ms())
        return fetch_token(source).text

    prefix = "unsecuredLogin"
    names = (
        (own.sasl_oauthbearer_sub_claim_name, own.sasl_oauthbearer_scope_claim_name)
        if source is not None
        else (
            options.get(f"{prefix}PrincipalClaimName", "sub"),
            options.get(f"{prefix}ScopeClaimName", "scope"),
        )
    )
    return BrokerToken(
        fetch,
        ClaimRules(
            subject_claim_name=names[0],
            scope_claim_name=names[1],
            clock_skew_ms=own.sasl_oauthbearer_clock_skew_seconds * 1000,
            requires_issued_at=False,
        ),
        RefreshRules(
            window_factor=own.sasl_login_refresh_window_factor,
            window_jitter=own.sasl_login_refresh_window_jitter,
            min_period_s=own.sasl_login_refresh_min_period_seconds,
            buffer_s=own.sasl_login_refresh_buffer_seconds,
        ),
        Backoff(own.sasl_login_retry_backoff_ms, own.sasl_login_retry_backoff_max_ms),
        environment,
        threads.run,
    )


def _local_names(config: BrokerConfig, listener: str, service_key: ServiceKey) -> LocalNames:
    from ottla.broker.security.principal_mapping import LocalNames, parse_kerberos_rules

    rules = config.of_listener(listener, "GSSAPI").sasl_kerberos_principal_to_local_rules
    return LocalNames(parse_kerberos_rules(rules), service_key.default_realm)


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
        run=sources.threads.run,
        blocking=frozenset({"GSSAPI"}),
    )
    return lambda: Login(rules, clock.now_ms, clock.monotonic_ms)


def _maker(config: BrokerConfig, listener: Listener, mechanism: str, sources: Sources) -> MakeMechanism:
    module = login_module(config, listener, mechanism)
    if mechanism == "PLAIN":
        users = PlainUsers(module)
        return lambda: PlainServer(users)
    if mechanism == "OAUTHBEARER":
        return _bearer_maker(config, listener, module, sources)
    if mechanism == "GSSAPI":
        return _kerberos_maker(config, listener, sources)
    kind, random = SCRAM_HASHES[mechanism], sources.environment.random

    def nonce() -> str:
        return base64.b64encode(random.randbytes(18)).decode()

    return lambda: ScramServer(kind, sources.find_user, sources.unknown_users, nonce)


def _kerberos_maker(config: BrokerConfig, listener: Listener, sources: Sources) -> MakeMechanism:
    from ottla.broker.security.sasl.kerberos import KerberosServer

    service_key = sources.service_keys[listener.name]
    names = _local_names(config, listener.name, service_key)
    return lambda: KerberosServer(service_key.begin(), names)


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
