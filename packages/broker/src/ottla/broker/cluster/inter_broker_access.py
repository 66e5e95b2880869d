"""Access to the requests that only brokers send: the controller's, and those with a replica id.

They stop replicas, replace the metadata and move high watermarks. With an authorizer, a broker is a client
that may perform CLUSTER_ACTION. Without one, a broker is told by where it connects: to the inter-broker
listener, where that is one of its own, or from the address of a registered broker or a network of
`inter.broker.networks`. Where addresses tell it, who may change the addresses of a broker is decided here,
too.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, Protocol

from ottla.broker.cluster.registration import StartupRefused
from ottla.broker.config.listeners import advertised_host, parse_networks
from ottla.broker.config.logins import broker_login, has_logins
from ottla.broker.runtime.log_lines import LimitedWarnings
from ottla.broker.security.authorizer import ALLOW_ALL, CLUSTER, Operation, plain_address
from ottla.broker.security.principal import ANONYMOUS, Principal
from ottla.client.config_definition import is_loopback
from ottla.protocol.errors import ClusterAuthorizationFailed, InvalidConfig
from ottla.zookeeper import paths
from ottla.zookeeper.errors import MalformedZnode, ZooKeeperError
from ottla.zookeeper.session import NoNode
from ottla.zookeeper.znodes import BrokerRegistration

if TYPE_CHECKING:
    from ottla.broker.config import BrokerConfig
    from ottla.broker.security.acls.authorizer import AclAuthorizer
    from ottla.broker.security.authorizer import Authorizer
    from ottla.broker.security.tls.contexts import ListenerTls
    from ottla.zookeeper.session import Operations

log = logging.getLogger("request")

FRESH_MS: Final = 60_000
"""How long an address that was found is admitted without another look."""
BETWEEN_LOOKS_MS: Final = 1_000
"""Strangers make the broker read the registrations at most this often; they wait for it."""
LOOK_TIMEOUT_S: Final = 5.0
DISCARD_PORT: Final = 9
HOW_TO_ALLOW: Final = "add it to super.users, or allow it CLUSTER_ACTION on the cluster by an ACL"
MOST_NAMED: Final = 6
"""As many addresses of registered brokers are named in a refusal."""


class UnknownBrokers(Exception):
    """The registered brokers cannot be read now: whether the sender is one of them remains to be seen."""


class Addresses(NamedTuple):
    """The addresses of registered brokers, and whether there are none that could not be found."""

    found: Collection[str]
    are_complete: bool


class Peer(Protocol):
    """The other end of a connection."""

    @property
    def listener_name(self) -> str: ...

    @property
    def client_host(self) -> str: ...

    @property
    def connection_id(self) -> str: ...

    @property
    def principal(self) -> Principal: ...

    @property
    def is_authenticated(self) -> bool:
        """Whether the principal is proved, or that of a listener without logins."""
        ...


class InterBrokerAccess:
    """Decides about connections. `addresses` reads the addresses of the other registered brokers."""

    def __init__(
        self,
        config: BrokerConfig,
        addresses: Callable[[], Awaitable[Addresses]],
        now_ms: Callable[[], float],
        *,
        between_looks_ms: float = BETWEEN_LOOKS_MS,
        authorizer: Authorizer = ALLOW_ALL,
    ) -> None:
        self._authorizer = authorizer
        self._is_alone = config.zookeeper_connect is None
        self._listener = config.interbroker_listener
        self._own_listener = config.has_listener_of_brokers
        self._control_plane = config.controller_listener if config.control_plane_listener_name else None
        self._networks = parse_networks(config.inter_broker_networks)
        self.last_refusal: str | None = None
        """The last request that was refused, with the reason, for a start that fails for want of it."""
        self._read = addresses
        self._now_ms = now_ms
        self._warnings = LimitedWarnings(log, now_ms)
        self._addresses = Addresses((), are_complete=False)
        self._looked_ms = float("-inf")
        self._looks = 0
        self._between_looks_ms = between_looks_ms
        self._looking = asyncio.Lock()

    def admits_now(self, peer: Peer) -> bool | None:
        """Return whether a broker's request is served on this connection; None if it has to be looked up."""
        if self._authorizer is not ALLOW_ALL:
            return self._may_act_as_broker(peer)
        if self._is_alone:
            return False
        if peer.listener_name == self._control_plane:
            return True
        if self._own_listener and peer.listener_name == self._listener:
            return True
        host = plain_address(peer.client_host)
        if self._networks and self._is_listed(host):
            return True
        if self._own_listener:
            return False
        is_known = host in self._addresses.found
        return True if is_known and self._now_ms() - self._looked_ms < FRESH_MS else None

    def _may_act_as_broker(self, peer: Peer) -> bool:
        return peer.is_authenticated and self._authorizer.allows(
            peer.principal, peer.client_host, Operation.CLUSTER_ACTION, CLUSTER
        )

    async def admits(self, peer: Peer) -> bool:
        """Return whether a broker's request is served on this connection.

        An address that is not known is refused only after the registrations were read, so that the first
        request of a new broker is served. Raises `UnknownBrokers` while they cannot be read: a controller
        that is refused does not send its request again, and the broker would never hear of a role.
        """
        if (at_once := self.admits_now(peer)) is not None:
            return at_once
        await self._look(self._looks)
        is_known = plain_address(peer.client_host) in self._addresses.found
        if not is_known and not self._addresses.are_complete:
            raise UnknownBrokers
        return is_known

    async def check_move(self, client: Peer, before: BrokerConfig, after: BrokerConfig) -> None:
        """Check a client's change of the hosts that this broker is advertised at.

        Where brokers are known by address, other brokers would admit every host that it names. Raises
        ClusterAuthorizationFailed unless the client is on the machine of a broker, and InvalidConfig for a
        host that requests of this broker cannot come from.
        """
        old, new = _advertised_hosts(before), _advertised_hosts(after)
        are_told_by_address = not self._is_alone and not self._own_listener and self._authorizer is ALLOW_ALL
        if not are_told_by_address or old == new:
            return
        if not await self._is_beside_broker(client):
            self._refuse_move(client)
        host = new.get(self._listener, "")
        if host != old.get(self._listener) and not self._networks and not await is_own_host(host):
            raise InvalidConfig(
                f"advertised.listeners cannot move brokers' requests to {host}: {host} is no address of this "
                "machine, and other brokers know this one by the address that it connects from; set "
                "inter.broker.networks on every broker to the networks that its connections come from"
            )

    async def _is_beside_broker(self, client: Peer) -> bool:
        host = plain_address(client.client_host)
        if is_loopback(host) or _is_own_address(host):
            return True
        try:
            return await self.admits(client)
        except UnknownBrokers:
            return False

    def _refuse_move(self, client: Peer) -> NoReturn:
        reason = (
            f"advertised.listeners: {client.client_host or 'this client'} may not change the hosts, by which "
            "brokers know each other: send the change from the machine of a broker, or give brokers a "
            "listener of their own (inter.broker.listener.name)"
        )
        self._warnings.warn(
            client.client_host,
            "change of advertised.listeners refused",
            extra={"client": client.client_host, "connection": client.connection_id, "reason": reason},
        )
        raise ClusterAuthorizationFailed(reason)

    def refused(self, peer: Peer, request: str) -> None:
        """Log a refused client, and the setting that admits it, at a limited rate.

        An authorizer has logged its denial for audit.
        """
        reason = self._admitted_by(peer)
        self.last_refusal = f"{request} from {peer.client_host}: {reason}"
        if self._authorizer is not ALLOW_ALL:
            return
        self._warnings.warn(
            peer.client_host,
            "request refused: only brokers send it",
            extra={
                "request": request,
                "client": peer.client_host,
                "connection": peer.connection_id,
                "reason": reason,
            },
        )

    def _admitted_by(self, peer: Peer) -> str:
        if self._authorizer is not ALLOW_ALL:
            return f"{peer.principal} may not perform CLUSTER_ACTION; {HOW_TO_ALLOW}"
        if self._is_alone:
            return "this broker is a cluster of its own (zookeeper.connect is not set)"
        if self._own_listener:
            return (
                f"they are served on the listener {self._listener} (inter.broker.listener.name); while "
                "brokers move there, inter.broker.networks lists networks that are served on all listeners"
            )
        found = sorted(self._addresses.found)
        named = ", ".join(found[:MOST_NAMED]) + ("…" if len(found) > MOST_NAMED else "")
        return (
            f"the other registered brokers have {f'the addresses {named}' if named else 'no address yet'}; "
            "inter.broker.networks lists networks from which brokers may connect as well"
        )

    def _is_listed(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self._networks)

    async def _look(self, looks_before: int) -> None:
        """Read the registrations, unless a look that began after the caller asked has done so."""
        async with self._looking:
            if self._looks > looks_before:
                return
            pause_ms = self._looked_ms + self._between_looks_ms - self._now_ms()
            if pause_ms > 0:
                await asyncio.sleep(pause_ms / 1000)
            self._looks += 1
            self._looked_ms = self._now_ms()
            try:
                async with asyncio.timeout(LOOK_TIMEOUT_S):
                    self._addresses = await self._read()
            except (ZooKeeperError, TimeoutError) as error:
                log.warning("registered brokers not read", extra={"reason": repr(error)})
                self._addresses = self._addresses._replace(are_complete=False)


