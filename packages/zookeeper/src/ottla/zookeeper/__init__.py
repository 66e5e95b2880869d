"""ZooKeeper for Ottla: paths, znodes, a kazoo session for asyncio, an embedded coordinator."""

__all__: list[str] = []
