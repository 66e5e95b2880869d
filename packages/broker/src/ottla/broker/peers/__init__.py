"""Requests to other brokers of the cluster: one client for all of them."""

from ottla.broker.peers.client import Address, IncompatibleBroker, Peer, Peers

__all__ = ["Address", "IncompatibleBroker", "Peer", "Peers"]
