"""The broker's configuration: every key with its default, its check and its documentation.

The module has over 500 lines because every key is declared once, with its documentation.
"""

from __future__ import annotations

from typing import Final

from ottla.broker.config.authorization import AuthorizationSettings
from ottla.broker.config.coordinators import ShareGroupSettings, TransactionSettings
from ottla.broker.config.metrics import MetricsSettings
from ottla.broker.config.network import NetworkSettings, RequestLimits
from ottla.broker.config.password_encoder import PasswordEncoderSettings
from ottla.broker.config.quotas import QuotaSettings
from ottla.broker.config.sasl import SaslSettings
from ottla.broker.config.tls import TlsSettings
from ottla.broker.config.zookeeper_client import ZooKeeperClientSettings
from ottla.client.config_definition import (
    MAX_INT,
    MAX_LONG,
    Check,
    at_least,
    between,
    each_of,
    one_of,
    setting,
)
from ottla.zookeeper.frozen_classes import frozen

_HOUR_MS = 3_600_000
_CLUSTER: Final = "cluster-wide"
_NOTHING_TO_PURGE: Final = (
    "Accepted for compatibility: a request that waits leaves its queue as it ends, so nothing is purged."
)


# Codecs and levels that a broker or a topic may compress with (KIP-390).
COMPRESSION_TYPES: Final = ("producer", "uncompressed", "none", "gzip", "snappy", "lz4", "zstd")
DEFAULT_GZIP_LEVEL: Final = -1
DEFAULT_LZ4_LEVEL: Final = 9
DEFAULT_ZSTD_LEVEL: Final = 3
LZ4_LEVEL: Final[Check] = between(1, 17)
ZSTD_LEVEL: Final[Check] = between(-131_072, 22)


def one_of_in_any_case(*accepted: str) -> Check:
    """Accept one of the given strings, also in capitals."""
    return lambda value: None if value.lower() in accepted else f"must be one of {', '.join(accepted)}"


def assignors(names: tuple[str, ...]) -> str | None:
    """Accept the assignors that there are, each once."""
    is_known = names and len(set(names)) == len(names) and {"uniform", "range"}.issuperset(names)
    return None if is_known else "must be a list of uniform, range"


def gzip_level(level: int) -> str | None:
    """Accept 1 to 9, and -1 for the codec's default."""
    return None if level == DEFAULT_GZIP_LEVEL or 1 <= level <= 9 else "must be between 1 and 9, or -1"


def only(name: str) -> Check:
    """Accept a list of this one name."""
    return lambda names: None if names == (name,) else f"must be {name}, there is no other"


def each_once(names: tuple[str, ...]) -> str | None:
    """Accept a list without repetition."""
    return None if len(set(names)) == len(names) else "must not have an entry twice"


