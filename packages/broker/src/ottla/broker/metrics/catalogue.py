"""Every metric of a broker with its meaning in one line, for `/metrics` and the reference page.

Names, types and groups are Apache Kafka's where it has the metric; Ottla's own metrics are in `ottla.broker`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal, NamedTuple

from ottla.broker.metrics.registry import Gauge, Meter, Metric, MetricName

Kind = Literal["meter", "gauge", "histogram"]


class Described(NamedTuple):
    """One metric, or with `tags` a family of them: one for each topic, partition, request or task."""

    group: str
    type: str
    name: str
    tags: tuple[str, ...]
    kind: Kind
    meaning: str


_Lines = Mapping[str, tuple[Kind, str]]

_TOPIC: Final[_Lines] = {
    "MessagesInPerSec": ("meter", "Records that producers wrote."),
    "BytesInPerSec": ("meter", "Bytes that producers wrote."),
    "BytesOutPerSec": ("meter", "Bytes sent to consumers."),
    "BytesRejectedPerSec": ("meter", "Bytes of rejected batches."),
    "TotalProduceRequestsPerSec": ("meter", "Requested writes to a partition."),
    "FailedProduceRequestsPerSec": ("meter", "Failed writes to a partition."),
    "TotalFetchRequestsPerSec": ("meter", "Requested reads of a partition."),
    "FailedFetchRequestsPerSec": ("meter", "Failed reads of a partition."),
    "TotalShareFetchRequestsPerSec": ("meter", "Reads that share groups asked for."),
    "FailedShareFetchRequestsPerSec": ("meter", "Of those, the ones with an error."),
    "TotalShareAcknowledgementRequestsPerSec": ("meter", "Requests with acknowledgements of share groups."),
    "FailedShareAcknowledgementRequestsPerSec": ("meter", "Of those, the ones with an error."),
    "ProduceMessageConversionsPerSec": ("meter", "Writes rewritten from an older record format."),
    "FetchMessageConversionsPerSec": ("meter", "Reads rewritten to an older record format."),
}

_LINES: Final[Mapping[tuple[str, str, tuple[str, ...]], _Lines]] = {
    ("kafka.cluster", "Partition", ("partition", "topic")): {
        "ReplicasCount": ("gauge", "Replicas of a partition; 0 where it is not led."),
        "InSyncReplicasCount": ("gauge", "In-sync replicas of a partition; 0 where it is not led."),
        "UnderReplicated": ("gauge", "1 where a partition is led and a replica is not in sync."),
        "UnderMinIsr": ("gauge", "1 where a partition is led and refuses acks=all."),
        "AtMinIsr": ("gauge", "1 where a partition is led with just enough replicas in sync."),
        "LastStableOffsetLag": ("gauge", "Committed records behind the first open transaction."),
    },
    ("kafka", "consumergroup", ("consumergroup",)): {
        "members": ("gauge", "Members of a group that this broker coordinates."),
    },
    ("kafka", "consumergroup", ("consumergroup", "partition", "topic")): {
        "current_offset": ("gauge", "The offset that a group has committed."),
        "lag": ("gauge", "Records behind the committed offset; below 0 it is beyond the end."),
    },
    ("kafka", "consumergroup", ("client_host", "client_id", "consumergroup", "partition", "topic")): {
        "owner": ("gauge", "1 with the client that a partition is assigned to, 0 without one."),
    },
    ("kafka.controller", "KafkaController", ()): {
        "ActiveControllerCount": ("gauge", "1 where this broker is the controller; 1 over all brokers."),
        "ActiveBrokerCount": ("gauge", "Brokers that are registered, as the controller knows them."),
        "ControllerState": ("gauge", "What the controller is processing, by Kafka's number; 0 is idle."),
        "GlobalPartitionCount": ("gauge", "Partitions in the cluster."),
        "GlobalTopicCount": ("gauge", "Topics in the cluster."),
        "OfflinePartitionsCount": (
            "gauge",
            "Partitions without a leader: they can be neither read nor written.",
        ),
        "PreferredReplicaImbalanceCount": (
            "gauge",
            "Partitions whose leader is not the preferred replica.",
        ),
        "TopicsToDeleteCount": ("gauge", "Topics whose deletion is not finished."),
        "TopicsIneligibleToDeleteCount": ("gauge", "Of those, the ones that cannot be deleted now."),
        "ReplicasToDeleteCount": ("gauge", "Replicas of those topics that are not deleted yet."),
        "ReplicasIneligibleToDeleteCount": ("gauge", "Of those, the ones that cannot be deleted now."),
    },
    ("kafka.controller", "ControllerStats", ()): {
        "LeaderElectionsPerSec": ("meter", "Elections of a partition's leader."),
        "UncleanLeaderElectionsPerSec": (
            "meter",
            "Elections of a leader that was not in sync: acknowledged records may be lost.",
        ),
    },
    ("kafka.controller", "ControllerEventManager", ()): {
        "EventQueueSize": ("gauge", "Events that wait for the controller."),
        "EventQueueTimeMs": ("histogram", "How long events waited for the controller."),
    },
    ("kafka.controller", "ControllerChannelManager", ()): {
        "TotalQueueSize": ("gauge", "Requests of the controller to brokers that are not sent yet."),
    },
    ("kafka.controller", "ControllerChannelManager", ("broker-id",)): {
        "QueueSize": ("gauge", "Requests of the controller to one broker that are not sent yet."),
    },
    ("kafka.coordinator.group", "GroupMetadataManager", ()): {
        "NumGroups": ("gauge", "Groups this broker coordinates."),
        "NumGroupsEmpty": ("gauge", "Groups without members."),
        "NumGroupsPreparingRebalance": ("gauge", "Groups that wait for their members to join."),
        "NumGroupsCompletingRebalance": ("gauge", "Groups that wait for their leader's assignment."),
        "NumGroupsStable": ("gauge", "Groups whose members consume."),
        "NumGroupsDead": ("gauge", "Groups that are being removed."),
        "NumOffsets": ("gauge", "Committed offsets of the groups of this broker."),
    },
    ("kafka.log", "Log", ("partition", "topic")): {
        "LogEndOffset": (
            "gauge",
            "The offset of the next record; less a group's offset it is the group's lag.",
        ),
        "LogStartOffset": ("gauge", "The offset of the oldest record."),
        "NumLogSegments": ("gauge", "Segments of the log."),
        "Size": ("gauge", "Bytes of the log."),
    },
    ("kafka.log", "LogCleaner", ()): {
        "cleaner-recopy-percent": ("gauge", "Of the bytes that the last compaction read, those it kept."),
        "max-buffer-utilization-percent": ("gauge", "How full the last compaction's memory for keys was."),
        "max-clean-time-secs": ("gauge", "How long the last compaction took."),
        "max-compaction-delay-secs": (
            "gauge",
            "By how much the oldest uncompacted record exceeds max.compaction.lag.ms.",
        ),
    },
    ("kafka.log", "LogCleanerManager", ()): {
        "max-dirty-percent": ("gauge", "The largest part of a log that is not compacted yet."),
        "time-since-last-run-ms": ("gauge", "Time since the cleaner last looked for logs to compact."),
    },
    ("kafka.log", "LogCleanerManager", ("logDirectory",)): {
        "uncleanable-bytes": ("gauge", "Bytes of the partitions that are not compacted any more."),
        "uncleanable-partitions-count": (
            "gauge",
            "Partitions not compacted any more, because of damage for example.",
        ),
    },
    ("kafka.log", "LogManager", ()): {
        "OfflineLogDirectoryCount": ("gauge", "Data directories that have failed."),
        "FullLogDirectoryCount": ("gauge", "Data directories without room for records."),
    },
    ("kafka.network", "RequestChannel", ()): {
        "RequestQueueSize": ("gauge", "Requests that were read and wait for their handler."),
    },
    ("kafka.network", "RequestMetrics", ("request",)): {
        "TotalTimeMs": ("histogram", "Time from a request's last byte to its response."),
        "RequestQueueTimeMs": ("histogram", "Of that, the time before its handler began."),
        "LocalTimeMs": ("histogram", "Of that, the time this broker processed it."),
        "RemoteTimeMs": ("histogram", "Of that, the time it waited for replicas or for data."),
        "RequestBytes": ("histogram", "Size of requests."),
    },
    ("kafka.network", "RequestMetrics", ("request", "version")): {
        "RequestsPerSec": ("meter", "Requests that were answered."),
    },
    ("kafka.network", "Server", ()): {
        "BytesInPerSec": ("meter", "Bytes read from all connections."),
        "BytesOutPerSec": ("meter", "Bytes written to all connections."),
    },
    ("kafka.server", "BrokerTopicMetrics", ()): {
        **_TOPIC,
        "ReplicationBytesInPerSec": ("meter", "Bytes that this broker copied from leaders."),
        "ReplicationBytesOutPerSec": ("meter", "Bytes sent to followers."),
        "ReassignmentBytesInPerSec": (
            "meter",
            "Of the copied bytes, those of replicas that are being added.",
        ),
        "ReassignmentBytesOutPerSec": ("meter", "Bytes sent to replicas that are being added."),
    },
    ("kafka.server", "BrokerTopicMetrics", ("topic",)): _TOPIC,
    ("kafka.server", "FetchSessionCache", ()): {
        "NumIncrementalFetchSessions": ("gauge", "Cached fetch sessions."),
        "NumIncrementalFetchPartitionsCached": ("gauge", "Partitions in those sessions."),
    },
    ("kafka.server", "ReplicaManager", ()): {
        "PartitionCount": ("gauge", "Partitions with a replica on this broker."),
        "LeaderCount": ("gauge", "Partitions that this broker leads."),
        "OfflineReplicaCount": ("gauge", "Replicas in data directories that have failed."),
        "UnderReplicatedPartitions": ("gauge", "Partitions led here whose replicas are not all in sync."),
        "UnderMinIsrPartitionCount": (
            "gauge",
            "Partitions led here that refuse acks=all: too few replicas in sync.",
        ),
        "AtMinIsrPartitionCount": ("gauge", "Partitions led here with just enough replicas in sync."),
        "ReassigningPartitions": ("gauge", "Partitions led here that move to other brokers."),
        "IsrShrinksPerSec": ("meter", "Replicas that fell out of sync, counted by partition."),
        "FailedIsrUpdatesPerSec": ("meter", "Proposed changes of in-sync replicas that were refused."),
        "IsrExpandsPerSec": ("meter", "Replicas that came back in sync, counted by partition."),
    },
    ("kafka.server", "LeaderReplication", ()): {
        "byte-rate": ("gauge", "Throttled bytes per second sent to followers."),
    },
    ("kafka.server", "FollowerReplication", ()): {
        "byte-rate": ("gauge", "Throttled bytes per second copied from leaders."),
    },
    ("kafka.server", "AlterLogDirsReplication", ()): {
        "byte-rate": ("gauge", "Bytes per second of moves between log directories."),
    },
    ("kafka.server", "Produce", ("client-id", "user")): {
        "byte-rate": ("gauge", "Bytes per second that a client with a quota produces."),
        "throttle-time": ("gauge", "Mean throttle time in ms of its throttled produce requests."),
    },
    ("kafka.server", "Fetch", ("client-id", "user")): {
        "byte-rate": ("gauge", "Bytes per second that a client with a quota fetches."),
        "throttle-time": ("gauge", "Mean throttle time in ms of its throttled fetch requests."),
    },
    ("kafka.server", "Request", ("client-id", "user")): {
        "request-time": ("gauge", "Percent of the event loop that a client with a quota uses."),
        "throttle-time": ("gauge", "Mean throttle time in ms of its requests beyond the quota."),
    },
    ("kafka.server", "Request", ()): {
        "exempt-request-time": (
            "gauge",
            "Percent of the event loop that requests of brokers use, while a client's time is limited.",
        ),
    },
    ("kafka.server", "ControllerMutation", ("client-id", "user")): {
        "mutation-rate": ("gauge", "Partitions per second that a client with a quota creates and deletes."),
        "throttle-time": ("gauge", "Mean throttle time in ms of its requests beyond the quota."),
        "tokens": ("gauge", "Partitions that it may create or delete now; below 0 it is throttled."),
    },
    ("kafka.server", "FetcherLagMetrics", ("clientId", "partition", "topic")): {
        "ConsumerLag": ("gauge", "Records below the leader's high watermark that this follower lacks."),
    },
    ("kafka.server", "FetcherStats", ("brokerId", "clientId")): {
        "RequestsPerSec": ("meter", "Requests of one fetcher to its leader."),
        "BytesPerSec": ("meter", "Bytes that one fetcher copied."),
    },
    ("kafka.server", "ReplicaFetcherManager", ("clientId",)): {
        "MaxLag": ("gauge", "The largest lag of a partition that this broker copies, in records."),
        "FailedPartitionsCount": ("gauge", "Partitions that are not copied any more, because of an error."),
        "MinFetchRate": ("gauge", "Requests per second of the slowest fetcher."),
        "DeadThreadCount": ("gauge", "Fetchers that have failed; the log says why."),
    },
    ("kafka.server", "SessionExpireListener", ()): {
        "ZooKeeperSyncConnectsPerSec": ("meter", "Connections made to ZooKeeper."),
        "ZooKeeperDisconnectsPerSec": ("meter", "Connections to ZooKeeper that were lost."),
        "ZooKeeperExpiresPerSec": (
            "meter",
            "ZooKeeper sessions that expired: the cluster took this broker for dead.",
        ),
    },
    ("kafka.server", "SessionExpireListener", ("state",)): {
        "SessionState": ("gauge", "1 for the present state of the ZooKeeper session."),
    },
    ("kafka.server", "ZooKeeperClientMetrics", ()): {
        "ZooKeeperRequestLatencyMs": ("histogram", "How long ZooKeeper took to answer."),
    },
    ("kafka.coordinator.transaction", "TransactionMarkerChannelManager", ()): {
        "UnknownDestinationQueueSize": (
            "gauge",
            "Markers of ended transactions that wait for a leader or for another attempt.",
        ),
        "LogAppendRetryQueueSize": (
            "gauge",
            "Transactions with all markers whose completion could not be written and is tried again.",
        ),
    },
    ("kafka.server", "AddPartitionsToTxnManager", ()): {
        "VerificationTimeMs": (
            "histogram",
            "How long a coordinator took to say which partitions a transaction has; 0 if it is here.",
        ),
        "VerificationFailureRate": (
            "meter",
            "Partitions that were not in an open transaction of the producer.",
        ),
    },
    ("kafka.server", "transaction-coordinator-metrics", ()): {
        "partition-load-time": ("histogram", "Milliseconds to load the transactions of a partition."),
    },
    ("kafka.server", "group-coordinator-metrics", ()): {
        "group-completed-rebalance": ("meter", "Rebalances that ended with an assignment."),
        "offset-commit": ("meter", "Offsets that were committed."),
        "offset-deletion": ("meter", "Offsets that were deleted with their topics or groups."),
        "offset-expiration": ("meter", "Offsets that expired."),
        "partition-load-time": ("histogram", "Milliseconds to load the groups of a partition."),
        "consumer-group-rebalance": ("meter", "New group epochs of consumer groups."),
        "share-group-rebalance": ("meter", "New group epochs of share groups."),
        "streams-group-rebalance": ("meter", "New group epochs of streams groups."),
    },
    ("kafka.server", "group-coordinator-metrics", ("protocol",)): {
        "group-count": ("gauge", "Groups of a kind: classic, consumer, share or streams."),
    },
    ("kafka.server", "group-coordinator-metrics", ("state",)): {
        "classic-group-count": ("gauge", "Classic groups in a state."),
        "consumer-group-count": ("gauge", "Consumer groups in a state."),
        "share-group-count": ("gauge", "Share groups in a state."),
        "streams-group-count": ("gauge", "Streams groups in a state."),
    },
    ("kafka.server", "share-coordinator-metrics", ()): {
        "write": ("meter", "Changes of share partitions that their leaders have persisted."),
        "write-latency": ("histogram", "Milliseconds until a change was in `__share_group_state`."),
        "partition-load-time": ("histogram", "Milliseconds to load the states of a partition."),
    },
    ("kafka.server", "share-coordinator-metrics", ("partition", "topic")): {
        "last-pruned-offset": (
            "gauge",
            "Where `__share_group_state` begins since its oldest records were deleted.",
        ),
    },
    ("kafka.server", "ShareSessionCache", ()): {
        "ShareSessionsCount": ("gauge", "Sessions of members of share groups."),
        "SharePartitionsCount": ("gauge", "Partitions that these sessions read."),
        "ShareSessionEvictionsPerSec": ("meter", "Sessions that ended with their connection."),
    },
    ("kafka.server", "DelayedShareFetchMetrics", ()): {
        "ExpiresPerSec": ("meter", "Fetches of share groups that waited for records in vain."),
    },
    ("kafka.server", "SharePartitionMetrics", ("group", "partition", "topic")): {
        "AcquisitionLockTimeoutPerSec": ("meter", "Records whose lock ended without an acknowledgement."),
        "InFlightMessageCount": ("gauge", "Offsets from the start offset of a share partition to its end."),
        "InFlightBatchCount": ("gauge", "Batches in which these offsets are kept."),
        "InFlightBatchMessageCount": ("histogram", "Records that a member acquired together."),
        "FetchLockTimeMs": ("histogram", "How long a fetch had a share partition for itself."),
        "FetchLockRatio": ("histogram", "The part of all time for which fetches had it, in percent."),
    },
    ("kafka.server", "ShareGroupMetrics", ()): {
        "PartitionLoadTimeMs": ("histogram", "Milliseconds until a leader knew a share partition's state."),
    },
    ("kafka.server", "ShareGroupMetrics", ("ackType",)): {
        "RecordAcknowledgementsPerSec": (
            "meter",
            "Records of share groups that were accepted, released, rejected or renewed.",
        ),
    },
    ("kafka.server", "ShareGroupMetrics", ("group",)): {
        "RequestTopicPartitionsFetchRatio": (
            "histogram",
            "Of the partitions that a fetch asked for, those with records for it, in percent.",
        ),
        "TopicPartitionsAcquireTimeMs": ("histogram", "Milliseconds until a fetch had acquired records."),
        "DeadLetterQueueRecordCount": (
            "meter",
            "Records of a share group that were written to its dead-letter topic.",
        ),
        "DeadLetterQueueTotalProduceRequestsPerSec": ("meter", "Batches of dead letters sent to a leader."),
        "DeadLetterQueueFailedProduceRequestsPerSec": (
            "meter",
            "Batches of dead letters that were given up: their records are archived without one.",
        ),
    },
    ("kafka.server", "client-metrics", ()): {
        "instance-count": (
            "gauge",
            "Clients that push metrics, or asked whether they shall; from the first on.",
        ),
    },
    ("kafka.server", "socket-server-metrics", ()): {
        "connection-count": ("gauge", "Connections that are open."),
    },
    ("kafka.server", "socket-server-metrics", ("listener",)): {
        "successful-authentication-total": ("gauge", "First logins that succeeded."),
        "failed-authentication-total": ("gauge", "First logins that were refused."),
        "successful-reauthentication-total": ("gauge", "Later logins of a connection that succeeded."),
        "failed-reauthentication-total": ("gauge", "Later logins of a connection that were refused."),
        "successful-authentication-no-reauth-total": (
            "gauge",
            "First logins of clients too old to log in again on their connection.",
        ),
        "expired-connections-killed-count": (
            "gauge",
            "Connections closed because they sent a request after the end of their login.",
        ),
    },
    ("ottla.broker", "BackgroundTask", ("task",)): {
        "Running": ("gauge", "1 while a background task runs, 0 once it has failed."),
        "SinceLastRunMs": ("gauge", "Time since a repeated task last began."),
    },
    ("ottla.broker", "client-metrics", ()): {
        "otlp-sent-pushes": ("meter", "Pushes of clients that the collector of OpenTelemetry has taken."),
        "otlp-dropped-pushes": (
            "meter",
            "Pushes that it was not handed: it refused them, or was away too long.",
        ),
        "otlp-failed-requests": (
            "meter",
            "Requests that it refused, or did not answer; some are sent again.",
        ),
        "otlp-rejected-points": ("meter", "Values that it rejected of pushes which it has taken."),
        "otlp-queue-bytes": ("gauge", "Bytes of pushes that wait for it."),
    },
    ("ottla.broker", "ConsumerGroups", ()): {
        "PartitionsNotShown": ("gauge", "Partitions of groups beyond metrics.group.partitions.max."),
    },
    ("ottla.broker", "SharePartitionMetrics", ("group", "partition", "topic")): {
        "AcquiredMessageCount": (
            "gauge",
            "Records that members of a share group hold, not acknowledged yet.",
        ),
    },
    ("ottla.broker", "EventLoop", ()): {
        "LagMs": ("histogram", "How much later than due the event loop ran: a blocked loop shows here."),
    },
}


def catalogue() -> Iterator[Described]:
    """Every metric that a broker may have, by group, type and name."""
    for (group, type_, tags), lines in _LINES.items():
        for name, (kind, meaning) in lines.items():
            yield Described(group, type_, name, tags, kind, meaning)


def meaning_of(name: MetricName) -> str:
    """Return the meaning of a metric, or that it is not described."""
    lines = _LINES.get((name.group, name.type, tuple(tag for tag, _ in name.tags)), {})
    return lines[name.name][1] if name.name in lines else "Not described."


def kind_of(metric: Metric) -> Kind:
    """The kind of a metric, as the catalogue calls it."""
    if isinstance(metric, Meter):
        return "meter"
    return "gauge" if isinstance(metric, Gauge) else "histogram"
