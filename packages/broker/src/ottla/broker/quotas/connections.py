"""Limits on the number of connections, and on how many an address may open in a second."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from ottla.broker.quotas.rates import QuotaBucket
from ottla.broker.runtime.threads import NAME_THREADS, look_up
from ottla.broker.security.authorizer import plain_address
from ottla.client.config_definition import MAX_INT, dotted

if TYPE_CHECKING:
    from ottla.broker.config import BrokerConfig

_log = logging.getLogger(__name__)

DEFAULT: Final = "<default>"
MOST_ADDRESSES: Final = 10_000
"""Addresses with a quota whose rates are remembered."""

_PREFIX: Final = 64
"""Bits of an IPv6 address: one machine has all addresses behind them."""
RESOLVE_WITHIN_S: Final = 5.0
"""The time for all hosts of a request."""
LookUp = Callable[[str], Awaitable[Sequence[str]]]

CONNECTION_RATE: Final = "connection_creation_rate"
"""The quota of an address in Kafka's znodes: connections per second."""


def source_of(host: str) -> str:
    """Return the address, or of IPv6 the network, that one machine comes from."""
    if ":" not in host:
        return host
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    return str(address.ipv4_mapped or int(address) >> 128 - _PREFIX)


class CreationRates:
    """The rates at which connections are accepted: the broker's, and those of single listeners.

    As in Kafka, connections to a listener for brokers alone count against that listener's rate only.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._of_broker: QuotaBucket | None = None
        self._of_listeners: dict[str, QuotaBucket] = {}
        self._rates: tuple[int, dict[str, int]] | None = None
        self.configure(config)

    def configure(self, config: BrokerConfig) -> None:
        """Hold connections to these rates; a rate that has changed is measured from now on."""
        several = len(config.parsed_listeners) > 1
        self._listener_of_brokers = config.interbroker_listener if several else None
        of_listeners = own_limits(config, "max_connection_creation_rate")
        if self._rates == (config.max_connection_creation_rate, of_listeners):
            return
        self._rates = config.max_connection_creation_rate, of_listeners
        self._of_broker = _bucket(config, config.max_connection_creation_rate)
        self._of_listeners = {
            name: bucket for name, rate in of_listeners.items() if (bucket := _bucket(config, rate))
        }

    def accepted(self, listener: str, now_ms: float) -> float:
        """Count a connection to a listener; return how many milliseconds the next one has to wait."""
        own = self._of_listeners.get(listener)
        wait_ms = 0.0 if own is None else own.record(1, now_ms)
        if self._of_broker is not None and listener != self._listener_of_brokers:
            wait_ms = max(wait_ms, self._of_broker.record(1, now_ms))
        return wait_ms


def _bucket(config: BrokerConfig, rate: int) -> QuotaBucket | None:
    if rate == MAX_INT:
        return None
    # Nothing is accepted at a rate of 0, as in Kafka: a tiny rate makes a wait of any length.
    windows = config.quota_window_size_seconds * 1000.0, config.quota_window_num
    return QuotaBucket(rate or 1e-6, *windows)


def own_limits(config: BrokerConfig, field: str) -> dict[str, int]:
    """Return a limit of those listeners that have one of their own, by the listener's name."""
    names = {listener.name for listener in config.parsed_listeners}
    key = dotted(field)
    return {
        name: getattr(config.of_listener(name), field)
        for name in names
        if f"listener.name.{name.lower()}.{key}" in dict(config.listener_overrides)
    }


class ConnectionQuotas:
    """Counts connections against the limits, in all and from one address."""

    def __init__(self, in_all: int, per_address: int, overrides: Mapping[str, int]) -> None:
        self.in_all = in_all
        self.per_address = per_address
        self.overrides = overrides
        self._counts: dict[str, int] = {}
        self._total = 0

    @property
    def is_full(self) -> bool:
        """Whether `max.connections` is reached."""
        return self._total >= self.in_all

    def take(self, host: str) -> str | None:
        """Count a connection and return None, or return which limit refuses it."""
        refusal = self._refusal(host)
        if refusal is None:
            self.count(host)
        return refusal

    def count(self, host: str) -> None:
        """Count a connection that no limit concerns."""
        self._counts[host] = self._counts.get(host, 0) + 1
        self._total += 1

    def _refusal(self, host: str) -> str | None:
        most = self.overrides.get(host, self.per_address)
        if self._counts.get(host, 0) >= most:
            return f"max.connections.per.ip of {most} is reached"
        return f"max.connections of {self.in_all} is reached" if self.is_full else None

    def give_back(self, host: str) -> None:
        """Take a counted connection off, because it is closed."""
        self._total -= 1
        self._counts[host] -= 1
        if not self._counts[host]:
            del self._counts[host]


