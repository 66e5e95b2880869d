from __future__ import annotations

from peers.shared_cluster import cluster, cluster_of_module, orders

__all__ = ["cluster", "cluster_of_module", "orders"]
