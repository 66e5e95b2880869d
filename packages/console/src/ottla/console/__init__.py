"""The web console: clusters, topics, partitions, replicas, and groups with their lag, in a browser."""

__version__ = "0.1.0"

__all__ = ["__version__"]
