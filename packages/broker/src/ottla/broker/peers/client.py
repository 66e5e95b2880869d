"""The client of this broker for the other brokers of its cluster.

A caller has its own queue, and decides what to send, whether again, and when. All that concerns the way to
the other broker is here, once: its address, the listener and its security, the versions of requests, the
limit of a wait, and what the loss of a connection means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ottla.broker.config.listeners import advertised_host
from ottla.broker.config.logins import broker_login, has_logins, kerberos_login
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import BrokerNotAvailable, ErrorCode

if TYPE_CHECKING:
    import ssl

    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.config import BrokerConfig
    from ottla.broker.security.sasl.broker_tokens import BrokerToken
    from ottla.client.connection import Connection
    from ottla.protocol.messages.log_offsets import ListOffsetsRequest
    from ottla.protocol.schema import Message
    from ottla.protocol.topics import TopicPartition

R = TypeVar("R", bound="Message")

# ---- versions

LEVEL: Final = "2.8"
"""The `inter.broker.protocol.version` of every Ottla broker."""

MOST: Final[Mapping[int, int]] = {
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 6,
    ApiKey.LEADER_AND_ISR: 5,
    ApiKey.STOP_REPLICA: 3,
    ApiKey.UPDATE_METADATA: 7,
    ApiKey.CONTROLLED_SHUTDOWN: 3,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
    ApiKey.ALTER_PARTITION: 0,
}
"""The newest version of each API at that level.

A neighbour may advertise more, as Apache Kafka 3.9 does. The versions between the brokers of a cluster are
its setting, not what each of them could serve: a later LeaderAndIsr, for example, leaves out the addresses
and fields that brokers of the earlier level need, and a later Fetch names topics by their ids.
"""

ADVICE: Final = f"set inter.broker.protocol.version={LEVEL} on it and restart it"


def beyond_level(api_key: int, version: int) -> str:
    """Name the remedy where a broker sends a version above the level; empty for any other request."""
    if version <= MOST.get(api_key, version):
        return ""
    return f": if a broker sent it, {ADVICE}"


class IncompatibleBroker(ConnectionError):
    """A broker does not serve the versions that this one speaks; the message says what to change."""


# ---- connections

NO_SECURITY: Final[Mapping[str, Any]] = {}

SYSTEM_BUFFER: Final = -1
"""The size of a socket's buffer that is left to the system."""


class Address(NamedTuple):
    """Where the listener of another broker is, for other brokers."""

    host: str
    port: int


def open_connection(
    address: Address,
    client_id: str,
    timeout_ms: int,
    source_host: str | None,
    receive_buffer_bytes: int = SYSTEM_BUFFER,
    security: Mapping[str, Any] = NO_SECURITY,
) -> Connection:
    """Return a connection to another broker, not connected yet; `security` are a client's settings of it."""
    # Imported with the second broker: one alone needs no client.
    from ottla.client.config import Address as ClientAddress
    from ottla.client.config import ClientConfig
    from ottla.client.connection import Connection
    from ottla.client.security import SecurityConfig

    config = ClientConfig(
        client_id=client_id,
        request_timeout_ms=timeout_ms,
        receive_buffer_bytes=receive_buffer_bytes,
        security=SecurityConfig(**security),
    )
    return Connection(ClientAddress(*address), config, source_host=source_host)


def security_of(config: BrokerConfig, name: str) -> dict[str, Any]:
    """Return the settings of a client by which this broker logs in at a listener of others.

    Those of OAUTHBEARER lack the token, which is another one after a time.
    """
    listeners = {listener.name: listener for listener in config.parsed_listeners}
    listener = listeners.get(name)
    if listener is None or not has_logins(listener):
        return {}
    options = broker_login(config, listener).options
    common: dict[str, Any] = {
        "security_protocol": listener.security_protocol,
        "sasl_mechanism": config.sasl_mechanism_inter_broker_protocol,
    }
    if config.sasl_mechanism_inter_broker_protocol == "GSSAPI":
        kerberos = kerberos_login(config, listener)
        return common | {
            "sasl_kerberos_service_name": kerberos.service_name,
            "sasl_kerberos_principal": kerberos.principal,
            "sasl_kerberos_keytab": kerberos.keytab,
        }
    if config.sasl_mechanism_inter_broker_protocol == "OAUTHBEARER":
        return common | {"sasl_oauth_extensions": _extensions(options)}
    return common | {"sasl_username": options["username"], "sasl_password": options["password"]}


