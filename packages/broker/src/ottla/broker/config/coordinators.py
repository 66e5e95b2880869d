"""The broker's settings of transactions, of producers' states, and of share groups."""

from __future__ import annotations

from typing import Final

from ottla.client.config_definition import at_least, between, setting
from ottla.zookeeper.frozen_classes import field_group

_CLUSTER: Final = "cluster-wide"


@field_group
class TransactionSettings:
    """The part of `BrokerConfig` about the transaction coordinator, its topic, and idempotent producers."""

    transactional_id_expiration_ms: int = setting(
        604_800_000, "How long a transactional id is kept that nobody uses.", at_least(1)
    )
    transaction_max_timeout_ms: int = setting(
        900_000, "The longest transaction timeout that a producer may request.", at_least(1)
    )
    transaction_state_log_num_partitions: int = setting(50, "Partitions of __transaction_state.", at_least(1))
    transaction_state_log_replication_factor: int = setting(
        3, "Replicas of __transaction_state.", at_least(1)
    )
    transaction_state_log_segment_bytes: int = setting(
        104_857_600, "Segment size of __transaction_state.", at_least(1)
    )
    transaction_state_log_min_isr: int = setting(
        2, "min.insync.replicas of __transaction_state.", at_least(1)
    )
    transaction_state_log_load_buffer_size: int = setting(
        5_242_880, "Bytes per read when a partition of __transaction_state is loaded.", at_least(1)
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        10_000, "How often transactions that are open for too long are aborted.", at_least(1)
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000, "How often expired transactional ids are removed.", at_least(1)
    )
    transaction_max_memory_bytes: int = setting(
        536_870_912,
        "Memory for the transactional ids that the broker coordinates, estimated; a new one beyond it is "
        "answered with POLICY_VIOLATION.",
        at_least(1_048_576),
        long=True,
        ottla_only=True,
    )
    transaction_partition_verification_enable: bool = setting(
        True,
        "Whether the first batch of a transaction in a partition is appended only once its coordinator has "
        "said that the partition is in the transaction.",
        update=_CLUSTER,
    )
    producer_id_expiration_ms: int = setting(
        86_400_000, "How long the state of an idle idempotent producer is kept.", at_least(1), update=_CLUSTER
    )
    producer_id_expiration_check_interval_ms: int = setting(
        600_000, "How often the state of idle producers is removed.", at_least(1)
    )


@field_group
class ShareGroupSettings:
    """The part of `BrokerConfig` about share groups (KIP-932).

    A group may have its own value of some of them, between the least and the greatest that are set here.
    """

    group_share_session_timeout_ms: int = setting(
        45_000, "How long a member of a share group may be silent before it leaves the group.", at_least(1)
    )
    group_share_heartbeat_interval_ms: int = setting(
        5_000, "How often members of share groups are asked to heartbeat.", at_least(1)
    )
    group_share_max_size: int = setting(200, "The most members of a share group.", between(1, 1_000))
    group_share_assignment_interval_ms: int = setting(
        1_000, "The least time between two assignments of a share group.", between(0, 15_000)
    )
    group_share_initialize_retry_interval_ms: int = setting(
        30_000,
        "When the state of a share group's partitions is initialized again, after a failure.",
        at_least(1),
    )
    group_share_partition_max_record_locks: int = setting(
        2_000, "How many records of a partition a share group may have in flight.", between(100, 10_000)
    )
    group_share_delivery_count_limit: int = setting(
        5, "How often a record is delivered to a share group at most.", between(2, 10)
    )
    group_share_record_lock_duration_ms: int = setting(
        30_000, "How long a member holds a record that it has acquired.", between(1_000, 3_600_000)
    )
    group_share_min_session_timeout_ms: int = setting(
        45_000, "The least share.session.timeout.ms of a group.", at_least(1)
    )
    group_share_max_session_timeout_ms: int = setting(
        60_000, "The greatest share.session.timeout.ms of a group.", at_least(1)
    )
    group_share_min_heartbeat_interval_ms: int = setting(
        5_000, "The least share.heartbeat.interval.ms of a group.", at_least(1)
    )
    group_share_max_heartbeat_interval_ms: int = setting(
        15_000, "The greatest share.heartbeat.interval.ms of a group.", at_least(1)
    )
    group_share_min_assignment_interval_ms: int = setting(
        0, "The least share.assignment.interval.ms of a group.", at_least(0)
    )
    group_share_max_assignment_interval_ms: int = setting(
        15_000, "The greatest share.assignment.interval.ms of a group.", at_least(0)
    )
    group_share_min_partition_max_record_locks: int = setting(
        100, "The least share.partition.max.record.locks of a group.", between(100, 2_000)
    )
    group_share_max_partition_max_record_locks: int = setting(
        4_000, "The greatest share.partition.max.record.locks of a group.", between(2_000, 10_000)
    )
    group_share_min_delivery_count_limit: int = setting(
        2, "The least share.delivery.count.limit of a group.", between(2, 5)
    )
    group_share_max_delivery_count_limit: int = setting(
        10, "The greatest share.delivery.count.limit of a group.", between(5, 25)
    )
    group_share_min_record_lock_duration_ms: int = setting(
        15_000, "The least share.record.lock.duration.ms of a group.", between(1_000, 30_000)
    )
    group_share_max_record_lock_duration_ms: int = setting(
        60_000, "The greatest share.record.lock.duration.ms of a group.", between(30_000, 3_600_000)
    )
    group_share_max_share_sessions: int = setting(
        2_000, "How many share sessions the broker keeps; another one is refused.", at_least(1)
    )
    errors_deadletterqueue_auto_create_topics_enable: bool = setting(
        False, "Whether a dead-letter topic that a share group names is created where it is missing."
    )
    errors_deadletterqueue_topic_name_prefix: str = setting(
        "dlq.", "The beginning that the names of dead-letter topics must have; empty for any name."
    )
    share_coordinator_state_topic_num_partitions: int = setting(
        50, "Partitions of __share_group_state.", at_least(1)
    )
    share_coordinator_state_topic_replication_factor: int = setting(
        3, "Replicas of __share_group_state.", at_least(1)
    )
    share_coordinator_state_topic_min_isr: int = setting(
        2, "min.insync.replicas of __share_group_state.", at_least(1)
    )
    share_coordinator_state_topic_segment_bytes: int = setting(
        104_857_600, "Segment size of __share_group_state.", at_least(1)
    )
    share_coordinator_state_topic_compression_codec: int = setting(
        0, "Codec of __share_group_state: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.", between(0, 4)
    )
    share_coordinator_state_topic_prune_interval_ms: int = setting(
        300_000, "How often records of __share_group_state are deleted that a snapshot replaces.", at_least(1)
    )
    share_coordinator_snapshot_update_records_per_snapshot: int = setting(
        500, "After how many updates the share coordinator writes a snapshot.", between(0, 500)
    )
    share_coordinator_cold_partition_snapshot_interval_ms: int = setting(
        300_000,
        "How often the share coordinator writes a snapshot of a state that does not change.",
        at_least(1),
    )
    share_coordinator_write_timeout_ms: int = setting(
        5_000, "How long a write to __share_group_state may wait for its replicas.", at_least(1)
    )
    share_coordinator_load_buffer_size: int = setting(
        5_242_880, "Bytes per read when a partition of __share_group_state is loaded.", at_least(1)
    )
