"""Aliases of the consumer's settings: names of older Kafkas, Java, librdkafka and other Python clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla.client.setting_aliases import renamed, without_effect
from ottla.client.settings import Alias

RESETS: Mapping[Any, Any] = {
    "smallest": "earliest",
    "beginning": "earliest",
    "largest": "latest",
    "end": "latest",
    "error": "none",
}
"""Values of `auto_offset_reset` in Kafka 0.8 and librdkafka."""

_ZOOKEEPER = "brokers are found through bootstrap_servers, and keep groups; see ZookeeperConsumerConnector"
_REBALANCES = "the group's coordinator brings members together, for as long as it takes"
_OFFSETS = "offsets are kept in Kafka; ZookeeperConsumerConnector keeps them in ZooKeeper too"


def _protocol(name: Any) -> dict[str, Any]:
    if str(name).lower() != "classic":
        raise ValueError("only the classic group protocol is spoken")
    return {}


CONSUMER_ALIASES: Mapping[str, Alias] = {
    **renamed(
        "Kafka 0.8, librdkafka",
        {
            "fetch_message_max_bytes": "max_partition_fetch_bytes",
            "fetch_wait_max_ms": "fetch_max_wait_ms",
            "auto_commit_enable": "enable_auto_commit",
        },
    ),
    **renamed("Kafka 0.8", {"refresh_leader_backoff_ms": "retry_backoff_ms"}),
    **renamed(
        "Kafka 0.7",
        {
            "groupid": "group_id",
            "autocommit_enable": "enable_auto_commit",
            "autocommit_interval_ms": "auto_commit_interval_ms",
            "autooffset_reset": "auto_offset_reset",
            "fetch_size": "max_partition_fetch_bytes",
        },
    ),
    "interceptor_classes": Alias("interceptors", "Kafka"),
    "group_protocol": Alias(None, "Kafka, librdkafka", expand=_protocol),
    "consumer_id": without_effect(
        "Kafka 0.8", "the coordinator names members; client_id and group_instance_id are yours"
    ),
    "consumerid": without_effect(
        "Kafka 0.7", "the coordinator names members; client_id and group_instance_id are yours"
    ),
    "zookeeper_connect": without_effect("Kafka 0.8", _ZOOKEEPER),
    "zk_connect": without_effect("Kafka 0.7", _ZOOKEEPER),
    "zookeeper_session_timeout_ms": without_effect("Kafka 0.8", "session_timeout_ms is the group's own"),
    "zookeeper_connection_timeout_ms": without_effect("Kafka 0.8", _ZOOKEEPER),
    "zookeeper_sync_time_ms": without_effect("Kafka 0.8", _ZOOKEEPER),
    "rebalance_max_retries": without_effect("Kafka 0.8", _REBALANCES),
    "rebalance_backoff_ms": without_effect("Kafka 0.8", _REBALANCES),
    "rebalance_timeout_ms": without_effect("aiokafka", "max_poll_interval_ms bounds a rebalance too"),
    "offsets_storage": without_effect("Kafka 0.8.2", _OFFSETS),
    "dual_commit_enabled": without_effect("Kafka 0.8.2", _OFFSETS),
    "offsets_channel_backoff_ms": without_effect(
        "Kafka 0.8.2", "retry_backoff_ms is waited before trying again"
    ),
    "offsets_channel_socket_timeout_ms": without_effect(
        "Kafka 0.8.2", "request_timeout_ms bounds commits too"
    ),
    "offsets_commit_max_retries": without_effect("Kafka 0.8.2", "default_api_timeout_ms bounds commits"),
    "queued_max_message_chunks": without_effect("Kafka 0.8", "fetch_max_bytes bounds what is fetched ahead"),
    "queuedchunks_max": without_effect("Kafka 0.7", "fetch_max_bytes bounds what is fetched ahead"),
    "queued_min_messages": without_effect("librdkafka", "fetch_max_bytes bounds what is fetched ahead"),
    "queued_max_messages_kbytes": without_effect(
        "librdkafka", "fetch_max_bytes bounds what is fetched ahead"
    ),
    "num_consumer_fetchers": without_effect("Kafka 0.8", "there is one fetch on its way to each broker"),
    "enable_auto_offset_store": without_effect(
        "librdkafka", "a record is finished when the next one is asked for"
    ),
    "enable_partition_eof": without_effect("librdkafka", "see lag() and end_offsets()"),
    "coordinator_query_interval_ms": without_effect(
        "librdkafka", "the coordinator is looked for when it does not answer"
    ),
}