class AddressRates:
    """Counts the connections of each address against its `connection_creation_rate` (KIP-612). Pure.

    Only addresses with a quota are counted, and forgotten with the oldest when there are too many.
    """

    def __init__(
        self, config: BrokerConfig, monotonic_ms: Callable[[], float], look_up: LookUp = look_up
    ) -> None:
        """`look_up` returns the addresses that a host name stands for; it raises OSError or ValueError."""
        self._window = config.quota_window_size_seconds * 1000.0, config.quota_window_num
        self._now_ms = monotonic_ms
        self._look_up = look_up
        self._limits: dict[str, dict[str, int]] = {}
        """By address, the limit of each name that stands for it: its own, and those of hosts."""
        self._addresses: dict[str, str] = {}
        """The address of each name that has a quota."""
        self._followed: dict[str, Mapping[str, str]] = {}
        """The last settings of host names that are looked up."""
        self._buckets: OrderedDict[str, QuotaBucket] = OrderedDict()

    async def follow(self, entity_path: str, settings: Mapping[str, str]) -> None:
        """Take settings as `entity_changed` does; a host name stands for its first address at this time."""
        name = unquote(entity_path.rpartition("/")[2])
        if name == DEFAULT or is_address(name):
            self.entity_changed(entity_path, settings)
            return
        self._followed[name] = settings
        address = (await self.addresses_of([name]))[name] if CONNECTION_RATE in settings else None
        if self._followed.get(name) is settings:  # else it was changed again meanwhile
            del self._followed[name]
            self.entity_changed(entity_path, settings, address)

    async def addresses_of(self, hosts: Iterable[str]) -> dict[str, str | None]:
        """Return the first address of each host, as Kafka takes it, with a few looked up at a time.

        None where a host has none, or is not found within the time for all.
        """
        found: dict[str, str | None] = dict.fromkeys(hosts)
        rest = iter(found)

        async def look() -> None:
            for host in rest:
                found[host] = await self._first_address(host)

        try:
            async with asyncio.timeout(RESOLVE_WITHIN_S), asyncio.TaskGroup() as tasks:
                for _ in range(min(NAME_THREADS, len(found))):
                    tasks.create_task(look())
        except TimeoutError:
            _log.warning("hosts not looked up in time", extra={"within_s": RESOLVE_WITHIN_S})
        return found

    async def _first_address(self, host: str) -> str | None:
        if is_address(host):
            return plain_address(host)
        try:
            return plain_address((await self._look_up(host))[0])
        except (OSError, ValueError):  # a name of odd characters is a ValueError
            return None

    def entity_changed(
        self, entity_path: str, settings: Mapping[str, str], resolved: str | None = None
    ) -> None:
        """Take the settings of `ips/<address>` or `ips/<default>`; an invalid one is named in the log.

        `resolved` is the address of a host name.
        """
        name = unquote(entity_path.rpartition("/")[2])
        address = plain_address(name) if name == DEFAULT or is_address(name) else resolved
        self._remove(name)
        text = settings.get(CONNECTION_RATE)
        limit = int(text) if text is not None and text.isdecimal() else None
        if text is not None and (limit is None or address is None):
            expected = "a number is expected" if limit is None else "the host has no address"
            _log.error("quota ignored", extra={"entity": entity_path, "reason": expected})
        elif address is not None and limit is not None:
            self._limits.setdefault(address, {})[name] = limit
            self._addresses[name] = address

    def _remove(self, name: str) -> None:
        address = self._addresses.pop(name, None)
        if address is not None:
            of_address = self._limits[address]
            del of_address[name]
            if not of_address:
                del self._limits[address]

    def take(self, host: str) -> str | None:
        """Count a new connection and return None, or return which quota refuses it."""
        if not self._limits:
            return None
        address = plain_address(host)
        limits = self._limits.get(address) or self._limits.get(DEFAULT)
        if limits is None:
            return None
        limit = _decisive(limits)
        bucket, now_ms = self._bucket(address), self._now_ms()
        bucket.bound = limit
        if bucket.record(1, now_ms) <= 0:
            return None
        bucket.record(-1, now_ms)
        return f"{CONNECTION_RATE} of {limit} is reached"

    def _bucket(self, address: str) -> QuotaBucket:
        bucket = self._buckets.get(address)
        if bucket is None:
            bucket = self._buckets[address] = QuotaBucket(0, *self._window, longest_ms=self._window[0])
        self._buckets.move_to_end(address)
        if len(self._buckets) > MOST_ADDRESSES:
            self._buckets.popitem(last=False)
        return bucket


def _decisive(limits: Mapping[str, int]) -> int:
    """Return the limit of an address: its own, before those of host names; of several the lowest."""
    if len(limits) == 1:
        return next(iter(limits.values()))
    own = [limit for name, limit in limits.items() if is_address(name)]
    return min(own or limits.values())


def has_names(text: str) -> bool:
    """Whether `parse_overrides` would have to resolve host names, which may block for seconds."""
    return any(
        not is_address(item.rpartition(":")[0].strip(" []")) for item in text.split(",") if item.strip()
    )


def is_address(host: str) -> bool:
    """Whether a host is given by an address, and not by a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def parse_overrides(text: str) -> dict[str, int]:
    """Parse `host:limit,…`. Host names are resolved, because connections are counted by address. Blocks."""
    limits: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        host, _, limit = item.rpartition(":")
        for address in _addresses(host.strip("[]")):
            limits[address] = int(limit)
    return limits


def _addresses(host: str) -> list[str]:
    try:
        return [str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError:
        return [host]
