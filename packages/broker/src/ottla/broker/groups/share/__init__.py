"""Share groups of the group coordinator (KIP-932): members, assignments, initialized partitions."""

__all__: list[str] = []
