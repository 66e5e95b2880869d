"""Metrics that clients push to the broker (KIP-714), imported with the first client that asks."""

__all__: list[str] = []
