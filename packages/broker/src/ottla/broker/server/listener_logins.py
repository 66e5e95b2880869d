"""The logins that the configuration of a listener allows: its mechanisms, each with its JAAS line."""

from __future__ import annotations

import base64
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

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
from ottla.broker.config.sasl import SaslSettings
from ottla.broker.runtime.log_lines import LimitedWarnings
from ottla.broker.runtime.threads import LoginThreads, TooManyLogins
from ottla.broker.security.sasl.login import ListenerLogins, Login, LoginCounts
from ottla.broker.security.sasl.mechanisms import Evaluation, LoginInterrupted, PlainServer, PlainUsers
from ottla.broker.security.sasl.scram import SCRAM_HASHES, ScramServer, names_token
from ottla.zookeeper.frozen_classes import frozen

if TYPE_CHECKING:
    import asyncio

    from ottla.broker.api.services import Services
    from ottla.broker.config import BrokerConfig
    from ottla.broker.config.listeners import Listener
    from ottla.broker.config.logins import KerberosLogin
    from ottla.broker.metrics import Metrics
    from ottla.broker.runtime.background_tasks import BackgroundTasks
    from ottla.broker.runtime.environment import Environment
    from ottla.broker.security.principal_mapping import LocalNames
    from ottla.broker.security.sasl.broker_tokens import BrokerToken
    from ottla.broker.security.sasl.jwks import JwksKeys
    from ottla.broker.security.sasl.kerberos import ServiceKey
    from ottla.broker.security.sasl.login import Work
    from ottla.broker.security.sasl.mechanisms import MakeMechanism
    from ottla.broker.security.sasl.scram import FindUser, ScramHash, ScramUser, UnknownUsers
    from ottla.client.jaas import LoginModule

_log = logging.getLogger("request")

T = TypeVar("T")


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


class Loaded(Generic[T]):
    """Values that were read for listeners, each again only when the settings that it was read by change."""

    def __init__(self) -> None:
        self.values: dict[str, T] = {}
        """By the listener's name."""
        self._settings: Mapping[str, object] = {}

    async def load(self, wanted: Mapping[str, object], read: Callable[[str], Awaitable[T]]) -> None:
        """Read the new values, by the settings of each listener; an error leaves everything as it was."""
        fresh = {
            name: await read(name)
            for name, settings in wanted.items()
            if name not in self.values or self._settings[name] != settings
        }
        for name in self.values.keys() - wanted.keys():
            del self.values[name]
        self.values.update(fresh)
        self._settings = dict(wanted)


