"""The listeners of one broker: bound at its start; added, moved and removed by dynamic settings."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from ottla.broker.cluster.registration import StartupRefused, taken_addresses
from ottla.broker.config import ConfigError
from ottla.broker.config.keys import parse_listener_key
from ottla.broker.config.listeners import Listener, advertised_host
from ottla.broker.config.logins import has_logins
from ottla.broker.security.tls.listeners import WITH_TLS
from ottla.zookeeper.errors import ZooKeeperError
from ottla.zookeeper.znodes import Endpoint

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import KnownBroker
    from ottla.broker.config import BrokerConfig
    from ottla.broker.network.listener import Server
    from ottla.broker.security.tls.listeners import TlsOfListeners
    from ottla.broker.server.listener_logins import BrokerLogins

_log = logging.getLogger(__name__)

_MAY_CHANGE: Final = (
    "ssl.keystore.", "ssl.truststore.", "ssl.key.password", "max.connections",
    "max.connection.creation.rate", "num.network.threads",
)  # fmt: skip
"""The beginnings of a listener's own keys that Kafka changes together with `listeners`."""


class BrokerListeners:
    """Binds the listeners that the settings have, with their TLS and their logins."""

    def __init__(
        self,
        server: Server,
        tls: TlsOfListeners,
        open_logins: Callable[[], Awaitable[BrokerLogins]],
        logins: BrokerLogins | None = None,
        other_brokers: Callable[[], Iterable[KnownBroker]] = tuple,
    ) -> None:
        """`logins` have the settings of the start; without any, the first listener with logins opens them."""
        self._other_brokers = other_brokers
        self._server = server
        self._tls = tls
        self._open_logins = open_logins
        self._logins = logins
        self._config: BrokerConfig
        self._bound: dict[Listener, tuple[str, int]] = {}
        """Host and port of each listener that is open, in their order."""

    @property
    def first(self) -> tuple[str, int]:
        """Host and port of the first listener."""
        return next(iter(self._bound.values()))

    def port_of(self, name: str) -> int:
        """Return the port of a listener that is open. Raises KeyError."""
        return {listener.name: port for listener, (_, port) in self._bound.items()}[name]

    def endpoints(self, config: BrokerConfig) -> tuple[Endpoint, ...]:
        """Return where the listeners that are open are advertised."""
        ports = {listener.name: port for listener, (_, port) in self._bound.items()}
        return tuple(
            Endpoint(listener.name, advertised_host(listener), listener.port or ports[listener.name])
            for listener in config.parsed_advertised_listeners
            if listener.name in ports
        )

    # ---- the start

    async def bind(self, config: BrokerConfig) -> None:
        """Take the addresses without accepting yet; ports that were 0 are known after this.

        Raises OSError for an address that cannot be had, and `StartupRefused`.
        """
        self._config = config
        if self._logins is None:
            await self._change_logins(config)
        for listener in config.parsed_listeners:
            await self._open(listener, config, serve=False)

    async def _change_logins(self, config: BrokerConfig) -> None:
        if self._logins is None and any(map(has_logins, config.parsed_listeners)):
            self._logins = await self._open_logins()
        if self._logins is not None:
            await self._logins.configure(config)

    async def _open(self, listener: Listener, config: BrokerConfig, *, serve: bool) -> None:
        tls = self._tls.of(listener.name)
        if tls is None and listener.security_protocol in WITH_TLS:
            raise OSError(f"{listener} has no certificate that can be used")
        if self._logins is None and has_logins(listener):
            raise OSError(f"{listener} has no logins that can be used")
        ports = [other.port for other in config.parsed_listeners if other.port]
        self._bound[listener] = await self._server.listen(
            listener.name,
            listener.host,
            listener.port,
            tls=tls,
            shares_port=ports.count(listener.port) > 1,
            begin_login=self._logins.begin_on(listener) if self._logins else None,
            serve=serve,
        )

    # ---- changes

    def check(self, config: BrokerConfig) -> None:
        """Check whether a running broker may take these settings. Raises ConfigError."""
        check_change_of_listeners(self._config, config)
        self._check_are_free_elsewhere(config)
        taken = {port for _, port in self._bound.values()}
        for listener in config.parsed_listeners:
            if listener not in self._bound and listener.port and listener.port not in taken:
                self._check_is_free(listener)

    def _check_are_free_elsewhere(self, config: BrokerConfig) -> None:
        """Refuse addresses at which another live broker is registered, as a start does."""
        wanted = config.parsed_advertised_listeners
        if wanted == self._config.parsed_advertised_listeners:
            return
        own = [Endpoint(listener.name, advertised_host(listener), listener.port) for listener in wanted]
        for broker in self._other_brokers():
            if taken := taken_addresses(own, broker.endpoints.values()):
                raise ConfigError(
                    "advertised.listeners", f"has {taken}, already registered by broker {broker.id}"
                )

    def _check_is_free(self, listener: Listener) -> None:
        try:
            self._server.check_is_free(listener.host, listener.port)
        except OSError as error:
            raise ConfigError("listeners", f"has an address that cannot be used: {error}") from None

    async def change(self, config: BrokerConfig) -> None:
        """Remove and add listeners, so that those of the settings are open; a failure is logged."""
        self._config = config
        try:
            await self._change_logins(config)
        except (StartupRefused, ZooKeeperError) as error:
            _log.error("logins stay as they were", extra={"reason": str(error)})
        wanted = config.parsed_listeners
        moved = [listener for listener in self._bound if listener not in wanted]
        for listener in moved:
            self._close(listener, is_removed=listener.name not in _names(wanted))
        for listener in wanted:
            if listener not in self._bound and not await self._opened(listener, config):
                await self._open_again(moved, listener.name, config)

    def _close(self, listener: Listener, *, is_removed: bool) -> None:
        self._server.close_address(listener.name, self._bound.pop(listener))
        if is_removed:
            self._server.close_connections(listener.name)
            _log.info("listener removed", extra={"listener": str(listener)})

    async def _opened(self, listener: Listener, config: BrokerConfig) -> bool:
        try:
            await self._open(listener, config, serve=True)
        except (OSError, KeyError) as error:
            _log.error("listener not opened", extra={"listener": str(listener), "reason": str(error)})
            return False
        _log.info("listener opened", extra={"listener": str(listener)})
        return True

    async def _open_again(self, moved: Iterable[Listener], name: str, config: BrokerConfig) -> None:
        """Take the earlier address of a listener that cannot have its new one."""
        for listener in moved:
            if listener.name == name and name not in _names(self._bound):
                await self._opened(listener, config)


