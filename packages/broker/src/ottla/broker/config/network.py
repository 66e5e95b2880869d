"""The broker's settings of listeners, sockets, connections and the requests on them."""

from __future__ import annotations

import dataclasses
from typing import Final, Self

from ottla.broker.config.keys import keys_of, overrides_of
from ottla.broker.config.listeners import Listener, parse_listeners, parse_networks
from ottla.client.config_definition import MAX_INT, at_least, one_of, setting
from ottla.zookeeper.frozen_classes import field_group, replace

_CLUSTER: Final = "cluster-wide"


@field_group
class RequestLimits:
    """The part of `BrokerConfig` that limits single requests of clients; those of brokers are not limited."""

    request_max_elements: int = setting(
        100_000,
        "Elements of all lists in one request of a client; one that announces more is refused before they "
        "are read.",
        at_least(20_000),
        ottla_only=True,
    )
    request_max_described_resources: int = setting(
        10_000, "Different resources in one DescribeConfigs request.", at_least(1), ottla_only=True
    )
    request_max_created_topics: int = setting(
        1_000, "Topics in one CreateTopics request.", at_least(1), ottla_only=True
    )
    request_max_deleted_topics: int = setting(
        10_000, "Topics in one DeleteTopics request.", at_least(1), ottla_only=True
    )
    request_max_auto_created_topics: int = setting(
        100,
        "Topics that one Metadata request creates (auto.create.topics.enable); the client asks again for "
        "the others.",
        at_least(0),
        ottla_only=True,
    )


def _networks(text: str) -> str | None:
    try:
        parse_networks(text)
    except ValueError as error:
        return f"must be a list of networks like 10.0.0.0/24 or addresses: {error}"
    return None


def _limits_by_host(text: str) -> str | None:
    items = [item.rpartition(":") for item in text.split(",") if item.strip()]
    fine = all(host.strip() and limit.strip().isdecimal() for host, _, limit in items)
    return None if fine else "must be a list of host:limit"