class BrokerLogins:
    """The logins on all listeners of one broker, and the users that it knows."""

    def __init__(
        self,
        find_user: FindUser,
        unknown_users: UnknownUsers,
        environment: Environment,
        tasks: BackgroundTasks,
        metrics: Metrics,
    ) -> None:
        self._config: BrokerConfig
        self._keys: Loaded[JwksKeys] = Loaded()
        self._service_keys: Loaded[ServiceKey] = Loaded()
        self._tokens: Loaded[BrokerToken] = Loaded()
        self._sources = Sources(
            find_user,
            unknown_users,
            environment,
            LoginThreads(),
            self._keys.values,
            self._service_keys.values,
            self._tokens.values,
        )
        self._tasks = tasks
        self._metrics = metrics
        self._refreshing: dict[JwksKeys | BrokerToken, asyncio.Task[None]] = {}
        self._rules: dict[str, ListenerLogins] = {}
        self._counts: dict[str, LoginCounts] = {}

    @classmethod
    async def open(cls, services: Services, tasks: BackgroundTasks, metrics: Metrics) -> BrokerLogins:
        """Follow the users in ZooKeeper: they are read when the dynamic settings are loaded."""
        credentials, tokens = ScramCredentials(), services.delegation_tokens

        def find_user(kind: ScramHash, name: str, by_token: bool) -> ScramUser | None:
            if by_token:
                return None if tokens is None else tokens.find(kind, name)
            return credentials.find(kind, name)

        environment = services.environment
        unknown_users = await shared_unknown_users(services.zookeeper, environment.random)
        services.configs.client_entities.subscribe(USERS, credentials.entity_changed)
        return cls(find_user, unknown_users, environment, tasks, metrics)

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

    # ---- settings

    async def configure(self, config: BrokerConfig) -> None:
        """Use these settings for every login that begins from now on, also again on an open connection.

        Raises `StartupRefused` for keys of tokens, and for keytabs, that cannot be read.
        """
        listeners = {listener.name: listener for listener in config.parsed_listeners if has_logins(listener)}
        await self._load(config, listeners)
        self._config = config
        for name in self._rules.keys() - listeners.keys():
            del self._rules[name]
        for name, listener in listeners.items():
            rules = self._rules_of(config, listener)
            if name in self._rules:
                self._rules[name].replace_by(rules)
            else:
                self._rules[name] = rules

    def begin_on(self, listener: Listener) -> Callable[[], Login] | None:
        """Return the function that begins a login on a listener; None where clients do not log in."""
        if not has_logins(listener):
            return None
        rules, clock = self._rules[listener.name], self._sources.environment.clock
        return lambda: Login(rules, clock.now_ms, clock.monotonic_ms)

    async def _load(self, config: BrokerConfig, listeners: Mapping[str, Listener]) -> None:
        environment, threads = self._sources.environment, self._sources.threads

        def those_with(mechanism: str) -> dict[str, Listener]:
            return {
                name: listener
                for name, listener in listeners.items()
                if mechanism in enabled_mechanisms(config, listener)
            }

        kerberos = {name: kerberos_login(config, found) for name, found in those_with("GSSAPI").items()}
        await self._service_keys.load(kerberos, lambda name: _open_service_key(kerberos[name], threads))
        jwks = {name: _jwks_source(config, found) for name, found in those_with("OAUTHBEARER").items()}
        documents = {name: source for name, source in jwks.items() if source is not None}
        await self._keys.load(documents, lambda name: _load_keys(documents[name], threads))
        own = {}
        if config.sasl_mechanism_inter_broker_protocol == "OAUTHBEARER":
            for name in {config.interbroker_listener, config.controller_listener} & listeners.keys():
                own[name] = _bearer_settings(config, listeners[name])
        await self._tokens.load(
            own, lambda name: _load_own_token(config, listeners[name], environment, threads)
        )
        self._refresh({**self._keys.values}, {**self._tokens.values})

    def _refresh(self, keys: Mapping[str, JwksKeys], tokens: Mapping[str, BrokerToken]) -> None:
        """Read the loaded values again and again, and no others."""
        wanted: dict[JwksKeys | BrokerToken, str] = {key: f"jwks-{name}" for name, key in keys.items()}
        wanted.update({token: f"token-{name}" for name, token in tokens.items()})
        for gone in self._refreshing.keys() - wanted.keys():
            self._refreshing.pop(gone).cancel()
        for loaded, name in wanted.items():
            if loaded not in self._refreshing:
                self._refreshing[loaded] = self._tasks.lasting(loaded.refresh(), name)

    def _rules_of(self, config: BrokerConfig, listener: Listener) -> ListenerLogins:
        """Return the rules for logins on a listener. Raises `ConfigError`."""
        names, sources = enabled_mechanisms(config, listener), self._sources
        if listener.name not in self._counts:
            self._counts[listener.name] = _measured(LoginCounts(), self._metrics, listener.name)
        return ListenerLogins(
            mechanisms={name: _maker(config, listener, name, sources) for name in names},
            max_reauth_ms={
                name: config.of_listener(listener.name, name).connections_max_reauth_ms for name in names
            },
            max_token_bytes=config.of_listener(listener.name).sasl_server_max_receive_size,
            failed_delay_ms=config.connection_failed_authentication_delay_ms,
            counts=self._counts[listener.name],
            warnings=LimitedWarnings(_log, sources.environment.clock.monotonic_ms),
            run=self._evaluated,
            may_block=may_block,
        )

    async def _evaluated(self, work: Work) -> Evaluation:
        try:
            return await self._sources.threads.run(work)
        except TooManyLogins as error:  # the client may come again
            return Evaluation(None, error=LoginInterrupted(str(error)))


