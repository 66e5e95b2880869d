"""Replication of partitions: leader and followers, in-sync replicas, high watermarks."""
