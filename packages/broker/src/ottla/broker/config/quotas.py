"""The broker's settings of quotas: rates of replication, and how the rates of clients are measured.

The quotas of clients themselves are no settings: `kafka-configs` sets them for users and client ids.
"""

from __future__ import annotations

from typing import Final

from ottla.client.config_definition import MAX_LONG, at_least, setting
from ottla.zookeeper.frozen_classes import field_group

_CLUSTER: Final = "cluster-wide"


@field_group
class QuotaSettings:
    """The part of `BrokerConfig` about quotas."""

    quota_window_num: int = setting(
        11, "Windows over which the rates of clients' quotas are measured.", at_least(1)
    )
    quota_window_size_seconds: int = setting(1, "Length of such a window.", at_least(1))
    controller_quota_window_num: int = setting(
        11,
        "Windows whose controller mutations a client may make at once, before its rate limits it.",
        at_least(1),
    )
    controller_quota_window_size_seconds: int = setting(1, "Length of such a window.", at_least(1))

    leader_replication_throttled_rate: int = setting(
        MAX_LONG,
        "Bytes per second sent to throttled followers that are not in sync.",
        at_least(0),
        long=True,
        update=_CLUSTER,
    )
    follower_replication_throttled_rate: int = setting(
        MAX_LONG,
        "Bytes per second copied from leaders into throttled replicas that are not in sync.",
        at_least(0),
        long=True,
        update=_CLUSTER,
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = setting(
        MAX_LONG,
        "Bytes per second of moves between log directories.",
        at_least(0),
        long=True,
        update=_CLUSTER,
    )
    replication_quota_window_num: int = setting(
        11, "Windows over which the rate of throttled replication is measured.", at_least(1)
    )
    replication_quota_window_size_seconds: int = setting(1, "Length of such a window.", at_least(1))
    alter_log_dirs_replication_quota_window_num: int = setting(
        11, "Windows over which the rate of moves between log directories is measured.", at_least(1)
    )
    alter_log_dirs_replication_quota_window_size_seconds: int = setting(
        1, "Length of such a window.", at_least(1)
    )
