"""The cluster as one broker knows it: metadata, topics, configurations, placement, registration, peers."""

__all__: list[str] = []
