"""The processor: it reads records, runs handlers, commits, and drains partitions that it gives up."""

__all__: list[str] = []