def may_block(mechanism: str, token: bytes) -> bool:
    """Whether a login waits for a thread: Kerberos takes locks, and a token's password has to be hashed."""
    return mechanism == "GSSAPI" or (mechanism in SCRAM_HASHES and names_token(token))


class JwksSource(NamedTuple):
    """Where the keys of signed tokens are, and how they are read."""

    url: str
    refresh_ms: int
    backoff_ms: int
    backoff_max_ms: int
    cafile: str | None


def _jwks_source(config: BrokerConfig, listener: Listener) -> JwksSource | None:
    own = config.of_listener(listener.name, "OAUTHBEARER")
    url = own.sasl_oauthbearer_jwks_endpoint_url
    if url is None:
        return None
    return JwksSource(
        url,
        own.sasl_oauthbearer_jwks_endpoint_refresh_ms,
        own.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms,
        own.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms,
        login_module(config, listener, "OAUTHBEARER").options.get("ssl.truststore.location"),
    )


async def _load_keys(source: JwksSource, threads: LoginThreads) -> JwksKeys:
    from ottla.broker.security.sasl.broker_tokens import Backoff
    from ottla.broker.security.sasl.jwks import BadJwks, JwksKeys, fetch_jwks

    keys = JwksKeys(
        source.url,
        source.refresh_ms / 1000,
        partial(fetch_jwks, cafile=source.cafile),
        Backoff(source.backoff_ms, source.backoff_max_ms),
        threads.fetch,
    )
    try:
        await keys.load()
    except BadJwks as error:
        raise StartupRefused(f"sasl.oauthbearer.jwks.endpoint.url {source.url}: {error}") from None
    return keys


async def _open_service_key(login: KerberosLogin, threads: LoginThreads) -> ServiceKey:
    from ottla.broker.security.sasl.kerberos import KerberosUnavailable, open_service_key

    try:
        return await threads.run(partial(open_service_key, login.principal, login.keytab))
    except KerberosUnavailable as error:
        raise StartupRefused(f"sasl.jaas.config of GSSAPI for {login.principal}: {error}") from None


def _bearer_settings(config: BrokerConfig, listener: Listener) -> tuple[object, ...]:
    own = config.of_listener(listener.name, "OAUTHBEARER")
    return tuple(getattr(own, field) for field in SaslSettings.__annotations__)


async def _load_own_token(
    config: BrokerConfig, listener: Listener, environment: Environment, threads: LoginThreads
) -> BrokerToken:
    from ottla.broker.security.sasl.broker_tokens import NoToken

    token = _own_token(config, listener, environment, threads)
    try:
        await token.load()
    except NoToken as error:
        raise StartupRefused(f"sasl.mechanism.inter.broker.protocol: OAUTHBEARER: {error}") from None
    return token


def _own_token(
    config: BrokerConfig, listener: Listener, environment: Environment, threads: LoginThreads
) -> BrokerToken:
    from ottla.broker.security.sasl.broker_tokens import Backoff, BrokerToken, unsecured_token
    from ottla.broker.security.sasl.oauthbearer import ClaimRules
    from ottla.client.oauth_tokens import RefreshRules, fetch_token

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
        threads.fetch,
    )


def _local_names(config: BrokerConfig, listener: str, service_key: ServiceKey) -> LocalNames:
    from ottla.broker.security.principal_mapping import LocalNames, parse_kerberos_rules

    rules = config.of_listener(listener, "GSSAPI").sasl_kerberos_principal_to_local_rules
    return LocalNames(parse_kerberos_rules(rules), service_key.default_realm)


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