def principal_of_brokers(
    config: BrokerConfig, tls: ListenerTls | None, own_name: Callable[[], str | None]
) -> Principal:
    """Return the principal as which brokers of this configuration connect to each other.

    `tls` is that of their listener, and `own_name` returns the name that a ticket or a token proves. Raises
    `NoRuleApplies` where a certificate or a name of Kerberos gives none.
    """
    listeners = {listener.name: listener for listener in config.parsed_listeners}
    listener = listeners.get(config.interbroker_listener)
    if listener is not None and has_logins(listener):
        return Principal("User", own_name() or broker_login(config, listener).options["username"])
    return ANONYMOUS if tls is None else tls.own_principal()


def check_brokers_may_act(
    config: BrokerConfig,
    authorizer: AclAuthorizer,
    tls: ListenerTls | None,
    own_name: Callable[[], str | None] = lambda: None,
) -> None:
    """Check that brokers may perform CLUSTER_ACTION at each other. Raises `StartupRefused`.

    A broker that is a cluster of its own needs no permission. See `principal_of_brokers` for `own_name`.
    """
    if config.zookeeper_connect is None:
        return
    from ottla.broker.security.principal_mapping import NoRuleApplies

    try:
        principal = principal_of_brokers(config, tls, own_name)
    except NoRuleApplies as error:
        raise StartupRefused(f"authorizer.class.name: brokers have no principal: {error}") from None
    if not authorizer.may_act_as_broker(principal):
        raise StartupRefused(
            f"authorizer.class.name: brokers connect to each other as {principal}, which may not perform "
            f"CLUSTER_ACTION; {HOW_TO_ALLOW}"
        )


