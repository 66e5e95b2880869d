"""The broker's settings of how much one request may ask for."""

from __future__ import annotations

from ottla.broker.runtime.frozen_classes import field_group
from ottla.client.config_definition import at_least, setting


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
