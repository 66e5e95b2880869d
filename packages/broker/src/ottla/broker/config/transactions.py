"""The broker's settings of transactions and of the producers' states."""

from __future__ import annotations

from typing import Final

from ottla.broker.runtime.frozen_classes import field_group
from ottla.client.config_definition import at_least, setting

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
