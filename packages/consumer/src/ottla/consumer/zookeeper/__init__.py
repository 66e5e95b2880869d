"""The high-level consumer of Kafka 0.8 to 1.1, whose groups share their partitions through ZooKeeper.

Apache Kafka removed it in version 2.0. It serves groups that still have such members, and the migration of
their offsets. New applications use `ottla.consumer.Consumer` with a `group_id`.
"""

from ottla.consumer.zookeeper.assignment import Blacklist, TopicFilter, Whitelist
from ottla.consumer.zookeeper.config import ZookeeperConsumerConfig
from ottla.consumer.zookeeper.connector import ZookeeperConsumerConnector
from ottla.consumer.zookeeper.errors import (
    ConsumerIdInUse,
    ConsumerRebalanceFailed,
    ConsumerTimeout,
    MessageStreamsExist,
    NoBrokers,
    PartitionsOwned,
)
from ottla.consumer.zookeeper.streams import MessageStream

__all__ = [
    "Blacklist",
    "ConsumerIdInUse",
    "ConsumerRebalanceFailed",
    "ConsumerTimeout",
    "MessageStream",
    "MessageStreamsExist",
    "NoBrokers",
    "PartitionsOwned",
    "TopicFilter",
    "Whitelist",
    "ZookeeperConsumerConfig",
    "ZookeeperConsumerConnector",
]
