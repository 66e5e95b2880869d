"""Replication of partitions: leader and followers, in-sync replicas, high watermarks."""

__all__: list[str] = []