def _names(listeners: Iterable[Listener]) -> set[str]:
    return {listener.name for listener in listeners}


def check_change_of_listeners(before: BrokerConfig, after: BrokerConfig) -> None:
    """Check whether a broker may change its listeners while it runs, as Kafka does. Raises ConfigError."""
    if before.interbroker_listener != after.interbroker_listener:
        raise ConfigError(
            "listeners",
            f"must keep {before.interbroker_listener}, the listener of brokers: others connect to it",
        )
    present = {listener.name: listener for listener in before.parsed_listeners}
    for listener in after.parsed_listeners:
        name = listener.name
        if name not in present:
            continue
        if present[name].security_protocol != listener.security_protocol:
            raise ConfigError(
                "listener.security.protocol.map",
                f"cannot change for {name} while the broker runs: Security protocol cannot be updated for "
                f"existing listener {name}",
            )
        if _listener_keys(before) != _listener_keys(after) and _own(before, name) != _own(after, name):
            raise ConfigError(
                f"listener.name.{name.lower()}",
                "has other settings: Configs cannot be updated dynamically for existing listener "
                f"{name} together with `listeners`, restart broker or create a new listener for update",
            )


def _listener_keys(config: BrokerConfig) -> tuple[str | None, ...]:
    return config.listeners, config.advertised_listeners, config.listener_security_protocol_map


def _own(config: BrokerConfig, name: str) -> Mapping[str, str]:
    """Return a listener's own settings but for those that Kafka changes at any time."""
    found = {}
    for key, text in config.listener_overrides:
        parts = parse_listener_key(key)
        if parts is not None and parts.listener == name.lower() and not parts.key.startswith(_MAY_CHANGE):
            found[key] = text
    return found
