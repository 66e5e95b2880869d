"""Subscriptions in the metadata that consumers send with JoinGroup."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ottla.protocol.group_payloads import ConsumerProtocolSubscription
from ottla.protocol.primitives import MalformedMessage

CONSUMER_PROTOCOL_TYPE: Final = "consumer"


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Return the topics of all these subscriptions; None when one of them cannot be decoded.

    A group may use the consumer protocol type with metadata of its own format: its topics are then not known.
    """
    topics: set[str] = set()
    for subscription in subscriptions:
        try:
            topics.update(ConsumerProtocolSubscription.from_bytes(subscription).topics)
        except MalformedMessage:
            return None
    return frozenset(topics)
