"""Connections to other brokers, whose modules are imported with the second broker: one alone needs none."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.config import BrokerConfig
    from ottla.broker.controller.channels import Sender
    from ottla.broker.controller.controller_context import LiveBroker
    from ottla.broker.replication.fetcher import Peer


def sender_to(broker: LiveBroker, config: BrokerConfig, own_id: int) -> Sender:
    """Return the controller's sender to another broker."""
    from ottla.broker.controller.remote_requests import RemoteSender

    return RemoteSender(broker, config.interbroker_listener, own_id, config.controller_socket_timeout_ms)


def connect_to_leader(metadata: MetadataCache, config: BrokerConfig, leader: int) -> Peer:
    """Return a follower's connection to a leader."""
    from ottla.broker.peers.leader_connection import connect

    return connect(metadata, config, leader)