@field_group
class NetworkSettings:
    """The part of `BrokerConfig` that concerns the network."""

    listeners: str = setting(
        "PLAINTEXT://127.0.0.1:9092",
        "Addresses to listen on, as NAME://host:port separated by commas; an empty host is every interface. "
        "A properties file without this key stands for PLAINTEXT://:9092, as in Kafka. Listeners may be "
        "added, moved and removed while the broker runs; that of brokers may only be moved.",
        update="per-broker",
    )
    advertised_listeners: str | None = setting(
        None,
        "Addresses given to clients and other brokers, if they differ from listeners: NAME://host:port "
        "separated by commas. A change while the broker runs is registered at once, and every broker's "
        "metadata follow. Where brokers share a listener with clients, they know each other by these hosts: "
        "other hosts are then set from the machine of a broker only, and the listener of brokers gets an "
        "address of this machine, unless inter.broker.networks is set.",
        update="per-broker",
    )
    listener_overrides: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)
    """The keys of single listeners (`listener.name.<name>.`) with their texts. No key itself."""
    listener_security_protocol_map: str = setting(
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "The security protocol of each listener name. It may change while the broker runs, but not for a "
        "listener that is there.",
        update="per-broker",
    )
    inter_broker_listener_name: str | None = setting(None, "The listener for requests between brokers.")
    inter_broker_networks: str = setting(
        "",
        "Networks (10.0.0.0/24) and addresses, separated by commas, from which brokers may connect besides "
        "the addresses of the registered brokers, for brokers behind NAT. Any client there may act as a "
        "broker. Where brokers have a listener of their own (inter.broker.listener.name), it holds on the "
        "other listeners: for the time in which they move there.",
        _networks,
        ottla_only=True,
    )
    control_plane_listener_name: str | None = setting(
        None,
        "The listener for the controller's requests to brokers, which must be one that clients do not use; "
        "by default they take the listener of requests between brokers.",
    )
    security_inter_broker_protocol: str = setting(
        "PLAINTEXT",
        "The protocol between brokers when inter.broker.listener.name is not set.",
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )
    num_network_threads: int = setting(
        3, "Accepted for compatibility: one event loop serves the network.", at_least(1), update=_CLUSTER
    )
    num_io_threads: int = setting(
        8,
        "Threads for blocking work: cold reads, recompression, work on directories.",
        at_least(1),
        update=_CLUSTER,
    )
    background_threads: int = setting(
        10,
        "Accepted for compatibility: background work runs as tasks of the event loop.",
        at_least(1),
        update=_CLUSTER,
    )
    queued_max_requests: int = setting(
        500, "Requests in progress at once; above it the broker stops reading from connections.", at_least(1)
    )
    queued_max_request_bytes: int = setting(
        268_435_456,
        "Memory of all requests that are being received or answered; above it, the connections whose "
        "requests come slowest are closed. -1 and 0 mean no limit.",
        at_least(-1),
        long=True,
    )
    client_request_max_bytes: int = setting(
        8_388_608,
        "The largest request of a client that is not a Produce; a larger one closes its connection. Requests "
        "between brokers, and Produce, are limited by socket.request.max.bytes alone.",
        at_least(1),
        ottla_only=True,
    )
    max_delayed_fetches: int = setting(
        10_000,
        "Fetches of clients that wait for records at once; one more ends the wait of the oldest.",
        at_least(1),
        ottla_only=True,
    )
    socket_send_buffer_bytes: int = setting(
        102_400, "SO_SNDBUF of a client's socket; -1 is the system's default."
    )
    socket_receive_buffer_bytes: int = setting(
        102_400, "SO_RCVBUF of a client's socket; -1 is the system's default."
    )
    socket_request_max_bytes: int = setting(
        104_857_600, "The largest request; a larger one closes its connection.", at_least(1)
    )
    # Not Kafka's 50: a 51st that comes in one turn of the event loop would be tried again after a second.
    socket_listen_backlog_size: int = setting(1024, "Connections that wait to be accepted.", at_least(1))
    max_connections: int = setting(
        MAX_INT, "Connections the broker accepts in total.", at_least(0), update=_CLUSTER
    )
    max_connection_creation_rate: int = setting(
        MAX_INT,
        "Connections the broker accepts a second, over the windows of quota.window.num; those beyond wait in "
        "the system's backlog. Connections to a listener of brokers have only a rate of that listener.",
        at_least(0),
        update=_CLUSTER,
    )
    max_connections_per_ip: int = setting(
        MAX_INT, "Connections the broker accepts from one address.", at_least(0), update=_CLUSTER
    )
    max_connections_per_ip_overrides: str = setting(
        "", "Different limits for some addresses, as `host:limit,…`.", _limits_by_host, update=_CLUSTER
    )
    max_connections_before_login_per_ip: int = setting(
        1_000,
        "Connections from one address that have not logged in yet; one more closes the oldest of them.",
        at_least(1),
        ottla_only=True,
    )
    connections_max_idle_ms: int = setting(
        600_000, "Idle time after which a connection is closed; -1 means never.", long=True
    )
    connection_failed_authentication_delay_ms: int = setting(
        100, "Delay of the response to a failed login, behind which the connection is closed.", at_least(0)
    )
    request_timeout_ms: int = setting(
        30_000,
        "How long replicas are waited for by the transaction coordinator and for the markers of "
        "transactions, and other brokers by both.",
        at_least(1),
    )

    @property
    def parsed_listeners(self) -> tuple[Listener, ...]:
        """The addresses to listen on."""
        return parse_listeners("listeners", self.listeners, self.listener_security_protocol_map)

    @property
    def parsed_advertised_listeners(self) -> tuple[Listener, ...]:
        """The addresses given to clients."""
        text = self.advertised_listeners or self.listeners
        return parse_listeners("advertised.listeners", text, self.listener_security_protocol_map)

    @property
    def has_listener_of_brokers(self) -> bool:
        """Whether brokers have a listener of their own, which identifies them in place of their addresses."""
        return bool(self.inter_broker_listener_name) and len(self.parsed_listeners) > 1

    def of_listener(self, name: str, mechanism: str | None = None) -> Self:
        """Return the settings of one listener, or of one mechanism of its logins.

        They are the broker's, with the keys on top that begin with `listener.name.<name>.`, and on top of
        those the keys that begin with `listener.name.<name>.<mechanism>.`.
        """
        known = keys_of(type(self))
        own = overrides_of(dict(self.listener_overrides), name, mechanism)
        return replace(self, **{known[key].field: known[key].parse(text) for key, text in own.items()})

    @property
    def controller_listener(self) -> str:
        """The name of the listener to which the controller sends its requests."""
        return (self.control_plane_listener_name or self.interbroker_listener).upper()

    @property
    def interbroker_listener(self) -> str:
        """The name of the listener for requests between brokers."""
        if self.inter_broker_listener_name:
            return self.inter_broker_listener_name.upper()
        for listener in self.parsed_listeners:
            if listener.security_protocol == self.security_inter_broker_protocol:
                return listener.name
        return self.security_inter_broker_protocol
