"""Share groups (KIP-932): share partitions on the leaders of partitions, and the share coordinator."""

__all__: list[str] = []
