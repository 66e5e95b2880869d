"""Take part in a consumer group: membership, rebalances, heartbeats, and commits."""

__all__: list[str] = []
