"""Every recorded conversation by its name, in the order in which they are had with one broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from peers import conversations_of_clusters as clusters
from peers import conversations_of_groups as groups
from peers import conversations_of_shares as shares
from peers.conversations import Script

SCRIPTS: Final[Mapping[str, Script]] = {
    script.__name__: script
    for script in (
        groups.consumer_groups_0, groups.consumer_groups_1, groups.classic_groups,
        groups.streams_groups_0, groups.streams_groups_1,
        shares.share_groups, shares.share_sessions_1, shares.share_sessions_2, shares.share_state,
        clusters.logs, clusters.cluster, clusters.config_resources, clusters.transactions, clusters.telemetry,
    )
}  # fmt: skip