def _extensions(options: Mapping[str, str]) -> dict[str, str]:
    """Return the extensions that a JAAS line has, under the names of both handlers of Kafka."""
    return {
        name.removeprefix(prefix): value
        for prefix in ("extension_", "unsecuredLoginExtension_")
        for name, value in options.items()
        if name.startswith(prefix)
    }


def source_host_of(config: BrokerConfig) -> str | None:
    """Return the host that requests to other brokers come from, if this machine has it: the advertised one.

    The others know a broker by it, where brokers have no listener of their own. The system alone would choose
    by the route, and so another address on a machine with several.
    """
    if config.has_listener_of_brokers:
        return None
    listeners = {listener.name: listener for listener in config.parsed_advertised_listeners}
    found = listeners.get(config.interbroker_listener)
    return advertised_host(found) if found else None


class Peer:
    """One other broker, over a connection that the first request opens and that several callers share.

    A request without an answer closes it, and so does a new address of either broker, or a refusal: the other
    one takes this broker for a client, perhaps by an address that it had before. The next request opens
    another one. A caller that gives up closes nothing: the answers of the others come behind its own, which
    is discarded.
    """

    def __init__(
        self,
        address: Callable[[], Address],
        client_id: str,
        timeout_ms: int,
        source_host: Callable[[], str | None] = lambda: None,
        receive_buffer_bytes: int = SYSTEM_BUFFER,
        security: Callable[[], Mapping[str, Any]] = lambda: NO_SECURITY,
    ) -> None:
        """`address` raises `BrokerNotAvailable` while it is not known; `timeout_ms` bounds each request."""
        self._address = address
        self._client_id = client_id
        self._timeout_ms = timeout_ms
        self._source_host = source_host
        self._receive_buffer_bytes = receive_buffer_bytes
        self._security = security
        """Returns a client's settings of security, with the certificates of now."""
        self._connection: Connection | None = None
        self._ends: tuple[Address, str | None] | None = None
        """Where the connection leads, and the host that it comes from."""
        self._connecting = asyncio.Lock()

    async def send(self, request: Message, response_type: type[R], *, min_version: int | None = None) -> R:
        """Send a request in a version of the cluster's level, and return the response.

        Raises ConnectionError when there is none, `IncompatibleBroker` when the broker does not serve such a
        version, and `BrokerNotAvailable`.
        """
        from ottla.client.errors import ClientError, UnsupportedByBroker

        try:
            connection = await self._connect()
            return await self._sent(connection, request, response_type, min_version)
        except UnsupportedByBroker as error:
            advice = f"{ADVICE}, or run a release that has this level"
            raise IncompatibleBroker(f"{error}: {advice}") from error
        except ClientError as error:
            raise ConnectionError(str(error)) from error

    async def _sent(
        self, connection: Connection, request: Message, response_type: type[R], min_version: int | None
    ) -> R:
        from ottla.client.errors import ClientError, UnsupportedByBroker

        try:
            response = await connection.send(
                request,
                response_type,
                min_version=min_version,
                max_version=MOST.get(request.API_KEY),
            )
        except UnsupportedByBroker:
            raise  # nothing was sent
        except ClientError:
            await connection.close()  # this one: another caller may have opened the next
            raise
        if getattr(response, "error_code", 0) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            await connection.close()
        return response

    async def _connect(self) -> Connection:
        """Return an open connection between where both brokers are now; requests that need one share it."""
        async with self._connecting:
            ends, connection = (self._address(), self._source_host()), self._connection
            if connection is not None and connection.is_open and self._ends == ends:
                return connection
            await self.close()
            address, source_host = ends
            connection = open_connection(
                address,
                self._client_id,
                self._timeout_ms,
                source_host,
                self._receive_buffer_bytes,
                self._security(),
            )
            self._connection, self._ends = connection, ends
            await connection.connect()
            return connection

    async def close(self) -> None:
        """Close the connection, if there is one; a request that waits for its answer fails."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


class Peers:
    """The other brokers of the cluster. A client id names this broker and the purpose of the requests."""

    def __init__(
        self,
        metadata: MetadataCache,
        config: BrokerConfig,
        tls: Callable[[str], ssl.SSLContext | None] = lambda listener: None,
    ) -> None:
        """`tls` returns the context for connections to a listener of other brokers; None: without TLS."""
        self._metadata = metadata
        self._listener = config.interbroker_listener
        self._controller_listener = config.controller_listener
        self._tls = tls
        self._tokens: Mapping[str, BrokerToken] = {}
        self.configure(config)

    def configure(self, config: BrokerConfig) -> None:
        """Connect from where this broker is advertised, with its present login: from the next request on."""
        self._source_host = source_host_of(config)
        self._security = {
            listener: security_of(config, listener)
            for listener in (self._listener, self._controller_listener)
        }

    def use_tokens(self, tokens: Mapping[str, BrokerToken]) -> None:
        """Log in with tokens, by listener, which replace themselves before they end."""
        self._tokens = tokens

    def broker(
        self, broker_id: int, purpose: str, timeout_ms: int, receive_buffer_bytes: int = SYSTEM_BUFFER
    ) -> Peer:
        """Return a broker, to be found by the metadata at each request."""
        client_id = f"broker-{self._metadata.broker_id}-{purpose}"
        return self._peer(lambda: self._address_of(broker_id), client_id, timeout_ms, receive_buffer_bytes)

    def controller(self, timeout_ms: int) -> Peer:
        """Return the broker that is the controller at each request."""
        client_id = f"broker-{self._metadata.broker_id}"
        return self._peer(self._controller_address, client_id, timeout_ms)

    def registered(self, address: Address, timeout_ms: int) -> Peer:
        """Return a broker for requests of this broker as the controller, which knows addresses first."""
        client_id = f"controller-{self._metadata.broker_id}"
        return self._peer(lambda: address, client_id, timeout_ms, listener=self._controller_listener)

    def _peer(
        self,
        address: Callable[[], Address],
        client_id: str,
        timeout_ms: int,
        receive_buffer_bytes: int = SYSTEM_BUFFER,
        listener: str | None = None,
    ) -> Peer:
        listener = listener or self._listener
        return Peer(
            address,
            client_id,
            timeout_ms,
            lambda: self._source_host,
            receive_buffer_bytes,
            lambda: self._security_for(listener),
        )

    def _security_for(self, listener: str) -> Mapping[str, Any]:
        """Return a client's settings of security for a listener, with the certificates of now."""
        login, tls = self._security.get(listener, NO_SECURITY), self._tls(listener)
        if (token := self._tokens.get(listener)) is not None:
            login = {**login, "sasl_oauth_token_provider": token.token}
        return login if tls is None else {"security_protocol": "SSL", **login, "ssl_context": tls}

    def _controller_address(self) -> Address:
        return self._address_of(self._metadata.controller_id, "No controller is known.")

    def _address_of(self, broker_id: int, unknown: str = "") -> Address:
        broker = self._metadata.broker(broker_id)
        endpoint = broker.endpoint(self._listener) if broker else None
        if endpoint is None:
            raise BrokerNotAvailable(unknown or f"Broker {broker_id} is not registered.")
        return Address(endpoint.host, endpoint.port)


# ---- requests


def latest_of(partitions: Iterable[TopicPartition]) -> ListOffsetsRequest:
    """Return the request for the ends of partitions, as consumers see them."""
    from ottla.protocol.messages.log_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

    by_topic: dict[str, list[ListOffsetsPartition]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(ListOffsetsPartition(partition_index=index, timestamp=_LATEST))
    topics = [ListOffsetsTopic(name=name, partitions=asked) for name, asked in by_topic.items()]
    return ListOffsetsRequest(replica_id=_CONSUMER, topics=topics)


_LATEST: Final = -1
_CONSUMER: Final = -1
