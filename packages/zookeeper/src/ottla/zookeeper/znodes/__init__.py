"""The data of Kafka's znodes: one frozen dataclass per kind.

`path` is the znode's path, `encode()` returns the bytes Kafka would write, `decode` reads data of Kafka and
of older tools and raises MalformedZnode for any other.
"""

from typing import TYPE_CHECKING, Any

from ottla.zookeeper.znodes.brokers import (
    BrokerFeature,
    BrokerRegistration,
    ClientMetricsSubscriptions,
    ClusterId,
    Endpoint,
    FeatureLevels,
    FeatureNode,
    ProducerIdBlock,
)
from ottla.zookeeper.znodes.controller import (
    ControllerEpoch,
    ControllerNode,
    IsrChange,
    LogDirEvent,
    PreferredReplicaElection,
    ReassignPartitions,
)
from ottla.zookeeper.znodes.topics import (
    NO_LEADER,
    RECOVERED,
    RECOVERING,
    ConfigChange,
    ConfigEntity,
    OttlaGroupSettings,
    OttlaTopicSettings,
    PartitionState,
    TopicAssignment,
    decode_topic_id,
    encode_topic_id,
)

if TYPE_CHECKING:
    from ottla.zookeeper.znodes.acls import AclChange, AclEntry, ResourceAcls
    from ottla.zookeeper.znodes.consumers import ConsumerOffset, ConsumerOwner, ConsumerRegistration

__all__ = [
    "NO_LEADER",
    "RECOVERED",
    "RECOVERING",
    "AclChange",
    "AclEntry",
    "BrokerFeature",
    "BrokerRegistration",
    "ClientMetricsSubscriptions",
    "ClusterId",
    "ConfigChange",
    "ConfigEntity",
    "ConsumerOffset",
    "ConsumerOwner",
    "ConsumerRegistration",
    "ControllerEpoch",
    "ControllerNode",
    "Endpoint",
    "FeatureLevels",
    "FeatureNode",
    "IsrChange",
    "LogDirEvent",
    "OttlaGroupSettings",
    "OttlaTopicSettings",
    "PartitionState",
    "PreferredReplicaElection",
    "ProducerIdBlock",
    "ReassignPartitions",
    "ResourceAcls",
    "TopicAssignment",
    "decode_topic_id",
    "encode_topic_id",
]


def __getattr__(name: str) -> Any:
    """Import the znodes of consumers and of ACLs when one is asked for: a broker starts without them."""
    if name in {"ConsumerOffset", "ConsumerOwner", "ConsumerRegistration"}:
        from ottla.zookeeper.znodes import consumers

        return getattr(consumers, name)
    if name in {"AclChange", "AclEntry", "ResourceAcls"}:
        from ottla.zookeeper.znodes import acls

        return getattr(acls, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
