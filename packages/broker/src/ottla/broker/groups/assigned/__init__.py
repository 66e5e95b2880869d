"""Groups whose coordinator assigns the partitions (KIP-848): topics and assignors."""

__all__: list[str] = []
