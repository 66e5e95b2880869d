"""The TLS of a broker's listeners: made with each of them, and replaced by new settings and by new files."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.config.tls import TlsSettings
from ottla.client.config_definition import ConfigError

if TYPE_CHECKING:
    import ssl

    from ottla.broker.config import BrokerConfig
    from ottla.broker.security.tls.contexts import ListenerTls, Prepared

_log = logging.getLogger(__name__)

Stamp = tuple[tuple[str, int, int, int], ...]
"""Files with the times of their last changes, their sizes and their inodes."""

Run = Callable[..., Awaitable[Any]]
"""Calls a function on a thread."""
WITH_TLS: Final = ("SSL", "SASL_SSL")


class TlsOfListeners:
    """The TLS of a broker's listeners: made with each of them, and replaced by new settings and by new files.

    What cannot be used is refused or logged, and the present one stays.
    """

    def __init__(self) -> None:
        self._config: BrokerConfig | None = None
        self._listeners: dict[str, ListenerTls] = {}
        self._stamps: dict[str, Stamp] = {}
        self._checked: dict[str, tuple[object, Prepared]] = {}
        """The last replacement of each listener with what it was made of: checked first, and then used."""

    def start(self, config: BrokerConfig) -> None:
        """Read what the listeners need. Raises ConfigError."""
        self._config = config
        for name in sorted(_names(config)):
            self._stamps[name] = _stamp(_files(config.of_listener(name)))
            self._listeners[name] = _made(config, name)

    def of(self, listener: str) -> ListenerTls | None:
        """Return the TLS of a listener, if it has any."""
        return self._listeners.get(listener)

    def to_brokers(self, listener: str) -> ssl.SSLContext | None:
        """Return the context for connections to such a listener of other brokers, if it has TLS."""
        found = self._listeners.get(listener)
        return None if found is None else found.to_brokers

    def check(self, config: BrokerConfig) -> None:
        """Check settings before they are used. Raises ConfigError."""
        for name, tls in self._changed(config).items():
            self._replacement(name, tls, config.of_listener(name))
        for name in _names(config) - self._listeners.keys():
            _made(config, name)

    def configure(self, config: BrokerConfig) -> None:
        """Use settings, which were checked, for new connections."""
        changed, self._config = self._changed(config), config
        names = _names(config)
        for name in self._listeners.keys() - names:
            del self._listeners[name], self._stamps[name]
            self._checked.pop(name, None)
        for name, tls in changed.items():
            self._replace(name, tls, config.of_listener(name))
        for name in sorted(names - self._listeners.keys()):
            self._add(name, config)

    def _add(self, name: str, config: BrokerConfig) -> None:
        self._stamps[name] = _stamp(_files(config.of_listener(name)))
        try:
            self._listeners[name] = _made(config, name)
        except ConfigError as error:
            _log.error("listener without a certificate", extra={"listener": name, "reason": str(error)})

    def _changed(self, config: BrokerConfig) -> dict[str, ListenerTls]:
        """Return the listeners whose settings of TLS differ from those in use."""
        before = self._config
        if before is None or before == config:
            return {}
        names = _names(config)
        return {
            name: tls
            for name, tls in self._listeners.items()
            if name in names and _settings(before.of_listener(name)) != _settings(config.of_listener(name))
        }

    async def read_changed_files(self, run: Run = asyncio.to_thread) -> None:
        """Use the stores whose files have changed since they were read: two calls of `stat` per listener.

        `run` reads and checks them on a thread, because a key of RSA in PKCS#12 takes a quarter of a second.
        """
        for name, tls in list(self._listeners.items()):
            present = self._stamps[name]
            if self._config is not None and _stamp([path for path, *_ in present]) != present:
                await self._read_again(name, tls, self._config.of_listener(name), run)

    async def _read_again(self, name: str, tls: ListenerTls, config: BrokerConfig, run: Run) -> None:
        self._stamps[name] = _stamp(_files(config))  # before reading: a later change is seen
        try:
            made = await run(tls.replacement, config)
        except ConfigError as error:
            _log_refusal(name, error)
            return
        assert self._config is not None
        is_removed = self._listeners.get(name) is not tls
        if not is_removed and _settings(self._config.of_listener(name)) == _settings(config):
            self._take(name, tls, made)  # else other settings have been used meanwhile, with these files

    def _replace(self, name: str, tls: ListenerTls, config: BrokerConfig) -> None:
        self._stamps[name] = _stamp(_files(config))
        try:
            self._take(name, tls, self._replacement(name, tls, config))
        except ConfigError as error:
            _log_refusal(name, error)

    def _replacement(self, name: str, tls: ListenerTls, config: BrokerConfig) -> Prepared:
        """Return what a listener may take, made once for the checks of settings and for their use."""
        source = _settings(config), _stamp(_files(config))
        checked = self._checked.get(name)
        if checked is None or checked[0] != source:
            checked = self._checked[name] = source, tls.replacement(config)
        return checked[1]

    def _take(self, name: str, tls: ListenerTls, made: Prepared) -> None:
        self._checked.pop(name, None)  # it was checked against the certificate that goes now
        tls.take(made)
        facts = {"listener": name, "certificate": made.stores.keys.fingerprint if made.stores.keys else None}
        _log.info("certificate replaced", extra=facts)


def _log_refusal(name: str, error: ConfigError) -> None:
    _log.error("new certificate refused", extra={"listener": name, "reason": str(error)})


def _names(config: BrokerConfig) -> frozenset[str]:
    """Return the names of the listeners with TLS."""
    listeners = config.parsed_listeners
    return frozenset(listener.name for listener in listeners if listener.security_protocol in WITH_TLS)


def _made(config: BrokerConfig, name: str) -> ListenerTls:
    # A broker without TLS starts without this module.
    from ottla.broker.security.tls.contexts import ListenerTls

    of_brokers = (config.interbroker_listener, config.controller_listener)
    return ListenerTls(name, config.of_listener(name), is_of_brokers=name in of_brokers)


def _settings(config: BrokerConfig) -> tuple[Any, ...]:
    return tuple(getattr(config, field) for field in TlsSettings.__annotations__)


def _files(config: BrokerConfig) -> list[str]:
    return [
        path for path in (config.ssl_keystore_location, config.ssl_truststore_location) if path is not None
    ]


def _stamp(paths: Iterable[str]) -> Stamp:
    found = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            found.append((path, 0, 0, 0))
        else:
            found.append((path, status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)