@frozen(kw_only=True)
class BrokerConfig(
    NetworkSettings,
    TlsSettings,
    RequestLimits,
    QuotaSettings,
    TransactionSettings,
    ShareGroupSettings,
    AuthorizationSettings,
    SaslSettings,
    PasswordEncoderSettings,
    ZooKeeperClientSettings,
    MetricsSettings,
):
    """One broker's settings. Every field is a key of Kafka's `server.properties` in snake case."""

    # --- identity
    broker_id: int = setting(-1, "The broker's id; -1 takes one above reserved.broker.max.id.", at_least(-1))
    broker_id_generation_enable: bool = setting(True, "Whether a broker without an id gets a generated one.")
    reserved_broker_max_id: int = setting(1000, "The largest id that can be configured.", at_least(0))
    broker_rack: str | None = setting(None, "The broker's rack (or zone); replicas are spread over racks.")

    # --- coordination
    zookeeper_connect: str | None = setting(
        None,
        "ZooKeeper's addresses, `host:port,…/chroot`, or a directory; without it a coordinator is embedded.",
    )
    zookeeper_session_timeout_ms: int = setting(
        18_000, "How long ZooKeeper keeps the session of a broker without a connection.", at_least(1)
    )
    zookeeper_connection_timeout_ms: int | None = setting(
        None, "How long to try to reach ZooKeeper at start; by default the session timeout."
    )
    zookeeper_max_in_flight_requests: int = setting(
        1_000,
        "Requests to ZooKeeper in flight at once; further ones wait. With Kafka's default of 10, reading "
        "and writing thousands of znodes, as a new controller does, takes about 1.5 times as long here.",
        at_least(1),
    )
    controlled_shutdown_enable: bool = setting(
        True, "Whether the broker hands over its leaderships before it stops."
    )
    controlled_shutdown_max_retries: int = setting(3, "Attempts of a controlled shutdown.", at_least(0))
    controlled_shutdown_retry_backoff_ms: int = setting(
        5_000, "Pause between attempts of a controlled shutdown.", at_least(0), long=True
    )
    controller_socket_timeout_ms: int = setting(
        30_000, "How long the controller waits for a broker's response.", at_least(1)
    )
    auto_leader_rebalance_enable: bool = setting(
        True, "Whether the controller moves leaderships back to the preferred replicas."
    )
    leader_imbalance_per_broker_percentage: int = setting(
        10,
        "Percentage of a broker's preferred leaderships on other brokers that starts a rebalance.",
        at_least(0),
    )
    leader_imbalance_check_interval_seconds: int = setting(
        300, "How often the imbalance is checked.", at_least(1), long=True
    )
    unclean_leader_election_enable: bool = setting(
        False,
        "Whether a replica outside the ISR, which may lack acknowledged records, can become leader.",
        update=_CLUSTER,
    )
    inter_broker_protocol_version: str = setting(
        "2.8-IV1", "Accepted for compatibility; the broker speaks the protocol of Kafka 2.8."
    )

    # --- topics
    num_partitions: int = setting(
        1, "Partitions of a topic that is created without a number of partitions.", at_least(1)
    )
    default_replication_factor: int = setting(
        1, "Replicas of a topic that is created without a replication factor.", at_least(1)
    )
    auto_create_topics_enable: bool = setting(
        True, "Whether a client's first request for a topic creates it."
    )
    delete_topic_enable: bool = setting(True, "Whether topics can be deleted.")
    create_topic_policy_class_name: str | None = setting(
        None, "Not supported: policies are Java classes. Must stay empty."
    )
    min_insync_replicas: int = setting(
        1,
        "In-sync replicas that must hold a record before acks=all is acknowledged.",
        at_least(1),
        update=_CLUSTER,
    )
    max_partitions_per_topic: int = setting(
        50_000,
        "The most partitions of a created topic. A znode holds about 60,000 with one replica.",
        at_least(1),
        ottla_only=True,
        update=_CLUSTER,
    )
    compression_type: str = setting(
        "producer",
        "The codec of stored batches; `producer` keeps the producer's.",
        one_of(*COMPRESSION_TYPES),
        update=_CLUSTER,
    )
    compression_gzip_level: int = setting(
        DEFAULT_GZIP_LEVEL,
        "The level of gzip where the broker compresses; -1 is its default.",
        gzip_level,
        update=_CLUSTER,
    )
    compression_lz4_level: int = setting(
        DEFAULT_LZ4_LEVEL, "The level of lz4 where the broker compresses.", LZ4_LEVEL, update=_CLUSTER
    )
    compression_zstd_level: int = setting(
        DEFAULT_ZSTD_LEVEL,
        "The level of zstd where the broker compresses; above 4 MiB of records, 19 at most.",
        ZSTD_LEVEL,
        update=_CLUSTER,
    )
    message_max_bytes: int = setting(
        1_048_588,
        "The largest batch a producer may send, its overhead included.",
        at_least(0),
        update=_CLUSTER,
    )

    # --- log
    log_dir: str = setting("/tmp/kafka-logs", "The data directory, when log.dirs is not set.")
    log_dirs: tuple[str, ...] | None = setting(
        None,
        "The data directories, separated by commas; a new partition is created in the one with the fewest.",
    )
    log_dir_full_backoff_ms: int = setting(
        5_000,
        "How long a full log directory has to have room before its replicas copy and lead again; twice as "
        "long each time it fills up again within ten minutes.",
        at_least(0),
        ottla_only=True,
    )
    log_dir_full_backoff_max_ms: int = setting(
        300_000, "The longest such time.", at_least(0), ottla_only=True
    )
    log_segment_bytes: int = setting(
        1_073_741_824, "Size at which a log rolls to a new segment.", at_least(14), update=_CLUSTER
    )
    log_roll_ms: int | None = setting(
        None, "Age at which a log rolls to a new segment.", at_least(1), long=True, update=_CLUSTER
    )
    log_roll_hours: int = setting(168, "The same in hours, when log.roll.ms is not set.", at_least(1))
    log_roll_jitter_ms: int | None = setting(
        None,
        "The maximum random amount subtracted from the roll age.",
        at_least(0),
        long=True,
        update=_CLUSTER,
    )
    log_roll_jitter_hours: int = setting(
        0, "The same in hours, when log.roll.jitter.ms is not set.", at_least(0)
    )
    log_retention_ms: int | None = setting(
        None, "Age at which a segment is deleted; -1 means never.", at_least(-1), long=True, update=_CLUSTER
    )
    log_retention_minutes: int | None = setting(
        None, "The same in minutes, when log.retention.ms is not set.", at_least(-1)
    )
    log_retention_hours: int = setting(
        168, "The same in hours, when neither of the others is set.", at_least(-1)
    )
    log_retention_bytes: int = setting(
        -1,
        "Size of a partition above which its oldest segments are deleted; -1 means no limit.",
        long=True,
        update=_CLUSTER,
    )
    log_retention_check_interval_ms: int = setting(
        300_000, "How often retention is applied.", at_least(1), long=True
    )
    log_cleanup_policy: tuple[str, ...] = setting(
        ("delete",),
        "The treatment of old segments: `delete`, `compact`, or both.",
        each_of("delete", "compact"),
        update=_CLUSTER,
    )
    log_cleaner_enable: bool = setting(True, "Whether topics with `cleanup.policy=compact` are compacted.")
    log_cleaner_threads: int = setting(
        1, "Threads for compaction: the logs that are compacted at once.", at_least(0), update=_CLUSTER
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        1.7976931348623157e308,
        "Bytes a second that compaction may read and write, all threads together.",
        update=_CLUSTER,
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        134_217_728,
        "Memory for the newest offset of each key, all threads together: 24 bytes a key, and what the load "
        "factor leaves free. A log with more dirty keys is compacted in several passes.",
        long=True,
        update=_CLUSTER,
    )
    log_cleaner_io_buffer_size: int = setting(
        524_288,
        "Memory for reading and writing in compaction, all threads together.",
        at_least(0),
        update=_CLUSTER,
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        0.9, "How full the memory for keys may become; more makes it slower.", between(0, 1), update=_CLUSTER
    )
    log_cleaner_backoff_ms: int = setting(
        15_000,
        "Pause when there is nothing to compact.",
        at_least(0),
        long=True,
        update=_CLUSTER,
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        0.5,
        "Ratio of uncompacted bytes above which a log is compacted.",
        between(0, 1),
        update=_CLUSTER,
    )
    log_cleaner_delete_retention_ms: int = setting(
        86_400_000,
        "How long a tombstone is kept after its compaction.",
        at_least(0),
        long=True,
        update=_CLUSTER,
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        0, "Minimum age of a record before it is compacted.", at_least(0), long=True, update=_CLUSTER
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        MAX_LONG, "Maximum age of a record until it is compacted.", at_least(1), long=True, update=_CLUSTER
    )
    log_index_size_max_bytes: int = setting(
        10_485_760,
        "Size of an index file; a full one rolls the log to a new segment.",
        at_least(4),
        update=_CLUSTER,
    )
    log_index_interval_bytes: int = setting(
        4_096, "Bytes of records between two entries of the offset index.", at_least(0), update=_CLUSTER
    )
    log_flush_interval_messages: int = setting(
        MAX_LONG, "Records after which a log is flushed to disk.", at_least(1), long=True, update=_CLUSTER
    )
    log_flush_interval_ms: int | None = setting(
        None, "Time after which appended records are flushed to disk.", long=True, update=_CLUSTER
    )
    log_flush_scheduler_interval_ms: int = setting(
        MAX_LONG, "How often logs are checked for a due flush.", long=True
    )
    log_flush_before_acknowledge: bool = setting(
        False,
        "Whether a produce request is acknowledged only after its records are on disk (one fsync for all).",
        ottla_only=True,
        update=_CLUSTER,
    )
    log_record_validation: str = setting(
        "all",
        "The check of batches from clients before they are acknowledged: `all` reads every record, as Apache "
        "Kafka does; `headers` trusts the producers of batches with a right checksum.",
        one_of("all", "headers"),
        ottla_only=True,
        update=_CLUSTER,
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        60_000, "How often recovery points are checkpointed.", at_least(0)
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        60_000, "How often log start offsets are checkpointed.", at_least(0)
    )
    log_segment_delete_delay_ms: int = setting(
        60_000,
        "How long a deleted segment stays on disk, renamed.",
        at_least(0),
        long=True,
        update=_CLUSTER,
    )
    log_preallocate: bool = setting(
        False, "Whether a new segment's file is allocated in full at once.", update=_CLUSTER
    )
    log_message_format_version: str = setting(
        "3.0-IV1", "Accepted for compatibility; batches are always stored in format 2."
    )
    log_message_timestamp_type: str = setting(
        "CreateTime",
        "Whether a record keeps its producer's timestamp or gets the time of its append.",
        one_of("CreateTime", "LogAppendTime"),
        update=_CLUSTER,
    )
    log_message_timestamp_difference_max_ms: int = setting(
        MAX_LONG,
        "Largest difference between a timestamp and the broker's clock.",
        at_least(0),
        long=True,
        update=_CLUSTER,
    )
    log_message_timestamp_before_max_ms: int = setting(
        MAX_LONG,
        "How far a timestamp may be before the broker's clock.",
        at_least(0),
        long=True,
        update=_CLUSTER,
    )
    log_message_timestamp_after_max_ms: int = setting(
        MAX_LONG,
        "How far a timestamp may be ahead of the broker's clock.",
        at_least(0),
        long=True,
        update=_CLUSTER,
    )
    log_message_downconversion_enable: bool = setting(
        True, "Whether batches are converted for consumers that know only older formats.", update=_CLUSTER
    )
    num_recovery_threads_per_data_dir: int = setting(
        1,
        "Threads per data directory for recovery at start and flushing at stop (there four or more).",
        at_least(1),
        update=_CLUSTER,
    )
    max_open_segment_files: int = setting(
        4_096,
        "Segments open at once; others are opened again when they are read. The newest segment of each "
        "partition stays open.",
        at_least(16),
        ottla_only=True,
    )

    # --- replication
    replica_lag_time_max_ms: int = setting(
        30_000, "How long a follower may lag before it is removed from the ISR.", at_least(1), long=True
    )
    replica_socket_timeout_ms: int = setting(
        30_000, "How long a follower waits for a response of its leader.", at_least(1)
    )
    replica_socket_receive_buffer_bytes: int = setting(
        65_536,
        "The receive buffer (SO_RCVBUF) of a follower's connection to a leader; -1 leaves it to the system.",
        at_least(-1),
    )
    replica_fetch_max_bytes: int = setting(1_048_576, "Bytes a follower fetches per partition.", at_least(0))
    replica_fetch_wait_max_ms: int = setting(
        500, "How long a leader may delay a follower's fetch.", at_least(0)
    )
    replica_fetch_min_bytes: int = setting(
        1, "The minimum bytes of the response to a follower's fetch.", at_least(0)
    )
    replica_fetch_response_max_bytes: int = setting(
        10_485_760, "The maximum bytes of the response to a follower's fetch.", at_least(0)
    )
    replica_fetch_backoff_ms: int = setting(1_000, "The longest pause after a failed fetch.", at_least(0))
    num_replica_fetchers: int = setting(1, "Fetchers per leader.", at_least(1), update=_CLUSTER)
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        5_000, "How often high watermarks are checkpointed.", at_least(1), long=True
    )
    replica_selector_class: str | None = setting(
        None,
        "Chooses the replica that a consumer reads from: RackAwareReplicaSelector; none: the leader.",
    )
    fetch_purgatory_purge_interval_requests: int = setting(1_000, _NOTHING_TO_PURGE)
    producer_purgatory_purge_interval_requests: int = setting(1_000, _NOTHING_TO_PURGE)
    delete_records_purgatory_purge_interval_requests: int = setting(1, _NOTHING_TO_PURGE)
    max_incremental_fetch_session_cache_slots: int = setting(
        1_000, "Fetch sessions kept at once.", at_least(0)
    )
    max_incremental_fetch_session_cache_partitions: int = setting(
        500_000,
        "Partitions kept in all fetch sessions of clients; beyond it their fetches have no session.",
        at_least(0),
        ottla_only=True,
    )
    fetch_max_bytes: int = setting(57_671_680, "The maximum bytes of a fetch response.", at_least(1024))

    # --- groups and offsets
    group_min_session_timeout_ms: int = setting(6_000, "The shortest session timeout a member may request.")
    group_max_session_timeout_ms: int = setting(
        1_800_000, "The longest session timeout a member may request."
    )
    group_initial_rebalance_delay_ms: int = setting(
        3_000, "How long the first rebalance of an empty group waits for more members.", at_least(0)
    )
    group_max_size: int = setting(MAX_INT, "The most members of a group.", at_least(1))
    group_consumer_session_timeout_ms: int = setting(
        45_000, "How long a silent member stays in a group of the consumer protocol.", at_least(1)
    )
    group_consumer_min_session_timeout_ms: int = setting(
        45_000, "The shortest `consumer.session.timeout.ms` of a group.", at_least(1)
    )
    group_consumer_max_session_timeout_ms: int = setting(
        60_000, "The longest `consumer.session.timeout.ms` of a group.", at_least(1)
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        5_000, "The time between two heartbeats of a member of the consumer protocol.", at_least(1)
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        5_000, "The shortest `consumer.heartbeat.interval.ms` of a group.", at_least(1)
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        15_000, "The longest `consumer.heartbeat.interval.ms` of a group.", at_least(1)
    )
    group_consumer_assignment_interval_ms: int = setting(
        1_000, "The least time between two assignments of a group of the consumer protocol.", at_least(0)
    )
    group_consumer_min_assignment_interval_ms: int = setting(
        0, "The shortest `consumer.assignment.interval.ms` of a group.", at_least(0)
    )
    group_consumer_max_assignment_interval_ms: int = setting(
        15_000, "The longest `consumer.assignment.interval.ms` of a group.", at_least(0)
    )
    group_consumer_max_size: int = setting(
        MAX_INT, "The most members of a group of the consumer protocol.", at_least(1)
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        ("uniform", "range"),
        "The assignors of the consumer protocol; the first one serves groups whose members ask for none.",
        assignors,
    )
    group_consumer_migration_policy: str = setting(
        "bidirectional",
        "Whether groups move between the classic and the consumer protocol while their members run: "
        "`bidirectional`, `upgrade`, `downgrade`, or `disabled`.",
        one_of_in_any_case("bidirectional", "upgrade", "downgrade", "disabled"),
    )
    group_consumer_regex_refresh_interval_ms: int = setting(
        600_000, "How often the topics of subscriptions by expression are looked for.", at_least(10_000)
    )
    group_max_count: int = setting(
        20_000,
        "The most groups that the broker coordinates; one more is answered with GROUP_MAX_SIZE_REACHED.",
        at_least(1),
        ottla_only=True,
    )
    group_rebalance_heartbeat_interval_ms: int = setting(
        500,
        "The shortest heartbeat interval that members of consumer, share and streams groups are told while "
        "their group rebalances; the more members rebalance, the longer it is, up to the interval of the "
        "group. 0 tells them that of the group at all times, as Apache Kafka does.",
        at_least(0),
        ottla_only=True,
    )
    group_max_metadata_bytes: int = setting(
        1_048_576,
        "The most bytes of metadata that the members of a group send together when they join.",
        at_least(1),
        ottla_only=True,
    )
    group_streams_session_timeout_ms: int = setting(
        45_000, "How long a silent member stays in a streams group.", at_least(1)
    )
    group_streams_min_session_timeout_ms: int = setting(
        45_000, "The shortest `streams.session.timeout.ms` of a group.", at_least(1)
    )
    group_streams_max_session_timeout_ms: int = setting(
        60_000, "The longest `streams.session.timeout.ms` of a group.", at_least(1)
    )
    group_streams_heartbeat_interval_ms: int = setting(
        5_000, "The time between two heartbeats of a member of a streams group.", at_least(1)
    )
    group_streams_min_heartbeat_interval_ms: int = setting(
        5_000, "The shortest `streams.heartbeat.interval.ms` of a group.", at_least(1)
    )
    group_streams_max_heartbeat_interval_ms: int = setting(
        15_000, "The longest `streams.heartbeat.interval.ms` of a group.", at_least(1)
    )
    group_streams_max_size: int = setting(MAX_INT, "The most members of a streams group.", at_least(1))
    group_streams_max_topology_topics: int = setting(
        1_000,
        "The most topics that the topology of a streams group names, each time that it names one; a larger "
        "one is answered with STREAMS_INVALID_TOPOLOGY.",
        at_least(1),
        ottla_only=True,
    )
    group_streams_num_standby_replicas: int = setting(
        0, "How many standby tasks each task with state has.", at_least(0)
    )
    group_streams_max_standby_replicas: int = setting(
        2, "The largest `streams.num.standby.replicas` of a group.", at_least(0)
    )
    group_streams_initial_rebalance_delay_ms: int = setting(
        3_000, "How long the first assignment of a streams group waits for more members.", at_least(0)
    )
    group_streams_assignment_interval_ms: int = setting(
        1_000, "The least time between two assignments of a streams group.", at_least(0), update=_CLUSTER
    )
    group_streams_min_assignment_interval_ms: int = setting(
        0, "The shortest `streams.assignment.interval.ms` of a group.", at_least(0)
    )
    group_streams_max_assignment_interval_ms: int = setting(
        15_000, "The longest `streams.assignment.interval.ms` of a group.", at_least(0)
    )
    group_streams_assignors: tuple[str, ...] = setting(
        ("sticky",),
        "Accepted for compatibility: streams groups have one assignor, which Kafka calls sticky.",
        only("sticky"),
    )
    group_streams_rack_aware_assignment_tags: tuple[str, ...] = setting(
        (),
        "The client tags that members must have, so that standby tasks can be spread over their values.",
        each_once,
    )
    group_streams_task_offset_interval_ms: int = setting(
        60_000, "How often members report the offsets of their tasks.", at_least(1)
    )
    group_streams_min_task_offset_interval_ms: int = setting(
        15_000, "The shortest `streams.task.offset.interval.ms` of a group.", at_least(1)
    )
    group_streams_acceptable_recovery_lag: int = setting(
        10_000, "The lag up to which the state of a task counts as complete.", at_least(0), long=True
    )
    offset_metadata_max_bytes: int = setting(4_096, "The longest metadata of a committed offset.")
    offsets_load_buffer_size: int = setting(
        5_242_880, "Bytes per read when a partition of __consumer_offsets is loaded.", at_least(1)
    )
    offsets_topic_replication_factor: int = setting(3, "Replicas of __consumer_offsets.", at_least(1))
    offsets_topic_num_partitions: int = setting(50, "Partitions of __consumer_offsets.", at_least(1))
    offsets_topic_segment_bytes: int = setting(
        104_857_600, "Segment size of __consumer_offsets.", at_least(1)
    )
    offsets_topic_compression_codec: int = setting(
        0, "Compression codec of __consumer_offsets, as a number.", between(0, 4)
    )
    offsets_retention_minutes: int = setting(
        10_080, "How long the offsets of an empty group are kept.", at_least(1)
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, "How often expired offsets are removed.", at_least(1), long=True
    )
    offsets_commit_timeout_ms: int = setting(
        5_000, "How long an offset commit waits for its replicas.", at_least(1)
    )
    offsets_commit_required_acks: int = setting(
        -1, "Accepted for compatibility; commits wait for all replicas."
    )

    # --- monitoring and Ottla's own
    event_loop_watchdog_enable: bool = setting(
        True,
        "Whether a broker with `zookeeper.connect` ends when its event loop is blocked for a session "
        "timeout, so that it does not stay leader. After two thirds of it all stacks are logged.",
        ottla_only=True,
    )

    @property
    def retention_ms(self) -> int:
        """Retention by time: the first that is set of milliseconds, minutes, hours; -1 for none."""
        if self.log_retention_ms is not None:
            return self.log_retention_ms
        if self.log_retention_minutes is not None:
            return max(-1, self.log_retention_minutes * 60_000)
        return self.log_retention_hours * _HOUR_MS if self.log_retention_hours >= 0 else -1

    @property
    def data_dirs(self) -> tuple[str, ...]:
        """The directories that hold partitions."""
        return self.log_dirs or (self.log_dir,)