def _advertised_hosts(config: BrokerConfig) -> dict[str, str]:
    return {listener.name: advertised_host(listener) for listener in config.parsed_advertised_listeners}


def _is_own_address(address: str) -> bool:
    """Return whether an address is this machine's: the system connects to it from itself. Sends nothing.

    Binding to it would not say so, for a machine may be set to bind addresses that it does not have.
    """
    try:
        family = socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, DISCARD_PORT))
            return plain_address(probe.getsockname()[0]) == address
    except (OSError, ValueError):
        return False


async def is_own_host(host: str) -> bool:
    """Return whether a name stands for an address of this machine."""
    try:
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            addresses = await _addresses_of(host)
    except (OSError, UnicodeError):  # TimeoutError is an OSError
        return False
    return any(is_loopback(address) or _is_own_address(address) for address in addresses)


class OtherBrokers:
    """The addresses of all registered brokers but one: those their endpoints' names stand for."""

    def __init__(self, operations: Operations, own_id: Callable[[], int]) -> None:
        """`own_id` gives the id of the broker that is left out."""
        self._operations = operations
        self._own_id = own_id
        self._found: dict[str, frozenset[str]] = {}

    async def addresses(self) -> Addresses:
        """Read them, as they are now. Raises ZooKeeperError.

        A name that cannot be resolved now stands for what it stood for last; without that, and after a
        registration that cannot be read, the addresses are not complete.
        """
        # This server of ZooKeeper may be behind the one that a new broker has registered with.
        await self._operations.sync(paths.BROKER_IDS)
        hosts: set[str] = set()
        are_complete = True
        for name in await self._operations.children(paths.BROKER_IDS):
            if name.isdigit() and int(name) != self._own_id():
                read = await _hosts(self._operations, int(name))
                are_complete &= read is not None
                hosts.update(read or ())
        resolved = {host: await _resolve(host, self._found.get(host)) for host in sorted(hosts)}
        self._found = {host: known for host, known in resolved.items() if known is not None}
        found = frozenset().union(*self._found.values())
        return Addresses(found, are_complete and len(self._found) == len(hosts))


async def _hosts(operations: Operations, broker_id: int) -> Iterable[str] | None:
    """Return the names in a registration, none when it has gone, or None when it cannot be read."""
    try:
        data, _ = await operations.get(paths.broker(broker_id))
        return {endpoint.host for endpoint in BrokerRegistration.decode(broker_id, data).endpoints}
    except NoNode:
        return ()
    except MalformedZnode:
        return None


async def _resolve(host: str, before: frozenset[str] | None) -> frozenset[str] | None:
    try:
        return await _addresses_of(host)
    except OSError as error:
        log.warning("host of a registered broker not resolved", extra={"host": host, "reason": str(error)})
        return before


async def _addresses_of(host: str) -> frozenset[str]:
    """Resolve a name. Raises OSError."""
    entries = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return frozenset(plain_address(str(address[0])) for *_, address in entries)
