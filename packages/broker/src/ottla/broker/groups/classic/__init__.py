"""The classic group protocol: members, rebalances, and the state of a group."""

__all__: list[str] = []
